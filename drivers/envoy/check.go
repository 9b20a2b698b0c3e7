package envoy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

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
	form, err := Driver{}.Standalone(view)
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	if err := program.Check(ctx, view.Proxy.Identity, []driver.File{{Name: "envoy.json", Content: form}}, nil, path,
		"--mode", "validate", "--config-path", "${MIRROR}/envoy.json", "--disable-hot-restart", "--log-level", "error", "--log-format", "%v"); err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	return nil
}

// Standalone returns the View's configuration as one file that Envoy can read without a
// controller. It finds its identity in driver.IdentityDir.
func (Driver) Standalone(view *mesh.View) ([]byte, error) {
	return staticForm(NewTranslator().Config(view))
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
