package pipy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// threads is the number of Pipy's threads in tests, the same as in a pod without a CPU
// limit.
var threads = min(2, runtime.NumCPU())

// gate is a server whose requests wait until they are released, and that counts the waiting
// ones.
type gate struct {
	now  atomic.Int64
	open chan struct{}
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	g.now.Add(1)
	defer g.now.Add(-1)
	select {
	case <-g.open:
	case <-r.Context().Done():
	}
}

func (g *gate) want(t *testing.T, n int64) {
	t.Helper()
	eventually(t, func() error {
		if now := g.now.Load(); now != n {
			return fmt.Errorf("%d requests wait at the server, want %d", now, n)
		}
		return nil
	})
}

// askTogether sends that many requests at a time, each on its own connection, which the
// kernel assigns to any thread.
func (s *pipyPod) askTogether(t *testing.T, n int, url string) <-chan int {
	statuses := make(chan int, n)
	for range n {
		go func() {
			status, _ := s.get(t, url)
			statuses <- status
		}()
	}
	return statuses
}

// wantStatus receives n answers, which must have the status want.
func wantStatus(t *testing.T, statuses <-chan int, n, want int) {
	t.Helper()
	for i := range n {
		select {
		case status := <-statuses:
			if status != want {
				t.Fatalf("answer %d is %d, want %d", i, status, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("only %d of %d answers came", i, n)
		}
	}
}

// TestThreadsCountTogether checks that the metrics include the requests of all threads,
// whichever thread answers.
func TestThreadsCountTogether(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	if got := s.listeners(t, 15001); got != threads {
		t.Fatalf("%d threads listen, want %d", got, threads)
	}
	w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, http.HandlerFunc(describe)), storeName))
	s.apply(t, w.view())
	const requests = 60
	for range requests {
		if status, _ := s.get(t, "http://10.96.0.1/"); status != 200 {
			t.Fatalf("a request gets %d", status)
		}
	}
	s.wantCounted(t, requests)
}

// listeners returns how many sockets of the pod listen on a port.
func (s *pipyPod) listeners(t *testing.T, port int) int {
	t.Helper()
	listening := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:0000 0A `, port))
	var count int
	if err := s.Do(func() error {
		for _, table := range []string{"tcp", "tcp6"} {
			sockets, err := os.ReadFile("/proc/thread-self/net/" + table)
			if err != nil {
				return err
			}
			count += len(listening.FindAll(sockets, -1))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return count
}

// wantCounted gets the metrics several times, so that several threads answer.
func (s *pipyPod) wantCounted(t *testing.T, requests int) {
	t.Helper()
	total := fmt.Sprintf("envoy_http_downstream_rq_total{envoy_http_conn_manager_prefix=\"outbound\"} %d\n", requests)
	times := fmt.Sprintf("envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name=\"bookstore/store:80\",le=\"+Inf\"} %d\n", requests)
	for range 10 {
		_, body := s.get(t, "http://127.0.0.1:15010/stats/prometheus")
		for _, want := range []string{total, times} {
			if !strings.Contains(body, want) {
				t.Fatalf("there is no %q in\n%s", want, body)
			}
		}
	}
}

// TestThreadsWaitForEachOther checks that a request that waits for a connection gets one
// that another thread has in use, or keeps idle.
func TestThreadsWaitForEachOther(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	var most, now atomic.Int64
	_, b := w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		time.Sleep(5 * time.Millisecond)
		now.Add(-1)
	})), storeName))
	b.Policy.MaxConnections = new(uint32(1))
	s.apply(t, w.view())
	wantStatus(t, s.askTogether(t, 40, "http://10.96.0.1/"), 40, 200)
	if most.Load() != 1 {
		t.Errorf("%d requests were served at a time by one connection", most.Load())
	}
	for range 20 {
		begun := time.Now()
		if status, _ := s.get(t, "http://10.96.0.1/"); status != 200 || time.Since(begun) > 3*time.Second {
			t.Fatalf("a request gets %d after %s, while the connection is idle", status, time.Since(begun))
		}
	}
}

// TestLimitsOfAllThreads checks that limits apply to the proxy, not to each thread.
func TestLimitsOfAllThreads(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	g := newGate()
	_, b := w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, g), storeName))
	b.Policy.MaxRequests = new(uint32(7))
	_, tcp := w.service("tcp", 81, mesh.TCP, "10.96.0.1", at(s.listenTLS(t, storeName, greet), storeName))
	tcp.Policy.MaxConnections = new(uint32(5))
	s.apply(t, w.view())
	t.Run("requests", func(t *testing.T) {
		for range 3 {
			statuses := s.askTogether(t, 40, "http://10.96.0.1/")
			wantStatus(t, statuses, 33, 503)
			g.want(t, 7)
			for range 7 {
				g.open <- struct{}{}
			}
			wantStatus(t, statuses, 7, 200)
		}
	})
	t.Run("connections", func(t *testing.T) {
		for range 3 {
			var open []net.Conn
			for range 30 {
				conn, err := s.Dial(context.Background(), "tcp", "10.96.0.1:81")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if _, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
					open = append(open, conn)
				}
			}
			if len(open) != 5 {
				t.Fatalf("there are %d connections at a time, want 5", len(open))
			}
			for _, conn := range open {
				conn.Close()
			}
			eventually(t, func() error {
				conn, err := s.Dial(context.Background(), "tcp", "10.96.0.1:81")
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = bufio.NewReader(conn).ReadString('\n')
				return err
			})
			time.Sleep(200 * time.Millisecond)
		}
	})
	t.Run("a limit that comes later", func(t *testing.T) {
		b.Policy.MaxRequests = nil
		s.apply(t, w.view())
		statuses := s.askTogether(t, 20, "http://10.96.0.1/")
		g.want(t, 20)
		b.Policy.MaxRequests = new(uint32(20))
		s.apply(t, w.view())
		wantStatus(t, s.askTogether(t, 10, "http://10.96.0.1/"), 10, 503)
		for range 10 {
			g.open <- struct{}{}
		}
		wantStatus(t, statuses, 10, 200)
		more := s.askTogether(t, 20, "http://10.96.0.1/")
		wantStatus(t, more, 10, 503)
		g.want(t, 20)
		for range 20 {
			g.open <- struct{}{}
		}
		wantStatus(t, statuses, 10, 200)
		wantStatus(t, more, 10, 200)
	})
}

// TestRateOfAllThreads checks that rate limits apply to the proxy, not to each thread.
func TestRateOfAllThreads(t *testing.T) {
	w := startWorkload(t, inboundView(&mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
		{Port: httpPort, Protocol: mesh.HTTP, Access: anyone, Limits: mesh.RateLimits{
			Requests: &mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 9, Interval: time.Hour}},
		}},
		{Port: helloPort, Protocol: mesh.TCPServerFirst, Access: anyone, Limits: mesh.RateLimits{
			Connections: &mesh.TokenBucket{Tokens: 9, Interval: time.Hour},
		}},
	}}))
	config := w.as(t, ops)
	var passed, greeted atomic.Int64
	var group sync.WaitGroup
	for range 40 {
		group.Go(func() {
			if response, _, err := w.ask(httpPort, config, "/"); err == nil && response.StatusCode == 200 {
				passed.Add(1)
			}
			if _, err := w.hello(helloPort, config); err == nil {
				greeted.Add(1)
			}
		})
	}
	group.Wait()
	if passed.Load() != 9 || greeted.Load() != 9 {
		t.Errorf("%d requests and %d connections pass, want 9", passed.Load(), greeted.Load())
	}
}

// TestReloadOfAllThreads reloads Pipy's scripts under load, like the agent: no request is
// lost, and the threads share their state afterwards.
func TestReloadOfAllThreads(t *testing.T) {
	w := newViewBuilder()
	s := startPod(t, w.view())
	g := newGate()
	w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, http.HandlerFunc(describe)), storeName))
	_, b := w.service("limited", 81, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, g), storeName))
	b.Policy.MaxRequests = new(uint32(3))
	s.apply(t, w.view())
	s.keep(t, w.view())
	stop := s.load(t, 8, "http://10.96.0.1/")
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for ctx.Err() == nil {
				if status, _ := s.get(t, "http://10.96.0.1/"); status != 200 {
					t.Errorf("a request on a new connection gets %d", status)
				}
			}
		})
	}
	for range 3 {
		s.reload(t)
		// A failed reload has no effect.
		broken := filepath.Join(s.repo, "egress.js")
		text, err := os.ReadFile(broken)
		if err := errors.Join(err, os.WriteFile(broken, []byte("no script"), 0o644)); err != nil {
			t.Fatal(err)
		}
		failures := strings.Count(s.log.String(), "Failed reloading")
		s.hup(t)
		eventually(t, func() error {
			if strings.Count(s.log.String(), "Failed reloading") < failures+threads {
				return errors.New("an invalid script is loaded")
			}
			return nil
		})
		if err := os.WriteFile(broken, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.reload(t)
	cancel()
	group.Wait()
	if made, failed := stop(); failed > 0 || made < 100 {
		t.Errorf("%d of %d requests failed", failed, made)
	}
	statuses := s.askTogether(t, 20, "http://10.96.0.1:81/")
	wantStatus(t, statuses, 17, 503)
	g.want(t, 3)
	for range 3 {
		g.open <- struct{}{}
	}
	wantStatus(t, statuses, 3, 200)
}

// hup signals Pipy to reload its scripts.
func (s *pipyPod) hup(t *testing.T) {
	t.Helper()
	pids, err := s.Container("pipy").PIDs("pipy")
	if err != nil || len(pids) != 1 {
		t.Fatal(pids, err)
	}
	if err := unix.Kill(pids[0], unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// reload reloads Pipy's scripts, and waits until all threads have.
func (s *pipyPod) reload(t *testing.T) {
	t.Helper()
	for len(s.acked) > 0 {
		<-s.acked
	}
	s.hup(t)
	select {
	case <-s.acked:
	case <-time.After(20 * time.Second):
		t.Fatalf("Pipy has not reloaded its scripts:\n%s", s.log)
	}
}

// TestLogOfAllThreads checks that threads do not write into each other's lines.
func TestLogOfAllThreads(t *testing.T) {
	w := newViewBuilder()
	w.settings.AccessLog = mesh.FullAccessLog()
	s := startPod(t, w.view())
	w.service("store", 80, mesh.HTTP, "10.96.0.1", at(s.peer(t, storeName, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })), storeName))
	s.apply(t, w.view())
	stop := s.load(t, 16, "http://10.96.0.1/"+strings.Repeat("long/", 200))
	time.Sleep(2 * time.Second)
	made, failed := stop()
	if failed > 0 {
		t.Fatalf("%d of %d requests failed", failed, made)
	}
	eventually(t, func() error {
		whole := 0
		for line := range strings.Lines(s.log.String()) {
			if strings.HasPrefix(line, `{"authority":"10.96.0.1"`) && strings.HasSuffix(line, "}\n") && strings.Count(line, "authority") == 1 {
				whole++
			}
		}
		if whole != made {
			return fmt.Errorf("%d of %d lines are complete", whole, made)
		}
		return nil
	})
}

// TestNothingIsLeftBehind checks that no shared state of deleted backends remains.
func TestNothingIsLeftBehind(t *testing.T) {
	if threads < 2 {
		t.Skip("with one thread nothing is shared")
	}
	var found struct{ Threads, Before, Most, Backends, After int }
	runThreads(t, threads, `
import { newBackend, forget, observe, choose } from './backend.js'
import { add, reserve, threads } from './shared.js'
var map = new algo.SharedMap('program/1')
function documentOf(i) {
  return {
    name: 'backend' + i, endpoints: [1, 2, 3].map(e => ({ address: '10.0.0.' + e + ':80' })),
    policy: { maxConnections: 3, maxRequests: 3, maxRetries: 3, maxPendingRequests: 3, ejection: { consecutiveErrors: 2, maxPercent: 50 } },
  }
}
function count() {
  var output = { threads, before: map.size }
  var all = []
  for (var i = 0; i < 100; i++) {
    var b = newBackend(documentOf(i))
    reserve(b.requests, 3)
    for (var n = 0; n < 3; n++) observe(b, choose(b), true)
    all.push(b)
  }
  output.most = map.size
  output.backends = all.length
  all.forEach(forget)
  all.forEach(b => add(b.requests, -1))
  output.after = map.size
  finish(output)
}
new Timeout(1).wait().then(() => pipy.thread.id === 0 ? count() : null)
`, nil, &found)
	if found.Threads != threads || found.Most < found.Before+found.Backends || found.After != found.Before {
		t.Errorf("%+v: want %d threads, and no value of a backend left", found, threads)
	}
}

// TestExclusive calls exclusive in all threads at a time.
func TestExclusive(t *testing.T) {
	const times = 5_000
	var found struct{ Count, Threads int }
	runThreads(t, threads, `
import { exclusive, get, set, publish, published, threads } from './shared.js'
function work() {
  for (var i = 0; i < input; i++) exclusive(() => set('n', (get('n') || 0) + 1))
  publish('done', true)
  if (pipy.thread.id === 0) look()
}
function look() {
  if (published('done').every(done => done)) finish({ count: get('n'), threads })
  else new Timeout(0.1).wait().then(look)
}
var input = JSON.parse(os.readFile(os.env.TEST_DIR + '/input.json').toString())
new Timeout(1).wait().then(work)
`, times, &found)
	if found.Threads != threads || found.Count != threads*times {
		t.Errorf("%d threads counted to %d, want %d", found.Threads, found.Count, threads*times)
	}
}
