package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Network is the network of a pod or of the node. Its methods are safe for concurrent use.
// Sockets that they create stay in it wherever they are used.
type Network struct {
	lab *Lab
	// name is that of its owner, for errors, and device its link.
	name, device string
	// own are host names that only this network has, and more returns others; it may be nil.
	own  map[string][]netip.Addr
	more func() map[string][]netip.Addr

	mu        sync.Mutex
	namespace *os.File
	listeners map[*listener]struct{}
	captures  map[*Capture]struct{}
	closed    bool
}

func newNetwork(l *Lab, name, device string) (*Network, error) {
	namespace, err := newNamespace(unix.CLONE_NEWNET, "net")
	if err != nil {
		return nil, fmt.Errorf("creating the network of %s: %w", name, err)
	}
	return &Network{
		lab: l, name: name, device: device, namespace: namespace,
		listeners: make(map[*listener]struct{}),
		captures:  make(map[*Capture]struct{}),
	}, nil
}

// open returns a duplicate of the namespace, which the caller must close.
func (n *Network) open() (*os.File, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, fmt.Errorf("the network of %s: %w", n.name, ErrClosed)
	}
	fd, err := unix.FcntlInt(n.namespace.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the network of %s: %w", n.name, err)
	}
	return os.NewFile(uintptr(fd), "net"), nil
}

// Do runs f in the network, on a separate goroutine and thread, and returns its error.
// Sockets that f creates are in the network, but goroutines that f starts are not, and
// neither is the resolver of package net. f must not start processes; use StartProcess.
func (n *Network) Do(f func() error) error {
	namespace, err := n.open()
	if err != nil {
		return err
	}
	defer func() { _ = namespace.Close() }()

	type result struct {
		err error
		// returned is false when f ended its goroutine, as a test's Fatal does.
		returned bool
	}
	done := make(chan result, 1)
	onThread(func() (asBefore bool) {
		var r result
		defer func() { done <- r }()
		before, err := ownNamespace("net")
		if err != nil {
			r = result{err, true}
			return true
		}
		defer func() { _ = before.Close() }()
		if err := join(namespace, unix.CLONE_NEWNET); err != nil {
			r = result{fmt.Errorf("the network of %s: %w", n.name, err), true}
			return true
		}
		r.err = f()
		r.returned = true
		// Within a user namespace there is no way back to the machine's network.
		return join(before, unix.CLONE_NEWNET) == nil
	})
	r := <-done
	if !r.returned {
		runtime.Goexit()
	}
	return r.err
}

// Dial connects to an address like "host:port" from within the network. The host is an
// address, "localhost", or a name of Options.Hosts, whose addresses are tried in turn. It
// can be used as http.Transport's DialContext.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	addresses, err := n.resolve(network, address)
	if err != nil {
		return nil, fmt.Errorf("dialling from %s: %w", n.name, err)
	}
	var errs []error
	for _, a := range addresses {
		var conn net.Conn
		err := n.Do(func() error {
			var err error
			conn, err = new(net.Dialer).DialContext(ctx, network, a)
			return err
		})
		if err == nil {
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("dialling from %s: %w", n.name, err))
	}
	return nil, errors.Join(errs...)
}

// forkPatience is for how long an address counts as free that is in use. A process that this
// one starts has its listeners, too, until it executes its program: closed ones as well.
const forkPatience = 2 * time.Second

// Listen listens on a TCP address like ":8080" within the network. It waits up to two seconds
// for an address that is in use. The listener is closed at the latest with the pod.
func (n *Network) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	addresses, err := n.resolve(network, address)
	if err != nil {
		return nil, fmt.Errorf("listening in %s: %w", n.name, err)
	}
	listening := &listener{network: n}
	err = n.Do(func() error {
		// Captured segments are parsed as plain TCP.
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		var err error
		for until := time.Now().Add(forkPatience); ; time.Sleep(time.Millisecond) {
			listening.Listener, err = config.Listen(ctx, network, addresses[0])
			if !errors.Is(err, unix.EADDRINUSE) || ctx.Err() != nil || time.Now().After(until) {
				return err
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listening in %s: %w", n.name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		_ = listening.Listener.Close()
		return nil, fmt.Errorf("listening in %s: %w", n.name, ErrClosed)
	}
	n.listeners[listening] = struct{}{}
	return listening, nil
}

// listener removes itself from its network when it is closed.
type listener struct {
	net.Listener
	network *Network
}

func (l *listener) Close() error {
	l.network.mu.Lock()
	delete(l.network.listeners, l)
	l.network.mu.Unlock()
	return l.Listener.Close()
}

// resolve returns the addresses "host:port" to which an address resolves. An empty host
// stays empty.
func (n *Network) resolve(network, address string) ([]string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if host == "" {
		return []string{address}, nil
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return []string{address}, nil
	}
	var addresses []string
	for _, addr := range n.lookup(strings.TrimSuffix(host, ".")) {
		if addr.Is4() && strings.HasSuffix(network, "6") || addr.Is6() && strings.HasSuffix(network, "4") {
			continue
		}
		addresses = append(addresses, net.JoinHostPort(addr.String(), port))
	}
	if len(addresses) == 0 {
		return nil, &net.DNSError{Err: "no such name in the lab's table of hosts", Name: host, IsNotFound: true}
	}
	return addresses, nil
}

func (n *Network) lookup(name string) []netip.Addr {
	if name == "localhost" {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	if own := n.own[name]; len(own) > 0 {
		return own
	}
	var addrs []netip.Addr
	if n.more != nil {
		addrs = slices.Clone(n.more()[name])
	}
	if len(addrs) == 0 {
		addrs = slices.Clone(n.lab.lookup(name))
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return addrs
}

// close closes the network's listeners, captures and namespace.
func (n *Network) close() {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return
	}
	n.closed = true
	listeners, captures := n.listeners, n.captures
	n.listeners, n.captures = nil, nil
	n.mu.Unlock()
	for l := range listeners {
		_ = l.Listener.Close()
	}
	for c := range captures {
		c.end()
	}
	_ = n.namespace.Close()
}
