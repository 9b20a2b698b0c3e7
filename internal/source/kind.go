package source

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	access "github.com/outrigger-mesh/outrigger/apis/access/v1alpha3"
	config "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	outrigger "github.com/outrigger-mesh/outrigger/apis/outrigger/v1alpha1"
	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	specs "github.com/outrigger-mesh/outrigger/apis/specs/v1alpha4"
	split "github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
	"github.com/outrigger-mesh/outrigger/apis/status"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Kinds returns the table of all kinds that the mesh reads. The table determines which
// kinds are watched, read from files, listed and checked, and where Problems are written.
// A new kind needs a row with a function from the object to its fact, and an input in
// internal/catalog; without an input its facts have no effect.
func Kinds() []Kind {
	return []Kind{
		kind(Cluster, corev1.SchemeGroupVersion.WithKind("Namespace"), corev1.AddToScheme, (*Mapper).namespace, nil),
		kind(Cluster, corev1.SchemeGroupVersion.WithKind("Pod"), corev1.AddToScheme, (*Mapper).workload, nil),
		kind(Cluster, corev1.SchemeGroupVersion.WithKind("Service"), corev1.AddToScheme, plain(service), nil),
		kind(Cluster, discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), discoveryv1.AddToScheme, plain(endpointSlice), nil),

		kind(Policy, access.SchemeGroupVersion.WithKind("TrafficTarget"), access.AddToScheme, plain(accessRule),
			smi(func(o *access.TrafficTarget) *status.Status { return &o.Status })),
		kind(Policy, specs.SchemeGroupVersion.WithKind(kindHTTPRouteGroup), specs.AddToScheme, plain(httpRouteGroup),
			smi(func(o *specs.HTTPRouteGroup) *status.Status { return &o.Status })),
		kind(Policy, specs.SchemeGroupVersion.WithKind("TCPRoute"), specs.AddToScheme, plain(tcpRoute),
			smi(func(o *specs.TCPRoute) *status.Status { return &o.Status })),
		kind(Policy, split.SchemeGroupVersion.WithKind("TrafficSplit"), split.AddToScheme, plain(trafficSplit),
			smi(func(o *split.TrafficSplit) *status.Status { return &o.Status }), "v1alpha2"),
		kind(Policy, policy.SchemeGroupVersion.WithKind("Egress"), policy.AddToScheme, plain(egressRule),
			osm(func(o *policy.Egress) *policy.PolicyStatus { return &o.Status })),
		kind(Policy, policy.SchemeGroupVersion.WithKind("IngressBackend"), policy.AddToScheme, plain(ingressRule),
			osm(func(o *policy.IngressBackend) *policy.PolicyStatus { return &o.Status })),
		kind(Policy, policy.SchemeGroupVersion.WithKind("Retry"), policy.AddToScheme, plain(retryRule),
			osm(func(o *policy.Retry) *policy.PolicyStatus { return &o.Status })),
		kind(Policy, policy.SchemeGroupVersion.WithKind(kindUpstreamTrafficSetting), policy.AddToScheme, plain(upstreamSetting),
			osm(func(o *policy.UpstreamTrafficSetting) *policy.PolicyStatus { return &o.Status })),
		kind(Policy, outrigger.SchemeGroupVersion.WithKind("AccessPolicy"), outrigger.AddToScheme, plain(accessPolicy),
			smi(func(o *outrigger.AccessPolicy) *status.Status { return &o.Status })),
		kind(Policy, outrigger.SchemeGroupVersion.WithKind("ClusterAccessPolicy"), outrigger.AddToScheme, plain(clusterAccessPolicy),
			smi(func(o *outrigger.ClusterAccessPolicy) *status.Status { return &o.Status })),
		kind(Policy, outrigger.SchemeGroupVersion.WithKind("TokenPolicy"), outrigger.AddToScheme, plain(tokenPolicy),
			smi(func(o *outrigger.TokenPolicy) *status.Status { return &o.Status })),

		route("HTTPRoute", plain(httpRoute),
			func(o *HTTPRoute) ([]gateway.ParentReference, *gateway.RouteStatus) {
				return o.Spec.ParentRefs, &o.Status.RouteStatus
			}, "v1beta1"),
		route("GRPCRoute", plain(grpcRoute),
			func(o *GRPCRoute) ([]gateway.ParentReference, *gateway.RouteStatus) {
				return o.Spec.ParentRefs, &o.Status.RouteStatus
			}, "v1alpha2"),
		route("TLSRoute", plain(tlsRoute),
			func(o *gateway.TLSRoute) ([]gateway.ParentReference, *gateway.RouteStatus) {
				return o.Spec.ParentRefs, &o.Status.RouteStatus
			}, "v1alpha3", "v1alpha2"),
		route("TCPRoute", plain(gatewayTCPRoute),
			func(o *gateway.TCPRoute) ([]gateway.ParentReference, *gateway.RouteStatus) {
				return o.Spec.ParentRefs, &o.Status.RouteStatus
			}, "v1alpha2"),
		withStatus(kind(Gateway, gatewayKind("GatewayClass"), addGateway, plain(gatewayClass), nil, "v1beta1"), setGatewayClass),
		withStatus(kind(Gateway, gatewayKind("Gateway"), addGateway, plain(gatewayOf), nil, "v1beta1"), setGateway),
		kind(Gateway, gatewayKind("ReferenceGrant"), addGateway, plain(referenceGrant), nil, "v1beta1", "v1alpha2"),

		MeshConfig(),
		// internal/identity/root reads its content.
		kind[config.MeshRootCertificate](Configuration, config.SchemeGroupVersion.WithKind("MeshRootCertificate"), config.AddToScheme, nil, nil),
	}
}

// MeshConfig returns the row for MeshConfig.
func MeshConfig() Kind {
	return kind(Configuration, config.SchemeGroupVersion.WithKind(kindMeshConfig), config.AddToScheme, (*Mapper).meshConfig,
		func(o *config.MeshConfig) Status {
			return Status{&o.Status.ObservedGeneration, &o.Status.Conditions, nil}
		}, "v1alpha1")
}

// Kind is a row of the table returned by Kinds.
type Kind struct {
	// GroupVersionKind is the newest version, which the Go type has.
	schema.GroupVersionKind
	// Versions are all supported versions, the newest first. They have the same fields, so
	// one Go type serves all.
	Versions []string
	Role     Role
	// HasStatus says that Problems are written to the objects' status as Conditions.
	HasStatus bool

	types  func(*runtime.Scheme) error
	create func() client.Object
	holds  func(runtime.Object) bool
	fact   func(*Mapper, runtime.Object, *notes) mesh.Digester
	status func(client.Object) Status
	// report writes a status that Gateway API defines, as SetGatewayStatus.
	report func(client.Object, *fact.Problems, metav1.Time) (fresh []mesh.Problem, changed bool)
}

// Role is the role that a kind's objects have in the mesh.
type Role int

const (
	// Cluster objects are built into Kubernetes.
	Cluster Role = iota
	// Policy objects are traffic policies. Their CRDs, like those of Configuration
	// objects, may not be installed yet.
	Policy
	// Configuration objects are in the control plane's namespace.
	Configuration
	// Gateway objects are those of Gateway API. Their CRDs belong to the cluster, and may
	// not be installed.
	Gateway
)

// Status points to the parts of an object's status that describe its Problems.
type Status struct {
	ObservedGeneration *int64
	Conditions         *[]metav1.Condition
	// Legacy is nil for kinds that have no status in Open Service Mesh.
	Legacy *policy.PolicyStatus
}

// object is a pointer to the Go type of a kind.
type object[T any] interface {
	*T
	client.Object
}

// kind makes a row. If fact is nil, the objects have no facts; if status is nil, they
// have no status for Problems. Older are the versions before that of the Go type.
func kind[T any, P object[T]](role Role, gvk schema.GroupVersionKind, types func(*runtime.Scheme) error,
	fact func(*Mapper, P, *notes) mesh.Digester, status func(P) Status, older ...string,
) Kind {
	return Kind{
		GroupVersionKind: gvk, Versions: append([]string{gvk.Version}, older...), Role: role, HasStatus: status != nil, types: types,
		create: func() client.Object { return P(new(T)) },
		holds:  func(obj runtime.Object) bool { _, ok := obj.(P); return ok && fact != nil },
		fact:   func(m *Mapper, obj runtime.Object, n *notes) mesh.Digester { return fact(m, obj.(P), n) },
		status: func(obj client.Object) Status { return status(obj.(P)) },
	}
}

// route makes the row of a kind of routes. The function parents returns an object's
// parents and status.
func route[T any, P object[T]](name string, content func(*Mapper, P, *notes) mesh.Digester,
	parents func(P) ([]gateway.ParentReference, *gateway.RouteStatus), older ...string,
) Kind {
	k := kind(Gateway, gatewayKind(name), addGateway, content, nil, older...)
	k.report = func(obj client.Object, found *fact.Problems, now metav1.Time) ([]mesh.Problem, bool) {
		refs, status := parents(obj.(P))
		return setParents(refs, status, obj.GetGeneration(), content(nil, obj.(P), new(notes)), found, now)
	}
	return k
}

// withStatus makes a row of Gateway API with the function that writes the status.
func withStatus(k Kind, report func(client.Object, *fact.Problems, metav1.Time) (fresh []mesh.Problem, changed bool)) Kind {
	k.report = report
	return k
}

// HasGatewayStatus reports whether the kind's Problems are written to a status that Gateway API
// defines.
func (k Kind) HasGatewayStatus() bool { return k.report != nil }

// SetGatewayStatus writes what was found out about an object of Gateway API to its status. It returns
// the Problems that the status did not contain yet, and whether the status has changed. It must not
// be called unless HasGatewayStatus is true.
func (k Kind) SetGatewayStatus(obj client.Object, found *fact.Problems, now metav1.Time) (fresh []mesh.Problem, changed bool) {
	return k.report(obj, found, now)
}

func gatewayKind(name string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: gateway.GroupName, Version: gateway.GroupVersion.Version, Kind: name}
}

// plain adapts functions that need only the object.
func plain[P any](fact func(P, *notes) mesh.Digester) func(*Mapper, P, *notes) mesh.Digester {
	return func(_ *Mapper, obj P, n *notes) mesh.Digester { return fact(obj, n) }
}

func smi[P any](field func(P) *status.Status) func(P) Status {
	return func(obj P) Status { s := field(obj); return Status{&s.ObservedGeneration, &s.Conditions, nil} }
}

func osm[P any](field func(P) *policy.PolicyStatus) func(P) Status {
	return func(obj P) Status { s := field(obj); return Status{&s.ObservedGeneration, &s.Conditions, s} }
}

// New returns an empty object of the kind.
func (k Kind) New() client.Object { return k.create() }

// Status returns the object's status. It must not be called unless HasStatus is true.
func (k Kind) Status(obj client.Object) Status { return k.status(obj) }

// Resource returns the kind's resource name, such as "egresses".
func (k Kind) Resource() schema.GroupResource {
	plural, _ := k.resources()
	return plural.GroupResource()
}

// AddToMapper adds the kind to a mapper.
func (k Kind) AddToMapper(mapper *meta.DefaultRESTMapper) {
	plural, singular := k.resources()
	mapper.AddSpecific(k.GroupVersionKind, plural, singular, k.Scope())
}

// resources returns the plural and the singular of the kind's resource.
func (k Kind) resources() (plural, singular schema.GroupVersionResource) {
	plural, singular = meta.UnsafeGuessKindToResource(k.GroupVersionKind)
	if k.Kind == kindGateway {
		plural.Resource = "gateways" // The guess is gatewaies.
	}
	return plural, singular
}

// Scope returns whether the kind is namespaced.
func (k Kind) Scope() meta.RESTScope {
	switch k.GroupKind() {
	case schema.GroupKind{Kind: "Namespace"}, schema.GroupKind{Group: outrigger.GroupName, Kind: "ClusterAccessPolicy"}, gatewayKind("GatewayClass").GroupKind():
		return meta.RESTScopeRoot
	}
	return meta.RESTScopeNamespace
}

// AddToScheme registers the Go type with a scheme.
func (k Kind) AddToScheme(scheme *runtime.Scheme) {
	if !scheme.Recognizes(k.GroupVersionKind) {
		if err := k.types(scheme); err != nil {
			panic(err) // Impossible: the kinds are compiled in and tested.
		}
	}
}

// Policies returns the full names of all kinds of traffic policies, including routes.
func Policies() []string {
	var names []string
	for _, kind := range Kinds() {
		if kind.Role == Policy || kind.Role == Gateway {
			names = append(names, mesh.ObjectRef{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind}.FullKind())
		}
	}
	return names
}
