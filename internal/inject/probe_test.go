package inject_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// TestNewFieldsOfProbes puts fields and values that the agent does not know into every probe and
// hook. The pod is denied if the port is redirected, and otherwise nothing of it changes.
func TestNewFieldsOfProbes(t *testing.T) {
	handlers := map[string]string{
		`"httpGet":{"port":80,"path":"/","method":"HEAD"}`:                                                       `the field "method"`,
		`"httpGet":{"port":80,"httpHeaders":[{"name":"a","value":"b"},{"name":"c","valueFrom":{"secret":"s"}}]}`: `the field "valueFrom" in httpHeaders`,
		`"httpGet":{"port":80,"scheme":"QUIC"}`:                                                                  `the scheme "QUIC"`,
		`"httpGet":{"port":80,"protocol":"HTTP3"}`:                                                               `the protocol "HTTP3"`,
		`"httpGet":{"port":80,"scheme":"HTTPS","protocol":"HTTP2"}`:                                              `the protocol HTTP2 with the scheme HTTPS`,
		`"tcpSocket":{"port":80,"tls":{}}`:                                                                       `the field "tls"`,
		`"grpc":{"port":80,"service":"a","method":"b"}`:                                                          `the field "method"`,
		`"grpc":{"port":80,"mode":"MutualTLS"}`:                                                                  `the mode "MutualTLS"`,
	}
	places := map[string]string{
		"livenessProbe": `"livenessProbe":{%s}`, "readinessProbe": `"readinessProbe":{%s}`, "startupProbe": `"startupProbe":{%s}`,
		"postStart": `"lifecycle":{"postStart":{%s}}`, "preStop": `"lifecycle":{"preStop":{%s}}`,
	}
	w := ordinary()
	i := w.injector(t)
	for handler, what := range handlers {
		for field, place := range places {
			if !strings.HasPrefix(place, `"`+field) && !strings.HasPrefix(handler, `"httpGet"`) {
				// Hooks through the agent are HTTP.
				continue
			}
			for _, list := range []string{"containers", "initContainers"} {
				const pod = `{"metadata":{"name":"app","annotations":{"openservicemesh.io/inbound-port-exclusion-list":%q}},
"spec":{%q:[{"name":"one","image":"app","restartPolicy":"Always",%s}],"x":[{"name":"two","image":"app"}]}}`
				text := fmt.Sprintf(pod, "81", list, fmt.Sprintf(place, handler))
				d := i.Inject(t.Context(), w.request(text)).Decision
				if d.Outcome != inject.Deny || d.Reason != "probe_unsupported" || !strings.Contains(d.Message, what) ||
					!strings.Contains(d.Message, field) || !strings.Contains(d.Message, "container one") {
					t.Errorf("%s of %s with %s: the decision is %+v", field, list, handler, d)
				}
				text = fmt.Sprintf(pod, "80", list, fmt.Sprintf(place, handler))
				injected := once(t, i, w, []byte(text))
				if variable(proxy(t, decode(t, injected)), agentspec.EnvSpec) == "" || !sameContainer(t, []byte(text), injected, "one") {
					t.Errorf("%s of %s with %s becomes %s", field, list, handler, injected)
				}
				unchanged(t, i, w, injected)
			}
		}
	}
}

// sameContainer reports whether a container has the same JSON in both pods.
func sameContainer(t *testing.T, a, b []byte, name string) bool {
	t.Helper()
	was, _ := takeNamed(generic(t, a).(map[string]any), name)
	is, _ := takeNamed(generic(t, b).(map[string]any), name)
	return was != nil && cmp.Equal(was, is)
}

// TestProbesKnowAllFields fails after an update of the Kubernetes types that has new fields in
// probes: the agent must learn them, or pods with them are denied.
func TestProbesKnowAllFields(t *testing.T) {
	for name, fields := range inject.ProbeFields() {
		if d := cmp.Diff(fields[0], fields[1]); d != "" {
			t.Errorf("the fields of %s in Kubernetes (-) and those that are known here (+) differ:\n%s", name, d)
		}
	}
}

// TestProbesOfNewProtocols checks that what the agent is told is what the kubelet would do, and that
// a copy without annotations gets it back.
func TestProbesOfNewProtocols(t *testing.T) {
	w := ordinary()
	i := w.injector(t)
	const pod = `{"metadata":{"name":"app"},"spec":{"containers":[{"name":"app","image":"app",
"readinessProbe":{"httpGet":{"path":"/r","port":80,"scheme":"HTTP","protocol":"HTTP2"}},"livenessProbe":{"grpc":{"port":90,"mode":"TLS"}}}]}}`
	injected := once(t, i, w, []byte(pod))
	var spec agentspec.Spec
	if err := json.Unmarshal([]byte(variable(proxy(t, decode(t, injected)), agentspec.EnvSpec)), &spec); err != nil {
		t.Fatal(err)
	}
	want := []agentspec.Probe{
		{Path: "/app-health/app/livez", Kind: agentspec.GRPC, Port: 90, Mode: agentspec.TLS, TimeoutSeconds: 1},
		{Path: "/app-health/app/readyz", Kind: agentspec.HTTP, Port: 80, Scheme: "HTTP", URL: "/r", Protocol: agentspec.HTTP2, TimeoutSeconds: 1},
	}
	if d := cmp.Diff(want, spec.Probes); d != "" {
		t.Errorf("the agent's probes differ (-want +got):\n%s", d)
	}
	if get := container(decode(t, injected), "app").ReadinessProbe.HTTPGet; get.Protocol != nil || get.Port.IntVal != driver.AgentPort {
		t.Errorf("the kubelet asks the agent by %+v", get)
	}
	copied := decode(t, injected)
	copied.Annotations, copied.Labels = nil, nil
	back, err := inject.Uninject(encode(t, copied))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(generic(t, []byte(pod)), generic(t, patched(t, encode(t, copied), back))); d != "" {
		t.Errorf("a copy gets back (-was +is):\n%s", d)
	}
}

// TestNativeSidecarsOfTheApp injects pods with a native sidecar of their own, beside each kind of
// sidecar.
func TestNativeSidecarsOfTheApp(t *testing.T) {
	const (
		tcp  = `{"tcpSocket":{"port":5432}}`
		exec = `{"exec":{"command":["true"]}}`
		get  = `{"httpGet":{"port":5432}}`
	)
	tests := []struct{ fields, annotations, reason, warning string }{
		{`"startupProbe":` + tcp, ``, "", ""},
		{`"lifecycle":{"postStart":` + get + `}`, ``, "", ""},
		{`"startupProbe":` + tcp, `"openservicemesh.io/native-sidecar":"true"`, "", ""},
		{`"startupProbe":` + tcp, `"openservicemesh.io/native-sidecar":"false"`, "native_sidecar_needed", ""},
		{`"lifecycle":{"postStart":` + get + `}`, `"openservicemesh.io/native-sidecar":"false"`, "native_sidecar_needed", ""},
		{`"lifecycle":{"preStop":` + get + `}`, `"openservicemesh.io/native-sidecar":"false"`, "native_sidecar_needed", ""},
		{`"livenessProbe":` + tcp, `"openservicemesh.io/native-sidecar":"false"`, "", "probe_before_sidecar"},
		{`"readinessProbe":` + tcp, `"openservicemesh.io/native-sidecar":"false"`, "", ""},
		{`"startupProbe":` + exec + `,"lifecycle":{"postStart":` + exec + `}`, `"openservicemesh.io/native-sidecar":"false"`, "", ""},
		{`"startupProbe":` + tcp + `,"lifecycle":{"postStart":` + get + `,"preStop":` + get + `},"livenessProbe":` + tcp,
			`"openservicemesh.io/native-sidecar":"false","openservicemesh.io/inbound-port-exclusion-list":"5432"`, "", ""},
	}
	w := ordinary()
	w.classic = true
	i := w.injector(t)
	for _, test := range tests {
		t.Run(test.fields+test.annotations, func(t *testing.T) {
			pod := fmt.Sprintf(`{"metadata":{"name":"p","annotations":{%s}},"spec":{"initContainers":[{"name":"db","image":"db","restartPolicy":"Always",%s}],
"containers":[{"name":"app","image":"app"}]}}`, test.annotations, test.fields)
			r := i.Inject(t.Context(), w.request(pod))
			if test.reason != "" {
				if string(r.Decision.Reason) != test.reason {
					t.Errorf("the decision is %+v", r.Decision)
				}
				return
			}
			var warnings string
			for _, warning := range r.Warnings {
				warnings += string(warning.Code)
			}
			if r.Decision.Outcome != inject.Inject || warnings != test.warning {
				t.Fatalf("the decision is %+v, with the warnings %v", r.Decision, r.Warnings)
			}
			injected := patched(t, []byte(pod), r.Patch)
			native := false
			for _, c := range decode(t, injected).Spec.InitContainers {
				native = native || c.Name == driver.ProxyContainer
			}
			if want := !strings.Contains(test.annotations, `"false"`); native != want {
				t.Errorf("the sidecar is native: %t, want %t", native, want)
			}
			if strings.Contains(test.annotations, "exclusion") && !sameContainer(t, []byte(pod), injected, "db") {
				t.Errorf("probes of a port that is not redirected are changed: %s", injected)
			}
		})
	}
}

// TestHooksTakeTheirTime checks that the agent does not end a hook that Kubernetes would wait for.
func TestHooksTakeTheirTime(t *testing.T) {
	w := ordinary()
	const pod = `{"metadata":{"name":"p"},"spec":{"terminationGracePeriodSeconds":7200,"containers":[{"name":"app","image":"app",
"lifecycle":{"postStart":{"httpGet":{"port":80}},"preStop":{"httpGet":{"port":80}}}}]}}`
	var spec agentspec.Spec
	injected := decode(t, once(t, w.injector(t), w, []byte(pod)))
	if err := json.Unmarshal([]byte(variable(proxy(t, injected), agentspec.EnvSpec)), &spec); err != nil {
		t.Fatal(err)
	}
	for _, hook := range spec.Probes {
		if hook.Hook != agentspec.PostStart && hook.Hook != agentspec.PreStop || !strings.HasSuffix(hook.Path, "/"+hook.Hook) {
			t.Errorf("the agent does not know that %s is a hook: %q", hook.Path, hook.Hook)
		}
		if hook.TimeoutSeconds != 0 {
			t.Errorf("%s ends after %d s", hook.Path, hook.TimeoutSeconds)
		}
	}
	if len(spec.Probes) != 2 {
		t.Errorf("the agent has the hooks %v", spec.Probes)
	}
}
