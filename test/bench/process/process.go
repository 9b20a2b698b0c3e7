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

// MemoryOfAll returns the memory of processes that share pages since one has forked the
// others: each page that several of them have is counted once in Anonymous, and for each of
// them in Resident.
func MemoryOfAll(pids []int) (Memory, error) {
	var all Memory
	for _, pid := range pids {
		rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return Memory{}, err
		}
		values, err := kilobytes(rollup, "Rss:", "Pss_Anon:")
		if err != nil {
			return Memory{}, fmt.Errorf("/proc/%d/smaps_rollup: %w", pid, err)
		}
		all.Resident += values[0]
		all.Anonymous += values[1]
	}
	return all, nil
}

// MemoryOf returns the memory of a process.
func MemoryOf(pid int) (Memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	values, err := kilobytes(status, "VmRSS:", "RssAnon:")
	if err != nil {
		return Memory{}, fmt.Errorf("/proc/%d/status: %w", pid, err)
	}
	return Memory{Resident: values[0], Anonymous: values[1]}, nil
}

// kilobytes returns in bytes the values of lines such as "VmRSS: 512 kB".
func kilobytes(text []byte, names ...string) ([]int64, error) {
	values := make([]int64, len(names))
	var found int
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		for i, name := range names {
			if fields[0] != name {
				continue
			}
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return nil, err
			}
			values[i] = n << 10
			found++
		}
	}
	if found != len(names) {
		return nil, fmt.Errorf("it does not have all of %s", strings.Join(names, " "))
	}
	return values, nil
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
