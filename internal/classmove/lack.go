package classmove

import (
	"regexp"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// example is the part of a Problem's message that names a service account as an example.
var example = regexp.MustCompile(`, such as those of service account [^\s,:]+`)

// Lacks returns the Problems that there would be after the move and are not there now, without
// advice: fields of policies that ask the proxies of some pods for what the other class lacks. The
// facts are those of the whole mesh.
func Lacks(facts []fact.Fact, move Move, options catalog.Options) []mesh.Problem {
	moved := slices.Clone(facts)
	for i, f := range moved {
		w, ok := f.Content.(*fact.Workload)
		if !ok || w.Class != move.From || len(move.Namespaces) > 0 && !slices.Contains(move.Namespaces, w.Namespace) {
			continue
		}
		changed := *w
		changed.Sealed = mesh.Sealed{}
		changed.Class = move.To
		moved[i].Content = mesh.Seal(&changed)
	}
	known := make(map[string]bool)
	for _, p := range problems(catalog.BuildFor(facts, options)) {
		known[example.ReplaceAllString(p.String(), "")] = true
	}
	return slices.DeleteFunc(problems(catalog.BuildFor(moved, options)), func(p mesh.Problem) bool {
		return p.IsAdvice() || known[example.ReplaceAllString(p.String(), "")]
	})
}

// problems returns the Problems of a Snapshot, sorted by their texts.
func problems(s *fact.Snapshot) []mesh.Problem {
	var all []mesh.Problem
	for _, of := range s.Problems.All() {
		all = append(all, of.List...)
	}
	slices.SortFunc(all, func(a, b mesh.Problem) int {
		if a, b := a.String(), b.String(); a < b {
			return -1
		} else if a > b {
			return 1
		}
		return 0
	})
	return all
}
