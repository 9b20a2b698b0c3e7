package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/agent/socket"
)

// acceptDelay is how long a new worker may take to accept connections.
const acceptDelay = 100 * time.Millisecond

// replaceWorkers sends the signal until the process has a new worker, and waits until the
// former ones accept no more connections. Until then new connections may still get the former
// rules.
func (p *Proxy) replaceWorkers(child *Child) error {
	before := child.Host.Below(child)
	isNew := func(pid int) bool { return !slices.Contains(before, pid) }
	for range p.timings.Workers {
		if err := child.Signal(SignalNumber(p.reloads.Signal)); err != nil {
			return fmt.Errorf("sending %s: %w", p.reloads.Signal, err)
		}
		for until := time.Now().Add(p.timings.Worker); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
			if kit.IsClosed(child.Ended) {
				return fmt.Errorf("the proxy exited after %s: %s", p.reloads.Signal, child.How())
			}
			if slices.ContainsFunc(child.Host.Below(child), isNew) {
				time.Sleep(acceptDelay)
				return p.awaitFormerWorkers(child, before)
			}
		}
	}
	return fmt.Errorf("the proxy started no new worker after %s", p.reloads.Signal)
}

// awaitFormerWorkers waits until no listening socket is left in the workers.
func (p *Proxy) awaitFormerWorkers(child *Child, workers []int) error {
	if len(workers) == 0 {
		return nil
	}
	for until := time.Now().Add(p.timings.Reload); ; time.Sleep(20 * time.Millisecond) {
		accepts, err := acceptsIn(child, workers)
		if err == nil && !accepts {
			return nil
		}
		switch {
		case kit.IsClosed(child.Ended):
			return fmt.Errorf("the proxy exited after %s: %s", p.reloads.Signal, child.How())
		case time.Now().Before(until):
		case err != nil:
			return fmt.Errorf("finding out whether the former workers of the proxy still accept connections: %w", err)
		default:
			return fmt.Errorf("the former workers of the proxy still accept connections %v after %s", p.timings.Reload, p.reloads.Signal)
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

// processesBelow returns the child processes of a process.
func processesBelow(parent int) []int {
	// Processes that end meanwhile are skipped.
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var below []int
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		// The name, in parentheses, may contain any character; state and parent follow it.
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		if len(fields) < 2 || string(fields[1]) != strconv.Itoa(parent) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat))); err == nil {
			below = append(below, pid)
		}
	}
	return below
}
