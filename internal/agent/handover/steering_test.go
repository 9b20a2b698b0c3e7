package handover

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
)

// sharing is a server that shares its port, and answers each connection with its name.
type sharing struct {
	name      string
	listeners []net.Listener
	served    atomic.Int64
}

func newSharing(t *testing.T, name, address string, threads int) *sharing {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	}}
	config.SetMultipathTCP(false)
	s := &sharing{name: name}
	for range threads {
		listener, err := config.Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		s.listeners = append(s.listeners, listener)
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				s.served.Add(1)
				// Others wait to be accepted meanwhile.
				time.Sleep(200 * time.Microsecond)
				go func() {
					defer conn.Close()
					_, _ = conn.Read(make([]byte, 1))
					_, _ = io.WriteString(conn, s.name)
				}()
			}
		}()
	}
	return s
}

func (s *sharing) close() {
	for _, l := range s.listeners {
		l.Close()
	}
}

// callers connect again and again until stop is called.
type callers struct {
	mu      sync.Mutex
	calls   int
	failed  []error
	slowest time.Duration
	stop    func()
}

func startCallers(address string, workers int) *callers {
	ctx, cancel := context.WithCancel(context.Background())
	c := new(callers)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				err := callOnce(address)
				took := time.Since(began)
				c.mu.Lock()
				c.calls++
				if err != nil {
					c.failed = append(c.failed, err)
				}
				c.slowest = max(c.slowest, took)
				c.mu.Unlock()
			}
		})
	}
	c.stop = func() {
		cancel()
		group.Wait()
	}
	return c
}

func callOnce(address string) error {
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write([]byte("?")); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && len(answer) == 0 {
		err = fmt.Errorf("no answer")
	}
	return err
}

// TestSteering moves the connections of a port from one server to another, with as many
// threads, fewer or more, while clients connect.
func TestSteering(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		for _, threads := range [][2]int{{1, 1}, {2, 2}, {4, 1}, {1, 3}} {
			t.Run(fmt.Sprint(address, threads), func(t *testing.T) { testSteering(t, address, threads[0], threads[1]) })
		}
	}
}

func testSteering(t *testing.T, address string, formerThreads, threads int) {
	first, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	address = first.Addr().String()
	isFormer := onPort(first)
	first.Close()
	former := newSharing(t, "former", address, formerThreads)
	calls := startCallers(address, 8)
	time.Sleep(100 * time.Millisecond)

	s, err := startSteering(isFormer, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.end()
	if len(s.points) != 1 {
		t.Fatalf("the steering has %d endpoints, want 1", len(s.points))
	}
	successor := newSharing(t, "successor", address, threads)
	time.Sleep(100 * time.Millisecond)
	if n := successor.served.Load(); n > 0 {
		t.Errorf("the successor got %d connections before the change", n)
	}
	if err := s.look(); err != nil {
		t.Fatal(err)
	}
	if err := s.change(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	n := former.served.Load()
	time.Sleep(100 * time.Millisecond)
	if more := former.served.Load() - n; more > 0 {
		t.Errorf("the former server got %d connections after the change", more)
	}
	if over, err := s.isOver(); err != nil || over {
		t.Errorf("the steering is over: %t, %v; both servers listen", over, err)
	}
	former.close()
	time.Sleep(100 * time.Millisecond)
	if over, err := s.isOver(); err != nil || !over {
		t.Errorf("the steering is over: %t, %v; the former server is closed", over, err)
	}
	s.end()
	time.Sleep(100 * time.Millisecond)
	calls.stop()
	if len(calls.failed) > 0 {
		t.Errorf("%d of %d calls failed, the first: %v", len(calls.failed), calls.calls, calls.failed[0])
	}
	after, err := socket.ListListening()
	if err != nil {
		t.Fatal(err)
	}
	if left := slices.DeleteFunc(after, func(l socket.Socket) bool { return !isFormer(l) }); len(left) != threads {
		t.Errorf("%d sockets are left, want the successor's %d", len(left), threads)
	}
	t.Logf("%d calls, %d to the former, %d to the successor, the slowest took %v", calls.calls, former.served.Load(), successor.served.Load(), calls.slowest)
}

// TestSteeringNeedsSharedPorts has a server that does not share its port.
func TestSteeringNeedsSharedPorts(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if s, err := startSteering(onPort(listener), nil); err == nil {
		s.end()
		t.Error("connections to a port that is not shared were steered")
	}
}

// onPort chooses the sockets with the port of a listener. Other tests and programs have theirs.
func onPort(listener net.Listener) func(socket.Socket) bool {
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	return func(l socket.Socket) bool { return l.At.Addr.Port() == port }
}
