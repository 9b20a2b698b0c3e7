package localmesh

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Programs are the paths of programs on this machine.
type Programs struct {
	// Outrigger is the control plane, and Agent what runs in pods, a static binary.
	Outrigger, Agent string
	// Envoy is the proxy of the sidecar class envoy. Without it there can be no pod of
	// that class.
	Envoy string
}

// proxies returns the proxies that there are, by sidecar class.
func (p Programs) proxies() map[string]string {
	if p.Envoy == "" {
		return nil
	}
	return map[string]string{"envoy": p.Envoy}
}

// ErrNoEnvoy says that there is no Envoy on this machine.
var ErrNoEnvoy = errors.New("there is no Envoy: run 'make envoy', set ENVOY to the path of one, or put it into PATH")

// FindEnvoy returns the path of Envoy: that of $ENVOY, or of PATH, or the newest of
// those that 'make envoy' has fetched. An error wraps ErrNoEnvoy.
func FindEnvoy() (string, error) {
	if program := os.Getenv("ENVOY"); program != "" {
		path, err := exec.LookPath(program)
		if err != nil {
			return "", fmt.Errorf("%w; ENVOY is %q: %w", ErrNoEnvoy, program, err)
		}
		return filepath.Abs(path)
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return filepath.Abs(path)
	}
	cache := os.Getenv("OUTRIGGER_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrNoEnvoy, err)
		}
		cache = filepath.Join(user, "outrigger")
	}
	found, err := filepath.Glob(filepath.Join(cache, "envoy-*", "envoy"))
	if err != nil || len(found) == 0 {
		return "", ErrNoEnvoy
	}
	return slices.MaxFunc(found, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }), nil
}

const modulePath = "github.com/outrigger-mesh/outrigger"

// BuildPrograms compiles the control plane and the agent into a folder, for programs
// that run in the source tree, such as tests, and finds Envoy, which may be missing.
func BuildPrograms(ctx context.Context, dir string) (Programs, error) {
	root, err := command(ctx, "", nil, "go", "list", "-m", "-f", "{{.Dir}}", modulePath)
	if err != nil {
		return Programs{}, fmt.Errorf("finding the source of %s: %w", modulePath, err)
	}
	p := Programs{Outrigger: filepath.Join(dir, "outrigger"), Agent: filepath.Join(dir, "outrigger-agent")}
	if p.Envoy, err = FindEnvoy(); err != nil && !errors.Is(err, ErrNoEnvoy) {
		return Programs{}, err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, program := range []string{p.Outrigger, p.Agent} {
		group.Go(func() error {
			name := filepath.Base(program)
			args, env := []string{"build", "-o", program}, []string(nil)
			if program == p.Agent {
				// It runs in images that have no C library.
				args, env = append(args, "-tags", "grpcnotrace"), []string{"CGO_ENABLED=0"}
			}
			_, err := command(ctx, root, env, "go", append(args, "./cmd/"+name)...)
			if err != nil {
				return fmt.Errorf("compiling %s: %w", name, err)
			}
			return nil
		})
	}
	return p, group.Wait()
}

// command runs a program and returns what it prints. What it complains of is in the
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
