package record

import (
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

const (
	// maxEdges bounds the memory for counts. Requests of further edges are counted without
	// the other end.
	maxEdges = 2000
	// maxKinds is how many kinds of records are remembered.
	maxKinds = 4000
)

// counter counts the proxy's records.
type counter struct {
	own             mesh.Identity
	class, workload string
	reasons         []agentspec.Reason
	metrics         *kit.Metrics
	bounds          []uint64 // the buckets of durations, in microseconds
	openState       string   // what records say of open connections

	mu    sync.Mutex
	edges map[edge]*counts
	kinds map[string]*target
	open  *openConnections
}

func newCounter(workload Workload, records *agentspec.Records, metrics *kit.Metrics) *counter {
	out := &counter{
		own: workload.Identity, class: workload.Class, workload: workload.Name, reasons: records.Reasons,
		openState: records.Open, metrics: metrics, edges: make(map[edge]*counts), kinds: make(map[string]*target), open: newOpenConnections(maxOpen),
	}
	for _, seconds := range telemetry.Buckets() {
		out.bounds = append(out.bounds, uint64(seconds*float64(time.Second/time.Microsecond)))
	}
	return out
}

// count counts the record of a line, if it has one.
func (c *counter) count(line []byte) {
	r, ok := parseRecord(line, c.openState)
	if ok && r.kind == nil {
		return
	}
	if !ok {
		c.metrics.RecordsBad.Add(1)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	to := c.kinds[string(r.kind)]
	if to == nil {
		to = c.newKind(r.kind)
	}
	if to.edge == nil {
		return
	}
	c.metrics.Records.Add(1)
	if r.state == onlyLine {
		c.add(to, &r)
	} else {
		c.addConnection(to, &r)
	}
}

// newKind remembers a kind of records.
func (c *counter) newKind(kind []byte) *target {
	if len(c.kinds) >= maxKinds {
		clear(c.kinds)
	}
	to := c.targetOf(kind)
	c.kinds[string(kind)] = to
	return to
}

func (c *counter) targetOf(kind []byte) *target {
	e, o, v, ok := classify(kind, c.own, c.reasons)
	if !ok {
		return &target{}
	}
	if c.edges[e] == nil && len(c.edges) >= maxEdges {
		e = edge{reporter: e.reporter, protocol: e.protocol}
	}
	of := c.edges[e]
	if of == nil {
		of = &counts{
			requests: make(map[outcome]*uint64), connections: make(map[string]uint64),
			denied: make(map[string]uint64), audited: make(map[string]uint64), durations: make([]uint64, len(c.bounds)+1),
		}
		c.edges[e] = of
	}
	t := &target{edge: of, answered: o.code != noCode, tls: o.tls, verdict: v}
	if e.protocol != telemetry.TCP {
		if of.requests[o] == nil {
			of.requests[o] = new(uint64)
		}
		t.requests = of.requests[o]
	}
	return t
}

func (c *counter) add(t *target, r *record) {
	e := t.edge
	if t.audit != "" {
		e.audited[t.audit]++
	}
	if t.reason != "" {
		e.denied[t.reason]++
		if t.requests == nil {
			return
		}
	}
	e.received += r.received
	e.sent += r.sent
	if t.requests == nil {
		e.connections[t.tls]++
		return
	}
	*t.requests++
	e.retries += r.retries
	if r.answered && t.answered {
		e.micros += r.micros
		i, _ := slices.BinarySearch(c.bounds, r.micros)
		e.durations[i]++
	}
}

// Workload is what metrics say of the pod itself. The class and the name may be empty.
type Workload struct {
	Identity    mesh.Identity
	Class, Name string
}

// addConnection counts a line of a connection that may have several.
func (c *counter) addConnection(t *target, r *record) {
	known, isKnown := c.open.of[r.connection]
	switch {
	case r.state == lastLine && !isKnown:
		c.add(t, r)
		return
	case !isKnown:
		// What is refused ends with a line of its own. A connection without an entry must not be
		// counted, since the next line would count it again.
		if r.state == stillOpen && t.requests == nil && t.reason == "" &&
			c.open.begin(r.connection, openConnection{to: t, received: r.received, sent: r.sent, audited: t.audit != ""}) {
			c.add(t, r)
		}
		return
	}
	// Its first line has found the edge, and only its later ones may know the audit's result.
	e := known.to.edge
	if t.audit != "" && !known.audited {
		e.audited[t.audit]++
		known.audited = true
	}
	e.received += grown(&known.received, r.received)
	e.sent += grown(&known.sent, r.sent)
	if r.state == lastLine {
		delete(c.open.of, r.connection)
		return
	}
	known.seen = time.Since(c.open.begun)
	c.open.of[r.connection] = known
}

// grown returns by how much a number has grown, and replaces it.
func grown(known *uint64, now uint64) uint64 {
	before := *known
	*known = max(before, now)
	return *known - before
}
