package ends

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/test/lab"
	"github.com/outrigger-mesh/outrigger/test/localmesh"
)

func TestMain(m *testing.M) {
	lab.Enter()
	os.Exit(m.Run())
}

// pair is the classes of the client's sidecar and of the server's.
type pair struct{ client, server string }

func (p pair) String() string { return p.client + "-to-" + p.server }

var classes = []string{"envoy", "haproxy", "pipy"}

// pairs are those of one class, or all with ENDS=all.
func pairs() []pair {
	var out []pair
	for _, client := range classes {
		for _, server := range classes {
			if client == server || os.Getenv("ENDS") == "all" {
				out = append(out, pair{client, server})
			}
		}
	}
	return out
}

const meshConfig = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  traffic: {enablePermissiveTrafficPolicyMode: true}
  observability: {enableDebugServer: true}
`

// townOf is a client and a server of a class.
const townOf = `
---
apiVersion: v1
kind: Namespace
metadata:
  name: %[1]s
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled, openservicemesh.io/sidecar-class: %[1]s}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: %[1]s, labels: {app: client}}
spec: {containers: [{name: app, image: in-the-test}]}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: %[1]s, labels: {app: server}}
spec: {containers: [{name: app, image: in-the-test, ports: [{name: http, containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: server, namespace: %[1]s}
spec: {selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8080}]}
`

// TestEnds compares what both ends see through each pair of sidecars with what they see without.
// Each difference must be in the table of known ones.
func TestEnds(t *testing.T) {
	if err := lab.Available(); errors.Is(err, lab.ErrUnavailable) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		t.Skip("it compiles and starts the whole mesh")
	}
	all := corpus()
	without := withoutMesh(t, all)
	mesh := start(t)
	// Connections between a sidecar and its application outlive a pair.
	servers := map[string]*server{}
	for _, class := range classes {
		if pod := mesh.Pod(class + "/server"); pod != nil {
			listener, err := pod.Listen(t.Context(), "tcp", "[::]:8080")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			servers[class] = &server{corpus: all}
			go servers[class].serve(listener)
		}
	}
	found := map[pair]map[string][]string{}
	for _, p := range pairs() {
		t.Run(p.String(), func(t *testing.T) {
			from, to := mesh.Pod(p.client+"/client"), servers[p.server]
			if from == nil || to == nil {
				t.Skipf("SKIPPED: a proxy of %s is not on this machine", p)
			}
			with := run(t.Context(), all, to, func(ctx context.Context) (net.Conn, error) {
				return from.Dial(ctx, "tcp", "server."+p.server+":80")
			})
			found[p] = map[string][]string{}
			for i, e := range all {
				for _, difference := range differences(without[i], with[i]) {
					found[p][difference] = append(found[p][difference], e.name)
				}
			}
			checkKnown(t, p, found[p])
		})
	}
	if os.Getenv("ENDS") == "all" && len(found) == len(classes)*len(classes) {
		checkPage(t, found)
	}
}

// withoutMesh plays the exchanges between two sockets.
func withoutMesh(t *testing.T, all []exchange) []seen {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	s := &server{corpus: all}
	go s.serve(listener)
	return run(t.Context(), all, s, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	})
}

// start starts a mesh with a client and a server of each class whose proxy is on this machine.
func start(t *testing.T) *localmesh.Mesh {
	t.Helper()
	programs, err := localmesh.BuildPrograms(t.Context(), t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	manifests := ""
	for _, class := range classes {
		if missing := programs.Missing[class]; missing != nil {
			t.Logf("SKIPPED: class %s: %v", class, missing)
			continue
		}
		manifests += fmt.Sprintf(townOf, class)
	}
	mesh, err := localmesh.New(t.Context(), localmesh.Options{
		Dir: t.TempDir(), Programs: programs,
		Manifests: map[string]string{"mesh.yaml": meshConfig, "town.yaml": manifests},
		Log:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mesh.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := mesh.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return mesh
}

// checkKnown fails for differences that are not in the table.
func checkKnown(t *testing.T, p pair, found map[string][]string) {
	t.Helper()
	var unknown []string
	for difference, in := range found {
		for _, name := range in {
			if !slices.ContainsFunc(known, func(k knownDifference) bool { return k.is(p, difference, name) }) {
				unknown = append(unknown, fmt.Sprintf("%s: %s", difference, name))
			}
		}
	}
	slices.Sort(unknown)
	if len(unknown) > 0 {
		t.Errorf("%s: %d differences are not in the table of known ones:\n%s", p, len(unknown), strings.Join(unknown, "\n"))
	}
}
