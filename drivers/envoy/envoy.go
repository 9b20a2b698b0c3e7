// Package envoy is the driver for Envoy. It turns Views into xDS v3 resources, which
// package sidecar/xds serves, and puts Envoy into pods. It must not use Kubernetes
// types or clients.
package envoy

import (
	"context"
	_ "embed"
	"path"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

const name = "envoy"

var (
	//go:embed template.yaml
	template string

	//go:embed releases.json
	releasesFile []byte
	releases     = driver.ParseReleases(releasesFile)

	// bootstrap is Envoy's initial configuration. The agent substitutes environment
	// variables of the container for ${NAME}.
	//go:embed bootstrap.yaml
	commented string
	bootstrap = compact(commented)
)

// compact returns YAML without comments, and without line breaks after "{", "[" and ",": each pod
// has a copy of it.
func compact(text string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "#") {
			continue
		}
		if inside {
			line = trimmed + "\n"
		}
		inside = strings.HasSuffix(trimmed, "{") || strings.HasSuffix(trimmed, "[") || strings.HasSuffix(trimmed, ",")
		if inside {
			line = strings.TrimSuffix(line, "\n")
		}
		if strings.HasSuffix(trimmed, ",") {
			line += " "
		}
		b.WriteString(line)
	}
	return b.String()
}

func init() { sidecar.Register(name, Driver{}) }

// Driver implements driver.Driver.
type Driver struct{}

var (
	_ driver.Driver    = Driver{}
	_ driver.Templater = Driver{}
	_ driver.Imager    = Driver{}
	_ driver.Releaser  = Driver{}
	_ driver.Featurer  = Driver{}
)

// Patch adds Envoy to the pod.
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
			// Its domain sockets and shared memory are useless in a pod.
			"--disable-hot-restart",
			// By default the log lags by ten seconds.
			"--file-flush-interval-msec", "1000",
			// HTTP clients leave a changed filter chain with their next response. TCP
			// connections get the drain time.
			"--drain-strategy", "immediate", "--drain-time-s", "45",
		},
		Files:    files(inj.ServerPort(driver.ADSPort)),
		Secrets:  &secrets,
		Records:  &records,
		OnDemand: &onDemand,
		ReadyURL: "http://127.0.0.1:15000/ready",
		Drain:    &drain,
		Upgrade:  &upgrade,
	})
}

// These are the same for every pod.
var (
	secrets = agentspec.Secrets{Socket: path.Join(driver.IdentityDir, secretSocket)}
	records = agentspec.Records{File: recordsFile, Metrics: "http://127.0.0.1:15000/stats/prometheus", Open: stateOpen, Reasons: reasons}
	drain   = agentspec.Drain{URL: drainURL, Seconds: 5}
	upgrade = agentspec.Upgrade{URL: drainURL, Seconds: 900}
)

// drainURL makes Envoy finish its connections.
const drainURL = "http://127.0.0.1:15000/drain_listeners?graceful"

// configFile is the file name of the bootstrap, and secretSocket that of the socket on
// which the agent serves secrets. The bootstrap has both names.
const (
	configFile   = "envoy.yaml"
	secretSocket = "sds.sock"
)

// files returns the files that Envoy starts with, for a controller that serves on the
// port.
func files(port uint32) []agentspec.File {
	return []agentspec.File{{
		Path:    path.Join(driver.RunDir, configFile),
		Content: strings.Replace(bootstrap, strconv.Itoa(driver.ADSPort), strconv.Itoa(int(port)), 1),
	}}
}

// PodTemplate returns the template that Patch applies.
func (Driver) PodTemplate() string { return template }

// Releases returns what is known of Envoy's versions.
func (Driver) Releases() *driver.Releases { return releases }

// CheckImage rejects images of versions that are not supported.
func (Driver) CheckImage(image string) error { return releases.CheckImage(image) }

// SidecarImage returns Envoy's official image.
func (Driver) SidecarImage(os string) string {
	if os == "windows" {
		return ""
	}
	return "docker.io/envoyproxy/envoy:v" + releases.Default
}

// Features returns all features of the mesh: Envoy supports every one.
func (Driver) Features() []mesh.Feature { return mesh.Features() }
