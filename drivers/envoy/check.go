package envoy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

// version is the Envoy release that the driver is made for.
const version = "1.40.0"

var (
	_ driver.Checker = Driver{}
	_ driver.Finder  = Driver{}
)

// Check has Envoy validate the View's configuration together with the bootstrap,
// without opening ports. Envoy is the program that FindProxy finds.
func (Driver) Check(ctx context.Context, view *mesh.View) error {
	path, err := Driver{}.FindProxy()
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	dir, err := os.MkdirTemp("", "outrigger-envoy-")
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := program.WriteIdentity(dir, view.Proxy.Identity); err != nil {
		return fmt.Errorf("envoy: writing the example identity: %w", err)
	}
	form, err := staticForm(NewTranslator().Config(view), dir)
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	file := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(file, form, 0o600); err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	cmd := exec.CommandContext(ctx, path, "--mode", "validate", "--config-path", file,
		"--disable-hot-restart", "--log-level", "error", "--log-format", "%v")
	var output bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("envoy: validation timed out: %w", ctx.Err())
		}
		return fmt.Errorf("envoy: %s refuses the configuration: %w: %s", path, err, strings.TrimSpace(output.String()))
	}
	return nil
}

// FindProxy returns the path of Envoy: the program named by the environment variable
// ENVOY, the one in PATH, or the one installed by 'make envoy'.
func (Driver) FindProxy() (string, error) {
	cache := os.Getenv("OUTRIGGER_CACHE")
	if user, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(user, "outrigger")
	}
	return program.Find("ENVOY", "run 'make envoy', set ENVOY to the path of an Envoy "+version+", or put it into PATH",
		"envoy", filepath.Join(cache, "envoy-"+version, "envoy"))
}
