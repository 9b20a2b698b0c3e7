package limit_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/limit"
)

func TestCounter(t *testing.T) {
	c := limit.NewCounter[string](3, 2)
	take := func(key string, want bool) func() {
		t.Helper()
		give, ok := c.Take(key)
		if ok != want {
			t.Fatalf("Take(%q) = %t, want %t", key, ok, want)
		}
		return give
	}
	one := take("a", true)
	take("a", true)
	take("a", false)
	two := take("b", true)
	take("c", false)
	one()
	one()
	take("b", true)
	take("c", false)
	two()
	take("c", true)
	take("a", false)
}

// TestListener has one address ask for more than there is for it.
func TestListener(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{}, 10)
	listener := limit.Listener(tcp, limit.NewCounter[netip.Addr](10, 1), func() { refused <- struct{}{} })
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
		t.Errorf("the connection that is one too many reads %v, want that it is closed", err)
	}
	// One that is known does not count.
	first.(*limit.Conn).Settle()
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
