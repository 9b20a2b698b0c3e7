package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

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
