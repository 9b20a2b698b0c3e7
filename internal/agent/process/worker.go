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
// rules. The signal may be lost while the process executes its program again. On a busy machine the
// process needs many seconds for that; if it was given up too early, its former files would come
// back after the new ones were in use.
func replaceWorkers(child *Child, signal string, timings kit.Timings) error {
	before := child.Host.Below(child)
	isNew := func(pid int) bool { return !slices.Contains(before, pid) }
	end := time.Now().Add(timings.Reload)
	for pause := timings.Worker; time.Now().Before(end); pause *= 2 {
		if err := child.Signal(SignalNumber(signal)); err != nil {
			return fmt.Errorf("sending %s: %w", signal, err)
		}
		for again := time.Now().Add(pause); time.Now().Before(again) && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if kit.IsClosed(child.Ended) {
				return fmt.Errorf("the proxy exited after %s: %s", signal, child.How())
			}
			if slices.ContainsFunc(child.Host.Below(child), isNew) {
				time.Sleep(acceptDelay)
				return awaitFormerWorkers(child, before, signal, timings)
			}
		}
	}
	return fmt.Errorf("the proxy started no new worker %v after %s", timings.Reload, signal)
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
