// Package driver is the contract between Outrigger and one kind of proxy. To add a
// proxy, implement Driver and register it under a name with package sidecar.
//
// The contract also grows by small optional interfaces, which the core checks for when
// it uses a driver:
//   - Templater ships a pod template, which users can replace.
//   - Imager knows the proxy's default image, and ImageChecker rejects outdated ones.
//   - Releaser knows which versions are supported, were tested and have known faults.
//   - Translator returns a configuration without serving it; conformant drivers have it.
//   - Checker has the real proxy validate a configuration.
//   - Finder locates the proxy's program on this machine.
//   - Featurer declares the optional features that the proxy supports.
//   - Proxyless declares that the pods run no proxy.
//   - Redirector says what the proxy needs of the redirection of traffic.
//
// Drivers use only this package and the packages that it names, never Outrigger's
// internal ones.
package driver

import (
	"context"
	"errors"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Driver is one kind of sidecar proxy.
type Driver interface {
	// Patch adds the proxy to a pod. The injector calls it for every pod of the driver's
	// class, concurrently. InjectorFrom(ctx) returns the arguments; Patch changes
	// InjectorContext.Pod in place.
	//
	// Patch is deterministic, has no side effects and preserves everything that belongs to
	// the user. Patching a patched pod changes nothing. It returns soon after ctx ends. An
	// error denies the pod with the error's text as the reason; the pod is then left
	// unpatched.
	Patch(ctx context.Context) error

	// Start begins to serve configuration to the proxies of the driver's class. The
	// controller calls it once; ControllerFrom(ctx) returns the arguments. It returns once
	// it serves, and serves until ctx ends. An error is fatal to the controller. If
	// serving fails later, the driver calls ControllerContext.CancelFunc.
	Start(ctx context.Context) (health.Probes, error)
}

// Templater is implemented by drivers whose Patch uses a pod template of package
// podtemplate. The core checks the template at startup, and users can replace it by one
// of the same name.
type Templater interface {
	// PodTemplate returns the text of the template, which never changes.
	PodTemplate() string
}

// Imager is implemented by drivers with a default image, which is used if the mesh's
// configuration names none.
type Imager interface {
	// SidecarImage returns the image for pods of the operating system, "linux"
	// or "windows", or "" if there is none.
	SidecarImage(os string) string
}

// Translator is implemented by drivers that can return a proxy's configuration without
// serving it: for dry runs, golden files and the conformance suite. Drivers without it
// work, but are not conformant.
type Translator interface {
	// Translate returns the complete configuration of the View's proxy. It is a pure
	// function of the View, without clock, I/O or visible state: equal Views give equal
	// bytes on every replica and after every restart. It is called concurrently. It
	// returns an error only for a malformed View.
	Translate(view *mesh.View) ([]File, error)
}

// File is a part of a proxy's configuration in the proxy's own or a readable form.
type File struct {
	// Name is a relative path with slashes, for example "listeners.yaml".
	Name string
	// Content is usually text.
	Content []byte
}

// Checker is implemented by drivers that can have the real proxy validate a
// configuration.
type Checker interface {
	// Check has the proxy read the configuration of the View. It returns ErrNoProxy if the
	// proxy's program is not on this machine, and otherwise nil or the proxy's error. It
	// may take seconds.
	Check(ctx context.Context, view *mesh.View) error
}

// ErrNoProxy means that the proxy's program is not on this machine. Errors that wrap it
// explain how to get the program.
var ErrNoProxy = errors.New("proxy program not found")

// Finder is implemented by drivers that can locate their proxy's program on this
// machine, for a mesh without a cluster.
type Finder interface {
	// FindProxy returns the absolute path of the program. If it is not found, the error
	// wraps ErrNoProxy and explains how to get it.
	FindProxy() (string, error)
}

// Featurer is implemented by drivers to declare what their proxy supports. Anything
// else that a View requires becomes a Problem of the object that requires it. A driver
// without it supports none of the features.
type Featurer interface {
	// Features returns the supported subset of mesh.Features, which never changes.
	Features() []mesh.Feature
}

// Proxyless is implemented by drivers whose pods run no proxy: the application itself reads
// the driver's configuration, and is the client and the server of the mesh. The sidecar
// container only runs the agent. For such a class
//   - the image is that of the init container, which has the agent, unless the mesh's
//     configuration or the pod names another;
//   - no traffic is redirected, so InjectorContext.Redirection is switched off, and the
//     application's probes are unchanged;
//   - the application announces its own ports, so ports that nothing names are closed;
//   - the conformance suite requires an agentspec.Spec without a command.
type Proxyless interface {
	// Proxyless returns true, always.
	Proxyless() bool
}

// Redirector is implemented by drivers whose proxy needs a special redirection of the pod's
// traffic.
type Redirector interface {
	// TranslatesIPv6 is the value of TranslateIPv6 in the pods' agentspec.Redirection.
	TranslatesIPv6() bool
}
