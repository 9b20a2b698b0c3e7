package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// accepts is how long a worker that was just started may take to accept connections.
const accepts = 100 * time.Millisecond

// renewWorkers sends the signal until the process has another worker.
func (p *proxy) renewWorkers(child *child) error {
	before := processesBelow(child.pid)
	isNew := func(pid int) bool { return !slices.Contains(before, pid) }
	for range p.pace.workers {
		if err := child.signal(signalNumber(p.reloads.Signal)); err != nil {
			return fmt.Errorf("sending %s: %w", p.reloads.Signal, err)
		}
		for until := time.Now().Add(p.pace.worker); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
			select {
			case <-child.ended:
				return fmt.Errorf("the proxy has ended after %s: %s", p.reloads.Signal, child.how())
			default:
			}
			if slices.ContainsFunc(processesBelow(child.pid), isNew) {
				time.Sleep(accepts)
				return nil
			}
		}
	}
	return fmt.Errorf("the proxy has started no other worker after %s", p.reloads.Signal)
}

// processesBelow returns the processes whose parent is the process.
func processesBelow(parent int) []int {
	// What has ended in between is not below.
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var below []int
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		// The name, in parentheses, may hold anything; state and parent follow it.
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
