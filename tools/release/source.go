package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// modulePath is the module whose programs are released.
const modulePath = "github.com/outrigger-mesh/outrigger"

// source is the commit that is released.
type source struct {
	// Version is the version of the chart and the programs.
	Version string
	Commit  string
	// Date is the commit's date. All output has it, so that builds are reproducible.
	Date time.Time
	// Dirty says that files differ from the commit.
	Dirty bool
}

// readSource returns the commit that is checked out in the current folder.
func readSource(ctx context.Context) (source, error) {
	var s source
	text, err := os.ReadFile(filepath.Join("charts", "outrigger", "Chart.yaml"))
	if err != nil {
		return s, fmt.Errorf("%w; run this at the root of the repository", err)
	}
	var chart struct{ AppVersion string }
	if err := yaml.Unmarshal(text, &chart); err != nil {
		return s, fmt.Errorf("Chart.yaml: %w", err)
	}
	if chart.AppVersion == "" {
		return s, fmt.Errorf("Chart.yaml has no appVersion")
	}
	s.Version = chart.AppVersion
	commit, err := output(ctx, nil, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return s, err
	}
	var unix string
	s.Commit, unix, _ = strings.Cut(commit, " ")
	seconds, err := strconv.ParseInt(unix, 10, 64)
	if err != nil {
		return s, fmt.Errorf("the date of commit %s: %w", s.Commit, err)
	}
	s.Date = time.Unix(seconds, 0).UTC()
	changed, err := output(ctx, nil, "git", "status", "--porcelain", "--untracked-files=no")
	s.Dirty = changed != ""
	return s, err
}

// platform is an operating system and an architecture, with Go's names.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

func parsePlatform(name string) (platform, error) {
	system, arch, found := strings.Cut(name, "/")
	if !found || system == "" || arch == "" || strings.Contains(arch, "/") {
		return platform{}, fmt.Errorf("platform %q: give OS/ARCH, for example linux/amd64", name)
	}
	return platform{system, arch}, nil
}

// compile compiles a main package for a platform into a file. Set has the values of string
// variables to set, keyed by import path and name.
func (r *release) compile(ctx context.Context, pkg string, p platform, file string, set map[string]string) error {
	fmt.Fprintf(os.Stderr, "compiling %s for %s\n", pkg, p)
	ldflags := "-s -w"
	if r.chartVersion != "" && r.source.Version != r.chartVersion {
		set = maps.Clone(set)
		set["internal/version.Number"], set["charts/outrigger.releasedVersion"] = r.source.Version, r.source.Version
	}
	// Sorted, since the program's build ID depends on the order.
	for _, name := range slices.Sorted(maps.Keys(set)) {
		ldflags += " -X " + modulePath + "/" + name + "=" + set[name]
	}
	args := []string{"build", "-o", file, "-tags", "grpcnotrace", "-ldflags", ldflags}
	if !r.local {
		args = append(args, "-trimpath", "-buildvcs=true")
	}
	env := []string{"CGO_ENABLED=0", "GOOS=" + p.os, "GOARCH=" + p.arch, "GOAMD64=v1", "GOARM64=v8.0"}
	if !r.local {
		// The developer's own settings must not influence releases.
		env = append(env, "GOFLAGS=", "GOEXPERIMENT=", "GOWORK=off")
	}
	_, err := output(ctx, env, "go", append(args, pkg)...)
	return err
}

// output runs a program and returns its output without surrounding white space.
func output(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(bytes.TrimSpace(out)), nil
}
