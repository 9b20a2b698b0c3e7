// Package haproxy is the sidecar driver for HAProxy. It translates a View into
// configuration files and serves them from the controller's repository; the agent mirrors
// them into the pod and reloads HAProxy after each change. Like every driver it must not
// import packages below internal or other drivers.
package haproxy

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
	"github.com/outrigger-mesh/outrigger/sidecar/repo"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

const (
	name = "haproxy"
	// defaultPort is the port of the repository if the MeshConfig has none.
	defaultPort = 6061
	// mirrorDir is the folder into which the agent mirrors the repository.
	mirrorDir = driver.RunDir + "/haproxy"
	// masterSocket is where live.lua asks the master process for a reload.
	masterSocket = driver.RunDir + "/master.sock"
)

//go:embed template.yaml
var template string

//go:embed releases.json
var releasesFile []byte
var releases = driver.ParseReleases(releasesFile)

// threadsFile has the part of the configuration with the number of threads, which depends on
// the pod's CPU limit and so can't come from the controller.
const threadsFile, threads = driver.RunDir + "/threads.cfg", "global\n  nbthread ${" + agentspec.EnvConcurrency + "}\n"

// reasons translate how connections and requests have ended: without a server, without one in time, or malformed.
var reasons = []agentspec.Reason{{Text: " SC ", Reason: telemetry.ReasonNoEndpoint}, {Text: " sC ", Reason: telemetry.ReasonNoEndpoint}, {Text: " PR 400", Reason: telemetry.ReasonInvalidRequest}}

func init() { sidecar.Register(name, Driver{}) }

// Driver implements driver.Driver.
type Driver struct{}

// Patch adds the HAProxy sidecar to the pod. The agent starts the master process, which
// starts a new worker for each reload and lets the former one finish.
func (Driver) Patch(ctx context.Context) error {
	inj, err := driver.InjectorFrom(ctx)
	if err != nil {
		return err
	}
	return podtemplate.Apply(ctx, name, template, &agentspec.Spec{
		Command: []string{"haproxy", "-W", "-db", "-S", masterSocket + ",mode,600", "-f", threadsFile, "-f", mirrorDir + "/" + configFile},
		Version: []string{name, "-vv"}, Files: []agentspec.File{{Path: threadsFile, Content: threads}},
		Mirror: &agentspec.Mirror{
			URL:   fmt.Sprintf("https://${OUTRIGGER_CONTROLLER}:%d/repo/${POD_UID}/", inj.ServerPort(defaultPort)),
			Dir:   mirrorDir,
			Live:  liveFiles,
			Check: append([]string{name}, checkArgs...),
		},
		Reload:   &agentspec.Reload{Signal: "USR2", Workers: true},
		Spans:    &agentspec.Spans{Collector: collectorFile},
		Records:  &agentspec.Records{Metrics: "http://127.0.0.1:15000/stats/prometheus", Reasons: reasons},
		ReadyURL: "http://127.0.0.1:15000/ready",
		Drain:    &agentspec.Drain{Seconds: 5}, OnDemand: &agentspec.OnDemand{Known: driver.KnownSocket, Outside: driver.OutsideSocket},
		Upgrade: &agentspec.Upgrade{Signal: "USR1", Seconds: 900}, // as hard-stop-after
	})
}

// PodTemplate returns the template that Patch applies.
func (Driver) PodTemplate() string { return template }

// Releases returns what is known of HAProxy's versions.
func (Driver) Releases() *driver.Releases { return releases }

// CheckImage refuses images of versions that are not supported.
func (Driver) CheckImage(image string) error { return releases.CheckImage(image) }

// SidecarImage returns the stock image of HAProxy.
func (Driver) SidecarImage(os string) string {
	return map[string]string{"linux": "docker.io/library/haproxy:" + releases.Default}[os]
}

// TranslatesIPv6 is true: HAProxy asks for original destinations of IPv4 connections only.
func (Driver) TranslatesIPv6() bool { return true }

// Features returns the features that HAProxy supports, some of them only from a version on that
// Releases names. README.md lists the differences.
func (Driver) Features() []mesh.Feature { return mesh.FeaturesWithout(lacks) }

// Lacks describes what happens instead of the others.
func (Driver) Lacks() map[mesh.Feature]string { return lacks }

var lacks = map[mesh.Feature]string{
	mesh.FeatureTokensEdDSA:     "HAProxy has no EdDSA for tokens, so it verifies none that is signed with such a key",
	mesh.FeatureOpenConnections: "connections and their bytes are counted when they end: HAProxy writes no line with the bytes of an open one",
}

// Start serves the configurations to the agents on the ControllerContext's port, by default 6061, until ctx is done.
func (d Driver) Start(ctx context.Context) (health.Probes, error) {
	return repo.Start(ctx, repo.Service{Name: name, Port: defaultPort, DebugPath: "/debug/haproxy"}, repo.Options{Translator: d, Certificates: certificateDir})
}
