// Package pipy is the driver for Pipy, which runs scripts from the controller's
// repository.
package pipy

import (
	"context"
	_ "embed"
	"fmt"
	"path"

	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

const name = "pipy"

// version is the Pipy that the scripts are made for.
const version = "1.5.18"

// threadsFlag is before the number of threads.
const threadsFlag = "--threads="

//go:embed template.yaml
var template string

// openssl keeps Pipy's OpenSSL from handing out session tickets: Pipy cuts off clients
// that come back with one.
const openssl = `openssl_conf = pipy
[pipy]
ssl_conf = ssl
[ssl]
system_default = sessions
[sessions]
NumTickets = 0
Options = -SessionTicket
`

// opensslFile is where that is in the pod.
var opensslFile = path.Join(driver.RunDir, "openssl.cnf")

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
		// Each thread runs all of the program and listens for itself, for which the ports
		// must be shared; shared.js has what they know together.
		// There is no admin port: whoever reaches it, as the application does, can make
		// Pipy run other scripts.
		Command: []string{
			"pipy", threadsFlag + "${" + agentspec.EnvConcurrency + "}", "--reuse-port", "--no-reload", "--no-graph", "--log-level=" + logLevel(inj.Sidecar.LogLevel), path.Join(repo, mainFile),
		},
		Env:   []agentspec.EnvVar{{Name: "OPENSSL_CONF", Value: opensslFile}},
		Files: []agentspec.File{{Path: opensslFile, Content: openssl}},
		Mirror: &agentspec.Mirror{
			URL: fmt.Sprintf("https://${%s}:%d/repo/${%s}/", agentspec.EnvController, repoPort(inj), agentspec.EnvPodUID),
			Dir: repo, Live: liveDir,
		},
		// Other scripts are loaded anew, by the same process; connections live on.
		Reload:   &agentspec.Reload{Signal: "HUP"},
		ReadyURL: "http://127.0.0.1:15010/ready",
		Drain:    &agentspec.Drain{Seconds: 5},
	})
}

// repoPort returns the port on which the controller serves the pod's class.
func repoPort(inj *driver.InjectorContext) uint32 {
	if inj.Configurator != nil {
		if port := inj.Configurator.GetProxyServerPort(inj.Sidecar.Class); port != 0 {
			return port
		}
	}
	return driver.RepoPort
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

// PodTemplate returns the template of Patch.
func (Driver) PodTemplate() string { return template }

// CheckImage refuses images of older versions than the driver works with.
func (Driver) CheckImage(image string) error { return driver.CheckImageVersion(image, name, version) }

// SidecarImage returns the stock image of Pipy.
func (Driver) SidecarImage(os string) string {
	if os == "windows" {
		return ""
	}
	return "docker.io/flomesh/pipy:" + version
}
