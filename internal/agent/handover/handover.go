package handover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/process"
	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// Successors lets containers with other versions of the proxy take over from the running one.
type Successors struct {
	proxy    *process.Proxy
	children *process.Children
	command  []string
	readyURL string
	upgrade  *agentspec.Upgrade
	drain    *agentspec.Drain
	// agentOnly are addresses of the proxy to which only the agent connects. The proxy listens
	// there if it needs to.
	agentOnly []netip.AddrPort
	folder    string // may have Unix sockets of the proxy
	timings   kit.Timings
	log       *slog.Logger
	metrics   *kit.Metrics

	last *retiring // the process that was replaced last; only serve uses it
}

// retiring is a process that a successor has replaced.
type retiring struct {
	*process.Former
	steering *steering
	// hurry is closed when the process must end soon, because of yet another version.
	hurry     chan struct{}
	hurryOnce sync.Once
}

// New returns the successors of a proxy with an Upgrade. The folder may have Unix
// sockets of the proxy.
func New(spec *agentspec.Spec, proxy *process.Proxy, children *process.Children, folder string, timings kit.Timings, log *slog.Logger, metrics *kit.Metrics) *Successors {
	var agentOnly []netip.AddrPort
	if spec.OnDemand != nil {
		for _, to := range []string{spec.OnDemand.Known, spec.OnDemand.Outside} {
			// The others are Unix sockets.
			if address, err := netip.ParseAddrPort(to); err == nil {
				agentOnly = append(agentOnly, address)
			}
		}
	}
	return &Successors{
		proxy: proxy, children: children, command: spec.Command, readyURL: spec.ReadyURL, upgrade: spec.Upgrade, drain: spec.Drain,
		agentOnly: agentOnly, folder: folder, timings: timings, log: log, metrics: metrics,
	}
}

// Serve lets containers that connect to the listener take over, one at a time.
func (s *Successors) Serve(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return err
		} else if err != nil {
			// There may be too many open files for a while.
			s.log.Warn("no container with another version of the proxy is accepted for a second", "error", err)
			time.Sleep(time.Second)
			continue
		}
		next := newRemote(conn.(*net.UnixConn), s.children)
		s.log.Info("a container with another version of the proxy has started")
		if err := s.handOver(next); err != nil {
			s.metrics.UpgradesFailed.Add(1)
			s.log.Error("the new version of the proxy could not take over; the former one goes on", "error", err)
			next.Dismiss(err.Error())
			continue
		}
		// If it does not arrive, the container has ended.
		_ = sendPacket(next.conn, order{TakenOver: true})
		s.metrics.Upgrades.Add(1)
		s.log.Info("the new version of the proxy has taken over")
	}
}

// handOver starts the proxy on another host, waits until it is ready, and sends all new
// connections to it. After an error the running process goes on as before.
func (s *Successors) handOver(next *remote) error {
	if err := s.awaitTurn(next); err != nil {
		return err
	}
	var steering *steering
	replaced, err := s.proxy.Replace(next, func(old *process.Child) (child *process.Child, err error) {
		child, steering, err = s.startSuccessor(old, next)
		return child, err
	})
	if err != nil {
		return err
	}
	s.last = &retiring{Former: replaced, steering: steering, hurry: make(chan struct{})}
	go s.retire(s.last)
	return nil
}

// startSuccessor starts a process that takes over from the old one, and returns what directs new
// connections to it.
func (s *Successors) startSuccessor(old *process.Child, next *remote) (*process.Child, *steering, error) {
	own, err := socket.Of("self")
	if err != nil {
		return nil, nil, err
	}
	steering, err := startSteering(func(l socket.Socket) bool { return !own[l.Inode] }, s.agentOnly)
	if err != nil {
		return nil, nil, err
	}
	kept := keepSockets(s.folder)
	child, err := next.Start(s.command, false)
	if err == nil {
		if err = s.awaitSuccessor(steering, old, child, next); err == nil {
			err = steering.change()
		}
		if err == nil && kit.IsClosed(old.Ended) {
			err = errFormerEnded
		}
		if err != nil {
			s.log.Info("stopping the new version of the proxy", "output", child.LastWords())
			err = errors.Join(err, s.giveUp(steering, child))
		}
	}
	if err != nil {
		steering.end()
		kept.restore()
		return nil, nil, err
	}
	kept.forget()
	return child, steering, nil
}

// awaitTurn waits until the proxy can be handed over: a process that was replaced before has
// ended, and the current one is ready.
func (s *Successors) awaitTurn(next *remote) error {
	deadline := time.After(s.timings.Succession)
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		err := s.proxy.CheckReady(context.Background())
		if s.proxy.ReplacedProcess() != nil {
			s.last.hurryOnce.Do(func() { close(s.last.hurry) })
			err = errors.New("a former process of the proxy has not ended")
		}
		if err == nil {
			return nil
		}
		select {
		case <-next.gone:
			return errContainerGone
		case <-s.proxy.Quitting():
			return process.ErrShuttingDown
		case <-deadline:
			return err
		case <-again.C:
		}
	}
}

var errFormerEnded = errors.New("the former process of the proxy has ended")

// awaitSuccessor waits until the successor is ready and listens wherever the former process
// does.
func (s *Successors) awaitSuccessor(steering *steering, old, child *process.Child, next *remote) error {
	deadline := time.After(s.timings.Succession)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	ready := steering.on(portOf(s.readyURL))
	var last []uint64
	since := time.Now()
	for {
		err := steering.look()
		if err != nil {
			return err
		}
		var sockets []uint64
		for _, point := range steering.points {
			sockets = append(sockets, point.successor...)
		}
		slices.Sort(sockets)
		if !slices.Equal(sockets, last) {
			last, since = sockets, time.Now()
		}
		missing := steering.missing()
		if missing != "" {
			err = fmt.Errorf("it does not listen on %s", missing)
		} else {
			err = s.checkSuccessor(ready)
		}
		if err == nil && time.Since(since) >= s.timings.Steady {
			return nil
		}
		select {
		case <-child.Ended:
			return fmt.Errorf("the new version of the proxy ended before it was ready: %s: %s", child.How(), child.LastWords())
		case <-old.Ended:
			return errFormerEnded
		case <-next.gone:
			return errContainerGone
		case <-s.proxy.Quitting():
			return process.ErrShuttingDown
		case <-deadline:
			return fmt.Errorf("the new version of the proxy was not ready within %v: %w", s.timings.Succession, err)
		case <-again.C:
		}
	}
}

// checkSuccessor asks the successor whether it is ready.
func (s *Successors) checkSuccessor(points []*point) error {
	if s.readyURL == "" {
		return nil
	}
	for _, point := range points {
		if err := point.toSuccessor(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timings.Admin)
	defer cancel()
	return kit.Request(ctx, http.MethodGet, s.readyURL)
}

// giveUp stops a successor that was not ready. The kernel must not give connections to its
// sockets when the steering ends.
func (s *Successors) giveUp(steering *steering, child *process.Child) error {
	var errs []error
	for _, point := range steering.points {
		errs = append(errs, point.toFormer())
	}
	child.Kill()
	select {
	case <-child.Ended:
	case <-time.After(s.timings.Stop):
		errs = append(errs, errors.New("the new version of the proxy cannot be stopped"))
	}
	return errors.Join(errs...)
}

// retire lets a replaced process finish its connections, and stops it.
func (s *Successors) retire(f *retiring) {
	defer func() {
		f.steering.end()
		f.Host.Dismiss("")
		s.proxy.Retired(f.Former)
		s.log.Info("the former process of the proxy has ended", "how", f.Child.How())
	}()
	drain := sync.OnceFunc(func() {
		s.log.Info("draining the former process of the proxy")
		if err := s.drainFormer(f); err != nil {
			s.log.Warn("the former process of the proxy was not told to drain", "error", err)
		}
	})
	quit, hurry := s.proxy.Quitting(), (<-chan struct{})(f.hurry)
	// wait reports whether the process has ended within d. It returns early, once, when the pod
	// or another version does not leave the process more time.
	wait := func(d time.Duration) bool {
		until := time.After(d)
		again := time.NewTicker(time.Second)
		defer again.Stop()
		abandon := f.Abandon
		for {
			select {
			case <-f.Child.Ended:
				return true
			case <-abandon:
				// Later nothing would direct the request to drain to it.
				drain()
				f.steering.end()
				abandon = nil
			case <-quit:
				quit = nil
				return false
			case <-hurry:
				hurry = nil
				return false
			case <-until:
				return false
			case <-again.C:
				if over, err := f.steering.isOver(); err != nil || over {
					f.steering.end()
				}
			}
		}
	}
	if wait(s.timings.Accepted) {
		return
	}
	drain()
	// Some proxies do not exit, or not soon, when they are unused.
	wasUnused := false
	for until := time.Now().Add(time.Duration(s.upgrade.Seconds) * time.Second); quit != nil && hurry != nil && time.Now().Before(until); {
		unused := s.isUnused(f)
		if unused && wasUnused {
			break
		}
		wasUnused = unused
		if wait(s.timings.Accepted) {
			return
		}
	}
	if quit == nil && s.drain != nil && wait(time.Duration(s.drain.Seconds)*time.Second) {
		return
	}
	if err := f.Child.Signal(unix.SIGTERM); err == nil && wait(s.timings.Stop) {
		return
	}
	s.log.Warn("killing the former process of the proxy")
	f.Child.Kill()
	<-f.Child.Ended
}

// isUnused reports whether no client has a connection to the former process.
func (s *Successors) isUnused(f *retiring) bool {
	open := true
	sockets, err := f.Host.Sockets(f.Child)
	if err == nil {
		open, err = f.steering.hasConnections(sockets)
	}
	if err != nil {
		s.log.Warn("the connections of the former process of the proxy are not known", "error", err)
		return false
	}
	return !open
}

// drainFormer tells the former process to finish its connections and end.
func (s *Successors) drainFormer(f *retiring) error {
	if s.upgrade.Signal != "" {
		if err := f.Child.Signal(process.SignalNumber(s.upgrade.Signal)); err != nil {
			return err
		}
	}
	if s.upgrade.URL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timings.Admin)
	defer cancel()
	return f.steering.withFormer(portOf(s.upgrade.URL), func() error { return kit.Request(ctx, http.MethodPost, s.upgrade.URL) })
}

// portOf returns the port of an http URL, or 0.
func portOf(text string) uint16 {
	u, err := url.Parse(text)
	if err != nil {
		return 0
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		return 0
	}
	return uint16(port)
}

// keptSockets are second names of the Unix sockets in a folder, by their path: a new
// process of the proxy may replace the first ones.
type keptSockets map[string]string

func keepSockets(folder string) keptSockets {
	kept := make(keptSockets)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return kept
	}
	for _, entry := range entries {
		if entry.Type()&fs.ModeSocket == 0 {
			continue
		}
		name := filepath.Join(folder, entry.Name())
		second := filepath.Join(folder, ".former-"+entry.Name())
		_ = os.Remove(second)
		if err := os.Link(name, second); err == nil {
			kept[name] = second
		}
	}
	return kept
}

// restore gives the sockets their first names again.
func (k keptSockets) restore() {
	for name, second := range k {
		_ = os.Rename(second, name)
		// Nothing is renamed if both are the same file.
		_ = os.Remove(second)
	}
}

func (k keptSockets) forget() {
	for _, second := range k {
		_ = os.Remove(second)
	}
}
