package process

import (
	"fmt"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
)

// acceptDelay is how long a new worker may take to accept connections.
const acceptDelay = 100 * time.Millisecond

// replaceWorkers sends the signal until the process has a new worker, and waits until the
// former ones accept no more connections. Until then new connections may still get the former
// rules.
func replaceWorkers(child *Child, signal string, timings kit.Timings) error {
	before := child.Host.Below(child)
	isNew := func(pid int) bool { return !slices.Contains(before, pid) }
	for range timings.Workers {
		if err := child.Signal(SignalNumber(signal)); err != nil {
			return fmt.Errorf("sending %s: %w", signal, err)
		}
		for until := time.Now().Add(timings.Worker); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
			if kit.IsClosed(child.Ended) {
				return fmt.Errorf("the proxy exited after %s: %s", signal, child.How())
			}
			if slices.ContainsFunc(child.Host.Below(child), isNew) {
				time.Sleep(acceptDelay)
				return awaitFormerWorkers(child, before, signal, timings)
			}
		}
	}
	return fmt.Errorf("the proxy started no new worker after %s", signal)
}

// awaitFormerWorkers waits until no listening socket is left in the workers.
func awaitFormerWorkers(child *Child, workers []int, signal string, timings kit.Timings) error {
	if len(workers) == 0 {
		return nil
	}
	for until := time.Now().Add(timings.Reload); ; time.Sleep(20 * time.Millisecond) {
		accepts, err := acceptsIn(child, workers)
		if err == nil && !accepts {
			return nil
		}
		switch {
		case kit.IsClosed(child.Ended):
			return fmt.Errorf("the proxy exited after %s: %s", signal, child.How())
		case time.Now().Before(until):
		case err != nil:
			return fmt.Errorf("finding out whether the former workers of the proxy still accept connections: %w", err)
		default:
			return fmt.Errorf("the former workers of the proxy still accept connections %v after %s", timings.Reload, signal)
		}
	}
}

// acceptsIn reports whether any of the child processes of a process has a listening TCP socket.
func acceptsIn(child *Child, workers []int) (bool, error) {
	sockets, err := child.Host.Sockets(child, workers...)
	if err != nil || len(sockets) == 0 {
		return false, err
	}
	all, err := socket.ListListening()
	return slices.ContainsFunc(all, func(l socket.Socket) bool { return slices.Contains(sockets, l.Inode) }), err
}
