package localmesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/test/compile"
)

// Programs are the paths of programs on this machine.
type Programs struct {
	// Outrigger is the control plane, and Agent the agent, which must be static.
	Outrigger, Agent string
	// Proxies are the proxies' programs by sidecar class. Pods can only have these
	// classes.
	Proxies map[string]string
	// Missing says for other sidecar classes why there is no program and how to get it.
	Missing map[string]error
}

// Check returns an error that says what to do if there is no program for a sidecar class. More
// are names that the user may give besides those of classes.
func (p Programs) Check(class string, more ...string) error {
	if p.Proxies[class] != "" {
		return nil
	}
	err := p.Missing[class]
	if err == nil {
		known := slices.Collect(maps.Keys(p.Proxies))
		known = append(known, slices.Collect(maps.Keys(p.Missing))...)
		slices.Sort(known)
		err = fmt.Errorf("no driver knows a proxy for it; classes are %s", strings.Join(append(slices.Compact(known), more...), ", "))
	}
	return fmt.Errorf("sidecar class %q: %w", class, err)
}

// FindProxies asks every registered driver for the program of its proxy. Missing has the
// classes without one; each error wraps driver.ErrNoProxy, unless the driver returns
// another error. Drivers that do not implement driver.Finder are in neither.
func FindProxies() (proxies map[string]string, missing map[string]error) {
	proxies, missing = make(map[string]string), make(map[string]error)
	for _, class := range sidecar.Drivers() {
		registered, err := sidecar.Capabilities(class)
		if err != nil || registered.Finder == nil {
			continue
		}
		if program, err := registered.Finder.FindProxy(); err != nil {
			missing[class] = err
		} else {
			proxies[class] = program
		}
	}
	return proxies, missing
}

const modulePath = "github.com/outrigger-mesh/outrigger"

// BuildPrograms compiles the control plane and the agent into a folder, for programs that
// run in the source tree, such as tests, and finds the proxies, any of which may be
// missing. Own replaces this module's control plane: it is a compiled program or a main
// package for 'go build' in the current folder; "" means none. The registered drivers
// must be those of own.
func BuildPrograms(ctx context.Context, dir, own string) (Programs, error) {
	root, err := command(ctx, "", nil, "go", "list", "-m", "-f", "{{.Dir}}", modulePath)
	if err != nil {
		return Programs{}, fmt.Errorf("finding the source of %s: %w", modulePath, err)
	}
	p := Programs{Outrigger: filepath.Join(dir, "outrigger"), Agent: filepath.Join(dir, "outrigger-agent")}
	p.Proxies, p.Missing = FindProxies()
	group, ctx := errgroup.WithContext(ctx)
	// The agent runs in images without a C library.
	group.Go(func() error {
		return compile.Build(ctx, compile.Options{
			Folder: root, Packages: []string{"./cmd/outrigger-agent"}, Output: p.Agent,
			Env: []string{"CGO_ENABLED=0"}, Flags: []string{"-tags", "grpcnotrace"},
		})
	})
	info, err := os.Stat(own)
	switch {
	case own == "":
		group.Go(func() error { return build(ctx, root, p.Outrigger, "./cmd/outrigger-core") })
	case err == nil && !info.IsDir():
		if p.Outrigger, err = filepath.Abs(own); err != nil {
			return Programs{}, errors.Join(err, group.Wait())
		}
	default:
		group.Go(func() error { return build(ctx, "", p.Outrigger, own) })
	}
	return p, group.Wait()
}

// build compiles a main package, given relative to the folder.
func build(ctx context.Context, folder, to, pkg string) error {
	return compile.Build(ctx, compile.Options{Folder: folder, Packages: []string{pkg}, Output: to})
}

// command runs a program and returns its standard output. The error contains its standard
// error.
func command(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), env...), &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}
