package demo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/outrigger-mesh/outrigger/test/playground"
)

// tally counts the requests that clients log, and collects the peers that sidecars have
// verified.
type tally struct {
	mu    sync.Mutex
	calls map[call]int
	peers map[peer]bool
}

// call is one result of a client's requests.
type call struct {
	client string
	status int
	// store is the version that answered, and err the error without an answer.
	store, err string
}

// peer is a peer that a sidecar has verified.
type peer struct {
	// sidecar is the namespace of the sidecar, and role that of the peer, "client" or
	// "server".
	sidecar, role, identity string
}

func newTally() *tally {
	return &tally{calls: map[call]int{}, peers: map[peer]bool{}}
}

// writer returns a writer for the output of a container of a pod, given as
// namespace/name.
func (t *tally) writer(pod, container string) io.Writer {
	namespace, _, _ := strings.Cut(pod, "/")
	if container == "outrigger-proxy" {
		return &playground.Lines{Take: func(line []byte) { t.takeAccess(namespace, line) }}
	}
	return &playground.Lines{Take: func(line []byte) { t.takePurchase(namespace, line) }}
}

// takePurchase counts a request from a line of a client's log.
func (t *tally) takePurchase(client string, line []byte) {
	var p struct {
		Path         string
		Status       int
		Store, Error string
	}
	if json.Unmarshal(line, &p) != nil || p.Path == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls[call{client, p.Status, p.Store, p.Error}]++
}

// takeAccess collects the identities in a line of a sidecar's access log.
func (t *tally) takeAccess(sidecar string, line []byte) {
	var e struct {
		Upstream   string `json:"upstream_peer"`
		Downstream string `json:"downstream_peer"`
	}
	if json.Unmarshal(line, &e) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if isIdentity(e.Upstream) {
		t.peers[peer{sidecar, "server", e.Upstream}] = true
	}
	if isIdentity(e.Downstream) {
		t.peers[peer{sidecar, "client", e.Downstream}] = true
	}
}

// isIdentity is false for "" and "-", which sidecars log for a peer without an identity.
func isIdentity(peer string) bool { return strings.HasPrefix(peer, "spiffe://") }

// reset returns the counts and sets them to zero.
func (t *tally) reset() map[call]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls := t.calls
	t.calls = map[call]int{}
	return calls
}

// verified returns the peers that sidecars have verified, sorted.
func (t *tally) verified() []peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.SortedFunc(maps.Keys(t.peers), func(a, b peer) int {
		return cmp.Or(cmp.Compare(a.sidecar, b.sidecar), cmp.Compare(a.role, b.role), cmp.Compare(a.identity, b.identity))
	})
}

// show writes one line per client.
func show(out io.Writer, calls map[call]int) {
	clients := map[string][]string{}
	totals := map[string]int{}
	order := slices.SortedFunc(maps.Keys(calls), func(a, b call) int {
		return cmp.Or(cmp.Compare(a.client, b.client), cmp.Compare(a.status, b.status), cmp.Compare(a.store, b.store))
	})
	denied := map[string]int{}
	for _, c := range order {
		totals[c.client] += calls[c]
		if c.status == 0 {
			// The errors of closed connections vary and carry no information.
			denied[c.client] += calls[c]
			continue
		}
		clients[c.client] = append(clients[c.client], fmt.Sprintf("%d × %s", calls[c], describe(c)))
	}
	for client, n := range denied {
		clients[client] = append(clients[client], fmt.Sprintf("%d × connection closed by its own sidecar", n))
	}
	for _, client := range slices.Sorted(maps.Keys(clients)) {
		fmt.Fprintf(out, "      %-10s %4d requests: %s\n", client, totals[client], strings.Join(clients[client], ", "))
	}
	if len(clients) == 0 {
		fmt.Fprintln(out, "      no requests")
	}
}

// describe returns the result of a request for people.
func describe(c call) string {
	switch {
	case c.status == 403:
		return "403, denied by the server's sidecar"
	case c.store != "":
		return fmt.Sprintf("%d from %s", c.status, c.store)
	}
	return fmt.Sprint(c.status)
}
