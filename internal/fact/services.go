package fact

import (
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Any, as the name in an entry of Services, stands for all services of a namespace, and as
// name and namespace for all services.
const Any = "*"

// OnDemand, as an entry of the Services that a proxy knows, stands for those that it has
// used. They are in the Learned of its namespace.
var OnDemand = mesh.Name{Name: "on-demand"}

// Services names services, sorted and without duplicates.
type Services []mesh.Name

// OnDemand reports whether OnDemand is one of the entries, and returns the others.
func (s Services) OnDemand() (others Services, ok bool) {
	i := slices.Index(s, OnDemand)
	if i < 0 {
		return s, false
	}
	return slices.Delete(slices.Clone(s), i, i+1), true
}

// Has reports whether the service is one of them.
func (s Services) Has(service mesh.Name) bool {
	return slices.ContainsFunc(Entries(service), func(entry mesh.Name) bool {
		_, found := slices.BinarySearchFunc(s, entry, mesh.Name.Compare)
		return found
	})
}

// All reports whether they are all services of the mesh.
func (s Services) All() bool { return slices.Contains(s, mesh.Name{Namespace: Any, Name: Any}) }

// Entries returns the entries of Services that have the service.
func Entries(service mesh.Name) []mesh.Name {
	return []mesh.Name{service, {Namespace: service.Namespace, Name: Any}, {Namespace: Any, Name: Any}}
}

// String returns the entries, separated by commas.
func (s Services) String() string {
	var words []string
	for _, name := range s {
		words = append(words, textOf(name))
	}
	return strings.Join(words, ",")
}

func textOf(name mesh.Name) string {
	if name == OnDemand {
		return name.Name
	}
	return name.String()
}

// ParseServices returns the Services of a String.
func ParseServices(text string) Services {
	var s Services
	for word := range strings.SplitSeq(text, ",") {
		if word == OnDemand.Name {
			s = append(s, OnDemand)
			continue
		}
		namespace, name, _ := strings.Cut(word, "/")
		s = append(s, mesh.Name{Namespace: namespace, Name: name})
	}
	return s
}
