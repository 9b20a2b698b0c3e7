package main

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// load is how requests are sent.
type load struct {
	protocol    protocol
	connections int
	// rate is in requests a second. 0 means one after the other over each connection,
	// as many as the connections carry.
	rate int
}

// samples are the latencies of requests, and the time in which they were sent.
type samples struct {
	latencies []time.Duration
	// unsent is how many of them were not sent in time. They have waited at least as long as
	// their latency says.
	unsent  int
	elapsed time.Duration
}

// sent is how many requests were answered.
func (s *samples) sent() int { return len(s.latencies) - s.unsent }

// percentile returns the latency that p hundredths of the requests do not exceed.
func (s *samples) percentile(p int) time.Duration {
	if len(s.latencies) == 0 {
		return 0
	}
	slices.Sort(s.latencies)
	return s.latencies[(len(s.latencies)-1)*p/100]
}

func (s *samples) perSecond() float64 {
	if s.elapsed == 0 {
		return 0
	}
	return float64(s.sent()) / s.elapsed.Seconds()
}

func (s *samples) add(o samples) {
	s.latencies = append(s.latencies, o.latencies...)
	s.unsent += o.unsent
	s.elapsed += o.elapsed
}

// overtime is how much longer than planned a round at a fixed rate may take, as a multiple,
// if the requests are slower than the rate.
const overtime = 3

// send sends requests over the connections for some time.
func send(ctx context.Context, conns []exchanger, rate int, d time.Duration) (samples, error) {
	if rate > 0 {
		return sendAtRate(ctx, conns, rate, d)
	}
	return sendAtLimit(ctx, conns, d)
}

func sendAtLimit(ctx context.Context, conns []exchanger, d time.Duration) (samples, error) {
	begun := time.Now()
	until := begun.Add(d)
	return onEach(ctx, conns, begun, func(ctx context.Context, c exchanger, latencies *[]time.Duration) error {
		for now := time.Now(); now.Before(until); {
			if err := c.exchange(ctx); err != nil {
				return err
			}
			after := time.Now()
			*latencies = append(*latencies, after.Sub(now))
			now = after
		}
		return nil
	})
}

// sendAtRate sends requests at fixed times, whether earlier ones have been answered or not.
// A connection carries one at a time, so a request may wait for a free one. The latency
// begins with the planned time and so contains what the request has waited.
func sendAtRate(ctx context.Context, conns []exchanger, rate int, d time.Duration) (samples, error) {
	total := int(d.Seconds() * float64(rate))
	due := make(chan time.Time, total)
	begun := time.Now().Add(time.Millisecond)
	last := begun.Add(overtime * d)
	var unsent atomic.Int64
	var pacing sync.WaitGroup
	pacing.Go(func() {
		defer close(due)
		// The kernel would let the thread sleep for 50 µs longer. The thread ends with this
		// function.
		runtime.LockOSThread()
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
		for i := range total {
			at := begun.Add(time.Duration(i) * time.Second / time.Duration(rate))
			sleepUntil(at)
			if ctx.Err() != nil {
				return
			}
			due <- at
		}
	})
	s, err := onEach(ctx, conns, begun, func(ctx context.Context, c exchanger, latencies *[]time.Duration) error {
		for at := range due {
			if time.Now().After(last) {
				*latencies = append(*latencies, time.Since(at))
				unsent.Add(1)
				continue
			}
			if err := c.exchange(ctx); err != nil {
				return err
			}
			*latencies = append(*latencies, time.Since(at))
		}
		return nil
	})
	pacing.Wait()
	s.unsent = int(unsent.Load())
	return s, err
}

// sleepUntil waits with the kernel's timer. Go's own may be late by a millisecond.
func sleepUntil(at time.Time) {
	for left := time.Until(at); left > 0; left = time.Until(at) {
		t := unix.NsecToTimespec(left.Nanoseconds())
		_ = unix.Nanosleep(&t, nil)
	}
}

// onEach runs the function for each connection, and returns the latencies of all.
func onEach(ctx context.Context, conns []exchanger, begun time.Time, run func(context.Context, exchanger, *[]time.Duration) error) (samples, error) {
	group, ctx := errgroup.WithContext(ctx)
	each := make([][]time.Duration, len(conns))
	for i, c := range conns {
		group.Go(func() error { return run(ctx, c, &each[i]) })
	}
	err := group.Wait()
	return samples{latencies: slices.Concat(each...), elapsed: time.Since(begun)}, err
}
