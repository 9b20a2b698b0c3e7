package ondemand

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
)

// maxOutside is how many addresses outside the mesh are remembered.
const maxOutside = 1024

// inquiry asks the controller about addresses, once at a time about each. It remembers for a
// short time which addresses are outside the mesh, and for longer while the controller does
// not answer: otherwise the pod could not call these. Its methods are safe for use by many
// goroutines.
type inquiry struct {
	// learn asks the controller whether an address is in the mesh.
	learn   func(ctx context.Context, address netip.AddrPort) (bool, error)
	timings kit.Timings

	mu sync.Mutex
	// outside has the addresses outside the mesh, with the time of the last answer.
	outside map[netip.AddrPort]time.Time
	asking  map[netip.AddrPort]*asked
}

// asked is a question. Done is closed when it has been answered; until then err is the last
// failure, and mu of the inquiry guards the fields.
type asked struct {
	done   chan struct{}
	inMesh bool
	err    error
}

func newInquiry(learn func(context.Context, netip.AddrPort) (bool, error), timings kit.Timings) *inquiry {
	return &inquiry{learn: learn, timings: timings, outside: make(map[netip.AddrPort]time.Time), asking: make(map[netip.AddrPort]*asked)}
}

// ask reports whether an address is in the mesh.
func (i *inquiry) ask(ctx context.Context, address netip.AddrPort) (bool, error) {
	i.mu.Lock()
	if at, ok := i.outside[address]; ok && time.Since(at) < i.timings.Outside {
		i.mu.Unlock()
		return false, nil
	}
	question := i.asking[address]
	if question == nil {
		question = &asked{done: make(chan struct{})}
		i.asking[address] = question
		go i.answer(address, question)
	}
	i.mu.Unlock()
	select {
	case <-question.done:
		return question.inMesh, question.err
	case <-ctx.Done():
		i.mu.Lock()
		defer i.mu.Unlock()
		return false, cmp.Or(question.err, context.Cause(ctx))
	}
}

// answer asks the controller, again and again for some time while it fails.
func (i *inquiry) answer(address netip.AddrPort, question *asked) {
	// Those who wait should still get its last error.
	ctx, cancel := context.WithTimeout(context.Background(), i.timings.Unknown*4/5)
	defer cancel()
	retry := i.timings.Asks
	for {
		inMesh, err := i.learn(ctx, address)
		i.mu.Lock()
		question.inMesh, question.err = inMesh, err
		_, wasOutside := i.outside[address]
		i.mu.Unlock()
		if err == nil || wasOutside {
			break
		}
		select {
		case <-time.After(kit.Spread(retry.Next())):
			continue
		case <-ctx.Done():
		}
		break
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.asking, address)
	switch _, wasOutside := i.outside[address]; {
	case question.err != nil && wasOutside:
		question.inMesh, question.err = false, nil
	case question.err == nil && question.inMesh:
		delete(i.outside, address)
	case question.err == nil:
		i.remember(address)
	}
	close(question.done)
}

// remember records that an address is outside the mesh. The caller holds mu.
func (i *inquiry) remember(address netip.AddrPort) {
	if _, ok := i.outside[address]; !ok && len(i.outside) >= maxOutside {
		oldest := address
		for other, at := range i.outside {
			if oldest == address || at.Before(i.outside[oldest]) {
				oldest = other
			}
		}
		delete(i.outside, oldest)
	}
	i.outside[address] = time.Now()
}
