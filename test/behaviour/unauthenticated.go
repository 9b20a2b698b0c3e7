package behaviour

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

var unauthenticated = []Row{
	{"Handshakes that stop", "Two thousand connections of an unauthenticated client that stop in the TLS handshake do not disturb requests to or from the pod, cost its proxy less than 256 MiB, and are closed within a minute.", ofEvery, func(t *testing.T, w *testMesh) {
		hello := clientHello(t, "cart-v1.shop.sa.cluster.local")
		w.besiege(t, "8080", 2000, func(i int) []byte {
			switch i % 4 {
			case 0:
				return hello[:len(hello)/2]
			case 1:
				return nil
			default:
				return hello
			}
		})
	}},
	{"Metrics that nobody reads", "An unauthenticated client that opens connections to the proxy's metrics port and sends partial requests disturbs no other requests, and does not block others from the metrics.", ofEvery, func(t *testing.T, w *testMesh) {
		w.besiege(t, "15010", 1000, func(int) []byte { return []byte("GET /stats/prometheus HTTP/1.1\r\nHost: a\r\n") })
	}},
	{"Probes with half a body", "An unauthenticated client that sends the agent requests with partial bodies does not block the kubelet, and is disconnected within a minute.", ofEvery, func(t *testing.T, w *testMesh) {
		w.besiege(t, "15901", 1000, func(int) []byte {
			return []byte("POST /ready HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nbeginning")
		})
	}},
}

// Limits of besiege.
const (
	siegeMemory = 256 << 20
	siegeEnds   = time.Minute
	siegeHands  = 32
)

// besiege opens connections from a pod outside the mesh to a port of shop/cart-v1,
// sends the beginning on each, and keeps them open, while other requests continue. It
// fails the test if one of those fails, if the proxy takes too much memory, or if the
// connections last.
func (w *testMesh) besiege(t *testing.T, port string, connections int, beginning func(i int) []byte) {
	t.Helper()
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	target := w.pod(t, "shop/cart-v1")
	before := w.memory(t, target)
	in := w.startLoad(w.pod(t, "users/web"), cartV1, 4)
	out := w.startLoad(target, cartV1, 2)
	agent := w.startAsking("http://" + net.JoinHostPort(target.Addresses()[0].String(), "15901") + "/ready")
	metrics := w.startAsking("http://" + net.JoinHostPort(target.Addresses()[0].String(), "15010") + "/stats/prometheus")

	begin := time.Now()
	ctx, cancel := context.WithDeadline(t.Context(), begin.Add(siegeEnds+limit))
	defer cancel()
	s := w.open(ctx, t, net.JoinHostPort(target.Addresses()[0].String(), port), connections, beginning)
	defer s.end()
	opened := time.Since(begin)
	grown := w.memory(t, target) - before
	in.more(t, 100)
	out.more(t, 50)
	open := s.open.Load()
	s.closed.Wait()
	t.Logf("%d of %d connections were refused; after %s %d were open and the proxy had %d KiB more; the last was closed after %s",
		s.refused.Load(), connections, opened.Round(time.Millisecond), open, grown>>10, time.Since(begin).Round(time.Second))
	for _, l := range []*load{in, out, agent, metrics} {
		l.end(t)
	}
	if grown > siegeMemory {
		t.Errorf("the proxy has taken %d MiB more, want at most %d", grown>>20, siegeMemory>>20)
	}
	if n := s.lasting.Load(); n > 0 {
		t.Errorf("%d connections were open after %s", n, siegeEnds)
	}
}

// siege is a set of connections that do nothing.
type siege struct {
	closed                 sync.WaitGroup
	open, refused, lasting atomic.Int32
	end                    context.CancelFunc
}

// open opens the connections, and then waits for the server to close them.
func (w *testMesh) open(ctx context.Context, t *testing.T, address string, connections int, beginning func(i int) []byte) *siege {
	ctx, cancel := context.WithCancel(ctx)
	s := &siege{end: cancel}
	from := w.pod(t, "plain/outsider")
	next := make(chan int)
	var hands sync.WaitGroup
	for range siegeHands {
		hands.Go(func() {
			for i := range next {
				conn, err := from.Dial(ctx, "tcp", address)
				if err != nil {
					s.refused.Add(1)
					continue
				}
				// The connection may already be closed.
				_, _ = conn.Write(beginning(i))
				s.open.Add(1)
				s.closed.Go(func() {
					defer s.open.Add(-1)
					defer context.AfterFunc(ctx, func() { conn.Close() })()
					defer conn.Close()
					_ = conn.SetReadDeadline(time.Now().Add(siegeEnds))
					if _, err := io.Copy(io.Discard, conn); os.IsTimeout(err) {
						s.lasting.Add(1)
					}
				})
			}
		})
	}
	for i := range connections {
		next <- i
	}
	close(next)
	hands.Wait()
	return s
}

// startAsking requests a page from the node, over a new connection each time, as the
// kubelet and Prometheus do.
func (w *testMesh) startAsking(url string) *load {
	l := &load{pods: map[string]int{}, stop: make(chan struct{})}
	transport := &http.Transport{DialContext: w.Lab().Node().Dial, DisableKeepAlives: true}
	l.work(w, &http.Client{Timeout: 5 * time.Second, Transport: transport}, url, 50*time.Millisecond)
	return l
}

// memory returns the anonymous memory of the proxy's processes and the agent in bytes.
func (w *testMesh) memory(t *testing.T, pod *lab.Pod) int64 {
	t.Helper()
	container := pod.Container("outrigger-proxy")
	pids, err := container.PIDs(w.Server)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, pid := range append(slices.Clone(pids), container.PID()) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil && !os.IsNotExist(err) && err != syscall.ESRCH {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(status)) {
			if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
				kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				sum += kib << 10
			}
		}
	}
	return sum
}

// clientHello returns the ClientHello of a mesh TLS client.
func clientHello(t *testing.T, name string) []byte {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	go func() {
		_ = tls.Client(theirs, &tls.Config{ServerName: name, NextProtos: []string{"h2", "http/1.1"}}).HandshakeContext(t.Context())
	}()
	r := bufio.NewReader(ours)
	head, err := r.Peek(5)
	if err != nil {
		t.Fatal(err)
	}
	record := make([]byte, 5+int(binary.BigEndian.Uint16(head[3:])))
	if _, err := io.ReadFull(r, record); err != nil {
		t.Fatal(err)
	}
	return record
}
