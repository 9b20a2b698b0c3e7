package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// check runs tests in the folder of a module, which must be the root of its repository.
type check struct {
	dir, base string
	// all tests all packages.
	all bool
	out io.Writer
}

// run tests the packages that match the patterns, or those that have changed, or all, and
// returns whether all tests passed.
func (c check) run(ctx context.Context, patterns, args []string) (bool, error) {
	began := time.Now()
	module, err := c.module(ctx)
	if err != nil {
		return false, err
	}
	chosen, err := c.choose(ctx, module, patterns)
	if err != nil {
		return false, err
	}
	if len(chosen) == 0 {
		fmt.Fprintf(c.out, "Nothing differs from %s, so nothing was tested. Name packages, for example: make check PKG=./drivers/haproxy/...\n", c.base)
		return true, nil
	}
	compiling, err := c.compile(ctx, chosen)
	if err != nil {
		return false, err
	}
	results, err := c.test(ctx, chosen, args)
	if err != nil {
		return false, err
	}
	if c.all {
		c.printLeftOut(results.skipped, slices.Contains(args, "-short"))
	} else {
		c.printOmitted(results.skipped, module.importersOf(chosen))
	}
	fmt.Fprintf(c.out, "\n%s; %.0f s, %.0f s of all processors\n", results, time.Since(began).Seconds(), (compiling + results.processor).Seconds())
	return results.broken == 0, nil
}

// choose returns the import paths of the packages to test.
func (c check) choose(ctx context.Context, module graph, patterns []string) ([]string, error) {
	if c.all {
		return longestFirst(slices.Sorted(maps.Keys(module.packages))), nil
	}
	if len(patterns) > 0 {
		out, err := c.command(ctx, "go", append([]string{"list"}, patterns...)...)
		if err != nil {
			return nil, err
		}
		chosen := strings.Fields(out)
		if len(chosen) == 0 {
			return nil, fmt.Errorf("there is no package %s", strings.Join(patterns, " "))
		}
		return chosen, nil
	}
	files, err := c.changed(ctx)
	if err != nil {
		return nil, err
	}
	var chosen []string
	for _, file := range files {
		chosen = append(chosen, module.packageOf(file))
	}
	slices.Sort(chosen)
	chosen = slices.Compact(chosen)
	if len(chosen) > 0 {
		fmt.Fprintf(c.out, "Packages with files that differ from %s:\n", c.base)
		for _, p := range chosen {
			fmt.Fprintln(c.out, "  "+module.short(p))
		}
	}
	return chosen, nil
}

// longestFirst moves the packages to the front whose tests take minutes, most of which they wait:
// beside them the others are compiled and run, and nothing is left for the end.
func longestFirst(packages []string) []string {
	var first []string
	for _, folder := range []string{"/test/behaviour", "/drivers/haproxy"} {
		if i := slices.IndexFunc(packages, func(p string) bool { return strings.HasSuffix(p, folder) }); i >= 0 {
			first = append(first, packages[i])
			packages = slices.Delete(packages, i, i+1)
		}
	}
	return append(first, packages...)
}

// changed returns the paths, relative to the repository, of the files that differ from the
// base: those of the branch, and those that are not committed yet.
func (c check) changed(ctx context.Context) ([]string, error) {
	since, err := c.command(ctx, "git", "merge-base", "HEAD", c.base)
	if err != nil {
		return nil, fmt.Errorf("can't compare with %s; name packages, for example PKG=./drivers/haproxy/..., or another commit with BASE=HEAD~1: %w", c.base, err)
	}
	differing, err := c.command(ctx, "git", "diff", "--name-only", "--no-renames", strings.TrimSpace(since))
	if err != nil {
		return nil, err
	}
	added, err := c.command(ctx, "git", "ls-files", "--others", "--exclude-standard")
	return strings.FieldsFunc(differing+added, func(r rune) bool { return r == '\n' }), err
}

// printLeftOut lists what a run of all packages omits.
func (c check) printLeftOut(skipped []skip, short bool) {
	fmt.Fprintln(c.out, "\nLeft out:")
	for _, s := range skipped {
		fmt.Fprintf(c.out, "- %s: %s\n", s.count(), s.reason)
	}
	if short {
		fmt.Fprintln(c.out, `- fuzzing for longer than the seeds, the guards of the mesh's model, and the modules
  tools/release and test/cluster: run 'make test-all'`)
	}
	fmt.Fprintln(c.out, "- a Kubernetes cluster (make e2e, make conformance), the race detector (make race), the linters (make lint)")
}

// printOmitted lists what 'make test' and the other targets check in addition.
func (c check) printOmitted(skipped []skip, importers []string) {
	fmt.Fprintln(c.out, "\nLeft out:")
	for _, s := range skipped {
		fmt.Fprintf(c.out, "- %s, which skipped: %s\n", strings.Join(s.tests, ", "), s.reason)
	}
	if len(importers) > 0 {
		fmt.Fprintf(c.out, "- the tests of packages that import these: %s\n", strings.Join(importers, ", "))
	}
	fmt.Fprintln(c.out, `- tests with programs that take long to compile, unless they are compiled already:
  kube-apiserver and etcd (make apiserver), cert-manager and Vault (make issuers)
- fuzzing, and tests with -tags meshguard (make test-all)
- the race detector (make race), the linters (make lint), the demo (make demo)
'make test-all' runs all tests. Before a change is done, 'bash .ci/run' must pass.`)
}

// command runs a program in the folder and returns its output.
func (c check) command(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = c.dir, &stderr
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	} else if err != nil {
		return "", err
	}
	_, err = os.Stderr.Write(stderr.Bytes())
	return string(out), err
}
