package pipy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// accepting is a server that never answers, and counts its connections.
type accepting struct {
	listener net.Listener
	accepted atomic.Int64
}

func (s *pipyPod) accepting(t *testing.T, address string) *accepting {
	t.Helper()
	listener, err := s.lab.Node().Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	a := &accepting{listener: listener}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			a.accepted.Add(1)
			t.Cleanup(func() { conn.Close() })
		}
	}()
	return a
}

func (a *accepting) address() netip.AddrPort { return a.listener.Addr().(*net.TCPAddr).AddrPort() }

// TestHealthChecks calls services whose endpoints are checked, before and after three
// checks, which are 10 s apart.
func TestHealthChecks(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	good := &counted{}
	address := s.peer(t, storeName, good)
	const otherName = "other.bookstore.sa.cluster.local"
	other := s.peer(t, otherName, good)
	silent, returning := s.accepting(t, "198.18.0.1:0"), s.accepting(t, "198.18.0.1:0")
	_, mixed := w.service("mixed", 80, mesh.HTTP, "10.96.0.1", at(address, storeName), at(silent.address(), storeName), at(other, storeName))
	_, wrong := w.service("wrong", 80, mesh.HTTP, "10.96.0.2", at(other, storeName))
	_, tcp := w.service("tcp", 80, mesh.TCP, "10.96.0.3", at(returning.address(), ""))
	_, http2 := w.service("http2", 80, mesh.HTTP2, "10.96.0.4", at(address, storeName))
	for _, b := range []*mesh.Backend{mixed, wrong, tcp, http2} {
		b.HealthChecks = true
	}
	s.apply(t, w.view())
	returning.listener.Close()
	for i := range 4 {
		// The first use of a backend begins its checks.
		s.dial(t, fmt.Sprintf("10.96.0.%d:80", i+1)).Close()
	}
	for _, host := range []string{"10.96.0.2", "10.96.0.4"} {
		s.get(t, "http://"+host+"/")
	}
	go s.get(t, "http://10.96.0.1/")
	time.Sleep(28 * time.Second)
	tried := silent.accepted.Load()
	if tried < 3 {
		t.Errorf("the silent endpoint got %d connections, want at least the 3 checks", tried)
	}
	before := good.requests.Load()
	for range 12 {
		if status, _ := s.get(t, "http://10.96.0.1/"); status != http.StatusOK {
			t.Errorf("a request gets %d after the checks of the other endpoints have failed", status)
		}
	}
	if n := good.requests.Load() - before; n != 12 {
		t.Errorf("the healthy endpoint got %d requests, want 12", n)
	}
	if n := silent.accepted.Load() - tried; n > 1 {
		t.Errorf("the unhealthy endpoint got %d connections besides a check", n)
	}
	if status, body := s.get(t, "http://10.96.0.2/"); status != http.StatusServiceUnavailable || body != "no healthy upstream" {
		t.Errorf("without a healthy endpoint the answer is %d %q", status, body)
	}
	if status, _ := s.get(t, "http://10.96.0.4/"); status == http.StatusServiceUnavailable {
		t.Errorf("a healthy endpoint with HTTP/2 is not used: %d", status)
	}
	back := s.accepting(t, returning.address().String())
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Second) {
		conn := s.dial(t, "10.96.0.3:80")
		conn.SetReadDeadline(time.Now().Add(time.Second))
		_, err := conn.Read(make([]byte, 1))
		conn.Close()
		if isTimeout(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("an endpoint that has returned is not used (%v), after %d connections", err, back.accepted.Load())
		}
	}
	wrong.HealthChecks = false
	wrong.Endpoints[0].ServerName = otherName
	s.apply(t, w.view())
	if status, _ := s.get(t, "http://10.96.0.2/"); status != http.StatusOK {
		t.Errorf("without checks the answer is %d", status)
	}
}

// isTimeout reports whether a connection stayed open without data.
func isTimeout(err error) bool {
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout() && err != io.EOF
}
