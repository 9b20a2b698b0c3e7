package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
)

// former is a process that a successor has replaced.
type former struct {
	child    *child
	host     host
	steering *steering
	// abandon is closed when the successor has ended, so that connections must not be steered to
	// it any longer.
	abandon chan struct{}
	// hurry is closed when the process must end soon, because of yet another version.
	hurry     chan struct{}
	hurryOnce sync.Once
	// over is closed when the process has ended.
	over chan struct{}
}

// acceptSuccessors lets containers with other versions of the proxy take over, one at a time.
// The folder may have Unix sockets of the proxy.
func (p *proxy) acceptSuccessors(from net.Listener, folder string) error {
	for {
		conn, err := from.Accept()
		if errors.Is(err, net.ErrClosed) {
			return err
		} else if err != nil {
			// There may be too many open files for a while.
			p.log.Warn("no container with another version of the proxy is accepted for a second", "error", err)
			time.Sleep(time.Second)
			continue
		}
		next := newRemote(conn.(*net.UnixConn), p.children)
		p.log.Info("a container with another version of the proxy has started")
		if err := p.handOver(next, folder); err != nil {
			p.metrics.UpgradesFailed.Add(1)
			p.log.Error("the new version of the proxy could not take over; the former one goes on", "error", err)
			next.dismiss(err.Error())
			continue
		}
		// If it does not arrive, the container has ended.
		_ = sendPacket(next.conn, order{TakenOver: true})
		p.metrics.Upgrades.Add(1)
		p.log.Info("the new version of the proxy has taken over")
	}
}

// currentHost returns where the proxy runs.
func (p *proxy) currentHost() host {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.host
}

// replacedProcess returns the process that a successor has replaced, or nil if it has ended.
func (p *proxy) replacedProcess() *former {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.former
}

// awaitTurn waits until the proxy can be handed over: a process that was replaced before has
// ended, and the current one is ready.
func (p *proxy) awaitTurn(next *remote) error {
	deadline := time.After(p.timings.Succession)
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		err := p.checkReady(context.Background())
		if f := p.replacedProcess(); f != nil {
			f.hurryOnce.Do(func() { close(f.hurry) })
			err = errors.New("a former process of the proxy has not ended")
		}
		if err == nil {
			return nil
		}
		select {
		case <-next.gone:
			return errContainerGone
		case <-p.quit:
			return errShuttingDown
		case <-deadline:
			return err
		case <-again.C:
		}
	}
}

// handOver starts the proxy on another host, waits until it is ready, and sends all new
// connections to it. After an error the running process goes on as before.
func (p *proxy) handOver(next *remote, folder string) error {
	if err := p.awaitTurn(next); err != nil {
		return err
	}
	p.reloading.Lock()
	defer p.reloading.Unlock()
	p.starting.Lock()
	defer p.starting.Unlock()
	p.mu.Lock()
	old, from := p.child, p.host
	p.mu.Unlock()
	if old == nil {
		return errors.New("the proxy is not running")
	}
	own, err := socket.Of("self")
	if err != nil {
		return err
	}
	steering, err := startSteering(func(l socket.Socket) bool { return !own[l.Inode] }, p.agentOnly)
	if err != nil {
		return err
	}
	kept := keepSockets(folder)
	began := time.Now()
	child, err := next.start(p.command, false)
	if err == nil {
		if err = p.awaitSuccessor(steering, old, child, next); err == nil {
			err = steering.change()
		}
		if err == nil && kit.IsClosed(old.ended) {
			err = errFormerEnded
		}
		if err != nil {
			p.log.Info("stopping the new version of the proxy", "output", reason(child.output.text()))
			err = errors.Join(err, p.giveUp(steering, child))
		}
	}
	if err != nil {
		steering.end()
		kept.restore()
		return err
	}
	kept.forget()
	f := &former{child: old, host: from, steering: steering, abandon: make(chan struct{}), hurry: make(chan struct{}), over: make(chan struct{})}
	p.mu.Lock()
	p.child, p.host, p.since, p.ready, p.former = child, next, began, child, f
	p.mu.Unlock()
	p.replaced.Ring()
	go p.retire(f)
	return nil
}

var (
	errFormerEnded  = errors.New("the former process of the proxy has ended")
	errShuttingDown = errors.New("the agent is shutting down")
)

// awaitSuccessor waits until the successor is ready and listens wherever the former process
// does.
func (p *proxy) awaitSuccessor(s *steering, old, child *child, next *remote) error {
	deadline := time.After(p.timings.Succession)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	ready := s.on(portOf(p.readyURL))
	var last []uint64
	since := time.Now()
	for {
		err := s.look()
		if err != nil {
			return err
		}
		var sockets []uint64
		for _, point := range s.points {
			sockets = append(sockets, point.successor...)
		}
		slices.Sort(sockets)
		if !slices.Equal(sockets, last) {
			last, since = sockets, time.Now()
		}
		missing := s.missing()
		if missing != "" {
			err = fmt.Errorf("it does not listen on %s", missing)
		} else {
			err = p.checkSuccessor(ready)
		}
		if err == nil && time.Since(since) >= p.timings.Steady {
			return nil
		}
		select {
		case <-child.ended:
			return fmt.Errorf("the new version of the proxy ended before it was ready: %s: %s", child.how(), reason(child.output.text()))
		case <-old.ended:
			return errFormerEnded
		case <-next.gone:
			return errContainerGone
		case <-p.quit:
			return errShuttingDown
		case <-deadline:
			return fmt.Errorf("the new version of the proxy was not ready within %v: %w", p.timings.Succession, err)
		case <-again.C:
		}
	}
}

// checkSuccessor asks the successor whether it is ready.
func (p *proxy) checkSuccessor(at []*point) error {
	if p.readyURL == "" {
		return nil
	}
	for _, point := range at {
		if err := point.toSuccessor(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.timings.Admin)
	defer cancel()
	return kit.Request(ctx, http.MethodGet, p.readyURL)
}

// giveUp stops a successor that was not ready. The kernel must not give connections to its
// sockets when the steering ends.
func (p *proxy) giveUp(s *steering, child *child) error {
	var errs []error
	for _, point := range s.points {
		errs = append(errs, point.toFormer())
	}
	child.kill()
	select {
	case <-child.ended:
	case <-time.After(p.timings.Stop):
		errs = append(errs, errors.New("the new version of the proxy cannot be stopped"))
	}
	return errors.Join(errs...)
}

// retire lets a replaced process finish its connections, and stops it.
func (p *proxy) retire(f *former) {
	defer func() {
		f.steering.end()
		if r, ok := f.host.(*remote); ok {
			r.dismiss("")
		}
		p.mu.Lock()
		p.former = nil
		p.mu.Unlock()
		close(f.over)
		p.log.Info("the former process of the proxy has ended", "how", f.child.how())
	}()
	drain := sync.OnceFunc(func() {
		p.log.Info("draining the former process of the proxy")
		if err := p.drainFormer(f); err != nil {
			p.log.Warn("the former process of the proxy was not told to drain", "error", err)
		}
	})
	quit, hurry := p.quit, f.hurry
	// wait reports whether the process has ended within d. It returns early, once, when the pod
	// or another version does not leave the process more time.
	wait := func(d time.Duration) bool {
		until := time.After(d)
		again := time.NewTicker(time.Second)
		defer again.Stop()
		abandon := f.abandon
		for {
			select {
			case <-f.child.ended:
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
	if wait(p.timings.Accepted) {
		return
	}
	drain()
	// Some proxies do not exit, or not soon, when they are unused.
	wasUnused := false
	for until := time.Now().Add(time.Duration(p.upgrade.Seconds) * time.Second); quit != nil && hurry != nil && time.Now().Before(until); {
		unused := p.isUnused(f)
		if unused && wasUnused {
			break
		}
		wasUnused = unused
		if wait(p.timings.Accepted) {
			return
		}
	}
	if quit == nil && p.drain != nil && wait(time.Duration(p.drain.Seconds)*time.Second) {
		return
	}
	if err := f.child.signal(unix.SIGTERM); err == nil && wait(p.timings.Stop) {
		return
	}
	p.log.Warn("killing the former process of the proxy")
	f.child.kill()
	<-f.child.ended
}

// isUnused reports whether no client has a connection to the former process.
func (p *proxy) isUnused(f *former) bool {
	open := true
	sockets, err := f.host.sockets(f.child)
	if err == nil {
		open, err = f.steering.hasConnections(sockets)
	}
	if err != nil {
		p.log.Warn("the connections of the former process of the proxy are not known", "error", err)
		return false
	}
	return !open
}

// drainFormer tells the former process to finish its connections and end.
func (p *proxy) drainFormer(f *former) error {
	if p.upgrade.Signal != "" {
		if err := f.child.signal(signalNumber(p.upgrade.Signal)); err != nil {
			return err
		}
	}
	if p.upgrade.URL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.timings.Admin)
	defer cancel()
	return f.steering.withFormer(portOf(p.upgrade.URL), func() error { return kit.Request(ctx, http.MethodPost, p.upgrade.URL) })
}

// returnHome makes the next process start in the agent's own container after a successor
// has ended unexpectedly. It reports whether there was one.
func (p *proxy) returnHome() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	gone, ok := p.host.(*remote)
	if !ok {
		return false
	}
	p.log.Error("the new version of the proxy has ended; returning to that of the sidecar container")
	p.host = p.children
	if p.former != nil {
		close(p.former.abandon)
	}
	gone.dismiss("its proxy has ended")
	return true
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
