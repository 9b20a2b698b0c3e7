// Package haproxy is the driver for HAProxy, which takes its configuration as a file that
// the agent keeps equal to the controller's and tells it to reload. It was written by
// following docs/add-a-driver.md.
package haproxy

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"slices"

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
	// defaultPort is the controller's if the MeshConfig names none.
	defaultPort = 6061
	// mirrorDir is the folder that the agent keeps equal to the repository.
	mirrorDir = driver.RunDir + "/haproxy"
)

//go:embed template.yaml
var template string

// threads says how many threads a worker has. It is not the controller's to know.
const threads = "global\n  nbthread ${" + agentspec.EnvConcurrency + "}\n"

// threadsFile is where that is in the pod.
const threadsFile = driver.RunDir + "/threads.cfg"

func init() { sidecar.Register(name, Driver{}) }

// Driver implements driver.Driver.
type Driver struct{}

// Patch puts HAProxy into the pod. The process that the agent starts is the master, which
// starts another worker for each reload and lets the former one finish.
func (Driver) Patch(ctx context.Context) error {
	inj, err := driver.InjectorFrom(ctx)
	if err != nil {
		return err
	}
	var port uint32
	if inj.Configurator != nil {
		port = inj.Configurator.GetProxyServerPort(inj.Sidecar.Class)
	}
	return podtemplate.Apply(ctx, name, template, &agentspec.Spec{
		Command: []string{"haproxy", "-W", "-db", "-f", threadsFile, "-f", mirrorDir + "/" + configFile},
		Files:   []agentspec.File{{Path: threadsFile, Content: threads}},
		Mirror: &agentspec.Mirror{
			URL:   fmt.Sprintf("https://${OUTRIGGER_CONTROLLER}:%d/repo/${POD_UID}/", cmp.Or(port, defaultPort)),
			Dir:   mirrorDir,
			Check: []string{"haproxy", "-c", "-f", "${MIRROR}/" + configFile},
		},
		Reload:   &agentspec.Reload{Signal: "USR2", Workers: true},
		ReadyURL: "http://127.0.0.1:15000/ready",
		Drain:    &agentspec.Drain{Seconds: 5},
	})
}

// PodTemplate returns the template of Patch.
func (Driver) PodTemplate() string { return template }

// CheckImage refuses images of older versions than the driver works with.
func (Driver) CheckImage(image string) error { return driver.CheckImageVersion(image, name, version) }

// SidecarImage returns the stock image of HAProxy.
func (Driver) SidecarImage(os string) string {
	return map[string]string{"linux": "docker.io/library/haproxy:" + version}[os]
}

// Features returns what HAProxy can do. README.md says what is different.
func (d Driver) Features() []mesh.Feature {
	return slices.DeleteFunc(mesh.Features(), func(f mesh.Feature) bool { return d.Lacks()[f] != "" })
}

// Lacks returns what HAProxy can't do, with what happens instead.
func (Driver) Lacks() map[mesh.Feature]string {
	return map[mesh.Feature]string{
		mesh.FeatureIPv6:                  "nothing is listened to by IPv6, so such connections are refused",
		mesh.FeatureRequestsPerConnection: "connections are used again",
		mesh.FeatureOutlierEjection:       "endpoints stay in use",
		mesh.FeatureConsistentHash:        "endpoints are called in turn",
		mesh.FeatureZonePreference:        "endpoints of all zones are called",
		mesh.FeatureExternalAuthorization: "every inbound HTTP request is answered with 403",
		mesh.FeatureZipkinTracing:         "there are no spans",
		mesh.FeatureOTLPTracing:           "there are no spans",
	}
}
