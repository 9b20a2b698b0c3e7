// Package haproxy is the driver for HAProxy, which takes its configuration as a file that
// the agent keeps equal to the controller's and tells it to reload. It was written by
// following docs/add-a-driver.md.
package haproxy

import (
	"context"
	_ "embed"
	"fmt"
	"path"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

const (
	name = "haproxy"
	// version is the oldest HAProxy that the driver is made for.
	version = "2.6"
	// defaultPort is where the controller serves the class if the MeshConfig names no
	// other port.
	defaultPort = 6061
)

//go:embed template.yaml
var template string

func init() { sidecar.Register(name, Driver{}) }

// Driver implements driver.Driver.
type Driver struct{}

var (
	_ driver.Driver     = Driver{}
	_ driver.Templater  = Driver{}
	_ driver.Imager     = Driver{}
	_ driver.Translator = Driver{}
	_ driver.Checker    = Driver{}
	_ driver.Finder     = Driver{}
	_ driver.Featurer   = Driver{}
)

// mirrorDir is the folder that the agent keeps equal to the repository.
var mirrorDir = path.Join(driver.RunDir, "haproxy")

// Patch puts HAProxy into the pod. The process that the agent starts is the master, which
// starts another worker for each reload and lets the former one finish.
func (Driver) Patch(ctx context.Context) error {
	inj, err := driver.InjectorFrom(ctx)
	if err != nil {
		return err
	}
	port := uint32(defaultPort)
	if inj.Configurator != nil {
		if p := inj.Configurator.GetProxyServerPort(inj.Sidecar.Class); p != 0 {
			port = p
		}
	}
	return podtemplate.Apply(ctx, name, template, &agentspec.Spec{
		Command: []string{"haproxy", "-W", "-db", "-f", configPath},
		Mirror: &agentspec.Mirror{
			URL:   fmt.Sprintf("https://${OUTRIGGER_CONTROLLER}:%d/repo/${POD_UID}/", port),
			Dir:   mirrorDir,
			Check: []string{"haproxy", "-c", "-f", "${MIRROR}/" + configFile},
		},
		Reload:   &agentspec.Reload{Signal: "USR2"},
		ReadyURL: "http://127.0.0.1:15000/ready",
		Drain:    &agentspec.Drain{Seconds: 5},
	})
}

// PodTemplate returns the template of Patch.
func (Driver) PodTemplate() string { return template }

// SidecarImage returns the stock image of HAProxy.
func (Driver) SidecarImage(os string) string {
	if os == "windows" {
		return ""
	}
	return "docker.io/library/haproxy:" + version
}

// Features returns what HAProxy can do. README.md says what is different.
func (Driver) Features() []mesh.Feature {
	return []mesh.Feature{
		mesh.FeatureHTTP2, mesh.FeatureWebSocket, mesh.FeatureServerFirst, mesh.FeatureExternalNames,
		mesh.FeaturePermissiveTLS, mesh.FeatureHeaderMatches, mesh.FeatureQueryMatches,
		mesh.FeatureRetries, mesh.FeatureTimeouts, mesh.FeatureConnectTimeouts, mesh.FeatureConnectionLimits,
		mesh.FeatureRequestsPerConnection, mesh.FeatureHealthChecks, mesh.FeatureLeastRequest, mesh.FeatureRandomEndpoint,
		mesh.FeatureConnectionRateLimits, mesh.FeatureRequestRateLimits, mesh.FeatureIngress, mesh.FeatureIngressTLS,
		mesh.FeatureEgressHTTP, mesh.FeatureEgressTLS, mesh.FeatureEgressTCP, mesh.FeatureAccessLogs,
	}
}
