package process

import (
	"errors"
	"time"
)

// Former is a process that another one has replaced.
type Former struct {
	Child *Child
	Host  Host
	// Abandon is closed when the successor has ended, so that connections must not be directed
	// to it any longer.
	Abandon chan struct{}
	over    chan struct{} // closed when the process has ended
}

// Replace makes a process on another host, which next starts, the proxy's. Neither a restart nor
// a reload happens meanwhile. If next fails, the running process goes on as before. Whoever calls
// replace must stop the former process, and then call retired.
func (p *Proxy) Replace(on Host, next func(old *Child) (*Child, error)) (*Former, error) {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	p.starting.Lock()
	defer p.starting.Unlock()
	p.mu.Lock()
	old, from := p.child, p.host
	p.mu.Unlock()
	if old == nil {
		return nil, errors.New("the proxy is not running")
	}
	began := time.Now()
	successor, err := next(old)
	if err != nil {
		return nil, err
	}
	f := &Former{Child: old, Host: from, Abandon: make(chan struct{}), over: make(chan struct{})}
	p.mu.Lock()
	p.child, p.host, p.since, p.ready, p.former = successor, on, began, successor, f
	p.mu.Unlock()
	p.replaced.Ring()
	return f, nil
}

// Retired notes that a replaced process has ended.
func (p *Proxy) Retired(f *Former) {
	p.mu.Lock()
	p.former = nil
	p.mu.Unlock()
	close(f.over)
}

// Quitting returns a channel that is closed when the proxy must not be started again.
func (p *Proxy) Quitting() <-chan struct{} { return p.quit }

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
