package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// results sums up a run of tests.
type results struct {
	// packages counts the packages tested, and broken those with a failure.
	packages, broken int
	passed, failed   int
	skipped          []skip
}

// skip is a reason for skipping tests, and the tests.
type skip struct {
	reason string
	tests  []string
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

// test runs the tests of the packages. It prints the output of failed tests, and a line for
// each package.
func (c check) test(ctx context.Context, packages, args []string) (results, error) {
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-json"}, args, packages)...)
	cmd.Dir, cmd.Stderr = c.dir, os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return results{}, err
	}
	if err := cmd.Start(); err != nil {
		return results{}, err
	}
	found, err := c.read(stdout)
	ended := cmd.Wait()
	// Failing tests are a result, not an error.
	if exit := (*exec.ExitError)(nil); err == nil && ended != nil && (!errors.As(ended, &exit) || found.broken == 0) {
		err = fmt.Errorf("go test: %w", ended)
	}
	return found, err
}

// location matches the position at which a test logs why it is skipped.
var location = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)

// read reads the output of 'go test -json'.
func (c check) read(from io.Reader) (results, error) {
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
			found.packages++
			if e.Action == "fail" {
				found.broken++
			}
			fmt.Fprint(c.out, lastLine(output[of].String())+"\n")
		case e.Action == "pass":
			found.passed++
		case e.Action == "fail":
			found.failed++
			fmt.Fprint(c.out, output[of])
		default:
			found.skip(e.Test, reason(output[of].String()))
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
