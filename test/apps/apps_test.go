package apps

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

var (
	all    = flag.Bool("all", false, "run all applications with all pairs of classes, instead of a few")
	chosen = flag.String("pairs", "", "with -all, run only these pairs, such as envoy-to-pipy,pipy-to-envoy")
	only   = flag.String("only", "", "run only these applications, such as nginx,redis")
)

func TestMain(m *testing.M) {
	lab.Enter()
	os.Exit(m.Run())
}

const (
	// plain is the namespace without sidecars. The others are named like the class of their pods'.
	plain = "plain"
	// batch is how many applications run at a time.
	batch = 3
	// validity is that of the certificates, so short that each is renewed under long
	// connections.
	validity = 15 * time.Second
)

// fewPairs are the pairs of classes of clients and servers that 'go test' tries: each class is
// on either side once.
var fewPairs = []pair{{"envoy", "haproxy"}, {"haproxy", "pipy"}, {"pipy", "envoy"}, {"haproxy", "envoy"}}

// pair is the classes of a client's sidecar and of its server's, or plain twice.
type pair struct{ client, server string }

func (p pair) String() string { return p.client + " to " + p.server }

var without = pair{plain, plain}

// TestApplications runs the applications with each pair and without a mesh.
func TestApplications(t *testing.T) {
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		t.Skip("SKIPPED: it needs servers from Debian's packages; run 'make test-all' or 'make apps'")
	}
	root := image(t)
	w := start(t, root)
	selected := w.selected(t, root)
	found := results{}
	for some := range slices.Chunk(selected, batch) {
		maps.Copy(found, w.run(t, some))
	}
	if *all && (!t.Failed() || os.Getenv("UPDATE") != "") {
		checkPage(t, found)
	}
}

// image returns the folder of the containers' files.
func image(t *testing.T) string {
	t.Helper()
	set := "few"
	if *all {
		set = "all"
	}
	out, err := exec.Command("./install.sh", set, "--where").Output()
	if err != nil {
		t.Fatal(err)
	}
	folder := strings.TrimSpace(string(out))
	if _, err := os.Stat(folder); err != nil {
		t.Skipf("SKIPPED: Debian's packages are not unpacked: run test/apps/install.sh %s", set)
	}
	return folder
}

// town is the running mesh.
type town struct {
	*localmesh.Mesh
	pairs []pair
	// commands is the number of commands so far, which makes names unique.
	commands atomic.Int64
}

const namespaces = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  traffic: {enablePermissiveTrafficPolicyMode: true}
  observability: {enableDebugServer: true, accessLog: %s}
  certificate: {serviceCertValidityDuration: %s}
`

const namespace = `
---
apiVersion: v1
kind: Namespace
metadata:
  name: %[1]s
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled, openservicemesh.io/sidecar-class: %[1]s}
`

const client = `
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: %s, labels: {app: client}}
spec:
  securityContext: {runAsUser: 1000, runAsGroup: 1000}
  containers:
  - {name: client, image: debian, command: [sleep, infinity], env: [{name: PATH, value: "/usr/sbin:/usr/bin"}, {name: HOME, value: /tmp}]}
`

func config(accessLog string) string { return fmt.Sprintf(namespaces, accessLog, validity) }

// start starts the mesh with a client in each namespace.
func start(t *testing.T, root string) *town {
	t.Helper()
	programs, err := localmesh.BuildPrograms(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	w := &town{}
	for _, p := range pairs() {
		missing := errors.Join(programs.Missing[p.client], programs.Missing[p.server])
		if missing != nil {
			t.Logf("SKIPPED: %s: %v", p, missing)
			continue
		}
		w.pairs = append(w.pairs, p)
	}
	if len(w.pairs) == 0 {
		t.Skip("SKIPPED: no pair has its proxies")
	}
	// A namespace that is missing from the manifests would be one of the mesh.
	manifest := "kind: Namespace\napiVersion: v1\nmetadata: {name: " + plain + "}\n"
	for _, name := range w.namespaces() {
		if name != plain {
			manifest += fmt.Sprintf(namespace, name)
		}
		manifest += fmt.Sprintf(client, name)
	}
	files, err := containerFiles(root, authority(t))
	if err != nil {
		t.Fatal(err)
	}
	mesh, err := localmesh.New(t.Context(), localmesh.Options{
		Dir:       t.TempDir(),
		Manifests: map[string]string{"mesh.yaml": config("all"), "clients.yaml": manifest},
		Programs:  programs,
		Images:    map[string]lab.Image{"debian": {Files: files}},
		Log:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Mesh = mesh
	if len(mesh.Pod(plain+"/client").Object().Spec.InitContainers) != 0 {
		t.Fatal("the pods without a mesh have sidecars")
	}
	t.Cleanup(func() {
		if err := mesh.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// pairs returns the pairs to try.
func pairs() []pair {
	if !*all {
		return fewPairs
	}
	return slices.DeleteFunc(allPairs(), func(p pair) bool {
		return *chosen != "" && !slices.Contains(strings.Split(*chosen, ","), strings.ReplaceAll(p.String(), " ", "-"))
	})
}

// allPairs returns every pair of classes.
func allPairs() []pair {
	var out []pair
	for _, client := range classes {
		for _, server := range classes {
			out = append(out, pair{client, server})
		}
	}
	return out
}

var classes = []string{"envoy", "haproxy", "pipy"}

// namespaces returns the namespaces of the pairs.
func (w *town) namespaces() []string {
	out := []string{plain}
	for _, p := range w.pairs {
		out = append(out, p.client, p.server)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// authority returns a folder with the certificate and key of an authority, with which servers of
// several members sign their certificates.
func authority(t *testing.T) string {
	t.Helper()
	certificate, key, err := pki.NewCA("apps", 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	text, err := pki.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string][]byte{"ca.crt": pki.Encode(certificate), "ca.key": text} {
		// Servers do not run as this user.
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// containerFiles returns the files of a container: the packages, the scripts of testdata, and the authority.
func containerFiles(root, authority string) (map[string]string, error) {
	files := map[string]string{"/apps": "testdata", "/authority": authority}
	for _, name := range []string{"usr", "bin", "lib", "lib64", "sbin"} {
		files["/"+name] = filepath.Join(root, name)
	}
	defer func() { files["/etc/passwd"] = "testdata/passwd" }()
	entries, err := os.ReadDir(filepath.Join(root, "etc"))
	for _, entry := range entries {
		// A container's own network has these, and links may lead nowhere.
		if name := entry.Name(); entry.Type().IsRegular() || entry.IsDir() {
			files["/etc/"+name] = filepath.Join(root, "etc", name)
		}
	}
	return files, err
}

// selected returns the applications to run.
func (w *town) selected(t *testing.T, root string) []application {
	t.Helper()
	var out []application
	for _, a := range applications {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), a.name) || !*all && !a.few {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, a.file)); err != nil {
			t.Logf("SKIPPED: %s: Debian's packages here lack its program: %v", a.program, err)
			continue
		}
		out = append(out, a)
	}
	return out
}

// results are the names of the checks that differed, by application and pair.
type results map[string]map[pair][]string

// session is the name of the checks with long connections.
const session = "a long connection"

// What a session prints.
const (
	kept  = "kept"
	ended = "ended"
)

// run starts the applications, tries them, and ends them.
func (w *town) run(t *testing.T, some []application) results {
	t.Helper()
	found := results{}
	for _, a := range some {
		found[a.name] = map[pair][]string{}
	}
	var mu sync.Mutex
	note := func(a application, p pair, name string, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if differs := found[a.name][p]; !ok {
			found[a.name][p] = append(differs, name)
		} else if differs == nil {
			found[a.name][p] = []string{}
		}
	}
	var manifest strings.Builder
	for _, a := range some {
		for _, namespace := range w.namespaces() {
			manifest.WriteString(a.manifest(namespace))
		}
	}
	w.apply(t, "applications.yaml", manifest.String())
	if err := w.WaitReady(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, w.outputs(some))
	}
	before := t.Failed()
	for _, a := range some {
		for _, p := range append([]pair{without}, w.pairs...) {
			t.Run(a.name+"/"+strings.ReplaceAll(p.String(), " ", "-"), func(t *testing.T) {
				for _, c := range a.checks {
					note(a, p, c.name, w.check(t, a, p, c))
				}
			})
		}
	}
	w.sessions(t, some, "changes", note, func() string { return w.change(t) }, kept)
	if t.Failed() && !before {
		t.Log(w.outputs(some))
	}
	w.sessions(t, some, "end", note, func() string {
		if err := w.Delete(t.Context(), "applications.yaml"); err != nil {
			t.Error(err)
		}
		return ""
	}, ended)
	return found
}

func (w *town) apply(t *testing.T, file, manifest string) {
	t.Helper()
	if err := w.Apply(t.Context(), file, manifest); err != nil {
		t.Fatal(err)
	}
}

// outputs returns the output of the servers.
func (w *town) outputs(some []application) string {
	var out strings.Builder
	for _, a := range some {
		for _, namespace := range w.namespaces() {
			if pod := w.Pod(namespace + "/" + a.name + "-0"); pod != nil {
				fmt.Fprintf(&out, "== %s\n%s\n", pod.Name(), pod.Container("server").Output())
			}
		}
	}
	return out.String()
}

// check runs a command and compares what it prints.
func (w *town) check(t *testing.T, a application, p pair, c check) bool {
	t.Helper()
	got := w.command(t, a, p, c.command, "/tmp/never", commandLimit)
	if reason := cmp.Or(c.lacks[p.client], c.lacks[p.server]); got != c.want && reason != "" {
		t.Logf("%s, %s: %s: %s", a.program, p, c.name, reason)
	} else if got != c.want {
		t.Errorf("%s, %s: %s:\n%s\ngives\n%s\nwant\n%s", a.program, p, c.name, c.command, got, c.want)
	}
	return got == c.want
}

// commandLimit bounds a client's command, and sessionLimit a session.
const (
	commandLimit = 60 * time.Second
	sessionLimit = 2 * time.Minute
)

// beginning returns how long sessions have to begin. With all pairs many of them start at once,
// some in Java.
func beginning() time.Duration {
	if *all {
		return 15 * time.Second
	}
	return 3 * time.Second
}

// command runs a client's command and returns what it prints.
func (w *town) command(t *testing.T, a application, p pair, command, stop string, limit time.Duration) string {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	script := fmt.Sprintf("HOST=%s.%s\nSTOP=%s\nUNIQUE=%s%s%d\n. /apps/client.sh\n%s\n",
		a.name, p.server, stop, p.client, p.server, w.commands.Add(1), command)
	out, err := w.Pod(p.client+"/client").Container("client").Exec(ctx, "bash", "-c", script)
	if ctx.Err() != nil {
		return fmt.Sprintf("%s\n(%v)", out, err)
	}
	return strings.TrimSpace(out)
}

// sessions runs the session of each application and pair, and meanwhile a function, which
// returns what went wrong.
func (w *town) sessions(t *testing.T, some []application, name string, note func(application, pair, string, bool), meanwhile func() string, want string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		stop := "/tmp/stop-" + name + "-" + some[0].name
		var sessions sync.WaitGroup
		var running sync.WaitGroup
		for _, a := range some {
			if a.session == "" {
				continue
			}
			for _, p := range append([]pair{without}, w.pairs...) {
				running.Add(1)
				sessions.Go(func() {
					running.Done()
					got := w.command(t, a, p, a.session, stop, sessionLimit)
					if reason := a.lacks[p.String()]; got != want && reason != "" {
						t.Logf("%s, %s: %s", a.program, p, reason)
					} else if got != want {
						t.Errorf("%s, %s: the session during %s gives %q, want %q", a.program, p, name, got, want)
					}
					note(a, p, session, got == want)
				})
			}
		}
		running.Wait()
		time.Sleep(beginning())
		if failed := meanwhile(); failed != "" {
			t.Error(failed)
		}
		if want == kept {
			for _, namespace := range w.namespaces() {
				if _, err := w.Pod(namespace+"/client").Container("client").Exec(t.Context(), "touch", stop); err != nil {
					t.Error(err)
				}
			}
		}
		sessions.Wait()
	})
}
