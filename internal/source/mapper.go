package source

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	config "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// MapperOptions are what a Mapper needs to know besides the objects. All but
// Kinds and Redirection are required.
type MapperOptions struct {
	// MeshName is the value of the label openservicemesh.io/monitored-by on the
	// namespaces of the mesh.
	MeshName string
	// Kinds are those whose objects are read; nil stands for the table that function
	// Kinds returns.
	Kinds []Kind
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
	if opts.Kinds == nil {
		opts.Kinds = Kinds()
	}
	if opts.Redirection == nil {
		opts.Redirection = RedirectionOf
	}
	return &Mapper{opts: opts}
}

// Kinds returns the kinds whose objects are read. The caller must not change them.
func (m *Mapper) Kinds() []Kind { return m.opts.Kinds }

// Fact returns what an object says, and whether there are facts about objects of its
// kind. The object is not changed, and nothing of it is kept but strings. Equal objects
// give equal Facts.
//
// Of metadata the name, the namespace, the UID of Pods, the labels, the annotations
// and the time of creation are read, and all of the spec but for Pods: there only
// the service account, hostNetwork, and of containers and init containers the
// name, the ports and the restart policy, and the variable of the mesh's own init
// container that says what is redirected. Of a status only a Pod's phase and
// addresses are read. A source that keeps objects may drop the rest.
func (m *Mapper) Fact(obj runtime.Object) (mesh.Fact, bool) {
	kind, ref, ok := m.find(obj)
	if !ok {
		return mesh.Fact{}, false
	}
	n := &notes{object: ref}
	fact := mesh.Fact{Object: ref}
	if n.named(kind) {
		fact.Content = kind.fact(m, obj, n)
	}
	fact.Problems = n.sorted()
	return fact, true
}

// Gone returns the Fact that there is no such object any more.
func Gone(ref mesh.ObjectRef) mesh.Fact { return mesh.Fact{Object: ref} }

// Ref returns the reference of an object of a kind that there are facts about, and false
// for others. The kind is that of the Go type, because objects from an API server come
// without one.
func (m *Mapper) Ref(obj runtime.Object) (mesh.ObjectRef, bool) {
	_, ref, ok := m.find(obj)
	return ref, ok
}

// Ref is Mapper.Ref with the kinds of the table.
func Ref(obj runtime.Object) (mesh.ObjectRef, bool) { return NewMapper(MapperOptions{}).Ref(obj) }

// KindOf returns the kind of an object that a fact is about.
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
			return kind, mesh.ObjectRef{
				APIVersion: kind.GroupVersion().String(),
				Kind:       kind.Kind,
				Namespace:  object.GetNamespace(),
				Name:       object.GetName(),
			}, true
		}
	}
	return nil, mesh.ObjectRef{}, false
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
func (n *notes) named(kind *Kind) bool {
	if kind.Role == Configuration {
		return true
	}
	if kind.Scope() == meta.RESTScopeNamespace && !isObjectLabel(n.object.Namespace) {
		n.add(ReasonInvalid, "metadata.namespace", "%q is not the name of a namespace, so the object is not read; use lower case letters, digits and -", n.object.Namespace)
		return false
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
