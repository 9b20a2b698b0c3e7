// Package pipy is the sidecar driver for Pipy. It translates Views into the JSON
// documents that the PipyJS program in codebase/ reads, and serves both from the
// controller's repository; the agent mirrors them into the pod and starts Pipy there.
// Like every driver it must not import packages below internal or other drivers.
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
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

const name = "pipy"

// threadsFlag precedes the number of threads.
const threadsFlag = "--threads="

//go:embed template.yaml
var template string

//go:embed releases.json
var releasesFile []byte
var releases = driver.ParseReleases(releasesFile)

// openssl disables session tickets in Pipy's OpenSSL: Pipy resets clients that resume
// a session with one.
const openssl = `openssl_conf = pipy
[pipy]
ssl_conf = ssl
[ssl]
system_default = sessions
[sessions]
NumTickets = 0
Options = -SessionTicket
`

// opensslFile is the path of that configuration in the pod.
var opensslFile = path.Join(driver.RunDir, "openssl.cnf")

func init() { sidecar.Register(name, Driver{}) }

// Driver implements driver.Driver.
type Driver struct{}

var (
	_ driver.Driver    = Driver{}
	_ driver.Templater = Driver{}
	_ driver.Imager    = Driver{}
	_ driver.Finder    = Driver{}
)

// Patch adds the Pipy sidecar to the pod.
func (Driver) Patch(ctx context.Context) error {
	inj, err := driver.InjectorFrom(ctx)
	if err != nil {
		return err
	}
	repo := path.Join(driver.RunDir, "repo")
	return podtemplate.Apply(ctx, name, template, &agentspec.Spec{
		// Each thread runs the whole program with its own listeners, which requires
		// --reuse-port; shared.js holds the state that threads share.
		// There is no admin port: the application could reach it and make Pipy run other
		// scripts.
		Command: append([]string{"pipy", threadsFlag + "${" + agentspec.EnvConcurrency + "}"}, append(options(logLevel(inj.Sidecar.LogLevel)), path.Join(repo, mainFile))...),
		Version: []string{"pipy", "--version"},
		Env:     []agentspec.EnvVar{{Name: "OPENSSL_CONF", Value: opensslFile}},
		Files:   []agentspec.File{{Path: opensslFile, Content: openssl}},
		Mirror: &agentspec.Mirror{
			URL: fmt.Sprintf("https://${%s}:%d/repo/${%s}/", agentspec.EnvController, inj.ServerPort(driver.RepoPort), agentspec.EnvPodUID),
			Dir: repo, Live: liveDir,
		},
		// When the scripts change the same process reloads them; connections survive.
		Reload:   &agentspec.Reload{Signal: "HUP"},
		OnDemand: &agentspec.OnDemand{Known: "127.0.0.1:15004", Outside: "127.0.0.1:15005"},
		ReadyURL: "http://127.0.0.1:15010/ready",
		Drain:    &agentspec.Drain{Seconds: 5},
		Upgrade:  &agentspec.Upgrade{URL: "http://127.0.0.1:15010/leave", Seconds: 900},
	})
}

// options are Pipy's options on the command line. Pipy's own log goes to another descriptor
// than the access log, which is written to standard error in spite of its name: Pipy ends when
// it registers one descriptor twice, which it does at the first line of its own log.
func options(logLevel string) []string {
	return []string{"--reuse-port", "--no-reload", "--no-graph", "--log-local=stdout", "--log-level=" + logLevel}
}

// logLevel translates one of OSM's log levels into Pipy's.
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

// PodTemplate returns the template that Patch applies.
func (Driver) PodTemplate() string { return template }

// Releases returns what is known of Pipy's versions.
func (Driver) Releases() *driver.Releases { return releases }

// CheckImage refuses images of versions that are not supported.
func (Driver) CheckImage(image string) error { return releases.CheckImage(image) }

// SidecarImage returns the stock image of Pipy.
func (Driver) SidecarImage(os string) string {
	if os == "windows" {
		return ""
	}
	return "docker.io/flomesh/pipy:" + releases.Default
}

// FindProxy returns the path of Pipy: the value of the environment variable PIPY, or the
// pipy in PATH. There are no binaries for every system, so the error says how to build it.
func (Driver) FindProxy() (string, error) {
	return program.Find("PIPY", "build Pipy "+releases.Default+" from github.com/flomesh-io/pipy, and set PIPY to the program's path or put it into PATH", "pipy")
}
