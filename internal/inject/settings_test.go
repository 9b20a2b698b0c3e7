package inject_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// seen are the visible properties of a pod's sidecar.
type seen struct {
	Class, Image, PullPolicy, LogLevel string
	// Threads is the number of the proxy's threads, or the field that holds it.
	Threads                           string
	Limits, Requests                  map[string]string
	Native, Hold, Metrics, Privileged bool
	DisabledMTLS                      bool
	Redirection                       agentspec.Redirection
	// Unprivileged says that the init container needs no privileges.
	Unprivileged bool
	// Drain and PreStop are in seconds.
	Drain, PreStop int
	Warnings       []string
}

// ofEnvoy is the sidecar of a pod without annotations in a environment without settings.
func ofEnvoy() seen {
	return seen{Class: "envoy", Image: "docker.io/envoyproxy/envoy:v1.40.2", PullPolicy: "IfNotPresent", LogLevel: "error", Threads: "2", Native: true, Drain: 5}
}

// look injects the pod and returns the properties of its sidecar.
func look(t *testing.T, w *environment, pod string) seen {
	t.Helper()
	r := w.injector(t).Inject(t.Context(), w.request(pod))
	if r.Decision.Outcome != inject.Inject {
		t.Fatalf("the pod is not injected: %s: %s", r.Decision.Reason, r.Decision.Message)
	}
	injected := decode(t, patched(t, []byte(pod), r.Patch))
	c := proxy(t, injected)
	s := seen{
		Class: r.Class, Image: c.Image, PullPolicy: string(c.ImagePullPolicy),
		Limits: amounts(c.Resources.Limits), Requests: amounts(c.Resources.Requests),
		Native:  c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways,
		Hold:    c.Lifecycle != nil && c.Lifecycle.PostStart != nil,
		Metrics: injected.Annotations["prometheus.io/port"] == "15010" && injected.Annotations["prometheus.io/scrape"] == "true",
	}
	var spec agentspec.Spec
	if err := json.Unmarshal([]byte(variable(c, agentspec.EnvSpec)), &spec); err != nil {
		t.Fatal(err)
	}
	s.DisabledMTLS, s.Drain = spec.DisabledMTLS, int(spec.Drain.Seconds)
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		s.PreStop = int(c.Lifecycle.PreStop.Sleep.Seconds)
	}
	s.Threads = threads(c)
	for i, word := range spec.Command {
		if word == "--log-level" {
			s.LogLevel = spec.Command[i+1]
		}
	}
	if init := container(injected, driver.InitContainer); init != nil {
		if err := json.Unmarshal([]byte(variable(init, agentspec.EnvRedirection)), &s.Redirection); err != nil {
			t.Fatal(err)
		}
		s.Privileged = *init.SecurityContext.Privileged
		s.Unprivileged = !s.Privileged && len(init.SecurityContext.Capabilities.Add) == 0 && *init.SecurityContext.RunAsNonRoot &&
			*init.SecurityContext.RunAsUser == driver.ProxyUID && slices.Equal(init.Command, []string{"/outrigger-agent", "copy"})
	}
	for _, warning := range r.Warnings {
		s.Warnings = append(s.Warnings, string(warning.Code))
	}
	return s
}

// threads returns the source of the number of the proxy's threads.
func threads(c *corev1.Container) string {
	for _, e := range c.Env {
		if e.Name != agentspec.EnvConcurrency {
			continue
		}
		if e.ValueFrom != nil {
			return e.ValueFrom.ResourceFieldRef.Resource + "/" + e.ValueFrom.ResourceFieldRef.Divisor.String() + e.Value
		}
		return e.Value
	}
	return ""
}

func amounts(list corev1.ResourceList) map[string]string {
	var m map[string]string
	for name, amount := range list {
		setKey(&m, string(name), amount.String())
	}
	return m
}

// podAnnotated returns a small pod with the annotations.
func podAnnotated(annotations map[string]string) string {
	text, err := json.Marshal(annotations)
	if err != nil {
		panic(err) // Maps of strings can be encoded.
	}
	return fmt.Sprintf(`{"metadata":{"name":"app","annotations":%s},"spec":{"containers":[{"name":"app","image":"app"}]}}`, text)
}

const prefix = "openservicemesh.io/"

func TestSettingsOfPods(t *testing.T) {
	tests := []struct {
		name, key, value string
		want             func(*seen)
	}{
		{"nothing", "other", "", func(*seen) {}},
		{"class", prefix + "sidecar-class", "envoy", func(*seen) {}},
		{"class in capitals", prefix + "sidecar-class", "Envoy", func(*seen) {}},
		{"image", prefix + "sidecar-image", "localhost:5000/a/b_c:1.2-x@sha256:00", func(s *seen) { s.Image = "localhost:5000/a/b_c:1.2-x@sha256:00" }},
		{"trace", prefix + "sidecar-log-level", "trace", func(s *seen) { s.LogLevel = "trace" }},
		{"warn", prefix + "sidecar-log-level", "warn", func(s *seen) { s.LogLevel = "warning" }},
		{"level in capitals", prefix + "sidecar-log-level", "DEBUG", func(s *seen) { s.LogLevel = "debug" }},
		{"off", prefix + "sidecar-log-level", "off", func(s *seen) { s.LogLevel = "off" }},
		{"limit of CPU", prefix + "sidecar-resource-limits-cpu", "0.5", func(s *seen) { s.Limits, s.Threads = map[string]string{"cpu": "500m"}, "limits.cpu/1" }},
		{"limit of memory", prefix + "sidecar-resource-limits-memory", "1e8", func(s *seen) { s.Limits = map[string]string{"memory": "100e6"} }},
		{"limit of storage", prefix + "sidecar-resource-limits-ephemeral-storage", "1Gi", func(s *seen) { s.Limits = map[string]string{"ephemeral-storage": "1Gi"} }},
		{"request of CPU", prefix + "sidecar-resource-requests-cpu", "10m", func(s *seen) { s.Requests = map[string]string{"cpu": "10m"} }},
		{"request of memory", prefix + "sidecar-resource-requests-memory", "0", func(s *seen) { s.Requests = map[string]string{"memory": "0"} }},
		{"request of storage", prefix + "sidecar-resource-requests-ephemeral-storage", "1", func(s *seen) { s.Requests = map[string]string{"ephemeral-storage": "1"} }},
		{"threads", prefix + "sidecar-concurrency", "4", func(s *seen) { s.Threads = "4" }},
		{"threads by the limit", prefix + "sidecar-concurrency", "0", func(*seen) {}},
		{"not native", prefix + "native-sidecar", "false", func(s *seen) { s.Native, s.Hold = false, true }},
		{"native", prefix + "native-sidecar", "yes", func(*seen) {}},
		{"hold means nothing for native ones", prefix + "hold-application-until-ready", "true", func(*seen) {}},
		{"metrics", prefix + "metrics", "enabled", func(s *seen) { s.Metrics = true }},
		{"no metrics", prefix + "metrics", "disabled", func(*seen) {}},
		{"templates", prefix + "inject-templates", "sidecar", func(*seen) {}},
		{"templates by the driver's name", prefix + "inject-templates", " Envoy ", func(*seen) {}},
		{"inbound ports", prefix + "inbound-port-exclusion-list", "9000, 22,9000", func(s *seen) { s.Redirection.ExcludeInboundPorts = []int{22, 9000} }},
		{"no inbound ports", prefix + "inbound-port-exclusion-list", " ", func(*seen) {}},
		{"outbound ports", prefix + "outbound-port-exclusion-list", "65535,1", func(s *seen) { s.Redirection.ExcludeOutboundPorts = []int{1, 65535} }},
		{"excluded ranges", prefix + "outbound-ip-range-exclusion-list", "10.1.2.3/8,fd00::1/64, 1.1.1.1/32", func(s *seen) {
			s.Redirection.ExcludeOutboundRanges = []string{"1.1.1.1/32", "10.0.0.0/8", "fd00::/64"}
		}},
		{"included ranges", prefix + "outbound-ip-range-inclusion-list", "0.0.0.0/0", func(s *seen) {
			s.Redirection.IncludeOutboundRanges = []string{"0.0.0.0/0"}
		}},
		{"included inbound ports", prefix + "inbound-port-inclusion-list", "81,80", func(s *seen) { s.Redirection.IncludeInboundPorts = []int{80, 81} }},
		{"included outbound ports", prefix + "outbound-port-inclusion-list", "443", func(s *seen) { s.Redirection.IncludeOutboundPorts = []int{443} }},
		{"excluded interfaces", prefix + "network-interface-exclusion-list", "net1, net0", func(s *seen) { s.Redirection.ExcludeInterfaces = []string{"net0", "net1"} }},
		{"nothing is redirected", prefix + "interception-mode", "None", func(s *seen) {
			s.Redirection.DisableInbound, s.Redirection.DisableOutbound = true, true
			s.Unprivileged = true
		}},
		{"redirected", prefix + "interception-mode", "iptables", func(*seen) {}},
		{"drain", prefix + "sidecar-drain-seconds", "20", func(s *seen) { s.Drain = 20 }},
		{"no drain", prefix + "sidecar-drain-seconds", "0", func(s *seen) { s.Drain = 0 }},
		{"a long drain", prefix + "sidecar-drain-seconds", "31", func(s *seen) { s.Drain, s.Warnings = 31, []string{"grace_period_short"} }},
		{"wait", prefix + "sidecar-pre-stop-seconds", "10", func(s *seen) { s.PreStop = 10 }},
		{"a wait longer than the API server takes", prefix + "sidecar-pre-stop-seconds", "40", func(s *seen) { s.PreStop, s.Warnings = 30, []string{"grace_period_short"} }},
		{"an image that is too old", prefix + "sidecar-image", "envoyproxy/envoy-distroless:v1.22.2", func(s *seen) {
			s.Image, s.Warnings = "envoyproxy/envoy-distroless:v1.22.2", []string{"image_not_supported"}
		}},
		{"connections", prefix + "inbound-connections-per-source", " 20000", func(s *seen) { s.Redirection.InboundConnectionsEach = 20000 }},
		{"any number of connections", prefix + "inbound-connections-per-source", "unlimited", func(s *seen) { s.Redirection.InboundConnectionsEach = -1 }},
		{"Istio's, which is off", "traffic.sidecar.istio.io/excludeInboundPorts", "nonsense", func(*seen) {}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			want := ofEnvoy()
			test.want(&want)
			if d := cmp.Diff(want, look(t, ordinary(), podAnnotated(map[string]string{test.key: test.value}))); d != "" {
				t.Errorf("the sidecar differs (-want +got):\n%s", d)
			}
		})
	}
}

// TestIllegalSettings sets annotations to invalid values, on the pod and, if supported
// there, on the namespace. The denial must name the annotation and where it is.
func TestIllegalSettings(t *testing.T) {
	long := strings.Repeat("1,", 2000) + "1"
	tests := []struct {
		key     string
		podOnly bool
		values  []string
	}{
		{"sidecar-image", false, []string{"", " ", "a b", "a\nb: c", "a{{.}}", "ä", "$(X)", strings.Repeat("a", 513)}},
		{"sidecar-log-level", false, []string{"", "loud", `debug"`, `linkerd[name="x"]=debug`, "debug ", "debug\ninfo", "0"}},
		{"sidecar-resource-limits-cpu", false, []string{"", "lots", "-1", "1 ", "1,5", "1KiB", "1e-100000000", "1E999999999", strings.Repeat("9", 100_000)}},
		{"sidecar-resource-requests-memory", false, []string{"64MB", "-1Mi", "{}"}},
		{"sidecar-concurrency", false, []string{"", "many", "-1", "1.5", "257", "2 ", "99999999999999999999"}},
		{"native-sidecar", false, []string{"", "maybe", "1", "true "}},
		{"hold-application-until-ready", false, []string{"", "never", "null"}},
		{"metrics", false, []string{"", "prometheus"}},
		{"inject-templates", false, []string{"", ",", "sidecar,", "nginx", "sidecar,nginx", "envoy,pipy", "sidecar,envoy", "sidecar,sidecar", "envoy,Envoy", "Sidecar", long, strings.Repeat("a", 17<<10)}},
		{"inbound-port-exclusion-list", true, []string{",", "80,", "http", "0", "65536", "-1", "+80", "1.5", "80-90", "0x50", "８０", long, strings.Repeat("1", 17<<10)}},
		{"outbound-port-exclusion-list", true, []string{"80;90", "80;flush", "99999999999999999999"}},
		{"outbound-ip-range-exclusion-list", true, []string{",", "10.0.0.0", "10.0.0.0/33", "10.0.0/8", "::/129", "fe80::1%eth0/64", "shop.example", "10.0.0.0/8,", long}},
		{"outbound-ip-range-inclusion-list", true, []string{"*", "10.0.0.0/-1"}},
		{"inbound-port-inclusion-list", true, []string{"*", "http"}},
		{"outbound-port-inclusion-list", true, []string{"*", "0"}},
		{"network-interface-exclusion-list", true, []string{"*/", "a name", "longer-than-linux-has-it", `eth0"; flush ruleset; #`, "../x", "eth0 -j ACCEPT"}},
		{"interception-mode", false, []string{"", "tproxy", "ebpf", " none"}},
		{"rewrite-probes", false, []string{"", "http"}},
		{"sidecar-drain-seconds", false, []string{"", "-1", "5s", "1.5", "86401", "+5"}},
		{"sidecar-pre-stop-seconds", false, []string{"", "-1", "99999999999"}},
		{"inbound-connections-per-source", false, []string{"0", "-1", "many", "1.5", "99999999999"}},
	}
	w := ordinary()
	i := w.injector(t)
	for _, test := range tests {
		for _, value := range test.values {
			short := value
			if len(short) > 20 {
				short = short[:20] + "..."
			}
			t.Run(test.key+"="+short, func(t *testing.T) {
				deniedFor(t, i, w.request(podAnnotated(map[string]string{prefix + test.key: value})), "pod annotation "+prefix+test.key)
				w.namespace.Annotations[prefix+test.key] = value
				defer delete(w.namespace.Annotations, prefix+test.key)
				if test.podOnly {
					once(t, i, w, []byte(podAnnotated(nil)))
					return
				}
				deniedFor(t, i, w.request(podAnnotated(nil)), "annotation "+prefix+test.key+" of namespace shop")
			})
		}
	}
}

func deniedFor(t *testing.T, i *inject.Injector, req inject.Request, where string) {
	t.Helper()
	r := i.Inject(t.Context(), req)
	if r.Decision.Outcome != inject.Deny || r.Decision.Reason != "invalid_annotation" || r.Patch != nil {
		t.Errorf("the decision is %+v with the patch %v", r.Decision, r.Patch)
	}
	if !strings.HasPrefix(r.Decision.Message, where+": ") {
		t.Errorf("the message is %q, want one that begins with %q", r.Decision.Message, where)
	}
}

func TestRequestsAboveLimits(t *testing.T) {
	w := ordinary()
	w.configurator.mesh.Spec.Sidecar.Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("100m")}
	r := w.injector(t).Inject(t.Context(), w.request(podAnnotated(map[string]string{prefix + "sidecar-resource-requests-cpu": "1"})))
	if r.Decision.Reason != "invalid_annotation" || !strings.Contains(r.Decision.Message, prefix+"sidecar-resource-requests-cpu") {
		t.Errorf("the decision is %+v", r.Decision)
	}
}

func TestPrecedenceOfSettings(t *testing.T) {
	mesh := func() *environment {
		w := ordinary()
		c := w.configurator
		c.class = "null"
		c.images = map[string]string{"null": "mesh/null", "pipy": "mesh/pipy", "envoy": "mesh/envoy"}
		c.mesh.Spec.Sidecar.Resources = corev1.ResourceRequirements{
			Limits:   corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")},
			Requests: corev1.ResourceList{"cpu": resource.MustParse("1")},
		}
		w.config = "nativeSidecars: \"false\"\nholdApplicationUntilReady: false"
		return w
	}
	namespace := map[string]string{
		prefix + "sidecar-class":               "envoy",
		prefix + "sidecar-image":               "namespace/image",
		prefix + "sidecar-log-level":           "info",
		prefix + "sidecar-resource-limits-cpu": "3",
		prefix + "native-sidecar":              "true",
		prefix + "metrics":                     "enabled",
		prefix + "sidecar-drain-seconds":       "7",
		prefix + "sidecar-pre-stop-seconds":    "8",
		prefix + "interception-mode":           "none",
	}
	pod := map[string]string{
		prefix + "sidecar-class":                   "pipy",
		prefix + "sidecar-image":                   "pod/image",
		prefix + "sidecar-resource-limits-cpu":     "4",
		prefix + "sidecar-resource-requests-cpu":   "2",
		prefix + "native-sidecar":                  "false",
		prefix + "hold-application-until-ready":    "true",
		prefix + "metrics":                         "disabled",
		prefix + "sidecar-drain-seconds":           "9",
		prefix + "sidecar-pre-stop-seconds":        "0",
		prefix + "interception-mode":               "iptables",
		"openservicemesh.io/sidecar-log-level":     "critical",
		"openservicemesh.io/unknown-to-this-build": "kept",
	}
	w := mesh()
	want := seen{
		Class: "null", Image: "mesh/null", PullPolicy: "IfNotPresent",
		Limits: map[string]string{"cpu": "2", "memory": "1Gi"}, Requests: map[string]string{"cpu": "1"},
	}
	if d := cmp.Diff(want, lookAt(t, w, "null", podAnnotated(nil))); d != "" {
		t.Errorf("what the mesh sets differs (-want +got):\n%s", d)
	}
	maps.Copy(w.namespace.Annotations, namespace)
	want.Class, want.Image, want.LogLevel, want.Native, want.Metrics = "envoy", "namespace/image", "info", true, true
	want.Limits["cpu"], want.Threads = "3", "limits.cpu/1"
	want.Drain, want.PreStop, want.Unprivileged = 7, 8, true
	want.Redirection.DisableInbound, want.Redirection.DisableOutbound = true, true
	if d := cmp.Diff(want, look(t, w, podAnnotated(nil))); d != "" {
		t.Errorf("what the namespace sets differs (-want +got):\n%s", d)
	}
	want.Class, want.Image, want.LogLevel, want.Native, want.Hold, want.Metrics = "pipy", "pod/image", "", false, true, false
	want.Limits["cpu"], want.Requests["cpu"] = "4", "2"
	want.Drain, want.PreStop, want.Unprivileged = 9, 0, false
	want.Redirection = agentspec.Redirection{}
	if d := cmp.Diff(want, look(t, w, podAnnotated(pod))); d != "" {
		t.Errorf("what the pod sets differs (-want +got):\n%s", d)
	}
	if got := w.configurator.mesh.Spec.Sidecar.Resources.Limits["cpu"]; got.String() != "2" {
		t.Errorf("the mesh's own limit is now %s", got.String())
	}
}

// lookAt is look for a driver without redirection.
func lookAt(t *testing.T, w *environment, class, pod string) seen {
	t.Helper()
	injected := decode(t, once(t, w.injector(t), w, []byte(pod)))
	c := proxy(t, injected)
	return seen{
		Class: class, Image: c.Image, PullPolicy: string(c.ImagePullPolicy),
		Limits: amounts(c.Resources.Limits), Requests: amounts(c.Resources.Requests),
		Native: c.RestartPolicy != nil, Hold: c.Lifecycle != nil,
		Metrics: injected.Annotations["prometheus.io/port"] != "",
	}
}

func TestListsOfMeshAndPod(t *testing.T) {
	w := ordinary()
	traffic := &w.configurator.mesh.Spec.Traffic
	traffic.InboundPortExclusionList = []int32{22, 9000}
	traffic.OutboundPortExclusionList = []int32{3306}
	traffic.OutboundIPRangeExclusionList = []string{"10.0.0.0/8"}
	traffic.OutboundIPRangeInclusionList = []string{"fd00::/8"}
	traffic.NetworkInterfaceExclusionList = []string{"net1"}
	want := ofEnvoy()
	want.Redirection = agentspec.Redirection{
		ExcludeInboundPorts: []int{22, 9000}, ExcludeOutboundPorts: []int{3306},
		ExcludeOutboundRanges: []string{"10.0.0.0/8"}, IncludeOutboundRanges: []string{"fd00::/8"},
		ExcludeInterfaces: []string{"net1"},
	}
	if d := cmp.Diff(want, look(t, w, podAnnotated(nil))); d != "" {
		t.Errorf("the mesh's own lists differ (-want +got):\n%s", d)
	}
	want.Redirection.ExcludeInboundPorts = []int{22, 80, 9000}
	want.Redirection.ExcludeOutboundPorts = []int{22, 3306}
	want.Redirection.ExcludeOutboundRanges = []string{"1.2.3.4/32", "10.0.0.0/8"}
	want.Redirection.IncludeOutboundRanges = []string{"fd00::/8", "fe80::/10"}
	pod := podAnnotated(map[string]string{
		prefix + "inbound-port-exclusion-list": "80,22", prefix + "outbound-port-exclusion-list": "22",
		prefix + "outbound-ip-range-exclusion-list": "1.2.3.4/32", prefix + "outbound-ip-range-inclusion-list": "fe80::/10",
	})
	if d := cmp.Diff(want, look(t, w, pod)); d != "" {
		t.Errorf("both lists together differ (-want +got):\n%s", d)
	}
	traffic.InterceptionMode = "None"
	if got := look(t, w, podAnnotated(nil)).Redirection; !got.DisableInbound || !got.DisableOutbound {
		t.Errorf("without interception the redirection is %+v", got)
	}
}

func TestSettingsOfMesh(t *testing.T) {
	tests := []struct {
		name   string
		change func(*environment)
		want   func(*seen)
	}{
		{"image", func(w *environment) { w.configurator.images = map[string]string{"envoy": "mesh/envoy"} }, func(s *seen) { s.Image = "mesh/envoy" }},
		{"privileged init container", func(w *environment) { w.configurator.mesh.Spec.Sidecar.EnablePrivilegedInitContainer = true }, func(s *seen) { s.Privileged = true }},
		{"drain", func(w *environment) { seconds := int32(9); w.configurator.mesh.Spec.Sidecar.DrainSeconds = &seconds }, func(s *seen) { s.Drain = 9 }},
		{"wait", func(w *environment) { seconds := int32(9); w.configurator.mesh.Spec.Sidecar.PreStopSeconds = &seconds }, func(s *seen) { s.PreStop = 9 }},
		{"no interception", func(w *environment) { w.configurator.mesh.Spec.Traffic.InterceptionMode = "none" }, func(s *seen) {
			s.Redirection.DisableInbound, s.Redirection.DisableOutbound, s.Unprivileged = true, true, true
		}},
		{"no mTLS", func(w *environment) { w.configurator.disabledMTLS = true }, func(s *seen) { s.DisabledMTLS, s.Warnings = true, []string{"mtls_disabled"} }},
		{"pull policy", func(w *environment) { w.config = "imagePullPolicy: Never" }, func(s *seen) { s.PullPolicy = "Never" }},
		{"a cluster without native sidecars", func(w *environment) { w.classic = true }, func(s *seen) { s.Native, s.Hold = false, true }},
		{"native in any case", func(w *environment) { w.classic, w.config = true, `nativeSidecars: "true"` }, func(*seen) {}},
		{"native in no case", func(w *environment) { w.config = `nativeSidecars: "false"` }, func(s *seen) { s.Native, s.Hold = false, true }},
		{"native where it is", func(w *environment) { w.config = `nativeSidecars: auto` }, func(*seen) {}},
		{"no holding back", func(w *environment) { w.classic, w.config = true, "holdApplicationUntilReady: false" }, func(s *seen) { s.Native = false }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w, want := ordinary(), ofEnvoy()
			test.change(w)
			test.want(&want)
			if d := cmp.Diff(want, look(t, w, podAnnotated(nil))); d != "" {
				t.Errorf("the sidecar differs (-want +got):\n%s", d)
			}
		})
	}
}

func TestUnknownSurroundings(t *testing.T) {
	w := ordinary()
	config, err := inject.NewConfig("", "")
	if err != nil {
		t.Fatal(err)
	}
	opts := w.options()
	opts.NativeSidecars = func(context.Context) (bool, error) { return false, errors.New("no route") }
	i := inject.New(opts, config)
	if d := i.Inject(t.Context(), w.request(podAnnotated(nil))).Decision; d.Reason != "server_version" || !strings.Contains(d.Message, "no route") {
		t.Errorf("without the server's version the decision is %+v", d)
	}
	if d := i.Inject(t.Context(), w.request(podAnnotated(map[string]string{prefix + "native-sidecar": "true"}))).Decision; d.Outcome != inject.Inject {
		t.Errorf("the decision for a pod that chooses its sidecar is %+v", d)
	}
	opts.Namespace = func(context.Context, string) (*inject.Namespace, error) { return nil, errors.New("no route") }
	if d := inject.New(opts, config).Inject(t.Context(), w.request(smallPod)).Decision; d.Outcome != inject.Deny || d.Reason != "namespace_unknown" ||
		d.Message != "namespace shop: no route" {
		t.Errorf("without the namespace the decision is %+v", d)
	}
	if d := inject.New(w.options(), nil).Inject(t.Context(), w.request(smallPod)).Decision; d.Outcome != inject.Deny || d.Reason != "not_configured" {
		t.Errorf("without a configuration the decision is %+v", d)
	}
}

func TestMetricsAnnotations(t *testing.T) {
	own := map[string]string{prefix + "metrics": "enabled", "prometheus.io/path": "/mine"}
	w := ordinary()
	pod := decode(t, once(t, w.injector(t), w, []byte(podAnnotated(own))))
	if pod.Annotations["prometheus.io/port"] != "" || pod.Annotations["prometheus.io/path"] != "/mine" {
		t.Errorf("a pod with metrics of its own has the annotations %v", pod.Annotations)
	}
}

func TestDefaultContainer(t *testing.T) {
	for name, test := range map[string]struct {
		classic   bool
		pod, want string
	}{
		"native":            {false, podAnnotated(nil), ""},
		"classic":           {true, podAnnotated(nil), "app"},
		"the user's choice": {true, podAnnotated(map[string]string{"kubectl.kubernetes.io/default-container": "other"}), "other"},
		"after the user's own sidecar": {true,
			`{"metadata":{"name":"a"},"spec":{"containers":[{"name":"outrigger-proxy","image":"a"},{"name":"app","image":"a"}]}}`, "app"},
		"not held back": {true, podAnnotated(map[string]string{prefix + "hold-application-until-ready": "false"}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := ordinary()
			w.classic = test.classic
			pod := decode(t, once(t, w.injector(t), w, []byte(test.pod)))
			if got := pod.Annotations["kubectl.kubernetes.io/default-container"]; got != test.want {
				t.Errorf("the default container is %q, want %q", got, test.want)
			}
		})
	}
}

func TestInjectedAnnotations(t *testing.T) {
	w := ordinary()
	w.config = `injectedAnnotations: {a: "1", b: "2", openservicemesh.io/metrics: enabled}`
	raw := []byte(podAnnotated(map[string]string{"b": "mine"}))
	injected := once(t, w.injector(t), w, raw)
	got := decode(t, injected).Annotations
	delete(got, inject.StatusAnnotation)
	if d := cmp.Diff(map[string]string{"a": "1", "b": "mine", "openservicemesh.io/metrics": "enabled"}, got); d != "" {
		t.Errorf("annotations differ (-want +got):\n%s", d)
	}
	back, err := inject.Uninject(injected)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(generic(t, raw), generic(t, patched(t, injected, back))); d != "" {
		t.Errorf("uninject leaves (+):\n%s", d)
	}
}

func TestWindows(t *testing.T) {
	w := ordinary()
	w.configurator.images = map[string]string{"envoy/windows": "mesh/envoy:windows"}
	pod := decode(t, once(t, w.injector(t), w, []byte(`{"spec":{"os":{"name":"windows"},"containers":[
		{"name":"app","image":"app","livenessProbe":{"tcpSocket":{"port":80}}}]}}`)))
	c := proxy(t, pod)
	if c.Image != "mesh/envoy:windows" || container(pod, driver.InitContainer) != nil {
		t.Errorf("the sidecar's image is %s, the init containers are %s", c.Image, names(pod.Spec.InitContainers))
	}
	if pod.Spec.Containers[0].LivenessProbe.TCPSocket == nil {
		t.Error("a probe is rewritten where nothing is redirected")
	}
	if context := c.SecurityContext; context.RunAsUser != nil || context.Capabilities != nil || context.SeccompProfile != nil || context.WindowsOptions == nil {
		t.Errorf("the security context is one of Linux: %+v", context)
	}
}
