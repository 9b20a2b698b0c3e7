package dir_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// soon is the time limit for things that should take a moment.
const soon = 30 * time.Second

// watched is a running Watch. It sends the arguments of apply and report as texts: objects, with
// a minus if they are deleted, and Problems.
type watched struct {
	applied, reported chan []string
}

func watch(t *testing.T, paths ...string) *watched {
	t.Helper()
	w := &watched{make(chan []string, 100), make(chan []string, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- dir.Watch(ctx, paths, options(), func(facts ...fact.Fact) {
			all := []string{}
			for _, f := range facts {
				text := f.Object.String()
				switch content := f.Content.(type) {
				case nil:
					text = "-" + text
				case *fact.Service:
					text += fmt.Sprint(" ", content.Ports[0].Port)
				case *fact.Namespace:
					continue
				}
				all = append(all, text)
			}
			w.applied <- all
		}, func(problems []mesh.Problem) {
			all := []string{}
			for _, p := range problems {
				all = append(all, p.Object.Kind+" "+filepath.Base(p.Object.Name)+" "+p.Reason)
			}
			w.reported <- all
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	return w
}

func expect(t *testing.T, what string, reports <-chan []string, want ...string) {
	t.Helper()
	select {
	case got := <-reports:
		if !slices.Equal(got, want) {
			t.Fatalf("%s: got %q, want %q", what, got, want)
		}
	case <-time.After(soon):
		t.Fatalf("%s: no report of %q", what, want)
	}
}

func (w *watched) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	expect(t, what, w.applied, want...)
}

func (w *watched) expectProblems(t *testing.T, what string, want ...string) {
	t.Helper()
	expect(t, what, w.reported, want...)
}

// quiet ends a test. It fails if there were unexpected calls.
func (w *watched) quiet(t *testing.T) {
	t.Helper()
	select {
	case got := <-w.applied:
		t.Errorf("%q was reported too", got)
	case got := <-w.reported:
		t.Errorf("problems %q were reported too", got)
	default:
	}
}

func port(name string, number int) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: shop}\nspec: {ports: [{port: %d}]}\n", name, number)
}

func remove(t *testing.T, name string) {
	t.Helper()
	if err := os.RemoveAll(name); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestWatch(t *testing.T) {
	folder := write(t, map[string]string{"a.yaml": port("a", 1) + port("b", 1), "deep/c.yaml": port("c", 1)})
	at := func(name string) string { return filepath.Join(folder, name) }
	w := watch(t, folder)
	w.expect(t, "at first", "Service shop/a 1", "Service shop/b 1", "Service shop/c 1")
	w.expectProblems(t, "at first")

	writeFile(t, at("a.yaml"), port("a", 1)+port("b", 2))
	w.expect(t, "a change", "Service shop/b 2")
	writeFile(t, at("deep/er/d.yaml"), port("d", 1))
	w.expect(t, "a new file in a new folder", "Service shop/d 1")
	writeFile(t, at("deep/er/d.yaml"), port("d", 2))
	w.expect(t, "a change in that", "Service shop/d 2")
	writeFile(t, at("notes.txt"), "changes nothing")
	writeFile(t, at("a.yaml"), port("b", 2)+port("e", 1))
	w.expect(t, "one object for another", "-Service shop/a", "Service shop/e 1")
	rename(t, at("deep"), at(".deep"))
	w.expect(t, "a folder less", "-Service shop/c", "-Service shop/d")
	w.quiet(t)
}

func TestWatchLastGood(t *testing.T) {
	folder := write(t, map[string]string{"a.yaml": port("a", 1) + port("b", 1), "z.yaml": port("z", 1)})
	at := func(name string) string { return filepath.Join(folder, name) }
	w := watch(t, folder)
	w.expect(t, "at first", "Service shop/a 1", "Service shop/b 1", "Service shop/z 1")
	w.expectProblems(t, "at first")

	// New versions of readable objects count. Objects that the broken part may contain stay.
	writeFile(t, at("a.yaml"), port("a", 2)+"---\nkind: Serv")
	w.expect(t, "half a file", "Service shop/a 2")
	w.expectProblems(t, "half a file", "File a.yaml Unreadable")
	writeFile(t, at("a.yaml"), port("a", 2)+strings.Replace(port("b", 2), "ports: [", "ports: [x, ", 1))
	w.expectProblems(t, "a broken object", "Service b Unreadable")
	writeFile(t, at("a.yaml"), port("a", 3))
	w.expect(t, "mended", "-Service shop/b", "Service shop/a 3")
	w.expectProblems(t, "mended")

	// A file that is written in place is empty for a moment.
	if err := os.Truncate(at("a.yaml"), 0); err != nil {
		t.Fatal(err)
	}
	w.expectProblems(t, "an empty file", "File a.yaml Unreadable")
	if err := os.WriteFile(at("a.yaml"), []byte(port("a", 4)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.expect(t, "written", "Service shop/a 4")
	w.expectProblems(t, "written")

	// A file that cannot be read.
	rename(t, at("a.yaml"), at("a.txt"))
	w.expect(t, "gone", "-Service shop/a")
	if err := os.Symlink("nowhere", at("a.yaml")); err != nil {
		t.Fatal(err)
	}
	w.expectProblems(t, "a link to nowhere", "File a.yaml Unreadable")
	remove(t, at("a.yaml"))
	w.expectProblems(t, "no link")

	// If a folder disappears, its objects stay.
	aside := filepath.Join(t.TempDir(), "aside")
	rename(t, folder, aside)
	w.expectProblems(t, "no folder", "File "+filepath.Base(folder)+" Unreadable")
	writeFile(t, filepath.Join(aside, "z.yaml"), port("z", 3))
	rename(t, aside, folder)
	w.expect(t, "the folder is back", "Service shop/z 3")
	w.expectProblems(t, "the folder is back")
	w.quiet(t)
}

func TestWatchWaitsForFolder(t *testing.T) {
	there := write(t, map[string]string{"a.yaml": port("a", 1)})
	made := write(t, map[string]string{"not/yet/b.yaml": port("b", 1)})
	later := filepath.Join(t.TempDir(), "not", "yet")
	w := watch(t, there, later)
	w.expectProblems(t, "no folder", "File yet Unreadable")
	writeFile(t, filepath.Join(there, "a.yaml"), port("a", 2)+"]")
	w.expectProblems(t, "a problem meanwhile", "File a.yaml Unreadable", "File yet Unreadable")
	// Nothing was applied so far, since the mesh is incomplete.
	writeFile(t, filepath.Join(there, "a.yaml"), port("a", 3))
	w.expectProblems(t, "mended", "File yet Unreadable")
	rename(t, filepath.Join(made, "not"), filepath.Dir(later))
	w.expect(t, "the folder is there", "Service shop/a 3", "Service shop/b 1")
	w.expectProblems(t, "the folder is there")
	w.quiet(t)
}

// TestWatchConfigMap swaps files as the kubelet does in a mounted ConfigMap.
func TestWatchConfigMap(t *testing.T) {
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, at("..1/a.yaml"), port("a", 1))
	link("..1", at("..data"))
	link("..data/a.yaml", at("a.yaml"))
	w := watch(t, folder)
	one := watch(t, at("a.yaml"))
	for _, w := range []*watched{w, one} {
		w.expect(t, "at first", "Service shop/a 1")
		w.expectProblems(t, "at first")
	}
	for i := 2; i < 5; i++ {
		writeFile(t, at(fmt.Sprintf("..%d/a.yaml", i)), port("a", i))
		link(fmt.Sprintf("..%d", i), at("..tmp"))
		rename(t, at("..tmp"), at("..data"))
		remove(t, at(fmt.Sprintf("..%d", i-1)))
		w.expect(t, "swapped", fmt.Sprintf("Service shop/a %d", i))
		one.expect(t, "swapped, of the file", fmt.Sprintf("Service shop/a %d", i))
	}
	w.quiet(t)
	one.quiet(t)
}

// TestWatchLinkOnTheWay swaps a link in the path of the folder.
func TestWatchLinkOnTheWay(t *testing.T) {
	folder := write(t, map[string]string{"1/m/a.yaml": port("a", 1), "2/m/a.yaml": port("a", 2)})
	current := filepath.Join(folder, "current")
	lead := func(to string) {
		t.Helper()
		if err := os.Symlink(to, current+".new"); err != nil {
			t.Fatal(err)
		}
		rename(t, current+".new", current)
	}
	lead("1")
	w := watch(t, filepath.Join(current, "m"))
	w.expect(t, "at first", "Service shop/a 1")
	w.expectProblems(t, "at first")
	lead("2")
	w.expect(t, "swapped", "Service shop/a 2")
	writeFile(t, filepath.Join(folder, "2/m/a.yaml"), port("a", 3))
	w.expect(t, "changed behind the link", "Service shop/a 3")
	w.quiet(t)
}

func TestWatchRefusesStdin(t *testing.T) {
	err := dir.Watch(t.Context(), []string{"-"}, options(), func(...fact.Fact) {}, func([]mesh.Problem) {})
	if err == nil || !strings.Contains(err.Error(), "standard input (-)") {
		t.Errorf("error %v", err)
	}
}

// TestWatchRootCertificates checks that MeshRootCertificates are reported after each change, but
// not before all paths exist, and that a broken file keeps its last content.
func TestWatchRootCertificates(t *testing.T) {
	certificate := func(namespace, name string) string {
		return fmt.Sprintf("---\napiVersion: config.openservicemesh.io/v1alpha2\nkind: MeshRootCertificate\nmetadata: {namespace: %s, name: %s}\n", namespace, name)
	}
	folder := write(t, map[string]string{"a.yaml": port("a", 1) + certificate("osm-system", "one")})
	later := filepath.Join(folder, "later.yaml")
	reports := make(chan []string, 100)
	opts := options()
	opts.OnRootCertificates = func(list []v1alpha2.MeshRootCertificate) {
		names := []string{}
		for _, c := range list {
			names = append(names, c.Name)
		}
		reports <- names
	}
	problems := make(chan []mesh.Problem, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- dir.Watch(ctx, []string{folder, later}, opts, func(...fact.Fact) {}, func(found []mesh.Problem) { problems <- found })
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	}()
	if missing := <-problems; len(missing) != 1 {
		t.Fatalf("the Problems are %v, want one about the missing path", missing)
	}
	if len(reports) > 0 {
		t.Fatalf("%q was reported before all paths exist", <-reports)
	}
	writeFile(t, later, certificate("osm-system", "two")+certificate("elsewhere", "one"))
	expect(t, "with all paths", reports, "one", "two")
	writeFile(t, later, certificate("osm-system", "two")+"---\na: [\n")
	expect(t, "a broken file", reports, "one", "two")
	writeFile(t, later, "---\n")
	expect(t, "an empty file", reports, "one")
}
