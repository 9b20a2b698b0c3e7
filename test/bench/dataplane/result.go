package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Results are all measurements. Durations are in nanoseconds and memory in bytes as JSON.
type Results struct {
	Machine Machine
	// Threads are the worker threads of each proxy, and Took is how long it took.
	Threads  int
	Took     time.Duration
	Pairs    []Latency
	Steps    []Step
	Memory   []Footprint
	Starts   []Start
	Effects  []Effect
	Programs []Program
}

// Machine is where and when the results were measured.
type Machine struct {
	Time      time.Time
	Processor string
	Cores     int
	Kernel    string
	// LoadBefore and LoadAfter are the load averages of one, five and fifteen minutes.
	LoadBefore, LoadAfter string
	// Versions are those of the proxies by class.
	Versions map[string]string
}

func machine(ctx context.Context, b *bench) (Machine, error) {
	m := Machine{Time: time.Now().UTC().Round(time.Second), Cores: runtime.NumCPU(), LoadBefore: loadAverage(), Versions: make(map[string]string)}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(info)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			m.Processor = strings.TrimSpace(value)
			break
		}
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(name.Release[:])
	for _, class := range b.classes {
		m.Versions[class] = versionOf(ctx, class, b.programs.Proxies[class])
	}
	return m, nil
}

// versionNumber finds the version in what a proxy says about itself.
var versionNumber = regexp.MustCompile(`\b\d+\.\d+\.\d+\b`)

// versionOf returns the version of a proxy, or "of an unknown version". Pipy sometimes does
// not end after it has printed its version, so that its exit code means nothing.
func versionOf(ctx context.Context, class, program string) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	flag := "--version"
	if class == "haproxy" {
		flag = "-v"
	}
	out, _ := exec.CommandContext(ctx, program, flag).CombinedOutput()
	return cmp.Or(versionNumber.FindString(string(out)), "of an unknown version")
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// failures returns an error if a load could not be measured on a path.
func (r *Results) failures() error {
	var all []string
	add := func(where string, l *Latency) {
		if l.Failure != "" {
			all = append(all, fmt.Sprintf("%s, %s, %d connections, %s: %s", where, l.Protocol, l.Connections, rateText(l.Rate), l.Failure))
		}
	}
	for i := range r.Pairs {
		add(r.Pairs[i].path(), &r.Pairs[i])
	}
	for i := range r.Steps {
		add(r.Steps[i].Class+" "+r.Steps[i].Name, &r.Steps[i].Latency)
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("%d loads could not be measured:\n%s", len(all), strings.Join(all, "\n"))
}
