package pipy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// TestHalfHandshakes lets clients stop during a handshake: before the ClientHello, in the
// middle of it, and after it.
func TestHalfHandshakes(t *testing.T) {
	w := startWorkload(t, inboundView(strictInbound()))
	hello := make(chan []byte, 1)
	_ = tls.Client(taken{hello}, &tls.Config{ServerName: store.DNSName()}).Handshake()
	whole := <-hello
	conns := map[string]net.Conn{}
	for name, send := range map[string][]byte{"nothing": nil, "half a ClientHello": whole[:len(whole)/2], "a ClientHello": whole} {
		conn, err := w.call(t.Context(), httpPort)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(send); err != nil {
			t.Fatal(err)
		}
		conns[name] = conn
	}
	begin := time.Now()
	for name, conn := range conns {
		_, err := io.Copy(io.Discard, conn)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			t.Errorf("a client that has sent %s is still connected after %s", name, time.Since(begin).Round(time.Second))
		}
	}
	if response, _, err := w.ask(httpPort, w.as(t, buyer), "/books/1"); err != nil || response.StatusCode != 200 {
		t.Errorf("afterwards a request gives %v, %v", response, err)
	}
}

// taken records the first bytes that are written, and ends.
type taken struct{ first chan<- []byte }

func (c taken) Write(p []byte) (int, error) {
	c.first <- append([]byte(nil), p...)
	return len(p), io.EOF
}

func (taken) Read([]byte) (int, error)         { return 0, io.EOF }
func (taken) Close() error                     { return nil }
func (taken) LocalAddr() net.Addr              { return nil }
func (taken) RemoteAddr() net.Addr             { return nil }
func (taken) SetDeadline(time.Time) error      { return nil }
func (taken) SetReadDeadline(time.Time) error  { return nil }
func (taken) SetWriteDeadline(time.Time) error { return nil }
