package agent

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// patience is after how long without a process it is worth a word in the log.
const patience = time.Minute

// watch ends the agent when each of the named processes has been seen and none is left.
// Those of other containers are seen only if the pod shares its process namespace.
func (e *ending) watch(ctx context.Context, names []string, every time.Duration) {
	seen := make(map[string]bool)
	started, warned := time.Now(), false
	for {
		running := processNames()
		left := 0
		for _, name := range names {
			if running[name] || running[short(name)] {
				seen[name] = true
				left++
			}
		}
		if left == 0 && len(seen) == len(names) {
			e.begin("the processes of --exit-with have ended")
			return
		}
		if !warned && len(seen) < len(names) && time.Since(started) > patience {
			warned = true
			e.log.Warn("a process of --exit-with has not been seen yet; does the pod set shareProcessNamespace?", "names", names)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// short returns the name as the kernel keeps it.
func short(name string) string { return name[:min(len(name), 15)] }

// processNames returns the names of all processes that can be seen, the agent's own
// excepted: by what the kernel calls them, and by the last part of their first argument.
func processNames() map[string]bool {
	names := make(map[string]bool)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return names
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		// A process that is over and not collected yet has no command line.
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || len(line) == 0 {
			continue
		}
		first, _, _ := bytes.Cut(line, []byte{0})
		names[filepath.Base(string(first))] = true
		if comm, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
			names[string(bytes.TrimSpace(comm))] = true
		}
	}
	return names
}
