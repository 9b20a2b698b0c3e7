package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// results sums up a run of tests.
type results struct {
	// packages counts the packages tested, and broken those with a failure.
	packages, broken int
	passed, failed   int
	skipped          []skip
	// processor is the time of all processors that compiling and the tests took.
	processor time.Duration
}

// skip is a reason for skipping tests, and the tests.
type skip struct {
	reason string
	tests  []string
}

// count says how many tests there are, and names a single one.
func (s skip) count() string {
	if len(s.tests) == 1 {
		return s.tests[0]
	}
	return fmt.Sprintf("%d tests", len(s.tests))
}

func (r results) String() string {
	return fmt.Sprintf("packages: %d, failed: %d; tests passed: %d, failed: %d, skipped: %d", r.packages, r.broken, r.passed, r.failed, r.count())
}

func (r results) count() int {
	n := 0
	for _, s := range r.skipped {
		n += len(s.tests)
	}
	return n
}

// event is a line of 'go test -json'.
type event struct {
	Action, Package, Test, Output, ImportPath string
}

// thrifty has the compiler collect garbage seldom, which is a tenth of its work. The tests
// themselves keep the usual setting, since some measure memory.
const thrifty = "-toolexec=env GOGC=400"

// test runs the tests of the packages. It prints the output of failed tests, and a line for
// each package.
func (c check) test(ctx context.Context, packages, args []string) (results, error) {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-json", thrifty}, args, packages)...)
	cmd.Dir, cmd.Stderr = c.dir, os.Stderr
	// An interrupted go command ends its tests too, a killed one leaves them behind.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return results{}, err
	}
	if err := cmd.Start(); err != nil {
		return results{}, err
	}
	var done atomic.Int64
	stop := every(progressInterval, func(after time.Duration) {
		fmt.Fprintf(os.Stderr, "... %d of %d packages after %.0f s\n", done.Load(), len(packages), after.Seconds())
	})
	found, err := c.read(stdout, &done)
	stop()
	ended := cmd.Wait()
	found.processor = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	// Failing tests are a result, not an error.
	if exit := (*exec.ExitError)(nil); err == nil && ended != nil && (!errors.As(ended, &exit) || found.broken == 0) {
		err = fmt.Errorf("go test: %w", ended)
	}
	return found, err
}

// progressInterval is how often a long run says on stderr how far it is.
const progressInterval = 30 * time.Second

// location matches the position at which a test logs why it is skipped.
var location = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)

// read reads the output of 'go test -json'.
func (c check) read(from io.Reader, done *atomic.Int64) (results, error) {
	var found results
	output := make(map[string]*strings.Builder)
	for d := json.NewDecoder(from); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return found, fmt.Errorf("reading the output of go test: %w", err)
		}
		of := e.Package + " " + e.Test
		if output[of] == nil {
			output[of] = new(strings.Builder)
		}
		switch {
		case e.Action == "output":
			output[of].WriteString(e.Output)
		case e.Action == "build-output":
			fmt.Fprint(c.out, e.Output)
		case e.Action != "pass" && e.Action != "fail" && e.Action != "skip":
		case e.Test == "":
			done.Add(1)
			last := lastLine(output[of].String())
			if c.all && strings.Contains(last, "[no test files]") {
				continue
			}
			found.packages++
			if e.Action == "fail" {
				found.broken++
				c.printUnended(output, e.Package)
			}
			fmt.Fprintln(c.out, last)
		case e.Action == "pass":
			found.passed++
			// A test may leave out a part of itself.
			for line := range strings.Lines(output[of].String()) {
				if _, why, ok := strings.Cut(line, "SKIPPED: "); ok {
					found.skip(e.Test, strings.TrimSpace(why))
				}
			}
		case e.Action == "fail":
			found.failed++
			fmt.Fprint(c.out, output[of])
		default:
			found.skip(e.Test, reason(output[of].String()))
		}
		if e.Test != "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") {
			delete(output, of)
		}
	}
}

// printUnended prints the output of the tests of a package that have not ended, such as that of a
// crash.
func (c check) printUnended(output map[string]*strings.Builder, of string) {
	for _, key := range slices.Sorted(maps.Keys(output)) {
		if test, ok := strings.CutPrefix(key, of+" "); ok && test != "" {
			fmt.Fprint(c.out, output[key])
		}
	}
}

func (r *results) skip(test, reason string) {
	at := slices.IndexFunc(r.skipped, func(s skip) bool { return s.reason == reason })
	if at < 0 {
		at = len(r.skipped)
		r.skipped = append(r.skipped, skip{reason: reason})
	}
	r.skipped[at].tests = append(r.skipped[at].tests, test)
}

// reason returns the message with which a test was skipped.
func reason(output string) string {
	for line := range strings.Lines(output) {
		if position := location.FindString(line); position != "" {
			return strings.TrimPrefix(strings.TrimSpace(strings.TrimPrefix(line, position)), "SKIPPED: ")
		}
	}
	return "it gave no reason"
}

// lastLine returns the summary with which go test ends the output of a package.
func lastLine(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return lines[len(lines)-1]
}
