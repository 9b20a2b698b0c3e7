package main

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"time"
)

// Run is what the program measures when it is run once.
type Run struct {
	Began time.Time
	// Arguments are the program's.
	Arguments []string
	Machine   Machine
	Results   []Result
}

// Machine is the machine on which a run was made.
type Machine struct {
	Processor string
	Cores     int
	// Memory is in bytes.
	Memory int64
	// Load is the load average of the minute before.
	Load string
}

func newRun() *Run {
	r := &Run{Began: time.Now().UTC(), Arguments: os.Args[1:]}
	r.Machine = Machine{Cores: runtime.NumCPU(), Processor: valueIn("/proc/cpuinfo", "model name")}
	if kilobytes, _, ok := strings.Cut(valueIn("/proc/meminfo", "MemTotal"), " "); ok {
		_ = json.Unmarshal([]byte(kilobytes), &r.Machine.Memory)
		r.Machine.Memory <<= 10
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		r.Machine.Load, _, _ = strings.Cut(string(text), " ")
	}
	return r
}

// valueIn returns the value of a key in a file of lines with a colon; empty if there is none.
func valueIn(file, key string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(text) {
		if name, value, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// write writes the run as JSON, unless the file's name is empty.
func (r *Run) write(file string) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
