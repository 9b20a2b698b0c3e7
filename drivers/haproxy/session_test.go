package haproxy

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// session is what routes of these tests have.
var session = &mesh.Session{Rule: "HTTPRoute bookstore/books/0", Header: "x-session"}

// asksIn sends a request with a token and returns the server that has answered, with the token
// of the answer.
func asksIn(t *testing.T, r *running, token string, h2 bool) (from, next string) {
	t.Helper()
	response, s, err := ask(client(r.outbound, storeAddress, nil, h2), "/", "x-session", token)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("a request with the token %q gets %v, %v", token, response, err)
	}
	return s.From, response.Header.Get("x-session")
}

// TestSessionsOfAllServers holds sessions at servers that have their addresses in the
// configuration, that are called by way of another frontend, or that are backups.
func TestSessionsOfAllServers(t *testing.T) {
	hash := mesh.LoadBalancing{Policy: mesh.RingHash, HashOn: []mesh.HashOn{{Header: "x-user"}}}
	ejection := &mesh.Ejection{ConsecutiveErrors: 1, BaseTime: time.Hour}
	for name, tt := range map[string]struct {
		policy mesh.UpstreamPolicy
		retry  *mesh.Retry
	}{
		"live":               {},
		"the zone first":     {policy: mesh.UpstreamPolicy{LoadBalancing: mesh.LoadBalancing{PreferZone: true}}},
		"ejected":            {policy: mesh.UpstreamPolicy{Ejection: ejection}},
		"hashed":             {policy: mesh.UpstreamPolicy{LoadBalancing: hash}},
		"hashed and ejected": {policy: mesh.UpstreamPolicy{LoadBalancing: hash, Ejection: ejection}},
		"retried":            {retry: &mesh.Retry{Codes: []uint16{429}, Attempts: 1}},
		"retried and hashed": {policy: mesh.UpstreamPolicy{LoadBalancing: hash}, retry: &mesh.Retry{Codes: []uint16{429}, Attempts: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			ca := newAuthority(t)
			peers := map[string]*peer{}
			var addresses []string
			var failing atomic.Value
			failing.Store("")
			for range 3 {
				p := newPeer(t, ca, store)
				p.answer = func(w http.ResponseWriter, r *http.Request) bool {
					if failing.Load() == p.address {
						w.WriteHeader(http.StatusInternalServerError)
						return true
					}
					return false
				}
				peers[p.address], addresses = p, append(addresses, p.address)
			}
			to := backend(servicePort("bookstore", 80), mesh.HTTP, store, addresses...)
			for i := range to.Endpoints {
				to.Endpoints[i].Workload, to.Endpoints[i].Zone = "bookstore/"+addresses[i], []string{"near", "far", "far"}[i]
			}
			to.Policy = tt.policy
			f := newFixture(buyer)
			f.proxy.Zone = "near"
			d := f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", to)
			d.HashOn, d.Routes[0].Session, d.Routes[0].Retry = tt.policy.LoadBalancing.HashOn, session, tt.retry
			r := runOutbound(t, ca, f)
			for i, e := range to.Endpoints {
				token := session.Share(to.Name) + "-" + e.Key()
				for n := range 8 {
					if from, next := asksIn(t, r, token, n%2 == 1); from != addresses[i] || next != "" {
						t.Errorf("a request of a session at %s is answered by %s, with the token %q", addresses[i], from, next)
					}
				}
			}
			from, token := asksIn(t, r, "", false)
			for range 4 {
				if again, next := asksIn(t, r, token, false); again != from || next != "" {
					t.Errorf("a request of a session at %s is answered by %s, with the token %q", from, again, next)
				}
			}
			if tt.policy.Ejection == nil {
				return
			}
			failing.Store(from)
			for range 20 {
				_, _, _ = ask(client(r.outbound, storeAddress, nil, false), "/", "x-session", token)
			}
			if again, next := asksIn(t, r, token, false); again == from || next == "" || next == token {
				t.Errorf("after it has failed, %s answers a request of a session at %s, with the token %q", again, from, next)
			}
		})
	}
}

// TestSessionsAcrossChanges moves the endpoints of a session to other addresses and other
// slots, drains them, and reloads HAProxy.
func TestSessionsAcrossChanges(t *testing.T) {
	ca := newAuthority(t)
	a, b, c := newPeer(t, ca, store), newPeer(t, ca, store), newPeer(t, ca, store)
	view := func(draining bool, first, second *peer) *mesh.View {
		to := backend(servicePort("bookstore", 80), mesh.HTTP, store, first.address, second.address)
		to.Endpoints[0].Workload, to.Endpoints[1].Workload = "bookstore/books-0", "bookstore/books-1"
		to.Endpoints[0].Draining = draining
		f := newFixture(buyer)
		f.service(servicePort("bookstore", 80), mesh.HTTP, "10.96.0.10", to).Routes[0].Session = session
		return f.view()
	}
	tokenOf := func(r *running, p *peer) string {
		t.Helper()
		for range 20 {
			if from, token := asksIn(t, r, "", false); from == p.address {
				return token
			}
		}
		t.Fatalf("%s answers no request", p.address)
		return ""
	}
	r, acked := asBuyer(t, ca, view(false, a, b))
	atA, atB := tokenOf(r, a), tokenOf(r, b)
	expect := func(what, token string, want *peer, again bool) {
		t.Helper()
		for range 6 {
			if from, next := asksIn(t, r, token, false); from != want.address || again != (next != "") {
				t.Errorf("%s: %s answers instead of %s, with the token %q", what, from, want.address, next)
			}
		}
	}
	r.serve(view(true, a, b), "1")
	r.awaitAck(acked)
	expect("a draining endpoint", atA, b, true)
	r.serve(view(false, a, b), "1")
	r.awaitAck(acked)
	expect("an endpoint that is back", atA, a, false)
	r.serve(view(false, c, b), "1")
	r.awaitAck(acked)
	expect("beside a change", atB, b, false)
	if from, _ := asksIn(t, r, atA, false); from == a.address {
		t.Error("an endpoint that is gone answers")
	}
	atC := tokenOf(r, c)
	r.configure(view(false, c, b))
	r.reload()
	expect("after a reload", atC, c, false)
	expect("after a reload", atB, b, false)
}
