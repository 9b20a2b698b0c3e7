package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/test/bench/process"
)

// watchMemory answers reviews of different pods in this process, and prints the
// resident memory after the first few and after the last.
func watchMemory(reviews, clients int) error {
	if reviews <= 0 {
		return nil
	}
	webhook, err := newWebhook()
	if err != nil {
		return err
	}
	var next atomic.Int64
	answer := func(until int) error {
		var group errgroup.Group
		for range clients {
			group.Go(func() error {
				r, err := http.NewRequest(http.MethodPost, injectPath, nil)
				if err != nil {
					return err
				}
				r.Header.Set("Content-Type", "application/json")
				for {
					n := int(next.Add(1))
					if n > until {
						return nil
					}
					r.Body = body{bytes.NewReader(review(n))}
					rw := sink{header: make(http.Header)}
					webhook.ServeHTTP(&rw, r)
					if rw.code != 0 || rw.written < 1000 {
						return fmt.Errorf("review %d is answered with code %d and %d bytes", n, rw.code, rw.written)
					}
				}
			})
		}
		return group.Wait()
	}
	print := func(n int) error {
		running, err := residentMemory()
		if err != nil {
			return err
		}
		debug.FreeOSMemory()
		collected, err := residentMemory()
		if err != nil {
			return err
		}
		fmt.Printf("memory after %8d reviews: RSS %s, %s after a collection\n", n, running, collected)
		return nil
	}
	first := min(reviews, 10_000)
	if err := answer(first); err != nil {
		return err
	}
	if err := print(first); err != nil {
		return err
	}
	next.Store(int64(first))
	before, err := cpuTime()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := answer(reviews); err != nil {
		return err
	}
	took := time.Since(start)
	after, err := cpuTime()
	if err != nil {
		return err
	}
	if err := print(reviews); err != nil {
		return err
	}
	if n := reviews - first; n > 0 {
		fmt.Printf("in process: %.0f reviews/s, CPU per review %v\n", float64(n)/took.Seconds(), ((after - before) / time.Duration(n)).Round(time.Microsecond))
	}
	return nil
}

// residentMemory returns this process's resident memory, as /proc writes it.
func residentMemory() (string, error) {
	m, err := process.MemoryOf(os.Getpid())
	return fmt.Sprintf("%d kB", m.Resident>>10), err
}

type body struct{ *bytes.Reader }

func (body) Close() error { return nil }

// sink is a response whose length is counted.
type sink struct {
	header        http.Header
	code, written int
}

func (s *sink) Header() http.Header  { return s.header }
func (s *sink) WriteHeader(code int) { s.code = code }
func (s *sink) Write(p []byte) (int, error) {
	s.written += len(p)
	return len(p), nil
}
