// Package driver is the contract between Outrigger and one kind of proxy. A
// vendor implements Driver, registers it with package sidecar under a name, and
// has a mesh.
//
// A driver sees the types of this package and of the packages that it names,
// nothing of Outrigger's inside. The contract grows by small optional
// interfaces, which are looked up once, when the driver is registered:
//
//   - Featurer: policies that need more than the basic features reach the proxy.
//     Without it each of them becomes a Problem.
//   - Translator: 'outrigger translate', the debug page and the conformance suite
//     show the proxy's configuration. A driver without it runs, but is not conformant.
//   - Templater: users replace the pod template by one of their own.
//   - Imager: pods get an image without one in the MeshConfig.
//   - ImageChecker: an image that is too old is refused before a pod runs it.
//   - Checker: 'outrigger translate --check' asks the real proxy.
//   - Finder: the mesh without a cluster finds the proxy's program.
package driver

import (
	"context"
	"errors"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Driver is one kind of sidecar proxy.
type Driver interface {
	// Patch puts the proxy into a pod. The injector calls it, for every pod of
	// the driver's class, from many goroutines at once; InjectorFrom(ctx) gives
	// the arguments, and the result is InjectorContext.Pod changed in place.
	//
	// Patch is deterministic and has no side effects. Called with a pod that it
	// has already patched it changes nothing. It keeps all that is the user's.
	// It returns soon after ctx ends. An error denies the pod, with the error's
	// text as the reason, and leaves nothing of what Patch did.
	Patch(ctx context.Context) error

	// Start begins to serve configuration to the proxies of the driver's class.
	// The controller calls it once; ControllerFrom(ctx) gives the arguments. It
	// returns when it serves, and goes on until ctx ends. An error is fatal to
	// the controller. A driver that cannot go on later calls
	// ControllerContext.CancelFunc.
	Start(ctx context.Context) (health.Probes, error)
}

// Templater is implemented by drivers whose Patch uses a pod template of
// package podtemplate. Core checks the template when it starts, and lets the
// user replace it by one of the same name.
type Templater interface {
	// PodTemplate returns the text of the template. It is always the same.
	PodTemplate() string
}

// Imager is implemented by drivers that know which image their proxy has when
// the mesh's configuration names none.
type Imager interface {
	// SidecarImage returns the image for pods of the operating system, "linux"
	// or "windows", or "" if there is none.
	SidecarImage(os string) string
}

// Translator is implemented by drivers that can say what a proxy gets without
// serving it: for dry runs, golden files and the conformance suite. A driver
// without it runs, but is not conformant.
type Translator interface {
	// Translate returns the whole configuration of the proxy that the View is of. It
	// is a pure function of the View: no clock, no I/O, no state that shows, so that
	// equal Views give equal bytes on every replica and after every restart. It is
	// called from many goroutines. It returns an error only for a View that core
	// should not have made.
	Translate(view *mesh.View) ([]File, error)
}

// File is a part of a proxy's configuration as the proxy, or a person, reads it.
type File struct {
	// Name is a relative path with slashes, for example "listeners.yaml".
	Name string
	// Content is text, as a rule.
	Content []byte
}

// Checker is implemented by drivers that can ask the real proxy whether it would
// take a configuration.
type Checker interface {
	// Check has the proxy read the configuration of the View. It returns
	// ErrNoProxy if the proxy's program is not on this machine, and otherwise nil
	// or what the proxy says is wrong. It may take seconds.
	Check(ctx context.Context, view *mesh.View) error
}

// ErrNoProxy says that the proxy's program is not on this machine. A Checker wraps
// it with the way to get the program.
var ErrNoProxy = errors.New("the proxy's program is not here")

// Finder is implemented by drivers that know where on this machine their proxy's
// program is, for the mesh that runs without a cluster.
type Finder interface {
	// FindProxy returns the absolute path of the program. The error wraps ErrNoProxy
	// with the way to get it.
	FindProxy() (string, error)
}

// Featurer is implemented by drivers to say what their proxy can do. Whatever a View
// asks for beyond that becomes a Problem of the object that asks. A driver without it
// can do none of the features.
type Featurer interface {
	// Features returns what the proxy can do of mesh.Features. It is always the same.
	Features() []mesh.Feature
}
