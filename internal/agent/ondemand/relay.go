package ondemand

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// Limits of the relay. A connection takes two goroutines and two sockets for as long as it
// lasts.
const (
	maxRelayed = 4096
	// maxRounds is how often a connection may come back after the relay took the proxy's
	// silence for knowledge. Each time it stays on a longer way.
	maxRounds = 4
)

// Relay takes connections to destinations that the proxy does not know, finds out where they
// go, and hands them back to the proxy. Its methods are safe for use by many goroutines.
type Relay struct {
	to      agentspec.OnDemand
	inquiry *inquiry
	timings kit.Timings
	log     *slog.Logger
	metrics *kit.Metrics
	slots   chan struct{}

	mu sync.Mutex
	// handed are the connections that were handed to the proxy as known.
	handed map[flow]*handover
}

// flow is the original source and destination of a connection.
type flow struct{ from, to netip.AddrPort }

// handover is a connection that the proxy was handed as known.
type handover struct {
	// back is closed when the proxy has handed it to the relay again.
	back chan struct{}
	// settled is set when the relay has stopped to wait for that. Rounds counts how often it
	// came back after that.
	settled bool
	rounds  int
}

// NewRelay returns a relay for an OnDemand of the proxy. Learn asks the controller whether an
// address is in the mesh.
func NewRelay(config agentspec.OnDemand, learn func(context.Context, netip.AddrPort) (bool, error), timings kit.Timings, log *slog.Logger, metrics *kit.Metrics) *Relay {
	return &Relay{
		to: config, inquiry: newInquiry(learn, timings), timings: timings, log: log, metrics: metrics,
		slots: make(chan struct{}, maxRelayed), handed: make(map[flow]*handover),
	}
}

// Serve takes connections until the listener is closed.
func (r *Relay) Serve(ctx context.Context, listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("taking connections to unknown destinations: %w", err)
		}
		select {
		case r.slots <- struct{}{}:
			go func() {
				defer func() { <-r.slots }()
				r.take(ctx, conn.(*net.TCPConn))
			}()
		default:
			reset(conn)
		}
	}
}

// take handles a connection until it ends.
func (r *Relay) take(ctx context.Context, conn *net.TCPConn) {
	header, from, err := readHeader(conn, r.timings.Admin)
	if err != nil {
		r.log.Debug("refused a connection to an unknown destination", "error", err)
		reset(conn)
		return
	}
	rounds, again := r.isBack(from)
	if again {
		reset(conn)
		return
	}
	out, err := r.route(ctx, from, header, rounds)
	if err != nil {
		r.metrics.Nowhere.Add(1)
		r.log.Warn("a connection to a destination that the proxy does not know has failed", "destination", from.to.String(), "error", err)
		reset(conn)
		return
	}
	join(conn, out)
}

// readHeader reads the header of a connection, without anything after it.
func readHeader(conn *net.TCPConn, timeout time.Duration) (*proxyproto.Header, flow, error) {
	_ = conn.SetReadDeadline(time.Now().Add(timeout)) // Fails only if the connection has ended.
	header, err := proxyproto.Read(bufio.NewReaderSize(byByte{conn}, 16))
	if err != nil {
		return nil, flow{}, fmt.Errorf("reading the header of the PROXY protocol: %w", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	source, destination, ok := header.TCPAddrs()
	if !ok {
		return nil, flow{}, errors.New("the header of the PROXY protocol has no addresses")
	}
	f := flow{unmapped(source), unmapped(destination)}
	return proxyproto.HeaderProxyFromAddrs(2, net.TCPAddrFromAddrPort(f.from), net.TCPAddrFromAddrPort(f.to)), f, nil
}

// byByte reads single bytes, so that nothing after a header is read.
type byByte struct{ io.Reader }

func (r byByte) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), 1)]) }

func unmapped(addr *net.TCPAddr) netip.AddrPort {
	at := addr.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// isBack reports whether the proxy hands back a connection that it was just handed. If the
// relay has stopped to wait for that, it returns how often that has happened.
func (r *Relay) isBack(client flow) (rounds int, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.handed[client]
	switch {
	case h == nil:
		return 0, false
	case !h.settled && !kit.IsClosed(h.back):
		close(h.back)
		return 0, true
	}
	h.rounds++
	return h.rounds, false
}

// route asks about the destination and returns a connection of the proxy for it.
func (r *Relay) route(ctx context.Context, client flow, header *proxyproto.Header, rounds int) (stream, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timings.Unknown)
	defer cancel()
	inMesh, err := r.inquiry.ask(ctx, client.to)
	switch {
	case err != nil:
		return nil, fmt.Errorf("asking the controller about it: %w", err)
	case !inMesh:
		r.metrics.ToOutside.Add(1)
		return r.dial(ctx, r.to.Outside, header)
	case rounds > maxRounds:
		return nil, errors.New("it is in the mesh, but the proxy does not get to know it")
	}
	retry := r.timings.Known
	for {
		out, err := r.hand(ctx, client, header)
		// A timeout is that of ctx, which may end a moment later.
		if timeout := (net.Error)(nil); err != nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
			return nil, err
		}
		if out != nil {
			if rounds == 0 {
				r.metrics.ToMesh.Add(1)
			}
			return out, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("it is in the mesh, but the proxy has not got to know it within %s", r.timings.Unknown)
		case <-time.After(retry.Next()):
		}
	}
}

// hand hands a connection to the proxy as known. It returns nil if the proxy does not know
// the destination yet.
func (r *Relay) hand(ctx context.Context, client flow, header *proxyproto.Header) (stream, error) {
	h := r.expect(client)
	out, err := r.dial(ctx, r.to.Known, header)
	if err != nil {
		r.forget(client, h)
		return nil, err
	}
	select {
	case <-h.back:
		r.forget(client, h)
		reset(out)
		return nil, nil
	case <-time.After(r.timings.Silence):
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if kit.IsClosed(h.back) {
		delete(r.handed, client)
		reset(out)
		return nil, nil
	}
	h.settled = true
	time.AfterFunc(r.timings.Unknown, func() { r.forget(client, h) })
	return out, nil
}

// expect records that a connection is about to be handed over.
func (r *Relay) expect(client flow) *handover {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &handover{back: make(chan struct{})}
	if former := r.handed[client]; former != nil {
		h.rounds = former.rounds
	}
	r.handed[client] = h
	return h
}

func (r *Relay) forget(client flow, h *handover) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.handed[client] == h {
		delete(r.handed, client)
	}
}

func (r *Relay) dial(ctx context.Context, address string, header *proxyproto.Header) (stream, error) {
	network := "tcp"
	if path.IsAbs(address) {
		network = "unix"
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("handing it back to the proxy: %w", err)
	}
	if _, err := header.WriteTo(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("handing it back to the proxy: %w", err)
	}
	return conn.(stream), nil
}

// stream is a connection whose directions end separately.
type stream interface {
	net.Conn
	CloseWrite() error
}

// join copies between two connections until both directions have ended. A connection that
// fails resets the other one.
func join(a, b stream) {
	var copying sync.WaitGroup
	copying.Go(func() { pass(a, b) })
	pass(b, a)
	copying.Wait()
	a.Close()
	b.Close()
}

// pass copies one direction. The kernel moves the bytes.
func pass(to, from stream) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	_ = to.CloseWrite() // Fails only if the connection has ended.
}

// reset closes a connection such that the other end sees a failure.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // Fails only if the connection has ended.
	}
	conn.Close()
}
