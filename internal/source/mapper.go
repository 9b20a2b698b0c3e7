package source

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	config "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// MapperOptions configure a Mapper. All fields except Kinds and Redirection are required.
type MapperOptions struct {
	// MeshName is the value of the label openservicemesh.io/monitored-by on the mesh's
	// namespaces.
	MeshName string
	// Kinds are the kinds that are read. Nil means the result of the function Kinds.
	Kinds []Kind
	// Resolver resolves MeshConfigs.
	Resolver *Resolver
	// SidecarClass returns the class of a pod's sidecar, in lower case, or "" if it has
	// none. It must be safe for concurrent use.
	SidecarClass func(*corev1.Pod) string
	// Redirection returns which connections of a pod with a sidecar are redirected. Nil
	// means RedirectionOf. It must be safe for concurrent use.
	Redirection func(*corev1.Pod) agentspec.Redirection
}

// Mapper converts objects to facts. It keeps no state, and its methods are safe for
// concurrent use.
type Mapper struct{ opts MapperOptions }

// NewMapper returns a Mapper.
func NewMapper(opts MapperOptions) *Mapper {
	if opts.Kinds == nil {
		opts.Kinds = Kinds()
	}
	if opts.Redirection == nil {
		opts.Redirection = RedirectionOf
	}
	return &Mapper{opts: opts}
}

// Kinds returns the kinds that are read. The caller must not change them.
func (m *Mapper) Kinds() []Kind { return m.opts.Kinds }

// Fact returns the fact for an object, and false if its kind has no facts. It does not
// change the object and keeps nothing of it but strings. Equal objects give equal Facts.
//
// Of metadata, it reads the name, namespace, labels, annotations, creation time and, for
// Pods, the UID. It reads the whole spec, except for Pods: there only the service
// account, hostNetwork, the readiness gates, the name, ports and restart policy of
// containers and init containers, and the redirection variable of the mesh's own init
// container. Of the status it reads only a Pod's phase, addresses and conditions, and the load
// balancer of a Service. Sources
// that keep objects may drop everything else.
func (m *Mapper) Fact(obj runtime.Object) (fact.Fact, bool) {
	kind, ref, ok := m.find(obj)
	if !ok {
		return fact.Fact{}, false
	}
	n := &notes{object: ref}
	f := fact.Fact{Object: ref}
	if n.hasValidName(kind) {
		f.Content = kind.fact(m, obj, n)
	}
	f.Problems = n.sorted()
	return f, true
}

// Gone returns the Fact that an object was deleted.
func Gone(ref mesh.ObjectRef) fact.Fact { return fact.Fact{Object: ref} }

// Ref returns the reference to an object, and false if its kind has no facts. The kind is
// derived from the Go type, since objects from an API server come without one.
func (m *Mapper) Ref(obj runtime.Object) (mesh.ObjectRef, bool) {
	_, ref, ok := m.find(obj)
	return ref, ok
}

// Ref is Mapper.Ref for the default kinds.
func Ref(obj runtime.Object) (mesh.ObjectRef, bool) { return NewMapper(MapperOptions{}).Ref(obj) }

// KindOf returns the kind of the referenced object.
func (m *Mapper) KindOf(ref mesh.ObjectRef) (Kind, bool) {
	for _, kind := range m.opts.Kinds {
		if kind.Kind == ref.Kind && kind.GroupVersion().String() == ref.APIVersion {
			return kind, true
		}
	}
	return Kind{}, false
}

func (m *Mapper) find(obj runtime.Object) (*Kind, mesh.ObjectRef, bool) {
	for i := range m.opts.Kinds {
		kind := &m.opts.Kinds[i]
		if object, ok := obj.(metav1.Object); ok && kind.holds(obj) {
			ref := mesh.ObjectRef{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: object.GetName()}
			if kind.Scope() == meta.RESTScopeNamespace {
				ref.Namespace = object.GetNamespace()
			}
			return kind, ref, true
		}
	}
	return nil, mesh.ObjectRef{}, false
}

func (m *Mapper) meshConfig(obj *config.MeshConfig, n *notes) mesh.Digester {
	c := m.opts.Resolver.Resolve(obj)
	for _, p := range c.Problems() {
		p.Object = n.object
		n.problems = append(n.problems, p)
	}
	return c.Settings()
}

// hasValidName checks the names that an API server would have checked: an object from a
// file may have any name, and could be confused with another. The MeshConfig is exempt,
// since there is only one, whatever its name.
func (n *notes) hasValidName(kind *Kind) bool {
	if kind.Role == Configuration {
		return true
	}
	if kind.Scope() == meta.RESTScopeNamespace && !isObjectLabel(n.object.Namespace) {
		n.add(ReasonInvalid, "metadata.namespace", "%q is not the name of a namespace, so the object is ignored; use lower case letters, digits and -", n.object.Namespace)
		return false
	}
	if !isObjectName(n.object.Name) {
		n.add(ReasonInvalid, "metadata.name", "%q is not a Kubernetes name, so the object is ignored; use lower case letters, digits, - and .", n.object.Name)
		return false
	}
	return true
}

func nameOf(meta *metav1.ObjectMeta) mesh.Name {
	return mesh.Name{Namespace: meta.Namespace, Name: meta.Name}
}

func ageOf(meta *metav1.ObjectMeta) fact.Age {
	if meta.CreationTimestamp.IsZero() {
		return fact.Age{}
	}
	return fact.Age{Created: meta.CreationTimestamp.Unix()}
}

// index returns the path of a list's entry.
func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// port checks a port number.
func (n *notes) port(path string, number int64) (uint16, bool) {
	if number < 1 || number > maxPort {
		n.add(ReasonInvalid, path, "%d is not a port and is ignored; use 1 to %d", number, maxPort)
		return 0, false
	}
	return uint16(number), true
}

// sortedSet sorts the values in place and removes duplicates.
func sortedSet[T comparable](values []T, compare func(a, b T) int) []T {
	slices.SortStableFunc(values, compare)
	return slices.Compact(values)
}

// unique removes duplicates and keeps the user's order, so that indexes in Problems stay
// right.
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
