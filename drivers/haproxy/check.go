package haproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

// Check lets HAProxy validate the configuration of the View, without opening ports.
func (d Driver) Check(ctx context.Context, view *mesh.View) error {
	path, err := d.FindProxy()
	if err != nil {
		return fmt.Errorf("haproxy: %w", err)
	}
	dir, err := os.MkdirTemp("", "outrigger-haproxy-")
	if err != nil {
		return fmt.Errorf("haproxy: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(program.WriteIdentity(dir, view.Proxy.Identity), writeConfig(dir, view)); err != nil {
		return fmt.Errorf("haproxy: %w", err)
	}
	cmd := exec.CommandContext(ctx, path, "-c", "-f", filepath.Join(dir, configFile))
	cmd.Env = append(os.Environ(), agentspec.EnvSpans+"=3")
	out, err := cmd.CombinedOutput()
	if err = cmp.Or(ctx.Err(), err); err != nil {
		return fmt.Errorf("haproxy: %s refuses the configuration: %w: %s", path, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// FindProxy returns the path of HAProxy: the value of the environment variable HAPROXY,
// the haproxy in PATH, or Debian's.
func (Driver) FindProxy() (string, error) {
	return program.Find("HAPROXY", "install the package haproxy, as 'make haproxy' does, or set HAPROXY to the path of an HAProxy of "+version+" or later",
		name, "/usr/sbin/haproxy")
}

// writeConfig writes the configuration of a proxy whose identity and sockets are in the
// same folder.
func writeConfig(dir string, view *mesh.View) error {
	files, err := Driver{}.Translate(view)
	here := strings.NewReplacer(driver.IdentityDir, dir, driver.RunDir, dir)
	for _, f := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, f.Name), []byte(here.Replace(string(f.Content))), 0o600))
	}
	return err
}
