package fact

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// LearnedName is the name of the ConfigMap of a namespace with its Learned.
const LearnedName = "outrigger-learned-services"

// Learned has what the pods of a namespace have used, by service account.
type Learned struct {
	mesh.Sealed
	Accounts map[string]Used `json:"accounts,omitempty"`
}

// Used is what the pods of a service account have used.
type Used struct {
	// All stands for everything.
	All bool `json:"all,omitempty"`
	// Services are sorted and without wildcards. Pods are those without a service that are
	// called by their own addresses, sorted.
	Services Services    `json:"services,omitempty"`
	Pods     []mesh.Name `json:"pods,omitempty"`
}

// Has reports whether everything of the other is in it.
func (u Used) Has(other Used) bool {
	if u.All {
		return true
	}
	isIn := func(names, in []mesh.Name) bool {
		return !slices.ContainsFunc(names, func(name mesh.Name) bool { return !slices.Contains(in, name) })
	}
	return !other.All && isIn(other.Services, u.Services) && isIn(other.Pods, u.Pods)
}

// With returns what is in either.
func (u Used) With(other Used) Used {
	join := func(a, b []mesh.Name) []mesh.Name {
		both := slices.Concat(a, b)
		slices.SortFunc(both, mesh.Name.Compare)
		return slices.Compact(both)
	}
	return Used{All: u.All || other.All, Services: join(u.Services, other.Services), Pods: join(u.Pods, other.Pods)}
}
