package haproxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
	"github.com/outrigger-mesh/outrigger/sidecar/repo"
)

// poison is the path of a route that faulty writes as a line that HAProxy refuses.
const poison = "/poison"

// faulty is the driver with a fault.
type faulty struct{ Driver }

func (f faulty) Translate(view *mesh.View) ([]driver.File, error) {
	files, err := f.Driver.Translate(view)
	for _, d := range view.Outbound.Destinations.All() {
		for _, route := range d.Routes {
			if route.Match.Path.Exact != poison {
				continue
			}
			for i := range files {
				if files[i].Name == configFile {
					files[i].Content = append(slices.Clone(files[i].Content), "\nbackend x\n  nonsense\n"...)
				}
			}
		}
	}
	return files, err
}

// follower is an agent that has the real HAProxy check each version.
type follower struct {
	mu      sync.Mutex
	runs    mirror.Set
	refused []string
}

func (f *follower) run(t *testing.T, client *mirror.Client, path string, id mesh.Identity) {
	have := ""
	for t.Context().Err() == nil {
		f.mu.Lock()
		runs, refused := f.runs, slices.Clone(f.refused)
		f.mu.Unlock()
		slices.Reverse(refused)
		change, err := client.Poll(t.Context(), have, refused...)
		if err != nil || change == nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		next, err := change.Apply(runs)
		if err != nil {
			t.Error(err)
			return
		}
		var files []driver.File
		for _, file := range next.All() {
			files = append(files, driver.File{Name: file.Name, Content: []byte(file.Text)})
		}
		err = program.Check(t.Context(), id, files, []string{agentspec.EnvSpans + "=3", agentspec.EnvRecords + "=4"}, path, checkArgs...)
		f.mu.Lock()
		if err == nil {
			f.runs, f.refused, have = next, nil, change.Version
		} else {
			f.refused = append(f.refused, change.Version)
		}
		f.mu.Unlock()
		if err != nil {
			_ = client.Report(t.Context(), mirror.Status{Version: change.Version, Error: err.Error()})
		}
	}
}

// config returns the file that HAProxy runs.
func (f *follower) config() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	file, ok := f.runs.Get(configFile)
	if !ok {
		return ""
	}
	return file.Text
}

// TestRevocationDespiteRefusal removes a permission in the same version, and after it, in
// which another namespace's route becomes text that HAProxy refuses.
func TestRevocationDespiteRefusal(t *testing.T) {
	path, err := Driver{}.FindProxy()
	if err != nil {
		t.Skip("SKIPPED:", err)
	}
	var mu sync.Mutex
	var leftOut []driver.Rejection
	c, err := drivertest.NewController(name, func(r drivertest.Report) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Kind == drivertest.Acked:
			leftOut = nil
		case r.Kind == drivertest.Rejected && r.Rejection.LeftOut:
			leftOut = append(leftOut, r.Rejection)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server, err := repo.New(repo.Options{Controller: c.Context(ctx, 0), Translator: faulty{}})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(ctx, listener) })
	t.Cleanup(func() { cancel(); group.Wait() })

	view := func(poisoned bool, sources ...mesh.Identity) *mesh.View {
		f := newFixture(store)
		f.inbound.Ports = []mesh.InboundPort{{Port: 8080, Protocol: mesh.HTTP, Access: access(permission("bookstore/buy", anyRequest, sources...))}}
		for i, other := range []string{"one", "two"} {
			port := servicePort(other, 80)
			port.Namespace = "elsewhere"
			address := netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)})
			d := f.service(port, mesh.HTTP, address.String(), backend(port, mesh.HTTP, store, "10.244.0.1:80"))
			if poisoned && other == "one" {
				d.Routes[0].Match.Path = mesh.StringMatch{Exact: poison}
			}
		}
		return f.view()
	}
	first := view(false, buyer, ops)
	uid := first.Proxy.UID
	c.SetView(uid, first)
	ca := drivertest.TestAuthority{Authority: c.Authority(), T: t}
	follow := func() *follower {
		f := &follower{}
		client := &mirror.Client{
			URL: "https://" + listener.Addr().String() + repo.Prefix + uid + "/", Wait: 5 * time.Second,
			HTTP: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
				MinVersion: tls.VersionTLS13, RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.SignFor(first.Proxy, time.Hour)}, ServerName: "controller",
			}}},
		}
		group.Go(func() { f.run(t, client, path, store) })
		return f
	}
	f := follow()
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("timeout: %s", what)
			}
		}
	}
	allows := func(id mesh.Identity) bool { return strings.Contains(f.config(), id.ServiceAccount) }
	until("both sources are allowed", func() bool { return allows(buyer) && allows(ops) })

	c.SetView(uid, view(true, ops))
	until("the revocation in the refused version", func() bool { return f.config() != "" && !allows(buyer) })
	until("the report", func() bool { mu.Lock(); defer mu.Unlock(); return len(leftOut) > 0 })
	mu.Lock()
	got := slices.Clone(leftOut)
	mu.Unlock()
	if len(got) != 1 || got[0].Resources[0] != "destination elsewhere/one:80" || !strings.Contains(got[0].Message, "nonsense") {
		t.Errorf("the report is %+v", got)
	}
	if strings.Contains(f.config(), poison) || !strings.Contains(f.config(), "elsewhere/two") {
		t.Error("more or less than the bad part is left out")
	}
	c.SetView(uid, view(true))
	until("a later revocation", func() bool { return f.config() != "" && !allows(ops) })
	c.SetView(uid, view(false))
	until("the mended route", func() bool { mu.Lock(); defer mu.Unlock(); return len(leftOut) == 0 })
}
