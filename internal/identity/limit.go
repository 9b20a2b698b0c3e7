package identity

import (
	"context"
	"math"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/outrigger-mesh/outrigger/internal/limit"
)

// slots limits concurrent requests, in total and per address. Requests above the total limit
// wait. Requests above the limit of an address are refused, so that it cannot delay others.
type slots struct {
	all chan struct{}
	// from counts the requests that have or await a slot.
	from *limit.Counter[netip.Addr]
}

func newSlots(most int) *slots {
	return &slots{all: make(chan struct{}, most), from: limit.NewCounter[netip.Addr](math.MaxInt, most/16)}
}

// take waits for a slot. The returned function releases it.
func (t *slots) take(ctx context.Context, address netip.Addr) (func(), error) {
	leave, ok := t.from.Take(address)
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

// granted is the cost of a granted request. A refused one costs 1.
const granted = 1.0 / 16

// rate limits the request rate of each address. It remembers a bounded number of addresses.
type rate struct {
	most int

	mu sync.Mutex
	by map[netip.Addr]spent
}

// spent is the cost that an address had accumulated at a time.
type spent struct {
	cost float64
	at   time.Time
}

func newRate(most int) *rate { return &rate{most: most, by: make(map[netip.Addr]spent)} }

// take charges an address the full cost of a request in advance. If the address has spent
// too much, take returns false and charges nothing.
func (r *rate) take(address netip.Addr, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := r.by[address].left(now)
	if left+1 > maxRefusals {
		return false
	}
	if _, ok := r.by[address]; !ok && len(r.by) >= r.most {
		r.evict(now)
	}
	r.by[address] = spent{left + 1, now}
	return true
}

// refund reduces the charge for a request that was not refused to that of a granted one.
func (r *rate) refund(address netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.by[address]; ok {
		s.cost = max(s.cost-(1-granted), 0)
		r.by[address] = s
	}
}

// evict removes the addresses without remaining cost and, if that is not enough, arbitrary
// others.
func (r *rate) evict(now time.Time) {
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

// left returns the remaining cost at a later time.
func (s spent) left(now time.Time) float64 {
	return max(s.cost-now.Sub(s.at).Seconds()*refusalsPerSecond, 0)
}

// caller returns a call's address, in the form used for limits.
func caller(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	return limit.Address(p.Addr.String())
}
