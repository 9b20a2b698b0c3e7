package ondemand

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// relayed is a relay between an application and a proxy, which this test plays. The proxy
// hands connections that it does not know to the relay again. The mesh and what is outside
// answer with their name, and then with what they get in upper case.
type relayed struct {
	*Relay
	t     *testing.T
	agent string
	// knows makes the proxy know all destinations; hesitates is how long it takes to hand a
	// connection to the relay again.
	knows     atomic.Bool
	hesitates time.Duration
	// learn answers for the controller, which is asked asks times.
	learn atomic.Pointer[func() (bool, error)]
	asks  atomic.Int32
	// outside counts the connections that were let out of the mesh.
	outside atomic.Int32
	log     syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newRelayed(t *testing.T, hesitates time.Duration, learn func() (bool, error)) *relayed {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	r := &relayed{t: t, agent: listener.Addr().String(), hesitates: hesitates}
	r.learn.Store(&learn)
	timings := kit.DefaultTimings
	timings.Unknown, timings.Outside = 600*time.Millisecond, 100*time.Millisecond
	if hesitates == 0 {
		// A machine under load must not make the proxy late.
		timings.Silence = 150 * time.Millisecond
	}
	ask := func(context.Context, netip.AddrPort) (bool, error) {
		r.asks.Add(1)
		return (*r.learn.Load())()
	}
	to := agentspec.OnDemand{Outside: r.listen("unix", func(conn net.Conn) {
		r.outside.Add(1)
		respond("outside", conn)
	})}
	to.Known = r.listen("unix", r.proxy)
	r.Relay = NewRelay(to, ask, timings, slog.New(slog.NewTextHandler(&r.log, nil)), new(kit.Metrics))
	go r.Serve(t.Context(), listener)
	return r
}

// listen calls the function with each connection to the address that it returns.
func (r *relayed) listen(network string, handle func(net.Conn)) string {
	listener, err := net.Listen(network, r.t.TempDir()+"/sock")
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go handle(conn)
		}
	}()
	return listener.Addr().String()
}

// proxy takes a connection back from the relay.
func (r *relayed) proxy(conn net.Conn) {
	if r.knows.Load() {
		respond("mesh", conn)
		return
	}
	time.Sleep(r.hesitates)
	again, err := net.Dial("tcp", r.agent)
	if err != nil {
		r.t.Error(err)
		return
	}
	// The header is the first that it sends.
	join(again.(stream), conn.(stream))
}

// respond is a server that gets a connection with a header.
func respond(name string, conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	header, err := proxyproto.Read(reader)
	if err != nil {
		return
	}
	io.WriteString(conn, name+" "+header.DestinationAddr.String()+" for "+header.SourceAddr.String()+"\n")
	text, _ := io.ReadAll(reader)
	io.WriteString(conn, strings.ToUpper(string(text)))
}

const anyDestination = "10.96.0.7:80"

// call has the proxy hand over a connection of the application, which says something, ends
// its direction, and reads everything.
func (r *relayed) call(source, destination string) (string, error) {
	conn, err := net.Dial("tcp", r.agent)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	from, to := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
	if _, err := proxyproto.HeaderProxyFromAddrs(2, net.TCPAddrFromAddrPort(from), net.TCPAddrFromAddrPort(to)).WriteTo(conn); err != nil {
		r.t.Fatal(err)
	}
	io.WriteString(conn, "hello")
	conn.(*net.TCPConn).CloseWrite()
	text, err := io.ReadAll(conn)
	return string(text), err
}

// TestUnknownDestination calls a destination of the mesh that the proxy gets to know after
// the controller has answered. The proxy hands the connection to the agent again at once, or
// only after the agent has stopped to wait for that. Either way nothing is lost.
func TestUnknownDestination(t *testing.T) {
	t.Parallel()
	for name, hesitates := range map[string]time.Duration{"at once": 0, "late": 40 * time.Millisecond} {
		for to, want := range map[string]string{
			anyDestination: "mesh 10.96.0.7:80 for 10.1.0.1:4000\nHELLO", "[fd00::7]:80": "mesh [fd00::7]:80 for [fd00::1]:4000\nHELLO",
		} {
			t.Run(name+" "+to, func(t *testing.T) {
				t.Parallel()
				r := newRelayed(t, hesitates, func() (bool, error) { return true, nil })
				time.AfterFunc(100*time.Millisecond, func() { r.knows.Store(true) })
				from := "10.1.0.1:4000"
				if to != anyDestination {
					from = "[fd00::1]:4000"
				}
				if got, err := r.call(from, to); got != want || err != nil {
					t.Errorf("the application reads %q, %v; want %q\n%s", got, err, want, r.log.String())
				}
				if n := r.outside.Load(); n != 0 {
					t.Errorf("%d connections have left the mesh", n)
				}
				if n := r.metrics.ToMesh.Load(); n != 1 {
					t.Errorf("%d connections are counted", n)
				}
			})
		}
	}
}

// TestIgnorantProxy has the proxy never get to know the destination. The connection must
// fail in time, and must not leave the mesh.
func TestIgnorantProxy(t *testing.T) {
	t.Parallel()
	for name, hesitates := range map[string]time.Duration{"at once": 0, "late": 40 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelayed(t, hesitates, func() (bool, error) { return true, nil })
			begin := time.Now()
			// A failure behind a Unix socket looks like an end.
			if got, err := r.call("10.1.0.1:4000", anyDestination); got != "" || err == nil && hesitates == 0 {
				t.Errorf("the application reads %q, %v", got, err)
			}
			if took := time.Since(begin); took > 3*time.Second {
				t.Errorf("it fails after %s", took)
			}
			if log := r.log.String(); !strings.Contains(log, "10.96.0.7:80") || !strings.Contains(log, "it is in the mesh, but the proxy") {
				t.Errorf("the log is\n%s", log)
			}
			if n := r.outside.Load(); n != 0 {
				t.Errorf("%d connections have left the mesh", n)
			}
		})
	}
}

// TestOutside calls an address outside the mesh: the controller is asked now and then, and
// its last answer counts while it is away.
func TestOutside(t *testing.T) {
	t.Parallel()
	r := newRelayed(t, 0, func() (bool, error) { return false, nil })
	calls := func(port string) {
		t.Helper()
		if got, err := r.call("10.1.0.1:"+port, anyDestination); got != "outside 10.96.0.7:80 for 10.1.0.1:"+port+"\nHELLO" || err != nil {
			t.Errorf("the application reads %q, %v", got, err)
		}
	}
	calls("4000")
	calls("4001")
	if n := r.asks.Load(); n != 1 {
		t.Errorf("the controller is asked %d times about one address", n)
	}
	away := func() (bool, error) { return false, errors.New("nobody there") }
	r.learn.Store(&away)
	time.Sleep(r.timings.Outside)
	calls("4002")
	if n := r.asks.Load(); n < 2 {
		t.Error("the controller is not asked again")
	}
	found := func() (bool, error) { return true, nil }
	r.learn.Store(&found)
	r.knows.Store(true)
	if got, err := r.call("10.1.0.1:4003", anyDestination); !strings.HasPrefix(got, "mesh ") || err != nil {
		t.Errorf("when the address is in the mesh, the application reads %q, %v", got, err)
	}
}

// TestNobodyToAsk calls an address that nobody has been asked about while there is no
// controller: it could be in the mesh, so the connection must not go anywhere.
func TestNobodyToAsk(t *testing.T) {
	t.Parallel()
	r := newRelayed(t, 0, func() (bool, error) { return false, errors.New("nobody there") })
	r.knows.Store(true)
	if got, err := r.call("10.1.0.1:4000", anyDestination); got != "" || err == nil {
		t.Errorf("the application reads %q, %v", got, err)
	}
	if n := r.outside.Load(); n != 0 {
		t.Errorf("%d connections have left the mesh", n)
	}
	if log := r.log.String(); !strings.Contains(log, "nobody there") {
		t.Errorf("the log is\n%s", log)
	}
	if n := r.asks.Load(); n < 2 {
		t.Errorf("the controller is asked %d times", n)
	}
}

// TestImpatience has a connection that ends while the controller is still being asked.
func TestImpatience(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asks atomic.Int32
	i := newInquiry(func(context.Context, netip.AddrPort) (bool, error) {
		if asks.Add(1) == 2 {
			cancel()
		}
		return false, errors.New("nobody there")
	}, kit.DefaultTimings)
	if _, err := i.ask(ctx, netip.MustParseAddrPort("10.0.0.1:80")); err == nil || err.Error() != "nobody there" {
		t.Errorf("the error is %v, want the controller's", err)
	}
}

// TestManyUnknown has more addresses outside the mesh than are remembered.
func TestManyUnknown(t *testing.T) {
	t.Parallel()
	i := newInquiry(func(context.Context, netip.AddrPort) (bool, error) { return false, nil }, kit.DefaultTimings)
	for n := range maxOutside + 100 {
		if _, err := i.ask(t.Context(), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 80)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(i.outside); n != maxOutside {
		t.Errorf("%d addresses are remembered, want %d", n, maxOutside)
	}
}
