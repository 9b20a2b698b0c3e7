package haproxy

import (
	"context"
	"fmt"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

var checkArgs = []string{"-c", "-f", "${MIRROR}/" + configFile}

// Check lets HAProxy validate the configuration of the View, without opening ports.
func (d Driver) Check(ctx context.Context, view *mesh.View) error {
	path, err := d.FindProxy()
	if err != nil {
		return fmt.Errorf("haproxy: %w", err)
	}
	files, err := d.Translate(view)
	if err != nil {
		return err
	}
	example, err := program.ExampleCertificates(view, certificateDir)
	if err != nil {
		return err
	}
	files = append(files, example...)
	if err := program.Check(ctx, view.Proxy.Identity, files, []string{agentspec.EnvSpans + "=3", agentspec.EnvRecords + "=4"}, path, checkArgs...); err != nil {
		return fmt.Errorf("haproxy: %w", err)
	}
	return nil
}

// FindProxy returns the path of HAProxy: the value of the environment variable HAPROXY,
// the haproxy in PATH, or Debian's.
func (Driver) FindProxy() (string, error) {
	return program.Find("HAPROXY", "install the package haproxy, as 'make haproxy' does, or set HAPROXY to the path of an HAProxy of "+releases.Oldest+" or later",
		name, "/usr/sbin/haproxy")
}
