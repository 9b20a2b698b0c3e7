// Package process reads from /proc what running processes use, for the benchmarks.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Memory is the memory of a process in bytes.
type Memory struct {
	// Resident is all, and Anonymous what is not the content of files, such as the program.
	Resident, Anonymous int64
}

// MemoryOf returns the memory of a process.
func MemoryOf(pid int) (Memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		n, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "VmRSS:":
			m.Resident = n << 10
		case "RssAnon:":
			m.Anonymous = n << 10
		}
	}
	if m.Resident == 0 {
		return Memory{}, fmt.Errorf("/proc/%d/status has no VmRSS", pid)
	}
	return m, nil
}

// CPU returns the CPU time that a process has used. It sums the times of the threads, which
// are exact, unlike those in /proc/PID/stat. Threads that have ended are missing; Go's do not
// end.
func CPU(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		on, _, _ := bytes.Cut(text, []byte(" "))
		n, err := strconv.ParseInt(string(on), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += n
	}
	return time.Duration(sum), nil
}
