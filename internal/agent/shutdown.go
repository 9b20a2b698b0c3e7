package agent

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
)

// shutdown coordinates the end of the agent.
type shutdown struct {
	log *slog.Logger
	// begun is closed for the first reason to shut down, force by a signal after that.
	begun, force         chan struct{}
	beginOnce, forceOnce sync.Once
}

func newShutdown(log *slog.Logger) *shutdown {
	return &shutdown{log: log, begun: make(chan struct{}), force: make(chan struct{})}
}

func (s *shutdown) begin(reason string) {
	s.beginOnce.Do(func() {
		s.log.Info("shutting down", "reason", reason)
		close(s.begun)
	})
}

func (s *shutdown) onSignals(signals <-chan os.Signal) {
	for signal := range signals {
		if !kit.IsClosed(s.begun) {
			s.begin(signal.String())
			continue
		}
		s.forceOnce.Do(func() {
			s.log.Info("shutting down at once", "reason", signal.String())
			close(s.force)
		})
	}
}

// warnUnseenAfter is when watch warns about processes that have not been seen yet.
const warnUnseenAfter = time.Minute

// watch shuts the agent down when all named processes have been seen and none is left.
// Processes of other containers are visible only if the pod shares its process namespace.
func (s *shutdown) watch(ctx context.Context, names []string, every time.Duration) {
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
			s.begin("the processes of --exit-with have exited")
			return
		}
		if !warned && len(seen) < len(names) && time.Since(started) > warnUnseenAfter {
			warned = true
			s.log.Warn("a process of --exit-with has not been seen yet; does the pod set shareProcessNamespace?", "names", names)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// short returns the name as the kernel keeps it: the first 15 bytes.
func short(name string) string { return name[:min(len(name), 15)] }

// processNames returns the names of all visible processes except the agent: the kernel's
// name and the base name of the first argument.
func processNames() map[string]bool {
	names := make(map[string]bool)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if filepath.Base(dir) == strconv.Itoa(os.Getpid()) {
			continue
		}
		// Zombies have no command line.
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
