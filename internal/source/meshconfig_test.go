package source_test

import (
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// options returns the options of a build with the drivers envoy, pipy and null. Null has no
// image.
func options(env map[string]string) source.ConfigOptions {
	return source.ConfigOptions{
		Classes: []string{"envoy", "null", "pipy"},
		BuiltinImage: func(class, os string) string {
			if class == "null" {
				return ""
			}
			return "builtin/" + class + "-" + os
		},
		Env:       func(name string) string { return env[name] },
		InitImage: "builtin/init",
	}
}

// parse returns a MeshConfig with the spec, without the API server's defaults.
func parse(t *testing.T, spec string) *v1alpha2.MeshConfig {
	t.Helper()
	obj := &v1alpha2.MeshConfig{}
	obj.Namespace, obj.Name = "osm-system", "osm-mesh-config"
	if err := yaml.UnmarshalStrict([]byte(spec), &obj.Spec); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return obj
}

// brief lists Problems as "Reason field".
func brief(problems []mesh.Problem) []string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, p.Reason+" "+p.Field)
	}
	return lines
}

func TestImages(t *testing.T) {
	everyEnv := map[string]string{
		"OSM_DEFAULT_SIDECAR_IMAGE":         "env/linux",
		"OSM_DEFAULT_SIDECAR_WINDOWS_IMAGE": "env/windows",
		"OSM_DEFAULT_INIT_CONTAINER_IMAGE":  "env/init",
	}
	const meshWide = "sidecarImage: wide/linux, sidecarWindowsImage: wide/windows, initContainerImage: wide/init"
	const entry = "sidecarImage: entry/linux, sidecarWindowsImage: entry/windows, initContainerImage: entry/init"
	// conflicts are the Problems of an entry that the mesh-wide images override.
	conflicts := []string{
		"Conflict spec.sidecar.sidecarDrivers[0].initContainerImage",
		"Conflict spec.sidecar.sidecarDrivers[0].sidecarImage",
		"Conflict spec.sidecar.sidecarDrivers[0].sidecarWindowsImage",
	}
	tests := []struct {
		name    string
		sidecar string
		env     map[string]string
		class   string
		// want is the image on Linux, the one on Windows and the init image.
		want         [3]string
		wantProblems []string
	}{
		// The default class: mesh-wide, entry, environment, built in.
		{"default: mesh-wide wins over the environment", `{sidecarClass: pipy, ` + meshWide + `}`, everyEnv, "pipy",
			[3]string{"wide/linux", "wide/windows", "wide/init"}, nil},
		{"default: mesh-wide wins over its entry", `{sidecarClass: pipy, ` + meshWide + `, sidecarDrivers: [{sidecarName: pipy, ` + entry + `}]}`, everyEnv, "pipy",
			[3]string{"wide/linux", "wide/windows", "wide/init"}, conflicts},
		{"default: entry wins over the environment", `{sidecarClass: pipy, sidecarDrivers: [{sidecarName: pipy, ` + entry + `}]}`, everyEnv, "pipy",
			[3]string{"entry/linux", "entry/windows", "entry/init"}, nil},
		{"default: the environment wins over the built-in", `{sidecarClass: pipy}`, everyEnv, "pipy",
			[3]string{"env/linux", "env/windows", "env/init"}, nil},
		{"default: built in last of all", `{sidecarClass: pipy}`, nil, "pipy",
			[3]string{"builtin/pipy-linux", "builtin/pipy-windows", "builtin/init"}, nil},
		{"default: a driver without images", `{sidecarClass: "null"}`, nil, "null",
			[3]string{"", "", "builtin/init"}, nil},
		{"default: each image for itself", `{sidecarClass: pipy, sidecarImage: wide/linux, sidecarDrivers: [{sidecarName: pipy, sidecarWindowsImage: entry/windows}]}`, everyEnv, "pipy",
			[3]string{"wide/linux", "entry/windows", "env/init"}, nil},
		{"default: envoy if no class is given", `{` + meshWide + `}`, nil, "envoy",
			[3]string{"wide/linux", "wide/windows", "wide/init"}, nil},
		{"default: case does not matter", `{sidecarClass: PIPY, sidecarDrivers: [{sidecarName: Pipy, ` + entry + `}]}`, everyEnv, "pIPY",
			[3]string{"entry/linux", "entry/windows", "entry/init"}, nil},

		// Another class: entry, built in.
		{"other: its entry", `{sidecarClass: pipy, ` + meshWide + `, sidecarDrivers: [{sidecarName: envoy, ` + entry + `}]}`, everyEnv, "envoy",
			[3]string{"entry/linux", "entry/windows", "entry/init"}, nil},
		{"other: built in, not mesh-wide and not the environment", `{sidecarClass: pipy, ` + meshWide + `}`, everyEnv, "envoy",
			[3]string{"builtin/envoy-linux", "builtin/envoy-windows", "builtin/init"}, nil},
		{"other: case does not matter", `{sidecarClass: pipy, sidecarDrivers: [{sidecarName: ENVOY, ` + entry + `}]}`, everyEnv, "Envoy",
			[3]string{"entry/linux", "entry/windows", "entry/init"}, nil},
		{"a class that nobody knows", `{` + meshWide + `}`, everyEnv, "ghost",
			[3]string{"", "", "builtin/init"}, nil},

		// Older names.
		{"envoyImage is the default's when that is envoy", `{envoyImage: old/linux, envoyWindowsImage: old/windows}`, everyEnv, "envoy",
			[3]string{"old/linux", "old/windows", "env/init"}, nil},
		{"envoyImage is envoy's when that is not the default", `{sidecarClass: pipy, sidecarImage: wide/linux, envoyImage: old/linux, envoyWindowsImage: old/windows}`, nil, "envoy",
			[3]string{"old/linux", "old/windows", "builtin/init"}, nil},
		{"envoyImage is not pipy's", `{sidecarClass: pipy, envoyImage: old/linux, envoyWindowsImage: old/windows}`, nil, "pipy",
			[3]string{"builtin/pipy-linux", "builtin/pipy-windows", "builtin/init"}, nil},
		{"envoyImage gives way to the mesh-wide image", `{` + meshWide + `, envoyImage: old/linux, envoyWindowsImage: old/windows}`, nil, "envoy",
			[3]string{"wide/linux", "wide/windows", "wide/init"},
			[]string{"Conflict spec.sidecar.envoyImage", "Conflict spec.sidecar.envoyWindowsImage"}},
		{"envoyImage gives way to the entry", `{sidecarDrivers: [{sidecarName: envoy, ` + entry + `}], envoyImage: old/linux}`, nil, "envoy",
			[3]string{"entry/linux", "entry/windows", "entry/init"}, []string{"Conflict spec.sidecar.envoyImage"}},
		{"envoyImage that says the same", `{sidecarImage: same, envoyImage: same}`, nil, "envoy",
			[3]string{"same", "builtin/envoy-windows", "builtin/init"}, nil},

		// Misspelt keys.
		{"the proposal's key", `{SidecarImageWindowsImage: b}`, nil, "envoy",
			[3]string{"builtin/envoy-linux", "b", "builtin/init"}, nil},
		{"osm-edge's key", `{sidecarImageWindowsImage: c}`, nil, "envoy",
			[3]string{"builtin/envoy-linux", "c", "builtin/init"}, nil},
		{"osm-edge's key in v1alpha1", `{sideWindowsImage: d}`, nil, "envoy",
			[3]string{"builtin/envoy-linux", "d", "builtin/init"}, nil},
		{"the right key wins", `{sidecarWindowsImage: a, SidecarImageWindowsImage: a, sidecarImageWindowsImage: c, sideWindowsImage: d}`, nil, "envoy",
			[3]string{"builtin/envoy-linux", "a", "builtin/init"},
			[]string{"Conflict spec.sidecar.sideWindowsImage", "Conflict spec.sidecar.sidecarImageWindowsImage"}},
		{"an entry's keys", `{sidecarDrivers: [{sidecarName: envoy, SidecarImageWindowsImage: b, sidecarImageWindowsImage: c}]}`, nil, "envoy",
			[3]string{"builtin/envoy-linux", "b", "builtin/init"},
			[]string{"Conflict spec.sidecar.sidecarDrivers[0].sidecarImageWindowsImage"}},

		{"init images of other meshes", `{initContainerImage: "openservicemesh/init:v1.2.4", sidecarDrivers: [{sidecarName: pipy, initContainerImage: "registry:5000/flomesh/init@sha256:0"}]}`, nil, "envoy",
			[3]string{"builtin/envoy-linux", "builtin/envoy-windows", "openservicemesh/init:v1.2.4"},
			[]string{"Invalid spec.sidecar.initContainerImage", "Invalid spec.sidecar.sidecarDrivers[0].initContainerImage"}},
		{"an init image of the user's", `{initContainerImage: "registry:5000/notopenservicemesh/init"}`, nil, "envoy",
			[3]string{"builtin/envoy-linux", "builtin/envoy-windows", "registry:5000/notopenservicemesh/init"}, nil},
		{"two entries of one name", `{sidecarDrivers: [{sidecarName: pipy, ` + entry + `}, {sidecarName: Pipy, sidecarImage: second, sidecarDisabledMTLS: true}]}`, nil, "pipy",
			[3]string{"entry/linux", "entry/windows", "entry/init"}, []string{"Invalid spec.sidecar.sidecarDrivers[1].sidecarName"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := source.NewConfig(parse(t, "sidecar: "+tt.sidecar), options(tt.env))
			problems := config.Problems()
			got := [3]string{
				config.GetSidecarImage(tt.class), config.GetSidecarWindowsImage(tt.class), config.GetInitContainerImage(tt.class),
			}
			if got != tt.want {
				t.Errorf("images of %s: %q, want %q", tt.class, got, tt.want)
			}
			if diff := cmp.Diff(tt.wantProblems, brief(problems)); diff != "" {
				t.Errorf("Problems (-want +got):\n%s", diff)
			}
		})
	}
}

// values are the values of a Config except images.
type values struct {
	Class       string
	Port        uint32
	MTLSOff     []string
	PipyMTLSOff bool
	Privileged  bool
	LogLevel    string
	OwnLevel    slog.Level
	Connections int
	Resync      time.Duration
	TrustDomain string
}

func read(config *source.Config) values {
	return values{
		Class:       config.GetSidecarClass(),
		Port:        config.GetProxyServerPort("PIPY"),
		MTLSOff:     config.MTLSDisabledClasses(),
		PipyMTLSOff: config.IsMTLSDisabled("PIPY"),
		Privileged:  config.IsPrivilegedInitContainer(),
		LogLevel:    config.GetSidecarLogLevel(),
		OwnLevel:    config.LogLevel(),
		Connections: config.GetMaxDataPlaneConnections(),
		Resync:      config.GetConfigResyncInterval(),
		TrustDomain: config.GetTrustDomain(),
	}
}

func TestValues(t *testing.T) {
	defaults := values{Class: "envoy", LogLevel: "error", TrustDomain: "cluster.local"}
	with := func(change func(*values)) values {
		changed := defaults
		change(&changed)
		return changed
	}
	tests := []struct {
		name, spec   string
		want         values
		wantProblems []string
	}{
		{"defaults", `{}`, defaults, nil},
		{"all set", `
sidecar:
  sidecarClass: Pipy
  logLevel: warn
  enablePrivilegedInitContainer: true
  maxDataPlaneConnections: 1000
  configResyncInterval: 1m30s
  sidecarDrivers:
  - {sidecarName: Pipy, proxyServerPort: 6061, sidecarDisabledMTLS: true}
observability: {osmLogLevel: disabled}
certificate: {trustDomain: mesh.example.com}
`, values{
			Class: "pipy", Port: 6061, MTLSOff: []string{"pipy"}, PipyMTLSOff: true, Privileged: true, LogLevel: "warning",
			OwnLevel: slog.Level(math.MaxInt), Connections: 1000, Resync: 90 * time.Second, TrustDomain: "mesh.example.com",
		}, []string{
			"MTLSDisabled spec.sidecar.sidecarDrivers[0].sidecarDisabledMTLS",
		}},
		{"bad values leave the defaults", `
sidecar: {logLevel: loud, maxDataPlaneConnections: -1, configResyncInterval: often, sidecarDrivers: [{sidecarName: pipy, proxyServerPort: 65536}]}
observability: {osmLogLevel: loud}
certificate: {trustDomain: Mesh_1}
`, defaults, []string{
			"Invalid spec.certificate.trustDomain",
			"Invalid spec.observability.osmLogLevel",
			"Invalid spec.sidecar.configResyncInterval",
			"Invalid spec.sidecar.logLevel",
			"Invalid spec.sidecar.maxDataPlaneConnections",
			"Invalid spec.sidecar.sidecarDrivers[0].proxyServerPort",
		}},
		{"control plane's level", `observability: {osmLogLevel: warn}`, with(func(v *values) { v.OwnLevel = slog.LevelWarn }), nil},
		{"control plane's finest level", `observability: {osmLogLevel: trace}`, with(func(v *values) { v.OwnLevel = slog.LevelDebug - 4 }), nil},
		{"trust domain too long", `certificate: {trustDomain: ` + strings.Repeat("a.", 72) + `aa}`, defaults,
			[]string{"Invalid spec.certificate.trustDomain"}},
		{"port below the range", `sidecar: {sidecarDrivers: [{sidecarName: pipy, proxyServerPort: -1}]}`, defaults,
			[]string{"Invalid spec.sidecar.sidecarDrivers[0].proxyServerPort"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			obj := parse(t, tt.spec)
			config := source.NewConfig(obj, options(nil))
			problems := config.Problems()
			if diff := cmp.Diff(tt.want, read(config)); diff != "" {
				t.Errorf("values (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.wantProblems, brief(problems)); diff != "" {
				t.Errorf("Problems (-want +got):\n%s", diff)
			}
			if config.GetMeshConfig() != obj {
				t.Error("GetMeshConfig() is not the object itself")
			}
		})
	}
}

func TestNoMeshConfigMeansDefaults(t *testing.T) {
	config := source.NewConfig(nil, options(nil))
	problems := config.Problems()
	if diff := cmp.Diff(values{Class: "envoy", LogLevel: "error", TrustDomain: "cluster.local"}, read(config)); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	if len(problems) > 0 {
		t.Errorf("Problems %v, want none", problems)
	}
	if config.GetMeshConfig() == nil {
		t.Error("GetMeshConfig() is nil")
	}
}

func TestProblems(t *testing.T) {
	tests := []struct {
		name, spec string
		// want is part of the text of each Problem.
		want []string
	}{
		{"unknown default class", `sidecar: {sidecarClass: haproxy}`,
			[]string{`UnknownClass: spec.sidecar.sidecarClass: no driver is registered for the default class "haproxy"`}},
		{"unknown entry", `sidecar: {sidecarDrivers: [{sidecarName: pipy}, {sidecarName: HAProxy}]}`,
			[]string{`UnknownClass: spec.sidecar.sidecarDrivers[1].sidecarName: no driver named "HAProxy" is registered; correct the name, remove the entry or use a build with this driver; registered drivers: envoy, null, pipy`}},
		{"mesh TLS off", `sidecar: {sidecarDrivers: [{sidecarName: pipy, sidecarDisabledMTLS: true}]}`,
			[]string{`MTLSDisabled: spec.sidecar.sidecarDrivers[0].sidecarDisabledMTLS: mesh TLS is off for class "pipy"`}},
		{"conflict", `sidecar: {sidecarImage: "a\nb", envoyImage: c}`,
			[]string{`Conflict: spec.sidecar.envoyImage: "c" is not used, because spec.sidecar.sidecarImage is "a\nb"; remove one of the two`}},
		{"TLS version that no sidecar speaks", `sidecar: {tlsMinProtocolVersion: TLSv1_2, tlsMaxProtocolVersion: TLSv1_1}`,
			[]string{"Invalid: spec.sidecar.tlsMaxProtocolVersion: sidecars don't support TLSv1_1"}},
		{"newest TLS version below the default oldest", `sidecar: {tlsMaxProtocolVersion: TLSv1_2}`,
			[]string{"Invalid: spec.sidecar.tlsMinProtocolVersion: the oldest version, TLS 1.3"}},
		{"any TLS version goes with the proxy's choice", `sidecar: {tlsMinProtocolVersion: TLS_AUTO, tlsMaxProtocolVersion: TLSv1_3}`,
			nil},
		{"unknown TLS version", `sidecar: {tlsMinProtocolVersion: SSLv3}`,
			[]string{`Invalid: spec.sidecar.tlsMinProtocolVersion: "SSLv3" is not a TLS version`}},
		{"bad exclusions", `traffic: {inboundPortExclusionList: [0], outboundPortExclusionList: [80, 65536], outboundIPRangeExclusionList: [10.0.0.1], outboundIPRangeInclusionList: ["::/129", "::/0"]}`,
			[]string{
				"Invalid: spec.traffic.inboundPortExclusionList: 0 is not a port",
				`Invalid: spec.traffic.outboundIPRangeExclusionList: "10.0.0.1" is not a range`,
				`Invalid: spec.traffic.outboundIPRangeInclusionList: "::/129" is not a range`,
				"Invalid: spec.traffic.outboundPortExclusionList: 65536 is not a port",
			}},
		{"bad durations", `
certificate: {serviceCertValidityDuration: 1 day, ingressGateway: {subjectAltNames: [x], validityDuration: -1h, secret: {}}}
traffic: {inboundExternalAuthorization: {timeout: soon}}`,
			[]string{
				`Invalid: spec.certificate.ingressGateway.validityDuration: "-1h" is not a Go duration`,
				`Invalid: spec.certificate.serviceCertValidityDuration: "1 day" is not a Go duration`,
				`Invalid: spec.traffic.inboundExternalAuthorization.timeout: "soon" is not a Go duration`,
			}},
		{"request above the limit", `sidecar: {resources: {limits: {cpu: 500m, memory: 1Gi}, requests: {cpu: 1, memory: 1Gi}}}`,
			[]string{"Invalid: spec.sidecar.resources.requests.cpu: the request 1 is above the limit 500m"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			problems := source.NewConfig(parse(t, tt.spec), options(nil)).Problems()
			if len(problems) != len(tt.want) {
				t.Fatalf("Problems %v, want %d", problems, len(tt.want))
			}
			for i, want := range tt.want {
				if got := problems[i].String(); !strings.HasPrefix(got, "MeshConfig osm-system/osm-mesh-config: "+want) {
					t.Errorf("Problem %q, want %q", got, want)
				}
			}
		})
	}
}

// TestBuildWithoutEnvoy reads an OSM MeshConfig with a vendor's build without Envoy.
func TestBuildWithoutEnvoy(t *testing.T) {
	opts := options(nil)
	opts.Classes = []string{"null"}
	problems := source.NewConfig(parse(t, `sidecar: {envoyImage: a}`), opts).Problems()
	want := []string{"NoEffect spec.sidecar.envoyImage", "UnknownClass spec.sidecar.sidecarClass"}
	if diff := cmp.Diff(want, brief(problems)); diff != "" {
		t.Errorf("Problems (-want +got):\n%s", diff)
	}
}

// TestExports checks the Problems of MeshConfigs that were exported from other meshes.
func TestExports(t *testing.T) {
	want := map[string][]string{
		"osm-0.9-v1alpha1.yaml": {
			"Invalid spec.sidecar.initContainerImage",
		},
		"osm-1.2-v1alpha1.yaml": nil,
		"osm-1.2-v1alpha2.yaml": {
			"Invalid spec.sidecar.initContainerImage",
			"Invalid spec.sidecar.resources.requests.cpu",
		},
		"osm-edge-1.3-v1alpha1.yaml": {
			"Conflict spec.sidecar.sideWindowsImage",
			"Conflict spec.sidecar.sidecarDrivers[0].SidecarImageWindowsImage",
			"Conflict spec.sidecar.sidecarDrivers[0].sidecarImageWindowsImage",
			"Conflict spec.sidecar.sidecarImageWindowsImage",
		},
		"osm-edge-1.3-v1alpha2.yaml": {
			"NoEffect spec.clusterSet",
			"NoEffect spec.featureFlags.enableAccessControlPolicy",
			"NoEffect spec.featureFlags.enablePluginPolicy",
			"NoEffect spec.observability.remoteLogging",
			"NoEffect spec.pluginChains",
			"Invalid spec.sidecar.initContainerImage",
			"NoEffect spec.sidecar.localDNSProxy",
			"Invalid spec.sidecar.sidecarDrivers[0].initContainerImage",
			"MTLSDisabled spec.sidecar.sidecarDrivers[0].sidecarDisabledMTLS",
		},
	}
	files, err := filepath.Glob("../../apis/config/v1alpha2/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no exported MeshConfigs: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var obj v1alpha2.MeshConfig
			if err := yaml.Unmarshal(content, &obj); err != nil {
				t.Fatal(err)
			}
			problems := source.NewConfig(&obj, options(nil)).Problems()
			if diff := cmp.Diff(want[filepath.Base(file)], brief(problems)); diff != "" {
				t.Errorf("Problems (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOldImages checks that an image that its driver refuses is a Problem, whichever field
// names it, and so is a feature that an image lacks.
func TestOldImages(t *testing.T) {
	opts := options(map[string]string{"OSM_DEFAULT_SIDECAR_IMAGE": "a/pipy:ok"})
	opts.CheckImage = func(class, image string) error {
		if class != "pipy" && strings.HasSuffix(image, ":old") {
			return errors.New(image + " is too old")
		}
		return nil
	}
	opts.LackedByImage = func(class, image string) []string {
		if class == "pipy" && image == "a/pipy:old" {
			return []string{"it can't swim"}
		}
		return nil
	}
	config := source.NewConfig(parse(t, `
sidecar:
  sidecarClass: "null"
  sidecarImage: a/null:old
  envoyImage: a/envoy:old
  sidecarDrivers:
  - {sidecarName: pipy, sidecarImage: "a/pipy:old"}
  - {sidecarName: envoy, sidecarImage: "a/envoy:old"}
`), opts)
	var got []string
	for _, p := range config.Problems() {
		got = append(got, p.Reason+" "+p.Field+": "+p.Message)
	}
	want := []string{
		"Invalid spec.sidecar.envoyImage: a/envoy:old is too old",
		"NotSupportedByProxy spec.sidecar.sidecarDrivers[0].sidecarImage: it can't swim",
		"Invalid spec.sidecar.sidecarDrivers[1].sidecarImage: a/envoy:old is too old",
		"Invalid spec.sidecar.sidecarImage: a/null:old is too old",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if image := config.GetSidecarImage("envoy"); image != "a/envoy:old" {
		t.Errorf("the image is %q, want the one that is set", image)
	}
}
