// Package pipy is the driver for Pipy, which runs scripts from the controller's
// repository.
package pipy

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

const name = "pipy"

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

// Patch puts Pipy into the pod.
func (Driver) Patch(ctx context.Context) error {
	inj, err := driver.InjectorFrom(ctx)
	if err != nil {
		return err
	}
	repo := path.Join(driver.RunDir, "repo")
	return podtemplate.Apply(ctx, name, template, &agentspec.Spec{
		Command: []string{
			"pipy", "--no-reload", "--log-level=" + logLevel(inj.Sidecar.LogLevel),
			"--admin-port=127.0.0.1:15000", path.Join(repo, "main.js"),
		},
		Mirror:   &agentspec.Mirror{URL: "https://${OUTRIGGER_CONTROLLER}:6060/repo/${POD_UID}/", Dir: repo},
		ReadyURL: "http://127.0.0.1:15010/ready",
		Drain:    &agentspec.Drain{Seconds: 5},
	})
}

// logLevel returns Pipy's word for one of OSM's levels.
func logLevel(level string) string {
	switch level {
	case "trace", "debug":
		return "debug"
	case "info":
		return "info"
	case "warning":
		return "warn"
	default:
		return "error"
	}
}

// Start is not there yet: this driver only patches pods so far.
func (Driver) Start(ctx context.Context) (health.Probes, error) {
	if _, err := driver.ControllerFrom(ctx); err != nil {
		return nil, err
	}
	return nil, errors.New("pipy: this build patches pods only; it cannot serve configuration to them yet")
}

// PodTemplate returns the template of Patch.
func (Driver) PodTemplate() string { return template }

// SidecarImage returns the stock image of Pipy.
func (Driver) SidecarImage(os string) string {
	if os == "windows" {
		return ""
	}
	return "docker.io/flomesh/pipy:1.5.18"
}
