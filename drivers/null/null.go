// Package null is the smallest complete driver, a template for new ones; see
// docs/add-a-driver.md. Its sidecar idles, and the pods' traffic is not redirected.
package null

import (
	"context"
	_ "embed"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

const name = "null"

//go:embed template.yaml
var template string

func init() { sidecar.Register(name, Driver{}) }

// Driver implements driver.Driver.
type Driver struct{}

var (
	_ driver.Driver    = Driver{}
	_ driver.Templater = Driver{}
	_ driver.Imager    = Driver{}
)

// Patch adds an idle container to the pod.
func (Driver) Patch(ctx context.Context) error {
	return podtemplate.Apply(ctx, name, template, &agentspec.Spec{
		Command: []string{"sleep", "infinity"},
	})
}

// Start serves nothing.
func (Driver) Start(ctx context.Context) (health.Probes, error) {
	if _, err := driver.ControllerFrom(ctx); err != nil {
		return nil, err
	}
	return health.Func{ID: name}, nil
}

// PodTemplate returns the template that Patch applies.
func (Driver) PodTemplate() string { return template }

// SidecarImage returns an image with a sleep command.
func (Driver) SidecarImage(os string) string {
	if os == "windows" {
		return ""
	}
	return "docker.io/library/busybox:1.37"
}
