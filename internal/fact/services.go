package fact

import (
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Any, as the name in an entry of Services, stands for all services of a namespace, and as
// name and namespace for all services.
const Any = "*"

// Services names services, sorted and without duplicates.
type Services []mesh.Name

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
		words = append(words, name.String())
	}
	return strings.Join(words, ",")
}

// ParseServices returns the Services of a String.
func ParseServices(text string) Services {
	var s Services
	for word := range strings.SplitSeq(text, ",") {
		namespace, name, _ := strings.Cut(word, "/")
		s = append(s, mesh.Name{Namespace: namespace, Name: name})
	}
	return s
}
