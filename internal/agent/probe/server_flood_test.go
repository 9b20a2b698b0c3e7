package probe

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// TestUnfinishedBodies lets clients at several addresses open connections and send
// incomplete requests with a body. The kubelet must still be answered, and the clients'
// connections must be bounded in number, memory and time.
func TestUnfinishedBodies(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newTestServer(agentspec.Probe{Path: "/probe", Kind: agentspec.TCP, Port: int32(listener.Addr().(*net.TCPAddr).Port), TimeoutSeconds: 1})
	web := s.HTTP()
	defer web.HTTP.Close()
	go web.Serve(listener)

	const each = 200
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before := m.HeapAlloc + m.StackInuse
	begin := time.Now()
	var conns []net.Conn
	for _, from := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"} {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		for i := range each {
			conn, err := d.DialContext(t.Context(), "tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conns = append(conns, conn)
			path := []string{"/quitquitquit", "/mirror", "/probe", "/nowhere"}[i%4]
			// It may be closed already.
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nbeginning", path)
			_ = conn.SetReadDeadline(begin.Add(15 * time.Second))
		}
	}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for range 50 {
		response, err := client.Get("http://" + listener.Addr().String() + "/probe")
		if err != nil {
			t.Fatalf("a probe beside %d clients: %v", len(conns), err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("a probe beside %d clients is answered with %s", len(conns), response.Status)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&m)
	if grown := int64(m.HeapAlloc+m.StackInuse) - int64(before); grown > 8<<20 {
		t.Errorf("%d clients keep %d KiB, want at most 8 MiB", len(conns), grown>>10)
	}
	for _, conn := range conns {
		_, err := io.Copy(io.Discard, conn)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			t.Fatalf("a request with an unfinished body is open after %s", time.Since(begin).Round(time.Second))
		}
	}
}
