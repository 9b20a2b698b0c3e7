package source

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	access "github.com/outrigger-mesh/outrigger/apis/access/v1alpha3"
	configv1alpha1 "github.com/outrigger-mesh/outrigger/apis/config/v1alpha1"
	config "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	specs "github.com/outrigger-mesh/outrigger/apis/specs/v1alpha4"
	splitv1alpha2 "github.com/outrigger-mesh/outrigger/apis/split/v1alpha2"
	split "github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// MapperOptions are what a Mapper needs to know besides the objects. All but
// Redirection are required.
type MapperOptions struct {
	// MeshName is the value of the label openservicemesh.io/monitored-by on the
	// namespaces of the mesh.
	MeshName string
	// Config is for reading MeshConfigs.
	Config ConfigOptions
	// SidecarClass returns the class of the sidecar that a pod has, in lower case, or
	// "" if it has none. Many goroutines call it at a time.
	SidecarClass func(*corev1.Pod) string
	// Redirection returns which connections of a pod that has a sidecar go through it.
	// Nil stands for RedirectionOf. Many goroutines call it at a time.
	Redirection func(*corev1.Pod) agentspec.Redirection
}

// Mapper turns objects into facts. It keeps nothing between two objects, and all its
// methods are safe for use by many goroutines.
type Mapper struct{ opts MapperOptions }

// NewMapper returns a Mapper.
func NewMapper(opts MapperOptions) *Mapper {
	if opts.Redirection == nil {
		opts.Redirection = RedirectionOf
	}
	return &Mapper{opts: opts}
}

// Fact returns what an object says, and whether the mesh reads objects of its kind.
// The object is not changed, and nothing of it is kept but strings. Equal objects
// give equal Facts.
//
// The kinds are Pod, Service and Namespace of v1, EndpointSlice of
// discovery.k8s.io/v1, MeshConfig of both versions, TrafficTarget, HTTPRouteGroup,
// TCPRoute, TrafficSplit of v1alpha2 and v1alpha4, Egress, IngressBackend, Retry and
// UpstreamTrafficSetting, as the Go types of this module and of Kubernetes.
//
// Of metadata the name, the namespace, the UID of Pods, the labels, the annotations
// and the time of creation are read, and all of the spec but for Pods: there only
// the service account, hostNetwork, and of containers and init containers the
// name, the ports and the restart policy, and the variable of the mesh's own init
// container that says what is redirected. Of a status only a Pod's phase and
// addresses are read. A source that keeps objects may drop the rest.
func (m *Mapper) Fact(obj runtime.Object) (mesh.Fact, bool) {
	ref, ok := Ref(obj)
	if !ok {
		return mesh.Fact{}, false
	}
	n := &notes{object: ref}
	fact := mesh.Fact{Object: ref}
	if n.named(obj) {
		fact.Content = m.content(obj, n)
	}
	fact.Problems = n.sorted()
	return fact, true
}

// Gone returns the Fact that there is no such object any more.
func Gone(ref mesh.ObjectRef) mesh.Fact { return mesh.Fact{Object: ref} }

// Ref returns the reference of an object of a kind that Fact knows, and false for
// others. The kind is that of the Go type, because objects from an API server come
// without one.
func Ref(obj runtime.Object) (mesh.ObjectRef, bool) {
	gvk, ok := kindOf(obj)
	meta, isObject := obj.(metav1.Object)
	if !ok || !isObject {
		return mesh.ObjectRef{}, false
	}
	return mesh.ObjectRef{
		APIVersion: gvk.GroupVersion().String(),
		Kind:       gvk.Kind,
		Namespace:  meta.GetNamespace(),
		Name:       meta.GetName(),
	}, true
}

func kindOf(obj runtime.Object) (gvk schema.GroupVersionKind, ok bool) {
	switch obj.(type) {
	case *corev1.Pod:
		return corev1.SchemeGroupVersion.WithKind("Pod"), true
	case *corev1.Service:
		return corev1.SchemeGroupVersion.WithKind("Service"), true
	case *corev1.Namespace:
		return corev1.SchemeGroupVersion.WithKind("Namespace"), true
	case *discoveryv1.EndpointSlice:
		return discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), true
	case *config.MeshConfig:
		return config.SchemeGroupVersion.WithKind("MeshConfig"), true
	case *configv1alpha1.MeshConfig:
		return configv1alpha1.SchemeGroupVersion.WithKind("MeshConfig"), true
	case *access.TrafficTarget:
		return access.SchemeGroupVersion.WithKind("TrafficTarget"), true
	case *specs.HTTPRouteGroup:
		return specs.SchemeGroupVersion.WithKind(kindHTTPRouteGroup), true
	case *specs.TCPRoute:
		return specs.SchemeGroupVersion.WithKind("TCPRoute"), true
	case *split.TrafficSplit:
		return split.SchemeGroupVersion.WithKind("TrafficSplit"), true
	case *splitv1alpha2.TrafficSplit:
		return splitv1alpha2.SchemeGroupVersion.WithKind("TrafficSplit"), true
	case *policy.Egress:
		return policy.SchemeGroupVersion.WithKind("Egress"), true
	case *policy.IngressBackend:
		return policy.SchemeGroupVersion.WithKind("IngressBackend"), true
	case *policy.Retry:
		return policy.SchemeGroupVersion.WithKind("Retry"), true
	case *policy.UpstreamTrafficSetting:
		return policy.SchemeGroupVersion.WithKind(kindUpstreamTrafficSetting), true
	}
	return schema.GroupVersionKind{}, false
}

func (m *Mapper) content(obj runtime.Object, n *notes) mesh.Content {
	switch obj := obj.(type) {
	case *corev1.Pod:
		return m.workload(obj, n)
	case *corev1.Service:
		return service(obj, n)
	case *corev1.Namespace:
		return m.namespace(obj, n)
	case *discoveryv1.EndpointSlice:
		return endpointSlice(obj, n)
	case *config.MeshConfig:
		return m.meshConfig(obj, n)
	case *configv1alpha1.MeshConfig:
		return m.meshConfig(&config.MeshConfig{ObjectMeta: obj.ObjectMeta, Spec: obj.Spec}, n)
	case *access.TrafficTarget:
		return accessRule(obj, n)
	case *specs.HTTPRouteGroup:
		return httpRouteGroup(obj, n)
	case *specs.TCPRoute:
		return tcpRoute(obj, n)
	case *split.TrafficSplit:
		return trafficSplit(obj.ObjectMeta, &obj.Spec, n)
	case *splitv1alpha2.TrafficSplit:
		return trafficSplit(obj.ObjectMeta, &obj.Spec, n)
	case *policy.Egress:
		return egressRule(obj, n)
	case *policy.IngressBackend:
		return ingressRule(obj, n)
	case *policy.Retry:
		return retryRule(obj, n)
	case *policy.UpstreamTrafficSetting:
		return upstreamSetting(obj, n)
	}
	return nil
}

func (m *Mapper) meshConfig(obj *config.MeshConfig, n *notes) mesh.Content {
	c, problems := NewConfig(obj, m.opts.Config)
	for _, p := range problems {
		p.Object = n.object
		n.problems = append(n.problems, p)
	}
	return c.Settings()
}

// named reports whether an object has the names that an API server would have asked
// for: one from a file may have any, and would pass for another one. The MeshConfig
// is the only one of its kind, whatever its name.
func (n *notes) named(obj runtime.Object) bool {
	switch obj.(type) {
	case *config.MeshConfig, *configv1alpha1.MeshConfig:
		return true
	case *corev1.Namespace:
	default:
		if !isObjectLabel(n.object.Namespace) {
			n.add(ReasonInvalid, "metadata.namespace", "%q is not the name of a namespace, so the object is not read; use lower case letters, digits and -", n.object.Namespace)
			return false
		}
	}
	if !isObjectName(n.object.Name) {
		n.add(ReasonInvalid, "metadata.name", "%q is not a name of Kubernetes, so the object is not read; use lower case letters, digits, - and .", n.object.Name)
		return false
	}
	return true
}

func nameOf(meta *metav1.ObjectMeta) mesh.Name {
	return mesh.Name{Namespace: meta.Namespace, Name: meta.Name}
}

func ageOf(meta *metav1.ObjectMeta) mesh.Age {
	if meta.CreationTimestamp.IsZero() {
		return mesh.Age{}
	}
	return mesh.Age{Created: meta.CreationTimestamp.Unix()}
}

// index returns the path of an entry of a list.
func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// port reads a port.
func (n *notes) port(path string, number int64) (uint16, bool) {
	if number < 1 || number > maxPort {
		n.add(ReasonInvalid, path, "%d is not a port and is left out; use 1 to %d", number, maxPort)
		return 0, false
	}
	return uint16(number), true
}

// sortedSet sorts the values and keeps each once.
func sortedSet[T comparable](values []T, compare func(a, b T) int) []T {
	slices.SortStableFunc(values, compare)
	return slices.Compact(values)
}

// unique keeps each value once, in the order in which the user wrote them, so that
// others can say where in the object they are.
func unique[T comparable](values []T) []T {
	var kept []T
	seen := make(map[T]bool, len(values))
	for _, value := range values {
		if !seen[value] {
			seen[value] = true
			kept = append(kept, value)
		}
	}
	return kept
}
