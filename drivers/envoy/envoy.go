// Package envoy is the driver for Envoy, which takes its configuration from the
// controller by xDS v3.
package envoy

import (
	"context"
	_ "embed"
	"path"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

const name = "envoy"

// oldest is the oldest Envoy that takes what the controller sends: 1.36 knows neither
// max_early_data_bytes of a TCP proxy nor the keepalive of a listener.
const oldest = "1.37"

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
	config := path.Join(driver.RunDir, configFile)
	return podtemplate.Apply(ctx, name, template, &agentspec.Spec{
		Command: []string{
			"envoy", "--config-path", config, "--log-level", inj.Sidecar.LogLevel,
			"--concurrency", "${" + agentspec.EnvConcurrency + "}",
			// Its domain sockets and shared memory are of no use in a pod.
			"--disable-hot-restart",
			// What is wrong now should not be in the log ten seconds later.
			"--file-flush-interval-msec", "1000",
			// Clients leave a filter chain that has changed with their next answer. What
			// is connected by TCP has a while.
			"--drain-strategy", "immediate", "--drain-time-s", "45",
		},
		Files:    files(adsPort(inj)),
		Secrets:  &agentspec.Secrets{Socket: path.Join(driver.IdentityDir, secretSocket)},
		ReadyURL: "http://127.0.0.1:15000/ready",
		Drain:    &agentspec.Drain{URL: "http://127.0.0.1:15000/drain_listeners?graceful", Seconds: 5},
	})
}

// configFile is the name of the bootstrap, and secretSocket that of the socket on which
// the agent serves secrets, as the bootstrap has it.
const (
	configFile   = "envoy.yaml"
	secretSocket = "sds.sock"
)

// files returns what Envoy starts with, where the controller serves it on the port.
func files(port uint32) []agentspec.File {
	return []agentspec.File{{
		Path:    path.Join(driver.RunDir, configFile),
		Content: strings.Replace(bootstrap, strconv.Itoa(driver.ADSPort), strconv.Itoa(int(port)), 1),
	}}
}

// adsPort returns the port on which the controller serves the pod's class.
func adsPort(inj *driver.InjectorContext) uint32 {
	if inj.Configurator != nil {
		if port := inj.Configurator.GetProxyServerPort(inj.Sidecar.Class); port != 0 {
			return port
		}
	}
	return driver.ADSPort
}

// PodTemplate returns the template of Patch.
func (Driver) PodTemplate() string { return template }

// CheckImage refuses images of older versions than the driver works with.
func (Driver) CheckImage(image string) error { return driver.CheckImageVersion(image, name, oldest) }

// SidecarImage returns the stock image of Envoy.
func (Driver) SidecarImage(os string) string {
	if os == "windows" {
		return ""
	}
	return "docker.io/envoyproxy/envoy:v" + version
}
