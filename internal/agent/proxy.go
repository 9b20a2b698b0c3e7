package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// proxy runs the proxy's process: it starts it again when it ends, tells it of changed
// files, asks it whether it is ready, and stops it. Its methods may be called from many
// goroutines.
type proxy struct {
	command  []string
	readyURL string
	reloads  *agentspec.Reload
	children *children
	pace     pace
	log      *slog.Logger
	metrics  *metrics

	// quit is closed when the proxy is not to be started again, and ended when it has
	// ended for good.
	quit, ended chan struct{}
	quitOnce    sync.Once
	// due holds a value when the proxy is to be told of changed files.
	due chan struct{}
	// hasEnded, if set, is called when a process has ended that should not, before another
	// is started.
	hasEnded func(*child)
	// reporter is told of ends that should not be, and of a process that stays up.
	reporter *reporter
	// starting is held while a process starts, so that who looks for it sees it.
	starting sync.Mutex
	// telling is held while the proxy is told, so that it is told of one change after the
	// other.
	telling sync.Mutex

	mu    sync.Mutex
	child *child
	since time.Time
	// ready is the process that has answered that it is ready.
	ready *child
	// crashing is when the proxy ended the first time, since it last was stable.
	crashing time.Time
}

func newProxy(spec *agentspec.Spec, children *children, reporter *reporter, pace pace, log *slog.Logger, metrics *metrics) *proxy {
	return &proxy{
		reporter: reporter,
		command:  spec.Command, readyURL: spec.ReadyURL, reloads: spec.Reload,
		children: children, pace: pace, log: log, metrics: metrics,
		quit: make(chan struct{}), ended: make(chan struct{}), due: make(chan struct{}, 1),
	}
}

// run keeps the process running until leave is called.
func (p *proxy) run() {
	defer close(p.ended)
	go p.reloadWhenDue()
	pause := p.pace.restartFirst
	for {
		started := time.Now()
		child, err := p.startProcess()
		how, lastWords := "", ""
		if err == nil {
			p.log.Info("proxy started", "pid", child.pid)
			stable := time.AfterFunc(p.pace.stable, p.reporter.stable)
			<-child.ended
			stable.Stop()
			p.set(nil)
			how, lastWords = child.how(), child.said.after()
		} else {
			how = err.Error()
		}
		select {
		case <-p.quit:
			p.log.Info("proxy ended", "how", how)
			return
		default:
		}
		if child != nil && p.hasEnded != nil {
			p.hasEnded(child)
		}
		if time.Since(started) >= p.pace.stable {
			pause = p.pace.restartFirst
		}
		p.crashed(started)
		p.reporter.ended(how, lastWords, child != nil)
		p.log.Error("the proxy has ended; it is started again", "how", how, "ran", time.Since(started).Round(time.Millisecond).String(), "after", pause.String())
		select {
		case <-p.quit:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, p.pace.restartMost)
		p.metrics.restarts.Add(1)
	}
}

func (p *proxy) startProcess() (*child, error) {
	p.starting.Lock()
	defer p.starting.Unlock()
	child, err := p.children.start(p.command)
	if err == nil {
		p.set(child)
	}
	return child, err
}

func (p *proxy) set(child *child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.child, p.since, p.ready = child, time.Now(), nil
}

func (p *proxy) current() *child {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.child
}

// crashed notes the end of a process that was started at that time.
func (p *proxy) crashed(started time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.crashing.IsZero() || time.Since(started) >= p.pace.stable {
		p.crashing = time.Now()
	}
}

// alive returns an error if the proxy has been crashing for long.
func (p *proxy) alive() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.crashing.IsZero(),
		p.child != nil && time.Since(p.since) >= p.pace.stable,
		time.Since(p.crashing) < p.pace.hopeless:
		return nil
	}
	return fmt.Errorf("the proxy has been crashing for %v", time.Since(p.crashing).Round(time.Second))
}

// admin is how the agent talks to the proxy, which is on loopback.
var admin = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// checkReady returns nil if the process that runs has answered, now or before, that it is
// ready.
func (p *proxy) checkReady(ctx context.Context) error {
	p.mu.Lock()
	child, ready := p.child, p.ready
	p.mu.Unlock()
	switch {
	case child == nil:
		return errors.New("the proxy is not running")
	case ready == child || p.readyURL == "":
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.pace.admin)
	defer cancel()
	if err := ask(ctx, http.MethodGet, p.readyURL); err != nil {
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

// ask makes a request and returns an error unless the answer is 2xx.
func ask(ctx context.Context, method, url string) error {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	response, err := admin.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return fmt.Errorf("%s answered %s", url, response.Status)
	}
	return nil
}

// reload has the proxy take up changed files, soon.
func (p *proxy) reload() {
	select {
	case p.due <- struct{}{}:
	default:
	}
}

// reloadWhenDue has the proxy told until that was well: it was told of files that are in
// place, and nothing else would have it take them up.
func (p *proxy) reloadWhenDue() {
	pause := time.Duration(0)
	for {
		var again <-chan time.Time
		if pause > 0 {
			again = time.After(pause)
		}
		select {
		case <-p.ended:
			return
		case <-p.quit:
			return
		case <-p.due:
			pause = 0
		case <-again:
		}
		if _, err := p.tell(); err != nil {
			pause = min(max(2*pause, p.pace.reloadAgain), p.pace.restartMost)
			p.log.Error("the proxy could not be told of changed files; it is tried again", "error", err, "after", pause.String())
		} else {
			pause = 0
		}
	}
}

// tell has the proxy take up changed files now. It returns the process that does, if
// that had proved itself before, so that its end would be the files' fault.
func (p *proxy) tell() (*child, error) {
	p.starting.Lock()
	child := p.current()
	p.starting.Unlock()
	if child == nil {
		// It reads them when it starts.
		return nil, nil
	}
	proved := p.settle(child)
	if p.reloads != nil {
		p.telling.Lock()
		defer p.telling.Unlock()
		if err := p.reloadNow(child); err != nil {
			p.metrics.reloadsFailed.Add(1)
			return nil, err
		}
		p.metrics.reloads.Add(1)
		p.log.Info("proxy told of changed files")
	}
	if !proved {
		return nil, nil
	}
	return child, nil
}

// settle waits, though not for ever, until a process that has just been started is
// ready: a signal would end one that does not expect it yet. It reports whether it is.
func (p *proxy) settle(child *child) bool {
	limit := time.NewTimer(p.pace.settle)
	defer limit.Stop()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		p.mu.Lock()
		young := time.Since(p.since) < p.pace.settle
		p.mu.Unlock()
		if p.readyURL != "" && p.checkReady(context.Background()) == nil || p.readyURL == "" && !young {
			return true
		}
		select {
		case <-child.ended:
			return false
		case <-p.quit:
			return false
		case <-limit.C:
			return p.readyURL == ""
		case <-again.C:
		}
	}
}

func (p *proxy) reloadNow(child *child) error {
	switch {
	case p.reloads.Workers:
		return p.renewWorkers(child)
	case p.reloads.Signal != "":
		if err := child.signal(signalNumber(p.reloads.Signal)); err != nil {
			return fmt.Errorf("sending %s: %w", p.reloads.Signal, err)
		}
		return nil
	}
	if err := p.children.run(context.Background(), p.reloads.Command, p.pace.reload); err != nil {
		return fmt.Errorf("reload command %w", err)
	}
	return nil
}

// leave says that the proxy is not to be started again.
func (p *proxy) leave() { p.quitOnce.Do(func() { close(p.quit) }) }

// stop ends the process after leave: it drains, is told to stop, and is killed. Once
// hurry is closed it is killed at once.
func (p *proxy) stop(drain *agentspec.Drain, hurry <-chan struct{}) {
	// wait reports whether that is all that there is to do.
	wait := func(d time.Duration) bool {
		select {
		case <-p.ended:
			return true
		case <-hurry:
			return false
		case <-time.After(d):
			return false
		}
	}
	if drain != nil && p.current() != nil {
		until := time.Now().Add(time.Duration(drain.Seconds) * time.Second)
		if drain.URL != "" {
			p.askToDrain(drain.URL, hurry)
		}
		if wait(time.Until(until)) {
			return
		}
	}
	select {
	case <-hurry:
	default:
		if child := p.current(); child != nil {
			if err := child.signal(unix.SIGTERM); err != nil {
				p.log.Warn("the proxy could not be told to stop", "error", err)
			}
		}
		if wait(p.pace.kill) {
			return
		}
	}
	p.log.Warn("the proxy is killed")
	for {
		if child := p.current(); child != nil {
			child.kill()
		}
		// A process that was just being started is killed with the next round.
		select {
		case <-p.ended:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *proxy) askToDrain(url string, hurry <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), p.pace.admin)
	defer cancel()
	go func() {
		select {
		case <-hurry:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := ask(ctx, http.MethodPost, url); err != nil {
		p.log.Warn("the proxy could not be asked to drain", "error", err)
		return
	}
	p.log.Info("proxy drains")
}
