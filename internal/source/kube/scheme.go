package kube

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	access "github.com/outrigger-mesh/outrigger/apis/access/v1alpha3"
	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	specs "github.com/outrigger-mesh/outrigger/apis/specs/v1alpha4"
	split "github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
)

// Scheme returns a new scheme with the kinds that the control plane reads and
// writes.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, v1alpha2.AddToScheme,
		access.AddToScheme, specs.AddToScheme, split.AddToScheme, policy.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // The kinds are compiled in, so it fails always or never.
		}
	}
	return scheme
}

// Mapper returns a mapper that knows the kinds which the control plane uses without
// asking the API server, so that one that is away, or has no CRDs yet, stops nobody
// from starting.
func Mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"ConfigMap", "Event", "Pod", "Service"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	mapper.Add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace)
	mapper.Add(meshConfigs().gvk, meta.RESTScopeNamespace)
	for _, kind := range policies() {
		mapper.Add(kind.gvk, meta.RESTScopeNamespace)
	}
	return mapper
}

// crd is a kind that the API server may not have yet.
type crd struct {
	gvk      schema.GroupVersionKind
	resource schema.GroupResource
	object   client.Object
	// without says what is the case as long as it has none.
	without string
}

func meshConfigs() crd {
	return crd{v1alpha2.SchemeGroupVersion.WithKind("MeshConfig"), v1alpha2.Resource("meshconfigs"), &v1alpha2.MeshConfig{}, "every setting has its default"}
}

// policies are the kinds of traffic policies.
func policies() []crd {
	kind := func(gv schema.GroupVersion, kind, resource string, object client.Object) crd {
		return crd{gv.WithKind(kind), gv.WithResource(resource).GroupResource(), object, "none is in force"}
	}
	return []crd{
		kind(access.SchemeGroupVersion, "TrafficTarget", "traffictargets", &access.TrafficTarget{}),
		kind(specs.SchemeGroupVersion, "HTTPRouteGroup", "httproutegroups", &specs.HTTPRouteGroup{}),
		kind(specs.SchemeGroupVersion, "TCPRoute", "tcproutes", &specs.TCPRoute{}),
		kind(split.SchemeGroupVersion, "TrafficSplit", "trafficsplits", &split.TrafficSplit{}),
		kind(policy.SchemeGroupVersion, "Egress", "egresses", &policy.Egress{}),
		kind(policy.SchemeGroupVersion, "IngressBackend", "ingressbackends", &policy.IngressBackend{}),
		kind(policy.SchemeGroupVersion, "Retry", "retries", &policy.Retry{}),
		kind(policy.SchemeGroupVersion, "UpstreamTrafficSetting", "upstreamtrafficsettings", &policy.UpstreamTrafficSetting{}),
	}
}
