package haproxy

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

// TestLargestRoute bounds how long HAProxy needs to parse a route as large as Gateway API
// allows: 16 rules with 8 matches of 16 headers and 16 query parameters, and 16 backends.
func TestLargestRoute(t *testing.T) {
	path, err := Driver{}.FindProxy()
	if err != nil {
		t.Skip("SKIPPED: ", err)
	}
	f := newFixture(buyer)
	var backends []*mesh.Backend
	for i := range 16 {
		backends = append(backends, backend(servicePort(fmt.Sprintf("v%d", i), 80), mesh.HTTP, store, "10.244.0.11:8080"))
	}
	d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backends...)
	shares := d.Routes[0].Backends
	d.Routes = nil
	for rule := range 16 {
		for match := range 8 {
			m := mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: fmt.Sprintf("/%d/%d", rule, match)}, Methods: []string{"GET"}}
			for i := range 16 {
				one := mesh.KeyMatch{Name: fmt.Sprintf("x-%d-%d-%d", rule, match, i), StringMatch: mesh.StringMatch{Exact: "a"}}
				m.Headers, m.Query = append(m.Headers, one), append(m.Query, one)
			}
			d.Routes = append(d.Routes, mesh.Route{Match: m, Backends: shares})
		}
	}
	files, err := Driver{}.Translate(f.view())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	newAuthority(t).writeTo(dir, buyer)
	if err := program.WriteFiles(dir, files); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-c", "-f", filepath.Join(dir, configFile))
	cmd.Env = append(cmd.Environ(), agentspec.EnvSpans+"=3", agentspec.EnvRecords+"=4")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %.2000s", err, out)
	}
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	t.Logf("HAProxy has parsed %d bytes in %v", len(files[0].Content), used)
	if used > 4*time.Second {
		t.Errorf("HAProxy has parsed a route for %v", used)
	}
}
