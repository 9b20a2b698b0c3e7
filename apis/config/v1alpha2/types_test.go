package v1alpha2_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha1"
	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// exports returns the content of each MeshConfig in testdata by file name.
func exports(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no MeshConfigs in testdata: %v", err)
	}
	contents := make(map[string][]byte)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		contents[filepath.Base(file)] = content
	}
	return contents
}

// TestExportsDecode reads exported MeshConfigs without an API server, as the
// offline commands do, in the version that each names.
func TestExportsDecode(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, v1alpha2.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()

	specs := make(map[string]v1alpha2.MeshConfigSpec)
	for name, content := range exports(t) {
		object, _, err := decoder.Decode(content, nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		switch config := object.(type) {
		case *v1alpha1.MeshConfig:
			specs[name] = config.Spec
		case *v1alpha2.MeshConfig:
			specs[name] = config.Spec
		}
	}

	osm, edge := specs["osm-1.2-v1alpha2.yaml"], specs["osm-edge-1.3-v1alpha2.yaml"]
	type values struct {
		Resync            v1alpha2.Duration
		CPU               string
		Permissive        bool
		OutboundPorts     []int32
		DriverPort        int32
		PluginPriority    float64
		Sampled           string
		DisabledFlagIsSet bool
	}
	got := values{
		Resync:            edge.Sidecar.ConfigResyncInterval,
		CPU:               osm.Sidecar.Resources.Limits.Cpu().String(),
		Permissive:        *osm.Traffic.EnablePermissiveTrafficPolicyMode,
		OutboundPorts:     osm.Traffic.OutboundPortExclusionList,
		DriverPort:        edge.Sidecar.SidecarDrivers[0].ProxyServerPort,
		PluginPriority:    edge.PluginChains.InboundHTTPChains[1].Priority,
		Sampled:           *edge.Observability.Tracing.SampledFraction,
		DisabledFlagIsSet: edge.FeatureFlags.EnableRetryPolicy != nil,
	}
	want := values{
		Resync:            "90s",
		CPU:               "500m",
		Permissive:        true,
		OutboundPorts:     []int32{6379, 6379, 65535},
		DriverPort:        6060,
		PluginPriority:    100.5,
		Sampled:           "0.25",
		DisabledFlagIsSet: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decoded values (-want +got):\n%s", diff)
	}
}

// TestMarshalLeavesOutWhatIsNotSet keeps a client that writes a MeshConfig back from
// setting fields that the user had left out.
func TestMarshalLeavesOutWhatIsNotSet(t *testing.T) {
	config := v1alpha2.MeshConfig{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha2.SchemeGroupVersion.String(), Kind: "MeshConfig"},
		ObjectMeta: metav1.ObjectMeta{Name: "osm-mesh-config"},
		Spec:       v1alpha2.MeshConfigSpec{Sidecar: v1alpha2.SidecarSpec{SidecarClass: "pipy"}},
	}
	want := `apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata:
  name: osm-mesh-config
spec:
  sidecar:
    sidecarClass: pipy
`
	got, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("as YAML (-want +got):\n%s", diff)
	}
	unstructured, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&config)
	if err != nil {
		t.Fatal(err)
	}
	got, err = yaml.Marshal(unstructured)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("as unstructured (-want +got):\n%s", diff)
	}
}

func TestWindowsImage(t *testing.T) {
	tests := []struct {
		name    string
		sidecar string
		want    string
	}{
		{"none", `envoyWindowsImage: e`, ""},
		{"right key", `{sidecarWindowsImage: a, SidecarImageWindowsImage: b, sidecarImageWindowsImage: c, sideWindowsImage: d}`, "a"},
		{"the proposal's key", `{SidecarImageWindowsImage: b, sidecarImageWindowsImage: c, sideWindowsImage: d}`, "b"},
		{"osm-edge's key", `{sidecarImageWindowsImage: c, sideWindowsImage: d}`, "c"},
		{"osm-edge's key in v1alpha1", `sideWindowsImage: d`, "d"},
		{"driver, right key", `sidecarDrivers: [{sidecarName: x, sidecarWindowsImage: a, SidecarImageWindowsImage: b}]`, "a"},
		{"driver, the proposal's key", `sidecarDrivers: [{sidecarName: x, SidecarImageWindowsImage: b, sidecarImageWindowsImage: c}]`, "b"},
		{"driver, osm-edge's key", `sidecarDrivers: [{sidecarName: x, sidecarImageWindowsImage: c}]`, "c"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var sidecar v1alpha2.SidecarSpec
			if err := yaml.UnmarshalStrict([]byte(tt.sidecar), &sidecar); err != nil {
				t.Fatal(err)
			}
			got := sidecar.WindowsImage()
			if len(sidecar.SidecarDrivers) > 0 {
				got = sidecar.SidecarDrivers[0].WindowsImage()
			}
			if got != tt.want {
				t.Errorf("WindowsImage() = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestResource(t *testing.T) {
	want := schema.GroupResource{Group: "config.openservicemesh.io", Resource: "meshconfigs"}
	if got := v1alpha1.Resource("meshconfigs"); got != want {
		t.Errorf("v1alpha1.Resource() = %v, want %v", got, want)
	}
	if got := v1alpha2.Resource("meshconfigs"); got != want {
		t.Errorf("v1alpha2.Resource() = %v, want %v", got, want)
	}
}
