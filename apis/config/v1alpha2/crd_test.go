package v1alpha2_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha1"
	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// namespace is one that every API server makes for itself.
const namespace = "default"

// meshConfigs is the API of one API server in both versions.
type meshConfigs struct {
	v1alpha1, v1alpha2 dynamic.ResourceInterface
}

func startServer(t *testing.T) meshConfigs {
	t.Helper()
	config := apiserver.Start(t)
	// v1alpha1 is deprecated and the server would say so at each request.
	config.WarningHandler = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return meshConfigs{
		v1alpha1: client.Resource(v1alpha1.SchemeGroupVersion.WithResource("meshconfigs")).Namespace(namespace),
		v1alpha2: client.Resource(v1alpha2.SchemeGroupVersion.WithResource("meshconfigs")).Namespace(namespace),
	}
}

// create creates an object as kubectl does, which has the server refuse fields that
// it does not know.
func (m meshConfigs) create(t *testing.T, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	client := m.v1alpha2
	if object.GroupVersionKind().Version == "v1alpha1" {
		client = m.v1alpha1
	}
	return client.Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
}

// createSpec creates a v1alpha2 object with the spec, which is YAML.
func (m meshConfigs) createSpec(t *testing.T, spec string) (*unstructured.Unstructured, error) {
	t.Helper()
	var content any
	if err := yaml.UnmarshalStrict([]byte(spec), &content); err != nil {
		t.Fatalf("spec %q: %v", spec, err)
	}
	return m.create(t, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha2.SchemeGroupVersion.String(),
		"kind":       "MeshConfig",
		"metadata":   map[string]any{"generateName": "test-"},
		"spec":       content,
	}})
}

// TestCRD is one test for the sake of the one server that it starts.
func TestCRD(t *testing.T) {
	server := startServer(t)
	t.Run("exports apply", func(t *testing.T) { testExports(t, server) })
	t.Run("defaults", func(t *testing.T) { testDefaults(t, server) })
	t.Run("accepts", func(t *testing.T) { testAccepts(t, server) })
	t.Run("refuses", func(t *testing.T) { testRefuses(t, server) })
	t.Run("status", func(t *testing.T) { testStatus(t, server) })
}

func testExports(t *testing.T, server meshConfigs) {
	for name, content := range exports(t) {
		t.Run(name, func(t *testing.T) {
			asJSON, err := yaml.YAMLToJSON(content)
			if err != nil {
				t.Fatal(err)
			}
			var sent unstructured.Unstructured
			if err := sent.UnmarshalJSON(asJSON); err != nil {
				t.Fatal(err)
			}
			sent.SetNamespace(namespace)
			created, err := server.create(t, &sent)
			if err != nil {
				t.Fatal(err)
			}
			if missing := lost("spec", sent.Object["spec"], created.Object["spec"]); len(missing) > 0 {
				t.Errorf("the server changed:\n%s", strings.Join(missing, "\n"))
			}

			older, err := server.v1alpha1.Get(t.Context(), created.GetName(), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			newer, err := server.v1alpha2.Get(t.Context(), created.GetName(), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(older.Object["spec"], newer.Object["spec"]); diff != "" {
				t.Errorf("the spec differs by version (-v1alpha1 +v1alpha2):\n%s", diff)
			}
			var typed v1alpha2.MeshConfig
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(newer.Object, &typed, true); err != nil {
				t.Errorf("as a Go value: %v", err)
			}
			if err := server.v1alpha2.Delete(t.Context(), created.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// lost returns a line for each value of sent that got has not. A null says that
// nothing was set, so it may go.
func lost(path string, sent, got any) []string {
	var lines []string
	switch sent := sent.(type) {
	case nil:
	case map[string]any:
		got, _ := got.(map[string]any)
		for key, value := range sent {
			lines = append(lines, lost(path+"."+key, value, got[key])...)
		}
	default:
		if diff := cmp.Diff(sent, got); diff != "" {
			lines = append(lines, fmt.Sprintf("%s (-sent +got):\n%s", path, diff))
		}
	}
	return lines
}

func testDefaults(t *testing.T, server meshConfigs) {
	defaults := `
certificate: {trustDomain: cluster.local}
sidecar: {localProxyMode: Localhost}
traffic: {inboundTLSMode: Strict}
`
	tests := []struct{ name, spec, want string }{
		{"no spec", `null`, defaults},
		{"empty spec", `{}`, defaults},
		{"empty parts", `{certificate: {}, sidecar: {}, traffic: {}}`, defaults},
		{"authorisation is left out unless there is some", `traffic: {inboundExternalAuthorization: {enable: true}}`, `
certificate: {trustDomain: cluster.local}
sidecar: {localProxyMode: Localhost}
traffic:
  inboundTLSMode: Strict
  inboundExternalAuthorization: {enable: true, statPrefix: inboundExtAuthz, timeout: 1s}
`},
		{"what is set stays", `
certificate: {trustDomain: mesh.example.com}
sidecar: {localProxyMode: PodIP}
traffic: {inboundTLSMode: Permissive, enablePermissiveTrafficPolicyMode: false}
`, `
certificate: {trustDomain: mesh.example.com}
sidecar: {localProxyMode: PodIP}
traffic: {inboundTLSMode: Permissive, enablePermissiveTrafficPolicyMode: false}
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			created, err := server.createSpec(t, tt.spec)
			if err != nil {
				t.Fatal(err)
			}
			var want any
			if err := yaml.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, created.Object["spec"]); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

func testAccepts(t *testing.T, server meshConfigs) {
	specs := []string{
		`sidecar: {sidecarDrivers: [{sidecarName: envoy}, {sidecarName: envoy-next, proxyServerPort: 65535}]}`,
		`sidecar: {sidecarDrivers: [{sidecarName: a, proxyServerPort: 1}, {sidecarName: b, proxyServerPort: 1}]}`,
		`sidecar: {sidecarClass: ""}`,
		`sidecar: {tlsMinProtocolVersion: TLS_AUTO, logLevel: warning}`,
		`traffic: {outboundIPRangeExclusionList: [10.1.2.3/8, "2001:db8::/32", 0.0.0.0/0], outboundIPRangeInclusionList: ["::/0"]}`,
		`traffic: {inboundPortExclusionList: [1, 65535], outboundPortExclusionList: [80, 80]}`,
		`observability: {osmLogLevel: disabled, tracing: {port: 0}, remoteLogging: {port: 0, level: 0}}`,
		`observability: {tracing: {protocol: OTLP}}`,
		`certificate: {trustDomain: td}`,
		`certificate: {trustDomain: ` + strings.Repeat("a", 63) + `.1-2.x}`,
	}
	for duration := range goodDurations {
		specs = append(specs, fmt.Sprintf(`sidecar: {configResyncInterval: %q}`, string(duration)))
	}
	for _, spec := range specs {
		if _, err := server.createSpec(t, spec); err != nil {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

func testRefuses(t *testing.T, server meshConfigs) {
	const (
		badDuration = "must be a Go duration that is not negative, for example 30s, 5m or 1h30m"
		badDomain   = "must be a DNS name in lower case, for example mesh.example.com; leave it out for cluster.local"
	)
	tests := []struct {
		spec string
		// want is the field and what the message says of it.
		want []string
	}{
		{`sidecar: {sidecarImages: x}`, []string{`unknown field "spec.sidecar.sidecarImages"`}},

		{`sidecar: {sidecarDrivers: [{sidecarName: pipy}, {sidecarName: envoy}, {sidecarName: Pipy}]}`,
			[]string{"spec.sidecar.sidecarDrivers", "each sidecarName may be used once, whatever its case; merge the entries of one driver into one"}},
		{`sidecar: {sidecarDrivers: [{sidecarName: pipy}, {sidecarName: pipy}]}`,
			[]string{"spec.sidecar.sidecarDrivers", "each sidecarName may be used once"}},
		{`sidecar: {sidecarDrivers: [{sidecarName: ""}]}`,
			[]string{"spec.sidecar.sidecarDrivers[0].sidecarName", "should be at least 1 chars long"}},
		{`sidecar: {sidecarDrivers: [{sidecarImage: x}]}`, []string{"spec.sidecar.sidecarDrivers[0].sidecarName", "Required value"}},
		{`sidecar: {sidecarDrivers: [{sidecarName: a, proxyServerPort: 0}]}`,
			[]string{"spec.sidecar.sidecarDrivers[0].proxyServerPort", "greater than or equal to 1"}},
		{`sidecar: {sidecarDrivers: [{sidecarName: a, proxyServerPort: 65536}]}`,
			[]string{"spec.sidecar.sidecarDrivers[0].proxyServerPort", "less than or equal to 65535"}},
		{`sidecar: {maxDataPlaneConnections: -1}`, []string{"spec.sidecar.maxDataPlaneConnections", "greater than or equal to 0"}},
		{`sidecar: {sidecarTimeout: -1}`, []string{"spec.sidecar.sidecarTimeout", "greater than or equal to 0"}},
		{`sidecar: {logLevel: loud}`, []string{"spec.sidecar.logLevel", `"trace", "debug", "info", "warning", "warn", "error", "critical", "off"`}},
		{`sidecar: {tlsMinProtocolVersion: "1.2"}`,
			[]string{"spec.sidecar.tlsMinProtocolVersion", `"TLS_AUTO", "TLSv1_0", "TLSv1_1", "TLSv1_2", "TLSv1_3"`}},
		{`sidecar: {tlsMaxProtocolVersion: TLSv1_4}`,
			[]string{"spec.sidecar.tlsMaxProtocolVersion", `"TLS_AUTO", "TLSv1_0", "TLSv1_1", "TLSv1_2", "TLSv1_3"`}},
		{`sidecar: {localProxyMode: Host}`, []string{"spec.sidecar.localProxyMode", `"Localhost", "PodIP"`}},
		{`sidecar: {resources: {limits: {cpu: lots}}}`, []string{"spec.sidecar.resources.limits.cpu"}},

		{`traffic: {inboundTLSMode: Lax}`, []string{"spec.traffic.inboundTLSMode", `"Strict", "Permissive"`}},
		{`traffic: {interceptionMode: magic}`, []string{"spec.traffic.interceptionMode", `"iptables", "ebpf", "none"`}},
		{`traffic: {outboundIPRangeExclusionList: [10.0.0.1]}`,
			[]string{"spec.traffic.outboundIPRangeExclusionList[0]", "must be of type cidr"}},
		{`traffic: {outboundIPRangeInclusionList: [10.0.0.0/8, 300.0.0.0/8]}`,
			[]string{"spec.traffic.outboundIPRangeInclusionList[1]", "must be of type cidr"}},
		{`traffic: {inboundPortExclusionList: [0]}`, []string{"spec.traffic.inboundPortExclusionList[0]", "greater than or equal to 1"}},
		{`traffic: {outboundPortExclusionList: [80, 65536]}`,
			[]string{"spec.traffic.outboundPortExclusionList[1]", "less than or equal to 65535"}},
		{`traffic: {inboundExternalAuthorization: {port: 65536}}`,
			[]string{"spec.traffic.inboundExternalAuthorization.port", "less than or equal to 65535"}},
		{`traffic: {inboundExternalAuthorization: {timeout: 1}}`, []string{"spec.traffic.inboundExternalAuthorization.timeout"}},
		{`traffic: {inboundExternalAuthorization: {timeout: 1min}}`,
			[]string{"spec.traffic.inboundExternalAuthorization.timeout", badDuration}},

		{`observability: {tracing: {port: 65536}}`, []string{"spec.observability.tracing.port", "less than or equal to 65535"}},
		{`observability: {tracing: {protocol: otlp}}`, []string{"spec.observability.tracing.protocol", `"Zipkin", "OTLP"`}},
		{`observability: {remoteLogging: {port: -1}}`, []string{"spec.observability.remoteLogging.port", "greater than or equal to 0"}},
		{`observability: {remoteLogging: {level: 3}}`, []string{"spec.observability.remoteLogging.level", "less than or equal to 2"}},

		{`certificate: {serviceCertValidityDuration: 1d}`, []string{"spec.certificate.serviceCertValidityDuration", badDuration}},
		{`certificate: {trustDomain: ""}`, []string{"spec.certificate.trustDomain", badDomain}},
		{`certificate: {trustDomain: Mesh.Example.Com}`, []string{"spec.certificate.trustDomain", badDomain}},
		{`certificate: {trustDomain: a..b}`, []string{"spec.certificate.trustDomain", badDomain}},
		{`certificate: {trustDomain: spiffe://a}`, []string{"spec.certificate.trustDomain", badDomain}},
		{`certificate: {trustDomain: ` + strings.Repeat("a", 64) + `}`, []string{"spec.certificate.trustDomain", badDomain}},
		{`certificate: {trustDomain: ` + strings.Repeat("a.", 72) + `aa}`, []string{"spec.certificate.trustDomain", "145"}},
		{`certificate: {ingressGateway: {subjectAltNames: [a], validityDuration: 1h, secret: {name: x}}}`,
			[]string{"spec.certificate.ingressGateway.secret", "name and namespace of the Secret are both needed"}},
		{`certificate: {ingressGateway: {subjectAltNames: [], validityDuration: 1h, secret: {name: x, namespace: y}}}`,
			[]string{"spec.certificate.ingressGateway.subjectAltNames", "at least 1 items"}},
	}
	for _, duration := range badDurations {
		tests = append(tests, struct {
			spec string
			want []string
		}{fmt.Sprintf(`sidecar: {configResyncInterval: %q}`, string(duration)), []string{"spec.sidecar.configResyncInterval"}})
	}
	for _, tt := range tests {
		_, err := server.createSpec(t, tt.spec)
		if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			t.Errorf("%s: error %v, want a refusal", tt.spec, err)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q, want it to hold %q", tt.spec, err, want)
			}
		}
	}
}

func testStatus(t *testing.T, server meshConfigs) {
	object, err := server.createSpec(t, `sidecar: {sidecarClass: pipy}`)
	if err != nil {
		t.Fatal(err)
	}
	condition := func(kind string) any {
		return map[string]any{
			"type": kind, "status": "True", "reason": "Accepted", "message": "",
			"lastTransitionTime": "2026-01-02T03:04:05Z",
		}
	}
	setStatus := func(conditions ...any) error {
		object.Object["status"] = map[string]any{"observedGeneration": object.GetGeneration(), "conditions": conditions}
		updated, err := server.v1alpha2.UpdateStatus(t.Context(), object, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
		if err == nil {
			object = updated
		}
		return err
	}
	if err := setStatus(condition("Ready"), condition("Ready")); !apierrors.IsInvalid(err) {
		t.Errorf("two conditions of one type: error %v, want a refusal", err)
	}
	if err := setStatus(condition("Ready")); err != nil {
		t.Fatal(err)
	}
	older, err := server.v1alpha1.Get(t.Context(), object.GetName(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"observedGeneration": int64(1), "conditions": []any{condition("Ready")}}
	if diff := cmp.Diff(want, older.Object["status"]); diff != "" {
		t.Errorf("status as v1alpha1 (-want +got):\n%s", diff)
	}
}
