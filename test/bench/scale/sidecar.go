package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// maxBackoff bounds the time between two attempts to connect. Envoy's is 30 seconds, which
// would be what a restart measures.
const maxBackoff = time.Second

// sidecar is one proxy, or the agent beside it, which accepts everything.
type sidecar struct {
	fleet  *fleet
	pod    Pod
	number int
	// tls has the client's certificate.
	tls     *tls.Config
	gate    gate
	speaker speaker

	cancel  context.CancelFunc
	running sync.WaitGroup
	// seen is the number of the expectation that this client has met.
	seen int64
	// served says that this client has all that it asks for.
	served bool
	// since is when it was last not served, and lost its connection or began.
	since time.Time
}

// speaker speaks one of the protocols.
type speaker interface {
	// connect runs one connection until it ends.
	connect(ctx context.Context) error
}

func newSidecar(f *fleet, number int, pod Pod) *sidecar {
	c := &sidecar{fleet: f, number: number, pod: pod}
	if f.Protocol == protocolFiles {
		c.speaker = &mirrored{sidecar: c}
	} else {
		c.speaker = newProxy(c)
	}
	return c
}

// start connects until the client's cancel is called.
func (c *sidecar) start() {
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	c.since = time.Now()
	c.running.Go(func() { c.run(ctx) })
}

func (c *sidecar) run(ctx context.Context) {
	for backoff := 50 * time.Millisecond; ctx.Err() == nil; backoff = min(2*backoff, maxBackoff) {
		began := time.Now()
		err := c.speaker.connect(ctx)
		if c.served {
			c.served, c.since = false, time.Now()
			c.fleet.unserved()
		}
		if ctx.Err() != nil {
			return
		}
		c.fleet.broken(err)
		if time.Since(began) > 5*time.Second {
			backoff = 50 * time.Millisecond
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff/2 + rand.N(backoff)):
		}
	}
}

// nowServed notes that the client has all that it asks for.
func (c *sidecar) nowServed() {
	if !c.served {
		c.served = true
		c.fleet.nowServed(time.Since(c.since))
	}
}

// expect notes that the client has acknowledged what is expected, if that is what it has
// received.
func (c *sidecar) expect(received []byte) {
	e := c.fleet.expected.Load()
	if e == nil || c.seen == e.number {
		return
	}
	for _, marker := range e.markers {
		if bytes.Contains(received, marker) {
			c.seen = e.number
			e.met(time.Now())
			return
		}
	}
}

// dial connects to the control plane. Each client has an address of its own on the loopback
// interface, as pods have: servers limit what one address may do.
func (c *sidecar) dial(ctx context.Context, address string) (net.Conn, error) {
	from := net.IPv4(127, 64, byte(c.number>>8), byte(c.number))
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &gated{conn, &c.gate}, nil
}

// gate stops the reads from connections. It is open at first.
type gate struct {
	mu sync.Mutex
	// opened is closed when the gate opens; nil while it is open.
	opened chan struct{}
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

func (g *gate) pass() {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	if opened != nil {
		<-opened
	}
}

// gated is a connection that is read only while the gate is open.
type gated struct {
	net.Conn
	gate *gate
}

// Read implements net.Conn.
func (c *gated) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	// A read that had begun before the gate was shut must not get through either.
	c.gate.pass()
	return n, err
}
