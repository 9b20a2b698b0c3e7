package inject_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// ofIstio is a environment with support of Istio's annotations.
func ofIstio() *environment {
	w := ordinary()
	w.config = istioOn
	return w
}

func TestIstioTraffic(t *testing.T) {
	type redirection = agentspec.Redirection
	type annotations = map[string]string
	ranges := []string{"10.0.0.0/8"}
	tests := []struct {
		name        string
		annotations annotations
		// mesh are the ranges that the MeshConfig includes.
		mesh  []string
		want  redirection
		wrong bool
	}{
		{"all inbound ports", annotations{"includeInboundPorts": "*"}, nil, redirection{}, false},
		{"no inbound port", annotations{"includeInboundPorts": ""}, nil, redirection{DisableInbound: true}, false},
		{"inbound ports", annotations{"includeInboundPorts": "80,81"}, nil, redirection{IncludeInboundPorts: []int{80, 81}}, false},
		{"inbound ports by name", annotations{"includeInboundPorts": "http"}, nil, redirection{}, true},
		{"excluded inbound port", annotations{"excludeInboundPorts": "80"}, nil, redirection{ExcludeInboundPorts: []int{80}}, false},
		{"no excluded inbound port", annotations{"excludeInboundPorts": ""}, nil, redirection{}, false},
		{"all inbound ports excluded", annotations{"excludeInboundPorts": "*"}, nil, redirection{}, true},
		{"excluded outbound ports", annotations{"excludeOutboundPorts": "443, 80"}, nil, redirection{ExcludeOutboundPorts: []int{80, 443}}, false},
		{"all outbound ports excluded", annotations{"excludeOutboundPorts": "*"}, nil, redirection{}, true},
		{"port 0", annotations{"excludeOutboundPorts": "0"}, nil, redirection{}, true},
		{"excluded range", annotations{"excludeOutboundIPRanges": "10.0.0.1/32"}, nil, redirection{ExcludeOutboundRanges: []string{"10.0.0.1/32"}}, false},
		{"all ranges excluded", annotations{"excludeOutboundIPRanges": " *"}, nil, redirection{}, true},
		{"interfaces", annotations{"excludeInterfaces": "eth1,net0"}, nil, redirection{ExcludeInterfaces: []string{"eth1", "net0"}}, false},
		{"no name of an interface", annotations{"excludeInterfaces": "a name"}, nil, redirection{}, true},
		{"a long name of an interface", annotations{"excludeInterfaces": "longer-than-linux-has-it"}, nil, redirection{}, true},

		{"all ranges", annotations{"includeOutboundIPRanges": "*"}, nil, redirection{}, false},
		{"all ranges, not the mesh's", annotations{"includeOutboundIPRanges": "*"}, ranges, redirection{}, false},
		{"no range", annotations{"includeOutboundIPRanges": ""}, nil, redirection{DisableOutbound: true}, false},
		{"no range, not the mesh's", annotations{"includeOutboundIPRanges": ""}, ranges, redirection{DisableOutbound: true}, false},
		{"a range", annotations{"includeOutboundIPRanges": "10.0.0.0/8"}, nil, redirection{IncludeOutboundRanges: ranges}, false},
		{"a range beside the mesh's", annotations{"includeOutboundIPRanges": "fd00::/8"}, ranges, redirection{IncludeOutboundRanges: []string{"10.0.0.0/8", "fd00::/8"}}, false},
		{"no range of addresses", annotations{"includeOutboundIPRanges": "10.0.0.0"}, nil, redirection{}, true},

		{"a port, where all are redirected", annotations{"includeOutboundPorts": "80"}, nil, redirection{}, false},
		{"a port beside all ranges", annotations{"includeOutboundPorts": "80", "includeOutboundIPRanges": "*"}, nil, redirection{}, false},
		{"a port beside the mesh's ranges", annotations{"includeOutboundPorts": "80"}, ranges, redirection{IncludeOutboundRanges: ranges, IncludeOutboundPorts: []int{80}}, false},
		{"a port beside a range", annotations{"includeOutboundPorts": "80", "includeOutboundIPRanges": "10.0.0.0/8"}, nil, redirection{IncludeOutboundRanges: ranges, IncludeOutboundPorts: []int{80}}, false},
		{"a port and no range", annotations{"includeOutboundPorts": "80,81", "includeOutboundIPRanges": ""}, nil, redirection{IncludeOutboundPorts: []int{80, 81}}, false},
		{"neither port nor range", annotations{"includeOutboundPorts": "", "includeOutboundIPRanges": ""}, nil, redirection{DisableOutbound: true}, false},
		{"all ports", annotations{"includeOutboundPorts": "*"}, ranges, redirection{}, false},
		{"a port by name", annotations{"includeOutboundPorts": "http"}, nil, redirection{}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := ofIstio()
			w.configurator.mesh.Spec.Traffic.OutboundIPRangeInclusionList = test.mesh
			given := make(map[string]string)
			for key, value := range test.annotations {
				given["traffic.sidecar.istio.io/"+key] = value
			}
			pod := podAnnotated(given)
			if test.wrong {
				d := w.injector(t).Inject(t.Context(), w.request(pod)).Decision
				key := slices.Collect(maps.Keys(given))[0]
				if d.Reason != "invalid_annotation" || !strings.Contains(d.Message, key) {
					t.Errorf("the decision is %+v, want one that names %s", d, key)
				}
				return
			}
			got := look(t, w, pod)
			if d := cmp.Diff(test.want, got.Redirection); d != "" {
				t.Errorf("the redirection differs (-want +got):\n%s", d)
			}
			if got.Warnings != nil {
				t.Errorf("there are warnings: %v", got.Warnings)
			}
		})
	}
}

// TestIstioAnnotations checks the annotations that this mesh supports.
func TestIstioAnnotations(t *testing.T) {
	none := func(s *seen) {
		s.Redirection.DisableInbound, s.Redirection.DisableOutbound, s.Unprivileged = true, true, true
	}
	tests := []struct {
		key, value string
		want       func(*seen)
	}{
		{"sidecar.istio.io/logLevel", "debug", func(s *seen) { s.LogLevel = "debug" }},
		{"sidecar.istio.io/nativeSidecar", "false", func(s *seen) { s.Native, s.Hold = false, true }},
		{"sidecar.istio.io/proxyCPU", "10m", func(s *seen) { s.Requests = map[string]string{"cpu": "10m"} }},
		{"sidecar.istio.io/proxyMemory", "64Mi", func(s *seen) { s.Requests = map[string]string{"memory": "64Mi"} }},
		{"sidecar.istio.io/proxyEphemeralStorage", "1Gi", func(s *seen) { s.Requests = map[string]string{"ephemeral-storage": "1Gi"} }},
		{"sidecar.istio.io/proxyCPULimit", "1", func(s *seen) { s.Limits, s.Threads = map[string]string{"cpu": "1"}, "limits.cpu/1" }},
		{"sidecar.istio.io/proxyMemoryLimit", "128Mi", func(s *seen) { s.Limits = map[string]string{"memory": "128Mi"} }},
		{"sidecar.istio.io/proxyEphemeralStorageLimit", "1Gi", func(s *seen) { s.Limits = map[string]string{"ephemeral-storage": "1Gi"} }},
		{"inject.istio.io/templates", "sidecar", func(*seen) {}},
		{"sidecar.istio.io/interceptionMode", "REDIRECT", func(*seen) {}},
		{"sidecar.istio.io/interceptionMode", "NONE", none},
		{"sidecar.istio.io/interceptionMode", "TPROXY", ignored},
		{"proxy.istio.io/config", "holdApplicationUntilProxyStarts: true", func(*seen) {}},
		{"proxy.istio.io/config", "concurrency: 4", func(s *seen) { s.Threads = "4" }},
		{"proxy.istio.io/config", "concurrency: 0", func(*seen) {}},
		{"proxy.istio.io/config", `{"terminationDrainDuration": "10s"}`, func(s *seen) { s.Drain = 10 }},
		{"proxy.istio.io/config", "terminationDrainDuration: 1500ms", func(s *seen) { s.Drain = 2 }},
		{"proxy.istio.io/config", "tracing: {}\ndiscoveryAddress: a:1", func(s *seen) { ignored(s); ignored(s) }},
		{"sidecar.istio.io/inject", "true", func(*seen) {}},
		{"sidecar.istio.io/proxyImage", "istio/proxyv2:1.2", ignored},
		{"sidecar.istio.io/nobodyKnows", "", ignored},
		{"prometheus.istio.io/merge-metrics", "false", ignored},
		{"istio.io/rev", "canary", ignored},
		{"notistio.io/rev", "canary", func(*seen) {}},
		{"istio", "canary", func(*seen) {}},
	}
	for _, test := range tests {
		t.Run(test.key+"="+test.value, func(t *testing.T) {
			want := ofEnvoy()
			test.want(&want)
			pod := podAnnotated(map[string]string{test.key: test.value})
			if d := cmp.Diff(want, look(t, ofIstio(), pod)); d != "" {
				t.Errorf("the sidecar differs (-want +got):\n%s", d)
			}
			if d := cmp.Diff(ofEnvoy(), look(t, ordinary(), pod)); d != "" {
				t.Errorf("without compat.istio the sidecar differs (-want +got):\n%s", d)
			}
		})
	}
}

func ignored(s *seen) { s.Warnings = append(s.Warnings, "istio_annotation_ignored") }

func TestIstioAnnotationsThatAreWrong(t *testing.T) {
	for _, a := range []struct{ key, value, where string }{
		{"sidecar.istio.io/logLevel", "loud", ""},
		{"sidecar.istio.io/nativeSidecar", "perhaps", ""},
		{"sidecar.istio.io/rewriteAppHTTPProbers", "", ""},
		{"sidecar.istio.io/proxyCPU", "much", ""},
		{"sidecar.istio.io/interceptionMode", "EBPF", ""},
		{"inject.istio.io/templates", "gateway", ""},
		{"proxy.istio.io/config", "[a]", ""},
		{"proxy.istio.io/config", "a: b: c", ""},
		{"proxy.istio.io/config", strings.Repeat("a", 17<<10), ""},
		{"proxy.istio.io/config", "concurrency: many", ": concurrency"},
		{"proxy.istio.io/config", "terminationDrainDuration: 5", ": terminationDrainDuration"},
		{"proxy.istio.io/config", "terminationDrainDuration: -5s", ": terminationDrainDuration"},
		{"proxy.istio.io/config", "holdApplicationUntilProxyStarts: {}", ": holdApplicationUntilProxyStarts"},
		{"sidecar.istio.io/userVolume", "{", ""},
		{"sidecar.istio.io/userVolume", `[{"emptyDir":{}}]`, ""},
		{"sidecar.istio.io/userVolumeMount", `{"a":{"mountPath":1}}`, ""},
	} {
		w := ofIstio()
		w.classic = true
		deniedFor(t, w.injector(t), w.request(podAnnotated(map[string]string{a.key: a.value})), "pod annotation "+a.key+a.where)
	}
	w := ofIstio()
	taken := podAnnotated(map[string]string{"sidecar.istio.io/userVolumeMount": `{"a":{"mountPath":"/run/outrigger"}}`})
	deniedFor(t, w.injector(t), w.request(taken), "pod annotation sidecar.istio.io/userVolumeMount")
}

// TestIstioAgainstOurs checks that the pod's own annotation overrides Istio's, and Istio's
// the namespace's.
func TestIstioAgainstOurs(t *testing.T) {
	w := ofIstio()
	w.namespace.Annotations[prefix+"sidecar-log-level"] = "info"
	w.configurator.mesh.Spec.Sidecar.Resources.Requests = corev1.ResourceList{"memory": resource.MustParse("64Mi")}
	istio := map[string]string{"sidecar.istio.io/logLevel": "debug", "sidecar.istio.io/proxyCPU": "10m"}
	want := ofEnvoy()
	want.LogLevel, want.Requests = "debug", map[string]string{"cpu": "10m", "memory": "64Mi"}
	if d := cmp.Diff(want, look(t, w, podAnnotated(istio))); d != "" {
		t.Errorf("against the namespace (-want +got):\n%s", d)
	}
	istio[prefix+"sidecar-log-level"] = "trace"
	want.LogLevel = "trace"
	if d := cmp.Diff(want, look(t, w, podAnnotated(istio))); d != "" {
		t.Errorf("against the pod (-want +got):\n%s", d)
	}
}

func TestIstioVolumes(t *testing.T) {
	for name, annotations := range map[string]map[string]string{
		"by name": {
			"sidecar.istio.io/userVolume":      `{"certs":{"secret":{"secretName":"certs"}}}`,
			"sidecar.istio.io/userVolumeMount": `{"certs":{"mountPath":"/etc/certs","readOnly":true}}`,
		},
		"lists": {
			"sidecar.istio.io/userVolume":      `[{"name":"certs","secret":{"secretName":"certs"}}]`,
			"sidecar.istio.io/userVolumeMount": `[{"name":"certs","mountPath":"/etc/certs","readOnly":true}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := ofIstio()
			i := w.injector(t)
			raw := []byte(podAnnotated(annotations))
			injected := once(t, i, w, raw)
			unchanged(t, i, w, injected)
			pod := decode(t, injected)
			if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "certs" && v.Secret != nil }) {
				t.Errorf("the volumes are %v", pod.Spec.Volumes)
			}
			if !slices.ContainsFunc(proxy(t, pod).VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "certs" && m.MountPath == "/etc/certs" && m.ReadOnly }) {
				t.Errorf("the mounts are %v", proxy(t, pod).VolumeMounts)
			}
			restored(t, raw, injected)
		})
	}
}

// restored fails unless uninject restores the pod.
func restored(t *testing.T, raw, injected []byte) {
	t.Helper()
	back, err := inject.Uninject(injected)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(generic(t, raw), generic(t, patched(t, injected, back))); d != "" {
		t.Errorf("uninject leaves (+):\n%s", d)
	}
}

// TestIstioOverride checks the hint for pods that set fields of Istio's sidecar.
func TestIstioOverride(t *testing.T) {
	w := ofIstio()
	for image, hint := range map[string]bool{"auto": true, "": true, "istio/proxyv2:1.2": false} {
		pod := `{"metadata":{"name":"a"},"spec":{"containers":[{"name":"app","image":"a"},{"name":"istio-proxy","image":"` + image + `"}]}}`
		d := w.injector(t).Inject(t.Context(), w.request(pod)).Decision
		if d.Reason != "sidecar_exists" || strings.Contains(d.Message, driver.ProxyContainer) != hint {
			t.Errorf("with the image %q the decision is %+v", image, d)
		}
	}
}
