package source_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	splitv1alpha4 "github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// newMapper returns a Mapper for a mesh "osm" whose pods have their class in the annotation
// "class".
func newMapper() *source.Mapper {
	return source.NewMapper(source.MapperOptions{
		MeshName:     "osm",
		Resolver:     source.NewResolver(options(nil)),
		SidecarClass: func(pod *corev1.Pod) string { return pod.Annotations["class"] },
	})
}

// decode returns an object without its kind, as informers do.
func decode(text []byte) (runtime.Object, error) {
	var of metav1.TypeMeta
	if err := yaml.Unmarshal(text, &of); err != nil {
		return nil, err
	}
	gvk := of.GroupVersionKind()
	for _, kind := range source.Kinds() {
		if kind.GroupKind() == gvk.GroupKind() && slices.Contains(kind.Versions, gvk.Version) {
			obj := kind.New()
			if err := yaml.Unmarshal(text, obj); err != nil {
				return nil, err
			}
			obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			return obj, nil
		}
	}
	return nil, fmt.Errorf("%s is not read", gvk)
}

func factOf(t *testing.T, text string) fact.Fact {
	t.Helper()
	obj, err := decode([]byte(text))
	if err == nil {
		// A misspelled field would test nothing.
		err = yaml.UnmarshalStrict([]byte(text), obj.DeepCopyObject())
	}
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	f, ok := newMapper().Fact(obj)
	if !ok {
		t.Fatalf("%T is not read", obj)
	}
	return f
}

// says returns a Fact's content without the name as JSON, or "nothing".
func says(t *testing.T, f fact.Fact) string {
	t.Helper()
	if f.Content == nil {
		return "nothing"
	}
	content, err := json.Marshal(f.Content)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(content), `"namespace":"shop","name":"x",`, "", 1)
}

// row is a spec, or everything except the metadata for kinds without a spec, with the content of
// its fact and "Reason field" of each Problem.
type row struct {
	name, spec, want string
	problems         []string
}

// check reads objects of one kind, named x in the namespace shop.
func check(t *testing.T, head string, rows []row) {
	t.Helper()
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			f := factOf(t, head+"\nmetadata: {name: x, namespace: shop}\nspec: "+tt.spec)
			expect(t, f, tt)
		})
	}
}

func expect(t *testing.T, f fact.Fact, tt row) {
	t.Helper()
	if got := says(t, f); got != tt.want {
		t.Errorf("what counts is\n%s, want\n%s", got, tt.want)
	}
	if diff := cmp.Diff(tt.problems, brief(f.Problems)); diff != "" {
		t.Errorf("Problems (-want +got):\n%s", diff)
	}
	for _, p := range f.Problems {
		if p.Object != f.Object || p.Message == "" || strings.ContainsAny(p.Message, "\n\r") {
			t.Errorf("Problem %+v", p)
		}
	}
}

// objects returns one object of each kind that the mesh reads.
func objects() []string {
	return []string{
		`{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: shop, uid: u1, annotations: {class: envoy}}, spec: {containers: [{name: app, ports: [{name: web, containerPort: 80}]}]}, status: {phase: Running, podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}`,
		`{apiVersion: v1, kind: Service, metadata: {name: x, namespace: shop}, spec: {clusterIPs: [10.1.0.1], ports: [{port: 80, targetPort: web, appProtocol: http}]}}`,
		`{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {openservicemesh.io/monitored-by: osm}}}`,
		`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: x, namespace: shop, labels: {kubernetes.io/service-name: x}}, addressType: IPv4, ports: [{port: 80}], endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: x}}]}`,
		`{apiVersion: config.openservicemesh.io/v1alpha1, kind: MeshConfig, metadata: {name: x, namespace: shop}, spec: {sidecar: {cipherSuites: [AES128-SHA]}}}`,
		`{apiVersion: config.openservicemesh.io/v1alpha2, kind: MeshConfig, metadata: {name: x, namespace: shop}, spec: {observability: {tracing: {enable: true}}, traffic: {inboundExternalAuthorization: {enable: true}}}}`,
		`{apiVersion: access.smi-spec.io/v1alpha3, kind: TrafficTarget, metadata: {name: x, namespace: shop}, spec: {destination: {kind: ServiceAccount, name: a, namespace: shop}, sources: [{kind: ServiceAccount, name: b, namespace: web}], rules: [{kind: HTTPRouteGroup, name: g, matches: [m]}]}}`,
		`{apiVersion: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, metadata: {name: x, namespace: shop}, spec: {matches: [{name: m, pathRegex: "/a/[0-9]+", methods: [GET], headers: [{x-a: "a|b", host: "b.*"}]}]}}`,
		`{apiVersion: specs.smi-spec.io/v1alpha4, kind: TCPRoute, metadata: {name: x, namespace: shop}, spec: {matches: {ports: [80]}}}`,
		`{apiVersion: split.smi-spec.io/v1alpha2, kind: TrafficSplit, metadata: {name: x, namespace: shop}, spec: {service: a.shop, backends: [{service: b, weight: 1}]}}`,
		`{apiVersion: split.smi-spec.io/v1alpha4, kind: TrafficSplit, metadata: {name: x, namespace: shop}, spec: {service: a, backends: [{service: b, weight: 1}], matches: [{kind: HTTPRouteGroup, name: g}]}}`,
		`{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: x, namespace: shop}, spec: {parentRefs: [{group: "", kind: Service, name: a}], rules: [{matches: [{path: {value: /a}}], filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}]}}], backendRefs: [{name: b, port: 80}]}]}}`,
		`{apiVersion: gateway.networking.k8s.io/v1, kind: GRPCRoute, metadata: {name: x, namespace: shop}, spec: {parentRefs: [{group: "", kind: Service, name: a}], rules: [{matches: [{method: {service: a.B}}], backendRefs: [{name: b, port: 80}]}]}}`,
		`{apiVersion: gateway.networking.k8s.io/v1, kind: TLSRoute, metadata: {name: x, namespace: shop}, spec: {hostnames: [a.example.com], parentRefs: [{group: "", kind: Service, name: a}], rules: [{backendRefs: [{name: b, port: 443}]}]}}`,
		`{apiVersion: gateway.networking.k8s.io/v1, kind: TCPRoute, metadata: {name: x, namespace: shop}, spec: {parentRefs: [{group: "", kind: Service, name: a}], rules: [{backendRefs: [{name: b, port: 3306}]}]}}`,
		`{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: outrigger-envoy}, spec: {controllerName: outrigger.openservicemesh.io/controller}}`,
		`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: x, namespace: shop}, spec: {gatewayClassName: outrigger-envoy, listeners: [{name: a, port: 80, protocol: HTTP, hostname: "*.example.com", allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {a: b}}}}}]}}`,
		`{apiVersion: gateway.networking.k8s.io/v1, kind: ReferenceGrant, metadata: {name: x, namespace: shop}, spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: front}], to: [{group: "", kind: Service}]}}`,
		`{apiVersion: outrigger.dev/v1alpha1, kind: AccessPolicy, metadata: {name: x, namespace: shop}, spec: {targetRefs: [{kind: Pod, selector: {matchLabels: {app: a}}}], action: Deny, rules: [{sources: [{namespaces: {matchLabels: {team: b}}}], notSources: [{serviceAccount: {name: c}}], ports: [80], http: [{path: {value: /a}}]}]}}`,
		`{apiVersion: outrigger.dev/v1alpha1, kind: ClusterAccessPolicy, metadata: {name: x}, spec: {namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchLabels: {a: b}}, action: Deny, rules: [{sources: [{namespaces: {matchLabels: {team: b}}}], ports: [80]}]}}`,
		`{apiVersion: outrigger.dev/v1alpha1, kind: TokenPolicy, metadata: {name: x, namespace: shop}, spec: {issuers: [{issuer: https://login.example.com, jwks: '{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'}]}}`,
		`{apiVersion: policy.openservicemesh.io/v1alpha1, kind: Egress, metadata: {name: x, namespace: shop}, spec: {sources: [{kind: ServiceAccount, name: a, namespace: shop}], hosts: [a.example.com], ipAddresses: [10.0.0.0/8], ports: [{number: 443, protocol: https}], matches: [{kind: UpstreamTrafficSetting, name: u}]}}`,
		`{apiVersion: policy.openservicemesh.io/v1alpha1, kind: IngressBackend, metadata: {name: x, namespace: shop}, spec: {backends: [{name: a, port: {number: 80, protocol: https}, tls: {skipClientCertValidation: true, sniHosts: [a.example.com]}}], sources: [{kind: IPRange, name: 10.0.0.0/8}, {kind: AuthenticatedPrincipal, name: "*"}]}}`,
		`{apiVersion: policy.openservicemesh.io/v1alpha1, kind: Retry, metadata: {name: x, namespace: shop}, spec: {source: {kind: ServiceAccount, name: a, namespace: shop}, destinations: [{kind: Service, name: b, namespace: shop}], retryPolicy: {retryOn: 5xx, numRetries: 2, perTryTimeout: 1s}}}`,
		`{apiVersion: policy.openservicemesh.io/v1alpha1, kind: UpstreamTrafficSetting, metadata: {name: x, namespace: shop}, spec: {host: a, connectionSettings: {http: {maxRequests: 1}}, rateLimit: {local: {http: {requests: 1, unit: second}}}, httpRoutes: [{path: /a, rateLimit: {local: {requests: 1, unit: hour}}}], loadBalancing: {hashOn: [{cookie: {name: c, ttl: 1h}}]}, outlierDetection: {interval: 1s}, timeouts: {idle: 0s}}}`,
	}
}

func TestEveryKindIsRead(t *testing.T) {
	read := make(map[string]bool)
	for _, text := range objects() {
		var want metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		t.Run(want.APIVersion+" "+want.Kind, func(t *testing.T) {
			f := factOf(t, text)
			read[f.Object.Kind] = true
			kind, ok := newMapper().KindOf(f.Object)
			if !ok || kind.Group != want.GroupVersionKind().Group || kind.Kind != want.Kind {
				t.Errorf("the Fact is about %s %s", f.Object.APIVersion, f.Object.Kind)
			}
			if f.Content == nil || f.Content.Digest().IsZero() {
				t.Error("the Fact says nothing")
			}
			if gone := source.Gone(f.Object); gone.Content != nil || gone.Object != f.Object {
				t.Errorf("Gone() = %+v", gone)
			}
		})
	}
	for _, kind := range source.Kinds() {
		if _, ok := newMapper().Ref(kind.New()); ok && !read[kind.Kind] {
			t.Errorf("the test has no %s", kind.Kind)
		}
	}
}

func TestOtherKindsAreNotRead(t *testing.T) {
	for _, obj := range []runtime.Object{&corev1.ConfigMap{}, &corev1.PodList{}, &metav1.PartialObjectMetadata{}} {
		if f, ok := newMapper().Fact(obj); ok {
			t.Errorf("%T gives %+v", obj, f)
		}
	}
}

// TestNames checks that an object of a file cannot be taken for another one.
func TestNames(t *testing.T) {
	for _, tt := range []struct{ meta, problem string }{
		{`{name: x}`, "Invalid metadata.namespace"},
		{`{name: x, namespace: a/b}`, "Invalid metadata.namespace"},
		{`{name: "", namespace: shop}`, "Invalid metadata.name"},
		{`{name: a/b, namespace: shop}`, "Invalid metadata.name"},
		{`{name: X, namespace: shop}`, "Invalid metadata.name"},
	} {
		f := factOf(t, "{apiVersion: v1, kind: Service, metadata: "+tt.meta+"}")
		expect(t, f, row{want: "nothing", problems: []string{tt.problem}})
	}
	if f := factOf(t, `{apiVersion: v1, kind: Namespace, metadata: {name: a}}`); f.Content == nil {
		t.Error("a namespace needs a namespace")
	}
	if f := factOf(t, `{apiVersion: config.openservicemesh.io/v1alpha2, kind: MeshConfig}`); f.Content == nil {
		t.Error("the MeshConfig needs a name")
	}
}

func TestAge(t *testing.T) {
	split := &splitv1alpha4.TrafficSplit{
		ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "shop"},
		Spec:       splitv1alpha4.TrafficSplitSpec{Service: "a", Backends: []splitv1alpha4.TrafficSplitBackend{{Service: "b", Weight: 1}}},
	}
	for created, want := range map[metav1.Time]int64{{}: 0, metav1.NewTime(time.Unix(1700000000, 5)): 1700000000} {
		split.CreationTimestamp = created
		f, _ := newMapper().Fact(split)
		if got := f.Content.(*fact.Split).Created; got != want {
			t.Errorf("created at %v: %d, want %d", created, got, want)
		}
	}
}

// TestManyGoroutines is for the race detector. It also checks that equal objects give equal
// Facts.
func TestManyGoroutines(t *testing.T) {
	mapper := newMapper()
	var group sync.WaitGroup
	for _, text := range objects() {
		obj, err := decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		want, _ := newMapper().Fact(obj)
		for range 8 {
			group.Go(func() {
				got, _ := mapper.Fact(obj)
				if got.Content.Digest() != want.Content.Digest() {
					t.Errorf("%s has two digests", got.Object)
				}
				if diff := cmp.Diff(want.Problems, got.Problems); diff != "" {
					t.Errorf("%s has other Problems:\n%s", got.Object, diff)
				}
			})
		}
	}
	group.Wait()
}
