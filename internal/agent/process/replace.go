package process

import (
	"errors"
	"time"
)

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
	go p.FindVersion()
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
