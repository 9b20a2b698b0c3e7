package identity

import (
	"context"
	"math"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/outrigger-mesh/outrigger/sidecar/limit"
)

// turns limits how many requests are under way, in all and of one address. In all they
// wait for each other; an address that asks for too much at once is refused, so that it
// keeps nobody else waiting.
type turns struct {
	all chan struct{}
	// from counts those that have or await a turn.
	from *limit.Counter[netip.Addr]
}

func newTurns(most int) *turns {
	return &turns{all: make(chan struct{}, most), from: limit.NewCounter[netip.Addr](math.MaxInt, most/16)}
}

// take waits for a turn. The function ends it.
func (t *turns) take(ctx context.Context, from netip.Addr) (func(), error) {
	leave, ok := t.from.Take(from)
	if !ok {
		return nil, errBusy
	}
	select {
	case t.all <- struct{}{}:
		return func() { <-t.all; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// granted is what a request costs that was granted, where one that was refused costs 1.
const granted = 1.0 / 16

// rate limits how many requests an address may make as time goes by. It remembers a
// bounded number of addresses.
type rate struct {
	most int

	mu sync.Mutex
	by map[netip.Addr]spent
}

// spent is what an address had spent at a time.
type spent struct {
	cost float64
	at   time.Time
}

func newRate(most int) *rate { return &rate{most: most, by: make(map[netip.Addr]spent)} }

// take has an address pay for a request in advance. It returns false if the address has
// spent too much, and then costs nothing.
func (r *rate) take(from netip.Addr, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.by[from].left(now)
	if left+1 > maxRefusals {
		return false
	}
	if _, ok := r.by[from]; !ok && len(r.by) >= r.most {
		r.makeRoom(now)
	}
	r.by[from] = spent{left + 1, now}
	return true
}

// refund gives back what a request did not cost that was granted, or might have been.
func (r *rate) refund(from netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.by[from]; ok {
		s.cost = max(s.cost-(1-granted), 0)
		r.by[from] = s
	}
}

// makeRoom forgets the addresses that have nothing left to pay, or else any one.
func (r *rate) makeRoom(now time.Time) {
	for from, s := range r.by {
		if s.left(now) == 0 {
			delete(r.by, from)
		}
	}
	for from := range r.by {
		if len(r.by) < r.most {
			return
		}
		delete(r.by, from)
	}
}

// left is what is still to be paid at a later time.
func (s spent) left(now time.Time) float64 {
	return max(s.cost-now.Sub(s.at).Seconds()*refusalsPerSecond, 0)
}

// caller returns the address that a call comes from, as it is counted.
func caller(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	return limit.Address(p.Addr.String())
}
