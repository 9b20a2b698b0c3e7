package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// proxy runs the proxy's process: it restarts it when it ends, reloads it when files have
// changed, asks it whether it is ready, and stops it. Its methods may be called from many
// goroutines.
type proxy struct {
	command  []string
	readyURL string
	reloads  *agentspec.Reload
	children *children
	pace     pace
	log      *slog.Logger
	metrics  *metrics

	quit     chan struct{} // closed when the proxy is not to be started again
	quitOnce sync.Once
	ended    chan struct{} // closed when the proxy has ended for good
	due      bell          // rings when the proxy is to reload
	hasEnded func(*child)  // called after a crash, before the next start, if set
	reporter *reporter     // learns of crashes, and of a process that stays up

	starting  sync.Mutex // held while a process starts
	reloading sync.Mutex // held during a reload, so that there is one at a time

	mu       sync.Mutex
	child    *child
	since    time.Time
	ready    *child    // the process that has answered that it is ready
	crashing time.Time // when the proxy ended the first time, since it last was stable
}

func newProxy(spec *agentspec.Spec, children *children, reporter *reporter, pace pace, log *slog.Logger, metrics *metrics) *proxy {
	return &proxy{
		reporter: reporter,
		command:  spec.Command, readyURL: spec.ReadyURL, reloads: spec.Reload,
		children: children, pace: pace, log: log, metrics: metrics,
		quit: make(chan struct{}), ended: make(chan struct{}), due: newBell(),
	}
}

// run keeps the process running until leave is called.
func (p *proxy) run() {
	defer close(p.ended)
	go p.reloadWhenDue()
	restart := p.pace.restart
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
			how, lastWords = child.how(), reason(child.output.text())
		} else {
			how = err.Error()
		}
		if isClosed(p.quit) {
			p.log.Info("proxy ended", "how", how)
			return
		}
		if child != nil && p.hasEnded != nil {
			p.hasEnded(child)
		}
		if time.Since(started) >= p.pace.stable {
			restart.reset()
		}
		pause := restart.next()
		p.crashed(started)
		p.reporter.ended(how, lastWords, child != nil)
		p.log.Error("the proxy has ended; it is started again", "how", how, "ran", time.Since(started).Round(time.Millisecond).String(), "after", pause.String())
		select {
		case <-p.quit:
			return
		case <-time.After(pause):
		}
		p.metrics.restarts.Add(1)
	}
}

func (p *proxy) startProcess() (*child, error) {
	p.starting.Lock()
	defer p.starting.Unlock()
	child, err := p.children.start(p.command, false)
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

// reloadSoon has the proxy reload without waiting for it.
func (p *proxy) reloadSoon() { p.due.ring() }

// reloadWhenDue reloads until that succeeds: the files are in place, and nothing else
// would make the proxy read them.
func (p *proxy) reloadWhenDue() {
	retry := p.pace.reloadAgain
	var again <-chan time.Time
	for {
		select {
		case <-p.ended:
			return
		case <-p.quit:
			return
		case <-p.due:
			retry.reset()
		case <-again:
		}
		again = nil
		if _, err := p.reload(); err != nil {
			pause := retry.next()
			p.log.Error("the proxy did not reload changed files; trying again", "error", err, "after", pause.String())
			again = time.After(pause)
		}
	}
}

// reload has the proxy read changed files. It returns the process that does, if that was
// known to be ready before: should it end now, the files are the likely reason.
func (p *proxy) reload() (*child, error) {
	p.starting.Lock()
	child := p.current()
	p.starting.Unlock()
	if child == nil {
		// It reads them when it starts.
		return nil, nil
	}
	ready := p.settle(child)
	if p.reloads != nil {
		p.reloading.Lock()
		defer p.reloading.Unlock()
		if err := p.reloadNow(child); err != nil {
			p.metrics.reloadsFailed.Add(1)
			return nil, err
		}
		p.metrics.reloads.Add(1)
		p.log.Info("proxy reloaded")
	}
	if !ready {
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

// leave keeps the proxy from being started again.
func (p *proxy) leave() { p.quitOnce.Do(func() { close(p.quit) }) }

// stop ends the process after leave: it drains, gets SIGTERM, and is killed. Once
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
	if !isClosed(hurry) {
		if child := p.current(); child != nil {
			if err := child.signal(unix.SIGTERM); err != nil {
				p.log.Warn("the proxy could not be asked to stop", "error", err)
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

// accepts is how long a worker that was just started may take to accept connections.
const accepts = 100 * time.Millisecond

// renewWorkers sends the signal until the process has another worker.
func (p *proxy) renewWorkers(child *child) error {
	before := processesBelow(child.pid)
	isNew := func(pid int) bool { return !slices.Contains(before, pid) }
	for range p.pace.workers {
		if err := child.signal(signalNumber(p.reloads.Signal)); err != nil {
			return fmt.Errorf("sending %s: %w", p.reloads.Signal, err)
		}
		for until := time.Now().Add(p.pace.worker); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
			if isClosed(child.ended) {
				return fmt.Errorf("the proxy has ended after %s: %s", p.reloads.Signal, child.how())
			}
			if slices.ContainsFunc(processesBelow(child.pid), isNew) {
				time.Sleep(accepts)
				return nil
			}
		}
	}
	return fmt.Errorf("the proxy has started no other worker after %s", p.reloads.Signal)
}

// processesBelow returns the processes whose parent is the process.
func processesBelow(parent int) []int {
	// What has ended in between is not below.
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var below []int
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		// The name, in parentheses, may hold anything; state and parent follow it.
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		if len(fields) < 2 || string(fields[1]) != strconv.Itoa(parent) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat))); err == nil {
			below = append(below, pid)
		}
	}
	return below
}
