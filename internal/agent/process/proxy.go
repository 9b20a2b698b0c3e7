package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/bell"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// Proxy runs the proxy's process: it restarts, reloads and stops the process and checks
// whether it is ready. Its methods are safe for use by many goroutines.
type Proxy struct {
	command []string
	// printVersion is a command that prints the program's version; nil if none is known.
	printVersion []string
	readyURL     string
	reloads      *agentspec.Reload
	children     *Children
	drain        *agentspec.Drain // nil if the proxy is stopped without it
	timings      kit.Timings
	log          *slog.Logger
	metrics      *kit.Metrics

	quit     chan struct{} // closed when the proxy must not be started again
	quitOnce sync.Once
	ended    chan struct{} // closed when run has returned
	due      bell.Bell     // rings when the proxy should reload
	replaced bell.Bell     // rings when a successor has become the process
	reporter *reporter     // notified of crashes and of a stable process

	starting  sync.Mutex // held while a process starts
	reloading sync.Mutex // held during a reload, so that there is one at a time

	mu       sync.Mutex
	host     Host // where the process runs, and the next one is started
	version  string
	child    *Child
	since    time.Time
	ready    *Child    // the process that was found ready
	crashing time.Time // time of the first crash since the proxy was last stable
	former   *Former   // the process that a successor has replaced, until it has ended
}

// NewProxy returns the proxy of a Spec. Report sends the controller a report about it.
func NewProxy(spec *agentspec.Spec, children *Children, report func(context.Context, *identityv1.ReportRequest) error, timings kit.Timings, log *slog.Logger, metrics *kit.Metrics) *Proxy {
	return &Proxy{
		reporter: newReporter(report, timings, log), drain: spec.Drain,
		command: spec.Command, printVersion: spec.Version, readyURL: spec.ReadyURL, reloads: spec.Reload,
		children: children, host: children, timings: timings, log: log, metrics: metrics,
		quit: make(chan struct{}), ended: make(chan struct{}), due: bell.New(), replaced: bell.New(),
	}
}

// Report reports to the controller, until ctx ends, that the proxy does not stay up, and later
// that it does again.
func (p *Proxy) Report(ctx context.Context) { p.reporter.run(ctx) }

// Run keeps the process running until stopRestarts is called. It calls exited after each
// unexpected exit, before the next start. Without a command there is no process.
func (p *Proxy) Run(exited func(*Child)) {
	defer close(p.ended)
	if len(p.command) == 0 {
		<-p.quit
		return
	}
	go p.reloadWhenDue()
	restart := p.timings.Restart
	for {
		started := time.Now()
		child, err := p.startProcess()
		how, lastWords := "", ""
		if err == nil {
			p.log.Info("proxy started", "pid", child.PID)
			stable := time.AfterFunc(p.timings.Stable, p.reporter.stable)
			child, started = p.awaitEnd(child, started)
			stable.Stop()
			how, lastWords = child.How(), child.LastWords()
		} else {
			how = err.Error()
		}
		if kit.IsClosed(p.quit) {
			p.log.Info("proxy exited", "how", how)
			return
		}
		if child != nil {
			exited(child)
		}
		if time.Since(started) >= p.timings.Stable {
			restart.Reset()
		}
		pause := restart.Next()
		if p.returnHome() {
			go p.FindVersion()
			pause = 0
		}
		p.crashed(started)
		p.reporter.ended(how, lastWords, child != nil)
		p.log.Error("the proxy exited; restarting it", "how", how, "ran", time.Since(started).Round(time.Millisecond).String(), "after", pause.String())
		select {
		case <-p.quit:
			return
		case <-time.After(pause):
		}
		p.metrics.Restarts.Add(1)
	}
}

// Execute runs a command beside the proxy and waits until it ends. The error of a command that
// fails or times out contains the end of its output; one that could not be started is a
// NotStartedError.
func (p *Proxy) Execute(ctx context.Context, argv []string, within time.Duration) error {
	return runOn(ctx, p.currentHost(), argv, within)
}

// CannotStart reports that the proxy's program cannot be started.
func (p *Proxy) CannotStart(err error) { p.reporter.ended(err.Error(), "", false) }

func (p *Proxy) startProcess() (*Child, error) {
	p.starting.Lock()
	defer p.starting.Unlock()
	child, err := p.currentHost().Start(p.command, false)
	if err == nil {
		p.set(child)
	}
	return child, err
}

// awaitEnd waits until the process, or the successor that has replaced it meanwhile, has
// ended. It returns which one it was and when it was started.
func (p *Proxy) awaitEnd(child *Child, started time.Time) (*Child, time.Time) {
	for {
		select {
		case <-child.Ended:
		case <-p.replaced:
		}
		p.mu.Lock()
		if p.child == child && kit.IsClosed(child.Ended) {
			p.child, p.since, p.ready = nil, time.Now(), nil
			p.mu.Unlock()
			return child, started
		}
		child, started = p.child, p.since
		p.mu.Unlock()
	}
}

func (p *Proxy) set(child *Child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.child, p.since, p.ready = child, time.Now(), nil
}

func (p *Proxy) current() *Child {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.child
}

// crashed records a crash of the process that was started at that time.
func (p *Proxy) crashed(started time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.crashing.IsZero() || time.Since(started) >= p.timings.Stable {
		p.crashing = time.Now()
	}
}

// Alive returns an error if the proxy has been crashing for kit.Timings.Hopeless.
func (p *Proxy) Alive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.crashing.IsZero(),
		p.child != nil && time.Since(p.since) >= p.timings.Stable,
		time.Since(p.crashing) < p.timings.Hopeless:
		return nil
	}
	return fmt.Errorf("the proxy has been crashing for %v", time.Since(p.crashing).Round(time.Second))
}

// CheckReady returns nil if the running process is ready, or has been before, or if there
// is no command.
func (p *Proxy) CheckReady(ctx context.Context) error {
	if len(p.command) == 0 {
		return nil
	}
	p.mu.Lock()
	child, ready := p.child, p.ready
	p.mu.Unlock()
	switch {
	case child == nil:
		return errors.New("the proxy is not running")
	case ready == child || p.readyURL == "":
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.timings.Admin)
	defer cancel()
	if err := kit.Request(ctx, http.MethodGet, p.readyURL); err != nil {
		return fmt.Errorf("the proxy is not ready: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != child {
		return errors.New("the proxy is not running")
	}
	if p.ready != child {
		p.ready = child
		p.log.Info("proxy ready", "after", time.Since(p.since).Round(time.Millisecond).String())
	}
	return nil
}

// RequestReload starts a reload without waiting for it.
func (p *Proxy) RequestReload() { p.due.Ring() }

// reloadWhenDue executes requested reloads. It retries a failed one until it succeeds,
// because nothing else would make the proxy read the new files.
func (p *Proxy) reloadWhenDue() {
	retry := p.timings.ReloadRetry
	var again <-chan time.Time
	for {
		select {
		case <-p.ended:
			return
		case <-p.quit:
			return
		case <-p.due:
			retry.Reset()
		case <-again:
		}
		again = nil
		if _, err := p.Reload(); err != nil {
			pause := retry.Next()
			p.log.Error("reloading the proxy failed; retrying", "error", err, "after", pause.String())
			again = time.After(pause)
		}
	}
}

// Reload makes the proxy read changed files. It returns the process if it was ready before
// the reload: if it then exits, the files are the likely cause. Otherwise it returns nil.
func (p *Proxy) Reload() (*Child, error) {
	p.starting.Lock()
	child := p.current()
	p.starting.Unlock()
	if child == nil {
		// The next process reads the files when it starts.
		return nil, nil
	}
	ready := p.awaitReady(child)
	if p.reloads != nil {
		p.reloading.Lock()
		defer p.reloading.Unlock()
		if now := p.current(); now != nil && now != child {
			// A successor may have read the files before they changed.
			child, ready = now, true
		}
		if err := p.reloadNow(child); err != nil {
			p.metrics.ReloadsFailed.Add(1)
			return nil, err
		}
		p.metrics.Reloads.Add(1)
		p.log.Info("proxy reloaded")
	}
	if !ready {
		return nil, nil
	}
	return child, nil
}

// awaitReady waits up to kit.Timings.Settle until a just started process is ready, because a
// signal would kill a process that does not handle it yet. It reports whether the process
// is ready; without a readiness URL it counts as ready after kit.Timings.Settle.
func (p *Proxy) awaitReady(child *Child) bool {
	limit := time.NewTimer(p.timings.Settle)
	defer limit.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		p.mu.Lock()
		young := time.Since(p.since) < p.timings.Settle
		p.mu.Unlock()
		if p.readyURL != "" && p.CheckReady(context.Background()) == nil || p.readyURL == "" && !young {
			return true
		}
		select {
		case <-child.Ended:
			return false
		case <-p.quit:
			return false
		case <-limit.C:
			return p.readyURL == ""
		case <-again.C:
		}
	}
}

func (p *Proxy) reloadNow(child *Child) error {
	switch {
	case p.reloads.Workers:
		return replaceWorkers(child, p.reloads.Signal, p.timings)
	case p.reloads.Signal != "":
		if err := child.Signal(SignalNumber(p.reloads.Signal)); err != nil {
			return fmt.Errorf("sending %s: %w", p.reloads.Signal, err)
		}
		return nil
	}
	if err := p.Execute(context.Background(), p.reloads.Command, p.timings.Reload); err != nil {
		return fmt.Errorf("reload command: %w", err)
	}
	return nil
}

// StopRestarts prevents further starts of the proxy.
func (p *Proxy) StopRestarts() { p.quitOnce.Do(func() { close(p.quit) }) }

// Stop stops the process after stopRestarts: it lets the process drain, sends SIGTERM and
// finally kills it. When force is closed, the process is killed at once. A process that a
// successor has replaced gets the same time.
func (p *Proxy) Stop(force <-chan struct{}) {
	gone := make(chan struct{})
	go func() {
		<-p.ended
		if f := p.ReplacedProcess(); f != nil {
			<-f.over
		}
		close(gone)
	}()
	// wait reports whether the processes have ended within d.
	wait := func(d time.Duration) bool {
		select {
		case <-gone:
			return true
		case <-force:
			return false
		case <-time.After(d):
			return false
		}
	}
	if p.drain != nil && p.current() != nil {
		until := time.Now().Add(time.Duration(p.drain.Seconds) * time.Second)
		if p.drain.URL != "" {
			p.startDrain(p.drain.URL, force)
		}
		if wait(time.Until(until)) {
			return
		}
	}
	if !kit.IsClosed(force) {
		if child := p.current(); child != nil {
			if err := child.Signal(unix.SIGTERM); err != nil {
				p.log.Warn("cannot send SIGTERM to the proxy", "error", err)
			}
		}
		if wait(p.timings.Stop) {
			return
		}
	}
	p.log.Warn("killing the proxy")
	for {
		if child := p.current(); child != nil {
			child.Kill()
		}
		if f := p.ReplacedProcess(); f != nil {
			f.Child.Kill()
		}
		// A process that was just being started is killed in the next iteration.
		select {
		case <-gone:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *Proxy) startDrain(url string, force <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), p.timings.Admin)
	defer cancel()
	go func() {
		select {
		case <-force:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := kit.Request(ctx, http.MethodPost, url); err != nil {
		p.log.Warn("starting to drain the proxy failed", "error", err)
		return
	}
	p.log.Info("draining the proxy")
}

// Former is a process that another one has replaced.
type Former struct {
	Child *Child
	Host  Host
	// Abandon is closed when the successor has ended, so that connections must not be directed
	// to it any longer.
	Abandon chan struct{}
	over    chan struct{} // closed when the process has ended
}

// currentHost returns where the proxy runs.
func (p *Proxy) currentHost() Host {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.host
}

// ReplacedProcess returns the process that a successor has replaced, or nil if it has ended.
func (p *Proxy) ReplacedProcess() *Former {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.former
}

// returnHome makes the next process start in the agent's own container after a successor
// has ended unexpectedly. It reports whether there was one.
func (p *Proxy) returnHome() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := p.host
	if gone == Host(p.children) {
		return false
	}
	p.log.Error("the new version of the proxy has ended; returning to that of the sidecar container")
	p.host = p.children
	if p.former != nil {
		close(p.former.Abandon)
	}
	gone.Dismiss("its proxy has ended")
	return true
}
