// Package behaviour asks a running mesh what it does, by requests: real controller,
// real agents and real proxies on a lab of network namespaces, and applications that
// live in the test. Each row of its table is a sentence about the mesh, which is asked
// of pairs of kinds of proxy. A vendor runs it over its own driver:
//
//	func TestMain(m *testing.M) { behaviour.Main(m) }
//
//	func TestBehaviour(t *testing.T) {
//		behaviour.Run(t, behaviour.Options{Program: "./cmd/our-outrigger"})
//	}
//
// The test imports the drivers that the program has, and each driver says by
// driver.Finder where its proxy is. A row that needs a feature is asked only of drivers
// that declare it by driver.Featurer.
package behaviour

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/lab"
	"github.com/outrigger-mesh/outrigger/internal/localmesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Options say what is asked. The zero value is every pair of the registered drivers
// whose proxy is on this machine, with Outrigger's own program.
type Options struct {
	// Program is the control plane: a program that is ready, or a main package as 'go
	// build' takes it, seen from the test's folder. Its drivers must be those that the
	// test has registered. Empty is Outrigger's own, with the drivers of
	// drivers/standard.
	Program string
	// Pairs are asked in their order; nil is all pairs of the classes whose proxy is
	// here. A pair whose proxy is missing is skipped.
	Pairs []Pair
}

// Result is what a run has found. Pairs that -test.run left out are not in it, and of
// the others all rows are.
type Result struct {
	// Answers are by pair and by the name of the row.
	Answers map[Pair]map[string]Answer
	// Versions are the versions of proxies, by class, "" where it tells none.
	Versions map[string]string
	// Missing says for each class without a proxy here why that is.
	Missing map[string]error
}

// Answer is what a run has found of a row and a pair.
type Answer string

// The answers.
const (
	// Yes says that the mesh does what the row says.
	Yes Answer = "yes"
	// No says that a driver does not declare what the row needs, so nothing was asked.
	No Answer = "no"
	// Failed says that the mesh does not do it, and the test has failed.
	Failed Answer = "failed"
	// Unasked says that -test.run left the row out.
	Unasked Answer = ""
)

// Main runs the tests of a package that calls Run, and exits. It gets the rights that
// the lab needs, which must be before any test, and is all that TestMain does.
func Main(m *testing.M) {
	lab.Enter()
	os.Exit(m.Run())
}

// atOnce is how many pairs are asked at a time. They wait more than they compute.
const atOnce = 2

// Run asks every row of every pair as subtests CLIENT-to-SERVER/ROW. It skips the test
// on a machine that cannot have a lab, and fails it where the mesh does not do what a
// row says and the drivers declare. It must be called from a test's own goroutine.
func Run(t *testing.T, options Options) Result {
	t.Helper()
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	programs, err := localmesh.BuildPrograms(t.Context(), t.TempDir(), options.Program)
	if err != nil {
		t.Fatal(err)
	}
	result := Result{Answers: map[Pair]map[string]Answer{}, Versions: map[string]string{}, Missing: programs.Missing}
	for _, class := range slices.Sorted(maps.Keys(programs.Missing)) {
		if err := programs.Missing[class]; !errors.Is(err, driver.ErrNoProxy) {
			t.Errorf("the proxy of class %s: %v", class, err)
		}
	}
	pairs := options.Pairs
	if pairs == nil {
		pairs = Pairs(slices.Collect(maps.Keys(programs.Proxies))...)
	}
	if len(pairs) == 0 {
		t.Skipf("SKIPPED: there is no proxy on this machine, as far as the drivers that are a driver.Finder know, of %v: %v", sidecar.Drivers(), programs.Missing)
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for _, p := range pairs {
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			t.Run(strings.ReplaceAll(p.String(), " ", "-"), func(t *testing.T) {
				for _, class := range []string{p.Client, p.Server} {
					if programs.Proxies[class] == "" {
						t.Skipf("SKIPPED: class %s: %v", class, programs.Missing[class])
					}
				}
				answers, versions := runPair(t, programs, p)
				mu.Lock()
				defer mu.Unlock()
				result.Answers[p] = answers
				maps.Copy(result.Versions, versions)
			})
		})
	}
	group.Wait()
	return result
}

// runPair asks all rows of a town of the pair.
func runPair(t *testing.T, programs localmesh.Programs, p Pair) (answers map[string]Answer, versions map[string]string) {
	w := newWorld(t, programs, p)
	versions = w.versions(t)
	answers = map[string]Answer{}
	for _, c := range Chapters() {
		for _, r := range c.Rows {
			if !r.Needs.MetBy(p) {
				answers[r.Name] = No
				continue
			}
			passed := t.Run(r.Name, func(t *testing.T) {
				answers[r.Name] = Yes
				r.proves(t, w)
			})
			if !passed {
				answers[r.Name] = Failed
			}
		}
	}
	return answers, versions
}
