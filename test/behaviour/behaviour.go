// Package behaviour tests a running mesh by requests: a real controller, real agents and
// real proxies in a lab of network namespaces, with applications in the test process.
// Each row of its table is a statement about the mesh, which is tested for pairs of proxy
// classes. A vendor runs it with its own driver:
//
//	func TestMain(m *testing.M) { behaviour.Main(m) }
//
//	func TestBehaviour(t *testing.T) {
//		behaviour.Run(t, behaviour.Options{Program: "./cmd/our-outrigger"})
//	}
//
// The test must import the program's drivers. Each driver locates its proxy by
// driver.Finder. A row that needs a feature is tested only with drivers that declare it
// by driver.Featurer.
package behaviour

import (
	"errors"
	"flag"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// Options select what is tested. The zero value tests all pairs of registered drivers
// whose proxy is on this machine, with Outrigger's own program.
type Options struct {
	// Program is the control plane: an executable, or a main package as for 'go build',
	// relative to the test's directory. It must have the drivers that the test has
	// registered. Empty means Outrigger's own program, with the drivers of
	// drivers/standard.
	Program string
	// Pairs are tested, several at once; nil means all pairs of the classes whose proxy is on
	// this machine. Pairs with a missing proxy are skipped.
	Pairs []Pair
	// Rows are the names of the rows to test; nil means all.
	Rows []string
	// Long tests the rows that take too long for the table, and no others.
	Long bool
	// Later are programs by class to which the row about upgrades upgrades the proxies of running
	// pods. A class without one is upgraded to the program that it has.
	Later map[string]string
}

// Result is the outcome of a run. It lacks pairs that -test.run excluded, and has all
// rows of the others.
type Result struct {
	// Answers are by pair and row name.
	Answers map[Pair]map[string]Answer
	// Versions are the versions of the proxies by class, "" if unknown.
	Versions map[string]string
	// Missing has the reason for each class without a proxy on this machine.
	Missing map[string]error
}

// Answer is the outcome of a row for a pair.
type Answer string

// The answers.
const (
	// Yes means that the mesh behaves as stated.
	Yes Answer = "yes"
	// No means that a driver does not declare a needed feature, so the row was not tested.
	No Answer = "no"
	// Failed means that the mesh does not behave as stated; the test has failed.
	Failed Answer = "failed"
	// Unasked means that -test.run or Options.Rows excluded the row.
	Unasked Answer = ""
)

// Main runs the tests of a package that calls Run, and exits. It acquires the
// privileges that the lab needs, which must happen before any test. TestMain needs
// nothing else.
func Main(m *testing.M) {
	lab.Enter()
	os.Exit(m.Run())
}

// turns limits how many meshes are tested at once, by all tests of this process. Most rows
// wait for a second or more, so there are more meshes than processors.
var turns = make(chan struct{}, 2*min(runtime.GOMAXPROCS(0), 4))

// Run tests every row with every pair as subtests CLIENT-to-SERVER/ROW. It skips the
// test if the machine does not support a lab, and fails it if the mesh does not behave
// as a row states although the drivers declare the features. It must be called from a
// test's own goroutine.
func Run(t *testing.T, options Options) Result {
	t.Helper()
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	for _, name := range options.Rows {
		if !slices.ContainsFunc(Chapters(), func(c Chapter) bool { return slices.ContainsFunc(c.Rows, func(r Row) bool { return r.Name == name }) }) {
			t.Fatalf("there is no row %q", name)
		}
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
		t.Skipf("SKIPPED: no driver.Finder of %v finds its proxy on this machine: %v", sidecar.Drivers(), programs.Missing)
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, p := range pairs {
		group.Go(func() {
			t.Run(strings.ReplaceAll(p.String(), " ", "-"), func(t *testing.T) {
				for _, class := range []string{p.Client, p.Server} {
					if programs.Proxies[class] == "" {
						t.Skipf("SKIPPED: class %s: %v", class, programs.Missing[class])
					}
				}
				answers, versions := runPair(t, programs, p, options)
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

// runPair tests all rows in one or two test meshes of the pair.
func runPair(t *testing.T, programs localmesh.Programs, p Pair, options Options) (answers map[string]Answer, versions map[string]string) {
	answers, versions = map[string]Answer{}, map[string]string{}
	var mu sync.Mutex
	var group sync.WaitGroup
	defer group.Wait()
	for _, chapters := range options.meshes() {
		// A mesh that does not start ends the test, so it starts in the test's own goroutine.
		w, found := takeTurn(t, programs, p)
		w.later = options.Later
		maps.Copy(versions, found)
		group.Go(func() {
			defer func() { <-turns }()
			got := w.proveAll(t, chapters, options.Rows)
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(answers, got)
		})
	}
	group.Wait()
	return answers, versions
}

// takeTurn starts a mesh of the pair when there is a turn for it, and returns it with the
// versions of its proxies. The caller gives the turn back, unless this ends the test.
func takeTurn(t *testing.T, programs localmesh.Programs, p Pair) (w *testMesh, versions map[string]string) {
	turns <- struct{}{}
	started := false
	defer func() {
		if !started {
			<-turns
		}
	}()
	w = newTestMesh(t, programs, p)
	w.found = w.versions(t)
	versions = w.found
	started = true
	return w, versions
}

// meshes divides the chapters among meshes. When only some rows are selected, one mesh is
// enough.
func (o Options) meshes() [][]Chapter {
	if o.Long {
		return [][]Chapter{{{Rows: longRows}}}
	}
	chapters := Chapters()
	if o.Rows != nil || strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return [][]Chapter{chapters}
	}
	beside := func(c Chapter) bool { return c.beside }
	return [][]Chapter{
		slices.DeleteFunc(slices.Clone(chapters), beside),
		slices.DeleteFunc(chapters, func(c Chapter) bool { return !c.beside }),
	}
}

// proveAll tests the rows of chapters with the mesh, or only those with the names. A proxy whose
// process exits by itself fails any row.
func (w *testMesh) proveAll(t *testing.T, chapters []Chapter, names []string) map[string]Answer {
	answers := map[string]Answer{}
	for _, c := range chapters {
		for _, r := range c.Rows {
			if names != nil && !slices.Contains(names, r.Name) {
				continue
			}
			if !w.meets(r.Needs) {
				answers[r.Name] = No
				continue
			}
			passed := t.Run(r.Name, func(t *testing.T) {
				answers[r.Name] = Yes
				defer w.checkExits(t)
				r.proves(t, w)
			})
			if !passed {
				answers[r.Name] = Failed
			}
		}
	}
	return answers
}
