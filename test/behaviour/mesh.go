package behaviour

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

// testMesh is a running mesh of a pair.
type testMesh struct {
	*localmesh.Mesh
	// Pair is the classes of the pods in the namespaces users and shop.
	Pair
	// found are the versions of the proxies, by class.
	found    map[string]string
	apps     map[string]*application
	logs     *logs
	programs localmesh.Programs
	// later are programs to which proxies are upgraded, by class.
	later map[string]string
	// keys is the number of keys of failing requests.
	keys int
	// exited counts the exits of proxies that earlier rows have seen, by container.
	exited map[string]int
	// exitsExpected is set by rows that end proxies.
	exitsExpected bool
}

// limit is the default time limit for a condition.
const limit = 20 * time.Second

// newTestMesh starts a mesh with clients and servers of the pair.
func newTestMesh(t *testing.T, programs localmesh.Programs, p Pair) *testMesh {
	t.Helper()
	w := &testMesh{Pair: p, programs: programs, apps: map[string]*application{}, exited: map[string]int{}, logs: &logs{text: map[string]*bytes.Buffer{}}}
	mesh, err := localmesh.New(t.Context(), localmesh.Options{
		Dir: t.TempDir(),
		Manifests: map[string]string{
			"town.yaml":     fmt.Sprintf(meshTemplate, p.Client, p.Server, longAccount),
			"policies.yaml": policies,
			"mesh.yaml":     meshConfig("", ""),
		},
		Programs: programs,
		Hosts:    map[string][]netip.Addr{outsideHost: {netip.MustParseAddr(nodeAddress)}},
		Output:   w.logs.writer,
		Log:      slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Mesh = mesh
	t.Cleanup(func() {
		if err := mesh.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			w.logs.dump(t)
		}
	})
	for _, name := range []string{"shop/cart-v1", "shop/cart-v2", "shop/db-0", "shop/lone", "users/web"} {
		w.apps[name] = startApplication(t, w.pod(t, name))
	}
	if err := mesh.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *testMesh) pod(t *testing.T, name string) *lab.Pod {
	t.Helper()
	pod := w.Pod(name)
	if pod == nil {
		t.Fatalf("there is no pod %s", name)
	}
	return pod
}

// address returns the address of a pod's port.
func (w *testMesh) address(t *testing.T, pod, port string) string {
	t.Helper()
	return net.JoinHostPort(w.pod(t, pod).Addresses()[0].String(), port)
}

// set applies a manifest.
func (w *testMesh) set(t *testing.T, file, manifest string) {
	t.Helper()
	if err := w.Apply(t.Context(), file, manifest); err != nil {
		t.Fatal(err)
	}
}

// apply applies a manifest until the test's end, unless the test forgets it.
func (w *testMesh) apply(t *testing.T, file, manifest string) {
	t.Helper()
	w.set(t, file, manifest)
	t.Cleanup(func() { w.forget(t, file) })
}

// forget deletes a manifest, if it exists.
func (w *testMesh) forget(t *testing.T, file string) {
	err := w.Delete(context.WithoutCancel(t.Context()), file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// configure changes the MeshConfig until the test's end.
func (w *testMesh) configure(t *testing.T, traffic, observability string) {
	t.Helper()
	w.set(t, "mesh.yaml", meshConfig(traffic, observability))
	t.Cleanup(func() {
		if err := w.Apply(context.WithoutCancel(t.Context()), "mesh.yaml", meshConfig("", "")); err != nil {
			t.Error(err)
		}
	})
}

// eventually waits until the function returns nil.
func (w *testMesh) eventually(t *testing.T, is func() error) {
	t.Helper()
	w.eventuallyWithin(t, limit, is)
}

// eventuallyWithin is eventually with another limit.
func (w *testMesh) eventuallyWithin(t *testing.T, limit time.Duration, is func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	// Most conditions hold at once or after some milliseconds; each attempt costs the proxies
	// work that other rows need.
	for wait := time.Millisecond; ; wait = min(wait*3/2, limit/100) {
		err := is()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(wait)
	}
}

// versions returns the versions of the proxies by class, as they report to the
// controller or, if their driver knows nothing of versions, as their programs print them.
func (w *testMesh) versions(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	// An agent may learn it after a request that waits for a change for a minute.
	w.eventuallyWithin(t, 90*time.Second, func() error {
		proxies, err := w.Proxies(t.Context())
		if err != nil {
			return err
		}
		for _, p := range proxies {
			versions[p.Class] = p.Version
		}
		for _, class := range []string{w.Client, w.Server} {
			version, ok := versions[class]
			switch {
			case !ok:
				return fmt.Errorf("no proxy of class %s is connected to the controller", class)
			case version == "" && sidecar.Releases(class) != nil:
				return fmt.Errorf("the version of class %s is not known to the controller", class)
			}
		}
		return nil
	})
	for class, version := range versions {
		if version == "" {
			versions[class] = askVersion(t.Context(), w.programs.Proxies[class])
		}
	}
	return versions
}

// versionNumber matches a version in a program's output.
var versionNumber = regexp.MustCompile(`[0-9]+\.[0-9]+\.[0-9]+`)

// askVersion returns the version that a program prints, or "".
func askVersion(ctx context.Context, program string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.WaitDelay = time.Second
	// The exit status does not matter.
	out, _ := cmd.CombinedOutput()
	line, _, _ := strings.Cut(string(out), "\n")
	return versionNumber.FindString(line)
}
