package source_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/source"
)

// TestSettings lists the fields that differ from the defaults.
func TestSettings(t *testing.T) {
	const zipkin = `"sampled":1000000`
	tests := []row{
		{"defaults", `{}`, `{}`, nil},
		{"switches", `{traffic: {enablePermissiveTrafficPolicyMode: true, enableEgress: true, inboundTLSMode: Permissive}, certificate: {trustDomain: mesh.example.com}}`,
			`{"egress":true,"inboundTLS":"Permissive","permissivePolicy":true,"trustDomain":"mesh.example.com"}`, nil},
		{"a timeout of connections", `{traffic: {connectTimeout: 2s}}`, `{"connectTimeout":2000000000}`, nil},
		{"a timeout of connections of no time", `{traffic: {connectTimeout: 0s}}`, `{}`, []string{"Invalid spec.traffic.connectTimeout"}},
		{"a timeout of connections that is none", `{traffic: {connectTimeout: soon}}`, `{}`, []string{"Invalid spec.traffic.connectTimeout"}},
		{"permissive turned off", `{traffic: {enablePermissiveTrafficPolicyMode: false}}`, `{}`, nil},
		{"modes that are none", `{traffic: {inboundTLSMode: Open}}`, `{}`, []string{"Invalid spec.traffic.inboundTLSMode"}},
		{"flags turned over", `{featureFlags: {enableEgressPolicy: false, enableIngressBackendPolicy: false, enableRetryPolicy: true, enableEnvoyActiveHealthChecks: true}}`,
			`{"egressPolicy":null,"healthChecks":true,"ingressPolicy":null,"retryPolicy":true}`, nil},
		{"health checks by the other name", `{featureFlags: {enableEnvoyActiveHealthChecks: false, enableSidecarActiveHealthChecks: true}}`, `{"healthChecks":true}`, nil},
		{"classes without mesh TLS", `{sidecar: {sidecarDrivers: [{sidecarName: Pipy, sidecarDisabledMTLS: true}]}}`, `{"plaintextClasses":["pipy"]}`, []string{"MTLSDisabled spec.sidecar.sidecarDrivers[0].sidecarDisabledMTLS"}},

		{"TLS of OSM", `{sidecar: {tlsMinProtocolVersion: TLSv1_2, tlsMaxProtocolVersion: TLSv1_3, cipherSuites: [ECDHE-ECDSA-AES128-GCM-SHA256, "[ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305]"], ecdhCurves: [X25519, P-256]}}`,
			`{"tls":{"ciphers":["ECDHE-ECDSA-AES128-GCM-SHA256","ECDHE-RSA-AES128-GCM-SHA256","ECDHE-RSA-CHACHA20-POLY1305"],"curves":["X25519","P-256"],"max":"1.3","min":"1.2"}}`, nil},
		{"the proxy's own TLS", `{sidecar: {tlsMinProtocolVersion: TLS_AUTO, tlsMaxProtocolVersion: TLS_AUTO}}`, `{"tls":{"max":"1.3","min":"1.2"}}`, nil},
		{"older TLS", `{sidecar: {tlsMinProtocolVersion: TLSv1_0, tlsMaxProtocolVersion: TLSv1_2}}`, `{"tls":{"max":"1.2","min":"1.2"}}`, []string{"Invalid spec.sidecar.tlsMinProtocolVersion"}},
		{"unknown TLS", `{sidecar: {tlsMinProtocolVersion: SSLv3}}`, `{}`, []string{"Invalid spec.sidecar.tlsMinProtocolVersion"}},
		{"TLS the wrong way round is the newer", `{sidecar: {tlsMaxProtocolVersion: TLSv1_2}}`, `{}`, []string{"Invalid spec.sidecar.tlsMinProtocolVersion"}},
		{"names that TLS does not have", `{sidecar: {cipherSuites: [TLS_AES_128_GCM_SHA256, RC4-SHA, AES128-SHA], ecdhCurves: [p256, P-384]}}`,
			`{"tls":{"ciphers":["AES128-SHA"],"curves":["P-384"],"max":"1.3","min":"1.3"}}`,
			[]string{"Invalid spec.sidecar.cipherSuites[0]", "Invalid spec.sidecar.cipherSuites[1]", "Invalid spec.sidecar.ecdhCurves[0]"}},

		{"access logs of errors", `{observability: {accessLog: errors}}`, `{"accessLog":{"enabled":true,"sampled":0}}`, nil},
		{"access logs of a share", `{observability: {accessLog: "0.25"}}`, `{"accessLog":{"enabled":true,"sampled":250000}}`, nil},
		{"no access logs", `{observability: {accessLog: none}}`, `{"accessLog":{"enabled":false,"sampled":0}}`, nil},
		{"access logs of everything", `{observability: {accessLog: all}}`, `{}`, nil},
		{"a level that is none", `{observability: {accessLog: "2"}}`, `{}`, []string{"Invalid spec.observability.accessLog"}},

		{"tracing by default", `{observability: {tracing: {enable: true}}}`, `{"tracing":{"host":"jaeger.osm-system.svc.cluster.local","path":"/api/v2/spans","port":9411,"protocol":"zipkin",` + zipkin + `}}`, nil},
		{"Zipkin", `{observability: {tracing: {enable: true, protocol: Zipkin, address: Zipkin.example.com, port: 80, endpoint: /spans, sampledFraction: "0.25"}}}`,
			`{"tracing":{"host":"zipkin.example.com","path":"/spans","port":80,"protocol":"zipkin","sampled":250000}}`, nil},
		{"OTLP", `{observability: {tracing: {enable: true, protocol: OTLP, address: "2001:db8::1", sampledFraction: "0"}}}`, `{"tracing":{"host":"2001:db8::1","port":4317,"protocol":"otlp","sampled":0}}`, nil},
		{"OTLP with a path", `{observability: {tracing: {enable: true, protocol: OTLP, address: a, port: 1, endpoint: /spans}}}`, `{"tracing":{"host":"a","port":1,"protocol":"otlp",` + zipkin + `}}`,
			[]string{"NoEffect spec.observability.tracing.endpoint"}},
		{"tracing with bad values", `{observability: {tracing: {enable: true, protocol: jaeger, address: a, port: 70000, endpoint: "spans?a b", sampledFraction: "NaN"}}}`,
			`{"tracing":{"host":"a","path":"/api/v2/spans","port":9411,"protocol":"zipkin",` + zipkin + `}}`,
			[]string{"Invalid spec.observability.tracing.endpoint", "Invalid spec.observability.tracing.port", "Invalid spec.observability.tracing.protocol", "Invalid spec.observability.tracing.sampledFraction"}},
		{"a path that is none", `{observability: {tracing: {enable: true, address: a, endpoint: "spans?a b"}}}`, `{"tracing":{"host":"a","path":"/api/v2/spans","port":9411,"protocol":"zipkin",` + zipkin + `}}`,
			[]string{"Invalid spec.observability.tracing.endpoint"}},
		{"a share above all", `{observability: {tracing: {enable: true, address: a, sampledFraction: "1.01"}}}`, `{"tracing":{"host":"a","path":"/api/v2/spans","port":9411,"protocol":"zipkin",` + zipkin + `}}`,
			[]string{"Invalid spec.observability.tracing.sampledFraction"}},
		{"tracing to nowhere", `{observability: {tracing: {enable: true, address: "http://a"}}}`, `{}`, []string{"Invalid spec.observability.tracing.address"}},
		{"tracing that is off", `{observability: {tracing: {address: "http://a"}}}`, `{}`, nil},

		{"authorization", `{traffic: {inboundExternalAuthorization: {enable: true, address: Authz.osm-system, port: 9191, timeout: 250ms, statPrefix: authz, failureModeAllow: true}}}`,
			`{"authorization":{"allowOnFailure":true,"host":"authz.osm-system","port":9191,"statPrefix":"authz","timeout":250000000}}`, nil},
		{"authorization by default", `{traffic: {inboundExternalAuthorization: {enable: true, address: 10.0.0.1, port: 9191}}}`,
			`{"authorization":{"host":"10.0.0.1","port":9191,"statPrefix":"inboundExtAuthz","timeout":1000000000}}`, nil},
		{"authorization that cannot be found refuses", `{traffic: {inboundExternalAuthorization: {enable: true, port: 9191}}}`,
			`{"authorization":{"host":"authorization.invalid","port":1,"statPrefix":"inboundExtAuthz","timeout":1000000000}}`, []string{"Invalid spec.traffic.inboundExternalAuthorization.address"}},
		{"authorization without a port does not ask another one", `{traffic: {inboundExternalAuthorization: {enable: true, address: a}}}`,
			`{"authorization":{"host":"authorization.invalid","port":1,"statPrefix":"inboundExtAuthz","timeout":1000000000}}`, []string{"Invalid spec.traffic.inboundExternalAuthorization.port"}},
		{"authorization with bad values", `{traffic: {inboundExternalAuthorization: {enable: true, address: a, port: 1, timeout: 0s, statPrefix: "a b"}}}`,
			`{"authorization":{"host":"a","port":1,"statPrefix":"inboundExtAuthz","timeout":1000000000}}`,
			[]string{"Invalid spec.traffic.inboundExternalAuthorization.statPrefix", "Invalid spec.traffic.inboundExternalAuthorization.timeout"}},
		{"authorization that is off", `{traffic: {inboundExternalAuthorization: {address: a}}}`, `{}`, nil},
	}
	defaults := settingsOf(t, `{}`, nil)
	const want = `{"trustDomain":"cluster.local","permissivePolicy":false,"inboundTLS":"Strict","egressPolicy":true,"ingressPolicy":true,"tls":{"min":"1.3","max":"1.3"},"accessLog":{"enabled":true,"sampled":1000000}}`
	if diff := cmp.Diff(decodeMap(t, want), defaults); diff != "" {
		t.Fatalf("defaults (-want +got):\n%s", diff)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := settingsOf(t, tt.spec, tt.problems)
			want := decodeMap(t, tt.want)
			for name, value := range defaults {
				if _, changed := want[name]; !changed {
					want[name] = value
				}
			}
			for name, value := range want {
				if value == nil {
					delete(want, name)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

// settingsOf returns the fields of the settings. It checks that a Config and the Facts of both
// versions have the same.
func settingsOf(t *testing.T, spec string, problems []string) map[string]any {
	t.Helper()
	config := source.NewConfig(parse(t, spec), options(nil))
	all := config.Problems()
	if diff := cmp.Diff(problems, brief(all)); diff != "" {
		t.Errorf("Problems (-want +got):\n%s", diff)
	}
	for _, version := range []string{"v1alpha1", "v1alpha2"} {
		fact := factOf(t, "apiVersion: config.openservicemesh.io/"+version+"\nkind: MeshConfig\nmetadata: {name: osm-mesh-config, namespace: osm-system}\nspec: "+spec)
		if fact.Content.Digest() != config.Settings().Digest() {
			t.Errorf("the Fact of %s says something else than the Config", version)
		}
		for _, p := range fact.Problems {
			if p.Object != fact.Object {
				t.Errorf("the Problem %v is not about %v", p, fact.Object)
			}
		}
		if diff := cmp.Diff(brief(all), brief(fact.Problems)); diff != "" {
			t.Errorf("Problems of the Fact of %s (-Config +Fact):\n%s", version, diff)
		}
	}
	content, err := json.Marshal(config.Settings())
	if err != nil {
		t.Fatal(err)
	}
	return decodeMap(t, string(content))
}

func decodeMap(t *testing.T, text string) map[string]any {
	t.Helper()
	fields := make(map[string]any)
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return fields
}

// TestTracingWithoutNamespace has a MeshConfig from a file, which may lack a namespace.
func TestTracingWithoutNamespace(t *testing.T) {
	obj := parse(t, `{observability: {tracing: {enable: true}}}`)
	obj.Namespace = ""
	config := source.NewConfig(obj, options(nil))
	if got := config.Settings().Tracing.Host; got != "jaeger.osm-system.svc.cluster.local" {
		t.Errorf("spans go to %s", got)
	}
}
