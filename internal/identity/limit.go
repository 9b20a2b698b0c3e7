package identity

import (
	"context"
	"math"
	"net/netip"

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

// caller returns the address that a call comes from.
func caller(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	return limit.Address(p.Addr.String())
}
