package demo

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// chosen returns the class that each workload of the manifests chooses, and the
// MeshConfig's class under "".
func chosen(t *testing.T, manifests map[string]string) map[string]string {
	t.Helper()
	classes := map[string]string{}
	for file, text := range manifests {
		for document := range strings.SplitSeq(text, "\n---\n") {
			var object appsv1.Deployment // A StatefulSet has its template at the same place.
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			switch object.Kind {
			case "Deployment", "StatefulSet":
				if class := object.Spec.Template.Annotations["openservicemesh.io/sidecar-class"]; class != "" {
					classes[object.Name] = class
				}
			case "MeshConfig":
				var config v1alpha2.MeshConfig
				if err := yaml.UnmarshalStrict([]byte(document), &config); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				classes[""] = config.Spec.Sidecar.SidecarClass
			}
		}
	}
	return classes
}

func TestSetClass(t *testing.T) {
	for class, want := range map[string]map[string]string{
		"envoy": {"": "envoy"},
		"pipy":  {"": "pipy"},
		Mixed: {
			"": "envoy", "bookbuyer": "envoy", "bookthief": "pipy", "bookstore-v1": "pipy",
			"bookstore-v2": "haproxy", "bookwarehouse": "haproxy", "stock": "envoy",
		},
	} {
		manifests, err := manifests()
		if err != nil {
			t.Fatal(err)
		}
		original := maps.Clone(manifests)
		if err := setClass(class, manifests); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, chosen(t, manifests)); diff != "" {
			t.Errorf("%s: classes of the workloads (-want +got):\n%s", class, diff)
		}
		if class == "envoy" {
			if diff := cmp.Diff(original, manifests); diff != "" {
				t.Errorf("the sample is changed (-want +got):\n%s", diff)
			}
		}
	}
	if err := setClass("pipy", map[string]string{"a.yaml": "kind: MeshConfig"}); err == nil {
		t.Error("manifests without a class are accepted")
	}
}

func TestCheckClass(t *testing.T) {
	without := fmt.Errorf("pipy: %w; build it", driver.ErrNoProxy)
	programs := localmesh.Programs{
		Proxies: map[string]string{"envoy": "/bin/envoy", "haproxy": "/bin/haproxy", "mine": "/bin/mine"}, Missing: map[string]error{"pipy": without},
	}
	for class, want := range map[string]string{
		"envoy": "", "mine": "",
		"pipy":  `sidecar class "pipy": ` + without.Error(),
		Mixed:   `sidecar class "pipy": ` + without.Error(),
		"squid": `sidecar class "squid": no driver knows a proxy for it; classes are envoy, haproxy, mine, pipy, mixed`,
		"":      `sidecar class "": no driver knows a proxy for it; classes are envoy, haproxy, mine, pipy, mixed`,
	} {
		err := CheckClass(class, programs)
		if got := fmt.Sprint(err); err == nil && want != "" || err != nil && got != want {
			t.Errorf("%q: got %v, want %q", class, err, want)
		}
		if class == Mixed && !errors.Is(err, driver.ErrNoProxy) {
			t.Errorf("%q: %v does not wrap ErrNoProxy", class, err)
		}
	}
	programs.Proxies["pipy"] = "/bin/pipy"
	if err := CheckClass(Mixed, programs); err != nil {
		t.Errorf("with both programs: %v", err)
	}
}
