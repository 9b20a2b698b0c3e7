package behaviour

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

const (
	resetPort = 9700
	// secretLine is what applications send, and what no frame may contain.
	secretLine = "a line that nobody may read on the wire\n"
)

// testResets has clients call a server that resets its connections. The application and its
// sidecar use the same destination, and the kernel remembers for a while whose connection
// of a port was redirected.
func testResets(t *testing.T, w *testMesh) {
	w.apply(t, "resets.yaml", service("resets", fmt.Sprintf("clusterIP: None, selector: {app: cart, version: v1}, ports: [{name: tcp-resets, port: %d}]", resetPort))+
		tcpRoute("resets", fmt.Sprintf("[%d]", resetPort))+trafficTarget("shop/resets", "cart-v1", "{kind: TCPRoute, name: resets}", "users/web"))
	foreign := serveResets(t, w.pod(t, "shop/cart-v1"))
	client := w.pod(t, "users/web")
	server := netip.AddrPortFrom(w.pod(t, "shop/cart-v1").Addresses()[0], resetPort)
	// The former row took plaintext.
	w.settled(t)
	w.reads(t, client, server.String(), secretLine, secretLine)

	frames, err := client.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer frames.Close()
	outcomes := make(chan string, 80)
	var threads sync.WaitGroup
	for range 8 {
		threads.Go(func() {
			for range 10 {
				got, err := callFrom(client, 0, server)
				if got != secretLine {
					got = fmt.Sprintf("%q, %v", got, err)
				}
				outcomes <- got
			}
		})
	}
	threads.Wait()
	close(outcomes)
	times := map[string]int{}
	for outcome := range outcomes {
		times[outcome]++
	}
	if times[secretLine] < 40 {
		t.Errorf("80 connections had these outcomes, want the answer mostly: %v", times)
	}
	// Each connection of the sidecar is followed by one of the application from its port.
	for range 3 {
		if _, err := callFrom(client, 0, server); err != nil {
			continue
		}
		if port, ok := lastPortTo(frames, server); ok {
			_, _ = callFrom(client, port, server)
		}
	}
	time.Sleep(50 * time.Millisecond)
	plaintext := 0
	for _, f := range frames.Frames() {
		if bytes.Contains(f.Data, []byte(strings.TrimSpace(secretLine))) {
			plaintext++
		}
	}
	if plaintext > 0 {
		t.Errorf("%d frames hold the application's plaintext, want none", plaintext)
	}
	if n := foreign.Load(); n > 0 {
		t.Errorf("the server's application got something else than was sent on %d connections", n)
	}
}

// callFrom sends the line from a port, or any if it is 0, and returns the answer, whose
// arrival it confirms by a second line.
func callFrom(pod *lab.Pod, port uint16, to netip.AddrPort) (string, error) {
	var conn net.Conn
	err := pod.Do(func() error {
		dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{Port: int(port)}}
		var err error
		conn, err = dialer.Dial("tcp", to.String())
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprint(conn, secretLine); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return answer, err
	}
	if _, err := fmt.Fprint(conn, secretLine); err != nil {
		return answer, err
	}
	return answer, waitForEnd(conn)
}

// waitForEnd waits until the peer has ended the connection.
func waitForEnd(conn net.Conn) error {
	if _, err := conn.Read(make([]byte, 1)); !isClosed(err) {
		return fmt.Errorf("the connection stays open: %w", err)
	}
	return nil
}

// lastPortTo returns the port of the last connection that left for the address.
func lastPortTo(frames *lab.Capture, to netip.AddrPort) (uint16, bool) {
	all := frames.Frames()
	for i := len(all) - 1; i >= 0; i-- {
		if s, ok := all[i].Segment(); ok && all[i].Sent && s.To == to {
			return s.From.Port(), true
		}
	}
	return 0, false
}

// serveResets answers the line of each connection and resets it after the next line. It counts
// the connections on which something else arrives.
func serveResets(t *testing.T, pod *lab.Pod) *atomic.Int64 {
	t.Helper()
	l, err := pod.Listen(t.Context(), "tcp", fmt.Sprintf(":%d", resetPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var foreign atomic.Int64
	go acceptEach(l, func(conn net.Conn) {
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		lines := bufio.NewReader(conn)
		got, _ := lines.ReadString('\n')
		if got != "" && got != secretLine {
			foreign.Add(1)
		}
		_, _ = fmt.Fprint(conn, got)
		// A reset may overtake an answer that has not arrived.
		_, _ = lines.ReadString('\n')
		_ = conn.(interface{ SetLinger(int) error }).SetLinger(0)
	})
	return &foreign
}
