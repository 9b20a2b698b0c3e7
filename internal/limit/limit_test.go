package limit

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestCounter(t *testing.T) {
	c := NewCounter[string](3, 2)
	take := func(key string, want bool) func() {
		t.Helper()
		give, ok := c.Take(key)
		if ok != want {
			t.Fatalf("Take(%q) = %t, want %t", key, ok, want)
		}
		return give
	}
	one, other := take("a", true), take("a", true)
	take("a", false)
	two := take("b", true)
	take("c", false)
	one()
	one()
	three := take("b", true)
	take("c", false)
	two()
	four := take("c", true)
	take("a", false)

	// Keys that have nothing take no memory.
	for _, give := range []func(){other, three, four} {
		give()
	}
	if c.taken != 0 || len(c.by) != 0 {
		t.Errorf("afterwards %d are taken, by %v", c.taken, c.by)
	}
}

// TestListener has one address exceed its limit.
func TestListener(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{}, 10)
	listener := Listener(tcp, NewShare[netip.Addr](10, 1), func() { refused <- struct{}{} })
	defer listener.Close()
	accepted := make(chan net.Conn, 10)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	await := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(10 * time.Second):
			t.Fatal("not " + what)
		}
	}
	dial()
	first := <-accepted
	second := dial()
	await("refused", refused)
	_ = second.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := second.Read(make([]byte, 1)); err == nil || err != io.EOF && !isReset(err) {
		t.Errorf("the excess connection reads %v, want it closed", err)
	}
	// Settled connections do not count.
	first.(*Conn).Settle()
	dial()
	third := <-accepted
	dial()
	await("refused", refused)
	third.Close()
	dial()
	<-accepted
}

func isReset(err error) bool {
	_, ok := err.(*net.OpError)
	return ok
}
