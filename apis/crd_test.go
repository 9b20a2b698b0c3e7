package apis_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	outrigger "github.com/outrigger-mesh/outrigger/apis/outrigger/v1alpha1"
	splitv1alpha2 "github.com/outrigger-mesh/outrigger/apis/split/v1alpha2"
	split "github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// namespace is a namespace that every API server creates.
const namespace = "default"

// server is one API server with the CRDs of the chart.
type server struct {
	config *rest.Config
	client dynamic.Interface
	mapper meta.RESTMapper
	scheme *runtime.Scheme
}

func startServer(t *testing.T) server {
	t.Helper()
	config := apiserver.Start(t)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	discovered, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(discovered)
	if err != nil {
		t.Fatal(err)
	}
	return server{config, client, restmapper.NewDiscoveryRESTMapper(groups), newScheme(t)}
}

func (s server) resource(t *testing.T, kind schema.GroupVersionKind) dynamic.ResourceInterface {
	t.Helper()
	mapping, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		t.Fatal(err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return s.client.Resource(mapping.Resource)
	}
	return s.client.Resource(mapping.Resource).Namespace(namespace)
}

// create creates an object as kubectl does, with strict validation: the server rejects unknown
// fields.
func (s server) create(t *testing.T, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	return s.resource(t, object.GroupVersionKind()).Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
}

// kinds are short names for the tables below.
var kinds = map[string]schema.GroupVersionKind{
	"target":  {Group: "access.smi-spec.io", Version: "v1alpha3", Kind: "TrafficTarget"},
	"http":    {Group: "specs.smi-spec.io", Version: "v1alpha4", Kind: "HTTPRouteGroup"},
	"tcp":     {Group: "specs.smi-spec.io", Version: "v1alpha4", Kind: "TCPRoute"},
	"split":   split.SchemeGroupVersion.WithKind("TrafficSplit"),
	"split2":  splitv1alpha2.SchemeGroupVersion.WithKind("TrafficSplit"),
	"egress":  {Group: "policy.openservicemesh.io", Version: "v1alpha1", Kind: "Egress"},
	"ingress": {Group: "policy.openservicemesh.io", Version: "v1alpha1", Kind: "IngressBackend"},
	"retry":   {Group: "policy.openservicemesh.io", Version: "v1alpha1", Kind: "Retry"},
	"setting": {Group: "policy.openservicemesh.io", Version: "v1alpha1", Kind: "UpstreamTrafficSetting"},
	"access":  outrigger.SchemeGroupVersion.WithKind("AccessPolicy"),
	"cluster": outrigger.SchemeGroupVersion.WithKind("ClusterAccessPolicy"),
	"token":   outrigger.SchemeGroupVersion.WithKind("TokenPolicy"),
}

// needed are the specs of kinds that must have one.
var needed = map[string]string{
	"access": "{targetRefs: [{kind: Pod, selector: {}}]}", "cluster": "{namespaceSelector: {}, action: Deny}",
	"token": "{issuers: [{issuer: a, jwks: b}]}",
}

// createSpec creates an object of one of kinds with the spec, which is YAML. A spec of
// "" is none.
func (s server) createSpec(t *testing.T, kind, spec string) (*unstructured.Unstructured, error) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generateName": "test-"}}}
	object.SetGroupVersionKind(kinds[kind])
	if spec != "" {
		var content any
		if err := yaml.UnmarshalStrict([]byte(spec), &content); err != nil {
			t.Fatalf("spec %q: %v", spec, err)
		}
		object.Object["spec"] = content
	}
	return s.create(t, object)
}

// decodes checks that an informer could read an object as it reads all others.
func (s server) decodes(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	typed, err := s.scheme.New(object.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}
	content, err := object.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, typed); err != nil {
		t.Errorf("%s is admitted and cannot be read: %v", title(object), err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		t.Errorf("%s is admitted and cannot be converted: %v", title(object), err)
	}
}

// TestCRDs is one test, since it starts one API server.
func TestCRDs(t *testing.T) {
	s := startServer(t)
	t.Run("samples apply", func(t *testing.T) { testSamples(t, s) })
	t.Run("accepts", func(t *testing.T) { testAccepts(t, s) })
	t.Run("refuses", func(t *testing.T) { testRefuses(t, s) })
	t.Run("status", func(t *testing.T) { testStatus(t, s) })
	t.Run("versions of a split", func(t *testing.T) { testSplitVersions(t, s) })
	t.Run("columns", func(t *testing.T) { testColumns(t, s) })
}

func testSamples(t *testing.T, s server) {
	for _, sent := range samples(t) {
		t.Run(title(sent), func(t *testing.T) {
			created, err := s.create(t, sent)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(sent.Object["spec"], created.Object["spec"]); diff != "" {
				t.Errorf("the server changed the spec (-sent +got):\n%s", diff)
			}
			s.decodes(t, created)
		})
	}
}

// testAccepts checks that the schemas accept what those of Open Service Mesh 1.2 accepted, even
// nonsense.
func testAccepts(t *testing.T, s server) {
	for _, tt := range []struct{ kind, spec string }{
		{"target", ""}, {"http", ""}, {"tcp", ""}, {"split", ""}, {"split2", ""},
		{"egress", ""}, {"ingress", ""}, {"retry", ""}, {"setting", ""},
		{"target", `{destination: {kind: Group, name: ""}, sources: [], rules: []}`},
		{"target", `{destination: {kind: ServiceAccount, name: a}, sources: [{kind: Pod, name: b}], rules: [{kind: UDPRoute, name: c, matches: []}]}`},
		{"http", `{matches: []}`},
		{"http", `{matches: [{name: ""}, {name: ""}]}`},
		{"http", `{matches: [{name: a, pathRegex: "(", methods: [GET, GET, "*"], headers: [{}, {a: b, c: d}, {a: "["}]}]}`},
		{"tcp", `{}`},
		{"tcp", `{matches: {}}`},
		{"tcp", `{matches: {ports: []}}`},
		{"tcp", `{matches: {ports: [-1, 0, 80, 80, 65536, 4294967296]}}`},
		{"split", `{service: "", backends: []}`},
		{"split", `{service: a, backends: [{service: a, weight: -1}, {service: b, weight: 0.5}, {service: b, weight: 1.0e+300}]}`},
		{"split", `{service: a, backends: [{service: b, weight: 9223372036854775807}], matches: [{kind: TCPRoute, name: ""}]}`},
		{"split2", `{service: a, backends: [{service: b, weight: 33.4}, {service: b, weight: 18446744073709551615}]}`},
		{"egress", `{sources: [], ports: []}`},
		{"egress", `{sources: [{kind: ServiceAccount, name: "", namespace: ""}], hosts: ["", "a b"], ipAddresses: [999.1.2.3/99, "x1.2.3.4/8"], ports: [{number: 1, protocol: ""}, {number: 65535, protocol: SCTP}], matches: [{apiGroup: "", kind: "", name: ""}]}`},
		{"ingress", `{backends: [], sources: []}`},
		{"ingress", `{backends: [{name: a, port: {number: 80, protocol: ftp}}, {name: a, port: {number: 80, protocol: HTTP}}], sources: [{kind: Nobody, name: ""}, {kind: IPRange, name: 10.0.0.1}]}`},
		{"retry", `{source: {kind: "", name: "", namespace: ""}, destinations: [], retryPolicy: {retryOn: "", perTryTimeout: soon, numRetries: -1, retryBackoffBaseInterval: -1s}}`},
		{"retry", `{source: {kind: a, name: a, namespace: a}, destinations: [{kind: a, name: a, namespace: a}], retryPolicy: {retryOn: never, perTryTimeout: "", numRetries: 4294967296, retryBackoffBaseInterval: "5"}}`},
		{"setting", `{host: ""}`},
		{"setting", `{host: a, connectionSettings: {}, rateLimit: {}, httpRoutes: []}`},
		{"setting", `{host: a, connectionSettings: {tcp: {}, http: {}}, rateLimit: {local: {}}, httpRoutes: [{}, {rateLimit: {}}]}`},
		{"setting", `{host: a, connectionSettings: {tcp: {maxConnections: 4294967296, connectTimeout: "5"}}}`},
		{"setting", `{host: a, rateLimit: {local: {tcp: {}, http: {}}}, httpRoutes: [{path: "[", rateLimit: {local: {}}}]}`},
		{"setting", `{host: a, rateLimit: {local: {tcp: {connections: 4294967296, burst: -1}, http: {requests: 4294967296, burst: -1, responseStatusCode: 599, responseHeadersToAdd: []}}}}`},
		// Valid values of Outrigger's own fields.
		{"setting", `{host: a, loadBalancing: {}, outlierDetection: {}, timeouts: {}}`},
		{"setting", `{host: a, loadBalancing: {hashOn: [{sourceIP: true}]}, timeouts: {request: 0s, idle: ""}}`},
		{"setting", `{host: a, loadBalancing: {policy: RingHash, hashOn: [{cookie: {name: c}}]}}`},
		{"setting", `{host: a, loadBalancing: {policy: LeastRequest, zoneAware: true}}`},
		{"access", `{targetRefs: [{kind: Service, name: a}, {kind: ServiceAccount, name: a.b}], rules: []}`},
		{"access", `{targetRefs: [{kind: Pod, selector: {}}], action: Deny, rules: [{}, {sources: [], notSources: [], ports: [], http: []}, {http: [{}]}]}`},
		{"access", `{targetRefs: [{kind: Pod, selector: {}}], rules: [{sources: [{serviceAccount: {}}, {namespaces: {}}, {spiffe: "spiffe://a/ns/b/sa/c"}, {ipBlock: 10.0.0.0/8}]}]}`},
		{"cluster", `{namespaceSelector: {}, podSelector: {}, action: Allow, rules: [{sources: [{serviceAccount: {namespace: a}}, {namespaces: {}}], ports: [1, 65535]}]}`},
		{"cluster", `{namespaceSelector: {}, action: Deny, rules: [{sources: [], notSources: [{serviceAccount: {namespace: a, name: b}}], http: [{method: GET}]}]}`},
	} {
		created, err := s.createSpec(t, tt.kind, tt.spec)
		if err != nil {
			t.Errorf("%s %s: %v", tt.kind, tt.spec, err)
			continue
		}
		s.decodes(t, created)
	}
}

func testRefuses(t *testing.T, s server) {
	const (
		badDuration = "must be a Go duration that is not negative, for example 30s, 5m or 1h30m"
		oneHash     = "set exactly one of header, cookie and sourceIP"
	)
	for _, tt := range []struct{ kind, spec, field, message string }{
		{"target", `{sources: [], rules: []}`, "spec.destination", "Required value"},
		{"target", `{destination: {kind: ServiceAccount, name: a}, sources: [], rules: [{kind: Ingress, name: a}]}`, "spec.rules[0].kind", "Unsupported value"},
		{"http", `{matches: [{name: a, methods: [get]}]}`, "spec.matches[0].methods[0]", "Unsupported value"},
		{"http", `{matches: [{name: a, header: []}]}`, "spec.matches[0].header", "unknown field"},
		{"tcp", `{matches: {ports: [http]}}`, "spec.matches.ports[0]", "must be of type integer"},
		{"split", `{service: a, backends: [{service: b}]}`, "spec.backends[0].weight", "Required value"},
		{"split2", `{service: a, backends: [{service: b, weight: 50%}]}`, "spec.backends[0].weight", "must be of type number"},
		{"egress", `{sources: [{kind: Pod, name: a, namespace: b}], ports: []}`, "spec.sources[0].kind", "Unsupported value"},
		{"egress", `{sources: [], ports: [{number: 0, protocol: tcp}]}`, "spec.ports[0].number", "greater than or equal to 1"},
		{"egress", `{sources: [], ports: [{number: 65536, protocol: tcp}]}`, "spec.ports[0].number", "less than or equal to 65535"},
		{"ingress", `{backends: [{name: a}], sources: []}`, "spec.backends[0].port", "Required value"},
		{"ingress", `{backends: [{name: a, port: {number: 1, protocol: https}, tls: {}}], sources: []}`, "spec.backends[0].tls.skipClientCertValidation", "Required value"},
		{"retry", `{source: {kind: a, name: a}, destinations: [], retryPolicy: {retryOn: a}}`, "spec.source.namespace", "Required value"},
		{"setting", `{}`, "spec.host", "Required value"},
		{"setting", `{host: a, rateLimit: {local: {tcp: {connections: 1, unit: day}}}}`, "spec.rateLimit.local.tcp.unit", "Unsupported value"},
		{"setting", `{host: a, rateLimit: {local: {http: {responseStatusCode: 200}}}}`, "spec.rateLimit.local.http.responseStatusCode", "greater than or equal to 400"},

		{"setting", `{host: a, loadBalancing: {policy: Sticky}}`, "spec.loadBalancing.policy", "Unsupported value"},
		{"setting", `{host: a, loadBalancing: {policy: Maglev}}`, "spec.loadBalancing", "the policies RingHash and Maglev need hashOn, which says what to hash"},
		{"setting", `{host: a, loadBalancing: {policy: Random, hashOn: [{header: b}]}}`, "spec.loadBalancing", "hashOn needs the policy RingHash or Maglev; leave the policy out for RingHash"},
		{"setting", `{host: a, loadBalancing: {hashOn: []}}`, "spec.loadBalancing.hashOn", "at least 1 items"},
		{"setting", `{host: a, loadBalancing: {hashOn: [{}]}}`, "spec.loadBalancing.hashOn[0]", oneHash},
		{"setting", `{host: a, loadBalancing: {hashOn: [{sourceIP: false}]}}`, "spec.loadBalancing.hashOn[0]", oneHash},
		{"setting", `{host: a, loadBalancing: {hashOn: [{header: a, sourceIP: true}]}}`, "spec.loadBalancing.hashOn[0]", oneHash},
		{"setting", `{host: a, loadBalancing: {hashOn: [{cookie: {name: ""}}]}}`, "spec.loadBalancing.hashOn[0].cookie.name", "at least 1 chars long"},
		{"setting", `{host: a, loadBalancing: {hashOn: [{cookie: {name: a, ttl: 1d}}]}}`, "spec.loadBalancing.hashOn[0].cookie.ttl", badDuration},
		{"setting", `{host: a, outlierDetection: {consecutiveErrors: 0}}`, "spec.outlierDetection.consecutiveErrors", "greater than or equal to 1"},
		{"setting", `{host: a, outlierDetection: {maxEjectionPercent: 101}}`, "spec.outlierDetection.maxEjectionPercent", "less than or equal to 100"},
		{"setting", `{host: a, outlierDetection: {interval: often}}`, "spec.outlierDetection.interval", badDuration},
		{"setting", `{host: a, outlierDetection: {baseEjectionTime: -1s}}`, "spec.outlierDetection.baseEjectionTime", badDuration},
		{"setting", `{host: a, timeouts: {request: 1 s}}`, "spec.timeouts.request", badDuration},
		{"setting", `{host: a, timeouts: {idle: never}}`, "spec.timeouts.idle", badDuration},

		{"access", `{rules: []}`, "spec.targetRefs", "Required value"},
		{"access", `{targetRefs: []}`, "spec.targetRefs", "at least 1 items"},
		{"access", `{targetRefs: [{kind: Gateway, name: a}]}`, "spec.targetRefs[0].kind", "Unsupported value"},
		{"access", `{targetRefs: [{kind: Pod}]}`, "spec.targetRefs[0]", "a Pod needs a selector"},
		{"access", `{targetRefs: [{kind: ServiceAccount, selector: {}}]}`, "spec.targetRefs[0]", "a Service or ServiceAccount a name"},
		{"access", `{targetRefs: [{kind: Pod, selector: {}}], action: Refuse}`, "spec.action", "Unsupported value"},
		{"access", `{targetRefs: [{kind: Pod, selector: {}}], rules: [{sources: [{}]}]}`, "spec.rules[0].sources[0]", "set exactly one of"},
		{"access", `{targetRefs: [{kind: Pod, selector: {}}], rules: [{sources: [{spiffe: "spiffe://a/ns/b/sa/c", ipBlock: 10.0.0.0/8}]}]}`, "spec.rules[0].sources[0]", "set exactly one of"},
		{"access", `{targetRefs: [{kind: Pod, selector: {}}], rules: [{ports: [0]}]}`, "spec.rules[0].ports[0]", "greater than or equal to 1"},
		{"access", `{targetRefs: [{kind: Pod, selector: {}}], rules: [{tokens: {}}]}`, "spec.rules[0].tokens", "unknown field"},
		{"access", `{targetRefs: [{kind: Pod, selector: {}}], rules: [{token: {subject: a}}]}`, "spec.rules[0].token.subject", "unknown field"},
		{"access", `{targetRefs: [{kind: Pod, selector: {}}], rules: [{token: {audiences: [""]}}]}`, "spec.rules[0].token.audiences[0]", "at least 1 chars long"},
		{"access", `{targetRefs: [{kind: Pod, selector: {}}], rules: [{token: {claims: [{}]}}]}`, "spec.rules[0].token.claims[0].path", "Required value"},
		{"access", `{targetRefs: [{kind: Pod, selector: {}}], rules: [{token: {claims: [{path: []}]}}]}`, "spec.rules[0].token.claims[0].path", "at least 1 items"},
		{"token", `{}`, "spec.issuers", "Required value"},
		{"token", `{issuers: []}`, "spec.issuers", "at least 1 items"},
		{"token", `{issuers: [{issuer: a}]}`, "spec.issuers[0]", "set either jwks or jwksFrom"},
		{"token", `{issuers: [{issuer: a, jwks: b, jwksFrom: {configMapKey: c}}]}`, "spec.issuers[0]", "set either jwks or jwksFrom"},
		{"token", `{issuers: [{issuer: a, jwksFrom: {}}]}`, "spec.issuers[0].jwksFrom", "set exactly one of configMapKey, url and discovery"},
		{"token", `{issuers: [{issuer: a, jwksFrom: {configMapKey: c, discovery: {}}}]}`, "spec.issuers[0].jwksFrom", "set exactly one of configMapKey, url and discovery"},
		{"token", `{issuers: [{issuer: a, jwksFrom: {url: "http://a"}}]}`, "spec.issuers[0].jwksFrom.url", "should match"},
		{"token", `{issuers: [{issuer: a, jwksFrom: {url: "https://a@b/c"}}]}`, "spec.issuers[0].jwksFrom.url", "should match"},
		{"token", `{issuers: [{issuer: a, jwksFrom: {configMapKey: ../a}}]}`, "spec.issuers[0].jwksFrom.configMapKey", "should match"},
		{"token", `{issuers: [{issuer: "", jwks: a}]}`, "spec.issuers[0].issuer", "at least 1 chars long"},
		{"token", `{issuers: [{issuer: a, jwks: b, jwksURI: "https://a"}]}`, "spec.issuers[0].jwksURI", "unknown field"},
		{"cluster", `{namespaceSelector: {}, action: Deny, rules: [{token: {}}]}`, "spec", "token is for an AccessPolicy"},
		{"cluster", `{action: Deny}`, "spec.namespaceSelector", "Required value"},
		{"cluster", `{namespaceSelector: {}}`, "spec.action", "Required value"},
		{"cluster", `{namespaceSelector: {}, action: Audit}`, "spec.action", "Unsupported value"},
		{"cluster", `{namespaceSelector: {}, action: Allow, rules: [{http: [{method: GET}]}]}`, "spec", "Allow names callers of the mesh and ports only"},
		{"cluster", `{namespaceSelector: {}, action: Allow, rules: [{notSources: []}]}`, "spec", "Allow names callers of the mesh and ports only"},
		{"cluster", `{namespaceSelector: {}, action: Allow, rules: [{sources: [{ipBlock: 10.0.0.0/8}]}]}`, "spec", "Allow names callers of the mesh and ports only"},
		{"cluster", `{namespaceSelector: {}, action: Deny, rules: [{sources: [{serviceAccount: {name: a}}]}]}`, "spec", "a service account needs its namespace"},
		{"cluster", `{namespaceSelector: {}, action: Deny, rules: [{notSources: [{serviceAccount: {name: a}}]}]}`, "spec", "a service account needs its namespace"},
	} {
		_, err := s.createSpec(t, tt.kind, tt.spec)
		if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			t.Errorf("%s %s: error %v, want a refusal", tt.kind, tt.spec, err)
			continue
		}
		for _, want := range []string{tt.field, tt.message} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s %s: error %q, want it to hold %q", tt.kind, tt.spec, err, want)
			}
		}
	}
}

func condition(kind, status, reason string) any {
	return map[string]any{
		"type": kind, "status": status, "reason": reason, "message": "",
		"lastTransitionTime": "2026-01-02T03:04:05Z",
	}
}

func testStatus(t *testing.T, s server) {
	accepted := condition("Accepted", "True", "Accepted")
	for kind, gvk := range kinds {
		t.Run(kind, func(t *testing.T) {
			object, err := s.createSpec(t, kind, needed[kind])
			if err != nil {
				t.Fatal(err)
			}
			client := s.resource(t, gvk)
			setStatus := func(status map[string]any) error {
				object.Object["status"] = status
				updated, err := client.UpdateStatus(t.Context(), object, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
				if err == nil {
					object = updated
				}
				return err
			}
			if err := setStatus(map[string]any{"conditions": []any{accepted, accepted}}); !apierrors.IsInvalid(err) {
				t.Errorf("two conditions of one type: error %v, want a refusal", err)
			}
			want := map[string]any{"observedGeneration": object.GetGeneration(), "conditions": []any{accepted}}
			if gvk.Group == kinds["egress"].Group {
				want["currentStatus"], want["reason"] = "committed", "used"
			}
			if err := setStatus(want); err != nil {
				t.Fatal(err)
			}
			delete(object.Object, "status")
			updated, err := client.Update(t.Context(), object, metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, updated.Object["status"]); diff != "" {
				t.Errorf("status after a user's update (-want +got):\n%s", diff)
			}
			s.decodes(t, updated)
		})
	}
}

// testSplitVersions reads and writes splits of either version as the other.
func testSplitVersions(t *testing.T, s server) {
	spec := `{service: a, backends: [{service: b, weight: 1}, {service: c, weight: 0.5}], matches: [{kind: HTTPRouteGroup, name: d, apiGroup: specs.smi-spec.io}]}`
	for _, tt := range []struct{ from, to string }{{"split", "split2"}, {"split2", "split"}} {
		t.Run("written as "+kinds[tt.from].Version, func(t *testing.T) {
			created, err := s.createSpec(t, tt.from, spec)
			if err != nil {
				t.Fatal(err)
			}
			other := s.resource(t, kinds[tt.to])
			read, err := other.Get(t.Context(), created.GetName(), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			ignoreVersion := cmpopts.IgnoreMapEntries(func(key string, _ any) bool { return key == "apiVersion" || key == "managedFields" })
			if diff := cmp.Diff(created.Object, read.Object, ignoreVersion); diff != "" {
				t.Errorf("read as %s (-written +read):\n%s", kinds[tt.to].Version, diff)
			}
			s.decodes(t, read)

			// A client that knows only the other version writes back what it has read.
			read.SetLabels(map[string]string{"touched": "yes"})
			if _, err := other.Update(t.Context(), read, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			after, err := s.resource(t, kinds[tt.from]).Get(t.Context(), created.GetName(), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(created.Object["spec"], after.Object["spec"]); diff != "" {
				t.Errorf("spec after an update as %s (-before +after):\n%s", kinds[tt.to].Version, diff)
			}
			if after.GetLabels()["touched"] != "yes" {
				t.Error("the update is not there")
			}
		})
	}
}

// testColumns reads samples with a bad status as kubectl get does.
func testColumns(t *testing.T, s server) {
	config := rest.CopyConfig(s.config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	tables, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ kind, name, want string }{
		{"target", "shop-orders", "Destination=orders"},
		{"http", "orders-api", ""},
		{"tcp", "orders-db", "Ports=[3306,5432]"},
		{"split", "orders", "Service=orders.default.svc.cluster.local"},
		{"split2", "orders-for-kiosks", "Service=orders"},
		{"egress", "payment", `Hosts=["pay.example.com","*.pay.example.net"] IP-Addresses=["203.0.113.0/24","198.51.100.7/32"]`},
		{"ingress", "shop-web", ""},
		{"retry", "orders", "Source=web Retry-On=5xx,connect-failure Retries=5"},
		{"setting", "cart", "Host=cart"},
		{"access", "callers", "Action=Deny"},
		{"cluster", "everywhere", "Action=Deny"},
		{"token", "login", ""},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			client := s.resource(t, kinds[tt.kind])
			object, err := client.Get(t.Context(), tt.name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			object.Object["status"] = map[string]any{"conditions": []any{condition("Degraded", "False", "NotDegraded"), condition("Accepted", "False", "NotFound")}}
			if _, err := client.UpdateStatus(t.Context(), object, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			mapping, err := s.mapper.RESTMapping(kinds[tt.kind].GroupKind(), kinds[tt.kind].Version)
			if err != nil {
				t.Fatal(err)
			}
			content, err := tables.Get().AbsPath("apis", mapping.Resource.Group, mapping.Resource.Version).
				NamespaceIfScoped(namespace, mapping.Scope.Name() == meta.RESTScopeNameNamespace).Resource(mapping.Resource.Resource).Name(tt.name).
				SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
				Do(t.Context()).Raw()
			if err != nil {
				t.Fatal(err)
			}
			var table metav1.Table
			if err := json.Unmarshal(content, &table); err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, column := range table.ColumnDefinitions {
				if column.Name != "Age" {
					got = append(got, fmt.Sprintf("%s=%v", column.Name, table.Rows[0].Cells[i]))
				}
			}
			want := strings.Join(strings.Fields("Name="+tt.name+" "+tt.want+" Accepted=False Reason=NotFound"), " ")
			if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
				t.Errorf("columns (-want +got):\n%s", diff)
			}
		})
	}
}
