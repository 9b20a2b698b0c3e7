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

// results are what the tests came to.
type results struct {
	// packages were tested, and in broken of them something failed.
	packages, broken int
	passed, failed   int
	skipped          []skip
}

// skip is why tests were skipped.
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

// test runs the tests of the packages. What fails is printed, and a line for each package.
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
	// That tests fail is a result and no error.
	if exit := (*exec.ExitError)(nil); err == nil && ended != nil && (!errors.As(ended, &exit) || found.broken == 0) {
		err = fmt.Errorf("go test: %w", ended)
	}
	return found, err
}

// location is where a test said that it skips.
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
			return found, fmt.Errorf("reading what go test prints: %w", err)
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

// reason returns what a test said before it was skipped.
func reason(output string) string {
	for line := range strings.Lines(output) {
		if said := location.FindString(line); said != "" {
			return strings.TrimPrefix(strings.TrimSpace(strings.TrimPrefix(line, said)), "SKIPPED: ")
		}
	}
	return "it gave no reason"
}

// lastLine is how go test ends what it prints of a package.
func lastLine(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return lines[len(lines)-1]
}
