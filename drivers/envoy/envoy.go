// Package envoy is the driver for Envoy, which takes its configuration from the
// controller by xDS v3.
package envoy

import (
	"context"
	_ "embed"
	"errors"
	"path"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

const name = "envoy"

var (
	//go:embed template.yaml
	template string

	// bootstrap is Envoy's first configuration. ${NAME} stands for environment
	// variables of the container, which the agent puts in.
	//go:embed bootstrap.yaml
	bootstrap string
)

func init() { sidecar.Register(name, Driver{}) }

// Driver implements driver.Driver.
type Driver struct{}

var (
	_ driver.Driver    = Driver{}
	_ driver.Templater = Driver{}
	_ driver.Imager    = Driver{}
)

// Patch puts Envoy into the pod.
func (Driver) Patch(ctx context.Context) error {
	inj, err := driver.InjectorFrom(ctx)
	if err != nil {
		return err
	}
	config := path.Join(driver.RunDir, "envoy.yaml")
	return podtemplate.Apply(ctx, name, template, &agentspec.Spec{
		Command: []string{
			"envoy", "--config-path", config, "--log-level", inj.Sidecar.LogLevel,
			// Its domain sockets and shared memory are of no use in a pod.
			"--disable-hot-restart",
		},
		Files:    []agentspec.File{{Path: config, Content: bootstrap}},
		ReadyURL: "http://127.0.0.1:15000/ready",
		Drain:    &agentspec.Drain{URL: "http://127.0.0.1:15000/drain_listeners?graceful", Seconds: 5},
	})
}

// Start is not there yet: this driver only patches pods so far.
func (Driver) Start(ctx context.Context) (health.Probes, error) {
	if _, err := driver.ControllerFrom(ctx); err != nil {
		return nil, err
	}
	return nil, errors.New("envoy: this build patches pods only; it cannot serve configuration to them yet")
}

// PodTemplate returns the template of Patch.
func (Driver) PodTemplate() string { return template }

// SidecarImage returns the stock image of Envoy.
func (Driver) SidecarImage(os string) string {
	if os == "windows" {
		return ""
	}
	return "docker.io/envoyproxy/envoy:v" + version
}
