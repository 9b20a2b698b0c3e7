// Command mutate plants faults in the packages that decide about access, one at a time,
// and reports those that no test finds.
//
//	go run ./test/mutate [-run REGEXP] [-list]
//
// A fault is an entry of a file in the folder faults: a text of a file, its replacement,
// and the tests that must fail with it. The working tree is not changed: the compiler
// reads the changed file instead of the real one (go test -overlay).
//
// The exit code is 0 if every fault was found; 1 if one survived, or no longer applies
// because the code has changed; 2 if the tests fail without a fault.
package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

//go:embed faults/*.yaml
var files embed.FS

// fault is a fault to plant.
type fault struct {
	// Fault describes what goes wrong, from a user's point of view.
	Fault string `json:"fault"`
	// File is the path of the changed file, relative to the root of the module.
	File string `json:"file"`
	// Old is the text to replace. It must occur in the file exactly once, with any
	// indentation.
	Old string `json:"old"`
	// New is the replacement, without surrounding space.
	New string `json:"new"`
	// Test has the arguments of go test, including the packages.
	Test []string `json:"test"`
	// Race runs the tests with the race detector, which needs a C compiler.
	Race bool `json:"race"`
}

func main() {
	pattern := flag.String("run", "", "plant only the faults whose description or file matches this `regexp`")
	list := flag.Bool("list", false, "print the faults and plant none")
	flag.Parse()
	code, err := run(*pattern, *list)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(pattern string, list bool) (int, error) {
	chosen, err := regexp.Compile(pattern)
	if err != nil {
		return 2, err
	}
	faults, err := load()
	if err != nil {
		return 2, err
	}
	faults = slices.DeleteFunc(faults, func(f fault) bool { return !chosen.MatchString(f.Fault) && !chosen.MatchString(f.File) })
	if list {
		for _, f := range faults {
			fmt.Printf("%s: %s\n", f.File, f.Fault)
		}
		return 0, nil
	}
	work, err := os.MkdirTemp("", "outrigger-mutate-")
	if err != nil {
		return 2, err
	}
	defer os.RemoveAll(work)
	if err := testsPass(faults); err != nil {
		return 2, err
	}
	byVerdict := map[verdict][]fault{}
	for i, f := range faults {
		began := time.Now()
		verdict, why := plant(f, work)
		byVerdict[verdict] = append(byVerdict[verdict], f)
		fmt.Printf("%d/%d %-8s %s: %s (%s)\n", i+1, len(faults), verdict, f.File, f.Fault, time.Since(began).Round(time.Second/10))
		if why != "" {
			fmt.Println("      " + strings.ReplaceAll(strings.TrimSpace(why), "\n", "\n      "))
		}
	}
	fmt.Printf("\n%d faults: %d found, %d survived, %d stale\n", len(faults), len(byVerdict[found]), len(byVerdict[survived]), len(byVerdict[stale]))
	for _, bad := range []verdict{survived, stale} {
		for _, f := range byVerdict[bad] {
			fmt.Printf("%s %s: %s\n", bad, f.File, f.Fault)
		}
	}
	if len(byVerdict[found]) < len(faults) {
		return 1, nil
	}
	return 0, nil
}

// verdict is the result of planting a fault.
type verdict string

const (
	found    verdict = "found"
	survived verdict = "SURVIVED"
	// stale faults have no result: their text was not found, they do not compile, or go test
	// failed although no test did.
	stale verdict = "STALE"
)

// load returns the faults of all files, in their order.
func load() ([]fault, error) {
	names, err := fs.Glob(files, "faults/*.yaml")
	if err != nil {
		return nil, err
	}
	var all []fault
	for _, name := range names {
		content, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var faults []fault
		if err := yaml.UnmarshalStrict(content, &faults); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, f := range faults {
			if f.Fault == "" || f.File == "" || f.Old == "" || f.Old == f.New || len(f.Test) == 0 {
				return nil, fmt.Errorf("%s: fault %q lacks one of fault, file, old, new and test", name, f.Fault)
			}
		}
		all = append(all, faults...)
	}
	return all, nil
}

// testsPass returns an error unless the tests of all faults pass without a fault:
// otherwise a failing test would prove nothing.
func testsPass(faults []fault) error {
	tested := map[string]bool{}
	for _, f := range faults {
		key := strings.Join(f.args(), " ")
		if tested[key] {
			continue
		}
		tested[key] = true
		began := time.Now()
		if out, err := goTest(f); err != nil {
			return fmt.Errorf("go test %s fails without a fault: %w\n%s", key, err, out)
		} else if bytes.Contains(out, []byte("[no tests to run]")) || bytes.Contains(out, []byte("[no test files]")) {
			return fmt.Errorf("go test %s runs no test", key)
		}
		fmt.Printf("passes without a fault: go test %s (%s)\n", key, time.Since(began).Round(time.Second/10))
	}
	return nil
}

var (
	// failedTests and skippedTests match go test's lines about tests that are no subtests.
	failedTests  = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	skippedTests = regexp.MustCompile(`(?m)^--- SKIP: (\S+)`)
	// died matches the message of a test program that crashed or timed out.
	died = regexp.MustCompile(`(?m)^(?:panic|fatal error): .*`)
)

// plant runs the tests of a fault with the fault. It returns the test that has found it, or
// why none has.
func plant(f fault, work string) (verdict, string) {
	content, err := f.changed(".")
	if err != nil {
		return stale, err.Error()
	}
	overlay, err := overlay(f, content, work)
	if err != nil {
		return stale, err.Error()
	}
	out, err := goTest(f, "-overlay", overlay)
	failed := failedTests.FindSubmatch(out)
	switch {
	case err == nil:
		why := ""
		for _, skipped := range skippedTests.FindAllSubmatch(out, -1) {
			why += fmt.Sprintf("%s was skipped\n", skipped[1])
		}
		return survived, why
	case !errors.As(err, new(*exec.ExitError)):
		return stale, err.Error()
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		return stale, "does not compile:\n" + string(out)
	case failed != nil:
		return found, "by " + string(failed[1])
	case died.Match(out):
		return found, "by " + string(died.Find(out))
	}
	return stale, "go test fails, but no test does:\n" + string(out)
}

// changed returns the file with the fault. It returns an error if the text to replace does
// not occur in it exactly once. Root is the folder of the module.
func (f fault) changed(root string) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(root, f.File))
	if err != nil {
		return nil, err
	}
	places := f.old().FindAllIndex(content, -1)
	if len(places) != 1 {
		return nil, fmt.Errorf("the text to replace occurs in %s %d times, want once; adapt the fault to the current code:\n%s", f.File, len(places), f.Old)
	}
	return slices.Concat(content[:places[0][0]], []byte(strings.TrimSpace(f.New)), content[places[0][1]:]), nil
}

// old returns an expression that matches Old.
func (f fault) old() *regexp.Regexp {
	lines := strings.Split(strings.TrimSpace(f.Old), "\n")
	for i, line := range lines {
		lines[i] = regexp.QuoteMeta(strings.TrimSpace(line))
	}
	return regexp.MustCompile(strings.Join(lines, `\s*\n\s*`))
}

// overlay writes the changed file and the overlay list for the compiler, and returns the
// list's path.
func overlay(f fault, content []byte, work string) (string, error) {
	real, err := filepath.Abs(f.File)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(work, filepath.Base(f.File))
	if err := os.WriteFile(changed, content, 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {real: changed}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(work, "overlay.json")
	return path, os.WriteFile(path, list, 0o600)
}

// args returns the fault's own arguments of go test.
func (f fault) args() []string {
	if f.Race {
		return append([]string{"-race"}, f.Test...)
	}
	return f.Test
}

// goTest runs the tests of the fault until one fails, and returns their output. A test that
// blocks counts as failed.
func goTest(f fault, args ...string) ([]byte, error) {
	args = slices.Concat([]string{"test", "-count=1", "-v", "-failfast", "-vet=off", "-timeout=3m"}, args, f.args())
	cmd := exec.Command("go", args...)
	if f.Race {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	return cmd.CombinedOutput()
}
