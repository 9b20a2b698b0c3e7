package haproxy

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
)

// serve serves the live files of a View and the digest of the identity, like the agent.
func (r *running) serve(view *mesh.View, identity string) {
	r.t.Helper()
	files, err := Driver{}.Translate(view)
	if err != nil {
		r.t.Fatal(err)
	}
	one, err := mirror.NewFile("identity", identity)
	if err != nil {
		r.t.Fatal(err)
	}
	live := []*mirror.File{one}
	for _, f := range files {
		if strings.HasPrefix(f.Name, liveFiles) {
			file, err := mirror.NewFile(f.Name, string(f.Content))
			if err != nil {
				r.t.Fatal(err)
			}
			live = append(live, file)
		}
	}
	r.feed.Set(mirror.NewSet(live...))
}

// awaitAck waits until the proxy uses what is served, and returns how long that took.
func (r *running) awaitAck(acked <-chan string) time.Duration {
	r.t.Helper()
	began := time.Now()
	_, want, _ := r.feed.Current()
	for {
		select {
		case version := <-acked:
			if version == want {
				return time.Since(began)
			}
		case <-time.After(r.patience):
			r.t.Fatal("the proxy does not use the live files")
		}
	}
}

// acks returns the versions that the proxy reports as in use.
func (r *running) acks() <-chan string {
	acked := make(chan string, 10000)
	r.feed.Acked = func(version string) { acked <- version }
	return acked
}

// asBuyer starts the proxy of a client of the servers, which gets the View from an agent.
func asBuyer(t testing.TB, ca *authority, view *mesh.View) (*running, <-chan string) {
	t.Helper()
	dir := t.TempDir()
	ca.writeTo(dir, buyer)
	r := start(t, dir, view)
	acked := r.acks()
	r.serve(view, "1")
	r.awaitReady().awaitAck(acked)
	return r, acked
}

// TestEndpointsChangeWithoutAReload replaces the endpoints of a service one by one under
// load. No request may fail, and no worker may start.
func TestEndpointsChangeWithoutAReload(t *testing.T) {
	ca := newAuthority(t)
	servers := []*httptest.Server{newEndpoint(t, ca), newEndpoint(t, ca)}
	r, acked := asBuyer(t, ca, viewOf(false, servers...))
	workers := r.workers()
	stop := make(chan struct{})
	var group sync.WaitGroup
	const clients = 12
	var answered [clients]atomic.Int64
	for i := range clients {
		method, h2, reconnects := []string{"GET", "PUT"}[i%2], i >= 8, i < 4
		group.Go(func() {
			c := client(r.outbound, storeAddress, nil, h2)
			defer c.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				response, _, err := keepAsking(c, method, "/")
				if err != nil || response.StatusCode != http.StatusOK {
					t.Errorf("%s of client %d: %v, %v", method, i, response, err)
				}
				answered[i].Add(1)
				if reconnects {
					c.CloseIdleConnections()
				}
			}
		})
	}
	// answerAll returns when no client waits for an answer that it waited for before. Until then
	// the slot of an endpoint that is gone has a connection, and is not free.
	answerAll := func() {
		t.Helper()
		var before [clients]int64
		for i := range before {
			before[i] = answered[i].Load()
		}
		for i := range before {
			for deadline := time.Now().Add(r.patience); answered[i].Load() < before[i]+2; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Errorf("client %d gets no answers", i)
					return
				}
			}
		}
	}
	// Clients must not outlive the test.
	t.Cleanup(group.Wait)
	ended := sync.OnceFunc(func() { close(stop) })
	t.Cleanup(ended)
	change := func(draining bool, servers ...*httptest.Server) {
		r.serve(viewOf(draining, servers...), "1")
		if took := r.awaitAck(acked); took > 2*time.Second {
			t.Errorf("a change of endpoints took %s", took)
		}
	}
	for range 12 {
		old, next := servers[0], newEndpoint(t, ca)
		change(false, append(slices.Clone(servers), next)...)
		change(true, append(slices.Clone(servers), next)...)
		servers = []*httptest.Server{servers[1], next}
		change(false, servers...)
		answerAll()
		end(old)
	}
	ended()
	group.Wait()
	if now := r.workers(); now != workers {
		t.Errorf("the workers were %s and are %s", workers, now)
	}
}

// answering returns the addresses of the servers that answer requests.
func answering(t *testing.T, r *running, requests int) map[string]int {
	t.Helper()
	out := map[string]int{}
	for range requests {
		response, s, err := ask(client(r.outbound, storeAddress, nil, false), "/")
		if err != nil {
			t.Fatal(err)
		}
		out[fmt.Sprint(response.StatusCode, " ", s.From)]++
	}
	return out
}

// viewOfPeers returns the View of a client of a service whose endpoints have the identity.
func viewOfPeers(id mesh.Identity, peers ...*peer) *mesh.View {
	var addresses []string
	for _, p := range peers {
		addresses = append(addresses, p.address)
	}
	f := newFixture(buyer)
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, id, addresses...))
	return f.view()
}

// TestRestartHasTheSameEndpoints holds that a worker that starts with the files uses the same
// endpoints as one that got them from the agent.
func TestRestartHasTheSameEndpoints(t *testing.T) {
	ca := newAuthority(t)
	a, b, c := newPeer(t, ca, store), newPeer(t, ca, store), newPeer(t, ca, store)
	r, acked := asBuyer(t, ca, viewOfPeers(store, a, b))
	r.serve(viewOfPeers(store, b, c), "1")
	r.awaitAck(acked)
	before := answering(t, r, 8)
	if len(before) != 2 || before["200 "+b.address] != 4 || before["200 "+c.address] != 4 {
		t.Errorf("after the change the endpoints are %v", before)
	}
	r.configure(viewOfPeers(store, b, c))
	r.reload()
	if after := answering(t, r, 8); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after a restart the endpoints are %v, want %v", after, before)
	}
}

// TestForeignServerAtAnAddress holds that a server at the address of a live endpoint must
// have the endpoint's identity, also if the slot was another server's.
func TestForeignServerAtAnAddress(t *testing.T) {
	ca := newAuthority(t)
	good, foreign := newPeer(t, ca, store), newPeer(t, ca, ops)
	r, acked := asBuyer(t, ca, viewOfPeers(store, good))
	if got := answering(t, r, 2); got["200 "+good.address] != 2 {
		t.Fatalf("the answers are %v", got)
	}
	r.serve(viewOfPeers(store, foreign), "1")
	r.awaitAck(acked)
	if got := answering(t, r, 2); got["503 "] != 2 || foreign.requests.Load() != 0 {
		t.Errorf("a server of another identity got %d requests, the answers are %v", foreign.requests.Load(), got)
	}
	r.serve(viewOfPeers(store, good), "1")
	r.awaitAck(acked)
	if got := answering(t, r, 2); got["200 "+good.address] != 2 {
		t.Errorf("the answers are %v", got)
	}
}

// TestAgentWithoutLiveFiles holds that the endpoints stay if the agent serves none, as in a
// pod of an earlier injector.
func TestAgentWithoutLiveFiles(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	r, _ := asBuyer(t, ca, viewOfPeers(store, p))
	r.serve(newFixture(buyer).view(), "1")
	r.reload()
	for until := time.Now().Add(2 * time.Second); time.Now().Before(until); {
		if got := answering(t, r, 1); got["200 "+p.address] != 1 {
			t.Fatalf("the answers are %v", got)
		}
	}
}

// TestSlotWithConnections holds that no endpoint gets the slot of a former one while that has
// a connection, which could be used for requests to the new one.
func TestSlotWithConnections(t *testing.T) {
	ca := newAuthority(t)
	former, release := newPeer(t, ca, store), make(chan struct{})
	former.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/long" {
			<-release
		}
		return false
	}
	r, acked := asBuyer(t, ca, viewOfPeers(store, former))
	// The long request is the second one of its connection, to which further ones can be added.
	c := client(r.outbound, storeAddress, nil, true)
	if _, _, err := keepAsking(c, "GET", "/"); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		if response, _, err := keepAsking(c, "GET", "/long"); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("the long request got %v, %v", response, err)
		}
	})
	for former.requests.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	var last string
	hears := func() {
		for range 16 {
			response, s, err := ask(client(r.outbound, storeAddress, nil, true), "/")
			if err != nil || response.StatusCode != http.StatusOK || s.From != last {
				t.Fatalf("%s answers instead of %s: %v, %v", s.From, last, response, err)
			}
		}
	}
	// As many changes as twice the number of slots.
	for range 8 {
		next := newPeer(t, ca, store)
		last = next.address
		r.serve(viewOfPeers(store, next), "1")
		r.awaitAck(acked)
		hears()
	}
	close(release)
	group.Wait()
	hears()
	c.CloseIdleConnections()
}

// TestMoreEndpointsThanSlots serves more endpoints than the worker has slots for. It reloads,
// and the next worker reads the files.
func TestMoreEndpointsThanSlots(t *testing.T) {
	ca := newAuthority(t)
	var servers []*httptest.Server
	for range 9 {
		servers = append(servers, newEndpoint(t, ca))
	}
	r, acked := asBuyer(t, ca, viewOf(false, servers[:1]...))
	workers := r.workers()
	all := viewOf(false, servers...)
	r.configure(all)
	r.serve(all, "1")
	r.awaitAck(acked)
	if now := r.workers(); now == workers {
		t.Error("there is no new worker")
	}
	if got := answering(t, r, 18); got["200 "] != 18 {
		t.Errorf("the answers are %v", got)
	}
}

// TestUnusableEndpointsAreRejected serves endpoints that no worker can use. The proxy reports
// that, instead of reloading forever.
func TestUnusableEndpointsAreRejected(t *testing.T) {
	ca := newAuthority(t)
	server := newEndpoint(t, ca)
	r, _ := asBuyer(t, ca, viewOf(false, server))
	f := newFixture(buyer)
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, ops, "127.0.0.1:1"))
	r.serve(f.view(), "1")
	select {
	case status := <-r.rejected:
		if !strings.Contains(status.Error, "no slot for 127.0.0.1:1") {
			t.Errorf("the reason is %q", status.Error)
		}
	case <-time.After(20 * time.Second):
		t.Error("the files are not rejected")
	}
}

// TestRenewalWithoutAReload replaces the certificates of a server and its client. New
// connections have the new ones, and no worker starts.
func TestRenewalWithoutAReload(t *testing.T) {
	ca := newAuthority(t)
	p := newPeer(t, ca, store)
	p.answer = func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Connection", "close")
		return false
	}
	a := newApp(t)
	f := newFixture(buyer)
	f.inbound.Ports = []mesh.InboundPort{{Port: a.http, Protocol: mesh.HTTP, Access: anyone}}
	f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", backend(servicePort("bookstore", 80), mesh.HTTP, store, p.address))
	r, acked := asBuyer(t, ca, f.view())
	workers := r.workers()
	for range 5 {
		ca.writeTo(r.dir, buyer)
		r.serve(f.view(), rand.Text())
		r.awaitAck(acked)
		text, err := os.ReadFile(filepath.Join(r.dir, "identity.pem"))
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(text, text)
		if err != nil {
			t.Fatal(err)
		}
		if got := answering(t, r, 2); got["200 "+p.address] != 2 {
			t.Errorf("the answers are %v", got)
		}
		p.mu.Lock()
		if got := p.connections[len(p.connections)-1].PeerCertificates[0]; !got.Equal(pair.Leaf) {
			t.Error("the client shows a former certificate")
		}
		p.mu.Unlock()
		config := ca.as(store, buyer)
		config.VerifyConnection = func(state tls.ConnectionState) error {
			if !state.PeerCertificates[0].Equal(pair.Leaf) {
				t.Error("the server shows a former certificate")
			}
			return nil
		}
		if response, _, err := ask(client(r.inbound, local(a.http), config, false), "/"); err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("the server answers %v, %v", response, err)
		}
	}
	if now := r.workers(); now != workers {
		t.Errorf("the workers were %s and are %s", workers, now)
	}
}

// TestTrustBundleChanges replaces the roots after a renewal. The next worker trusts the new
// root only.
func TestTrustBundleChanges(t *testing.T) {
	ca, next := newAuthority(t), newAuthority(t)
	former, peer := newPeer(t, ca, store), newPeer(t, next, store)
	r, acked := asBuyer(t, ca, viewOfPeers(store, former))
	for i, one := range []*authority{ca, next} {
		one.writeTo(r.dir, buyer)
		r.serve(viewOfPeers(store, former), fmt.Sprint("renewal ", i))
		r.awaitAck(acked)
	}
	if got := answering(t, r, 2); got["503 "] != 2 {
		t.Errorf("a server with the former root answers %v", got)
	}
	r.serve(viewOfPeers(store, peer), "renewal 1")
	r.awaitAck(acked)
	if got := answering(t, r, 2); got["200 "+peer.address] != 2 {
		t.Errorf("a server with the new root answers %v", got)
	}
}

// BenchmarkEndpointChange changes an endpoint of one of 1,000 services with 10 endpoints each.
// The reload is what HAProxy did for it before it had live files: a check of the files, and
// then a new worker.
func BenchmarkEndpointChange(b *testing.B) {
	views := make([]*mesh.View, 2)
	for v := range views {
		f := newFixture(buyer)
		for i := range 1000 {
			var endpoints []string
			for j := range 10 {
				if i == 500 && j == 5 {
					j = 100 + v
				}
				endpoints = append(endpoints, fmt.Sprintf("127.%d.%d.%d:80", 1+i/250, i%250, j+1))
			}
			port := servicePort(fmt.Sprint("service-", i), 80)
			f.service(port, mesh.HTTP, fmt.Sprintf("10.96.%d.%d", i/250, i%250), backend(port, mesh.HTTP, store, endpoints...))
		}
		views[v] = f.view()
	}
	r, acked := asBuyer(b, newAuthority(b), views[0])
	program, err := Driver{}.FindProxy()
	if err != nil {
		b.Fatal(err)
	}
	// cpu returns the CPU time that the processes have used, in seconds.
	cpu := func() float64 {
		var ticks uint64
		for _, pid := range append(strings.Fields(r.workers()), fmt.Sprint(r.master.Pid)) {
			text, err := os.ReadFile("/proc/" + pid + "/stat")
			if err != nil {
				b.Fatal(err)
			}
			for _, field := range strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))[11:15] {
				n, err := strconv.ParseUint(field, 10, 64)
				if err != nil {
					b.Fatal(err)
				}
				ticks += n
			}
		}
		return float64(ticks) / 100
	}
	b.Run("live", func(b *testing.B) {
		before, i := cpu(), 0
		for b.Loop() {
			i++
			r.serve(views[i%2], "1")
			r.awaitAck(acked)
		}
		b.ReportMetric((cpu()-before)*1000/float64(i), "cpu-ms/op")
	})
	b.Run("reload", func(b *testing.B) {
		before, i := cpu(), 0
		var checks time.Duration
		for b.Loop() {
			i++
			r.configure(views[i%2])
			check := exec.Command(program, "-c", "-f", filepath.Join(r.dir, configFile))
			if out, err := check.CombinedOutput(); err != nil {
				b.Fatal(err, string(out))
			}
			checks += check.ProcessState.UserTime() + check.ProcessState.SystemTime()
			r.reload()
		}
		b.ReportMetric(((cpu()-before)*1000+float64(checks.Milliseconds()))/float64(i), "cpu-ms/op")
	})
}
