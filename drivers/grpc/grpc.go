// Package grpc is the driver for pods without a proxy: the gRPC library of the application
// is the client and the server of the mesh. It turns Views into the xDS resources that gRPC
// reads, which package sidecar/xds serves, and gives the application's containers gRPC's
// configuration and the pod's identity. docs/grpc.md describes what gRPC does not do, and
// what it does not protect.
package grpc

import (
	"context"
	_ "embed"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

const (
	name = "grpc"
	// defaultPort is the controller's port if the MeshConfig has none. The template has it
	// too.
	defaultPort = 15130
)

//go:embed template.yaml
var template string

func init() { sidecar.Register(name, Driver{}) }

// Driver implements driver.Driver.
type Driver struct{}

var (
	_ driver.Driver     = Driver{}
	_ driver.Templater  = Driver{}
	_ driver.Translator = Driver{}
	_ driver.Featurer   = Driver{}
	_ driver.Proxyless  = Driver{}
)

// Patch adds the agent to the pod, and gRPC's configuration to the application's containers.
func (Driver) Patch(ctx context.Context) error {
	inj, err := driver.InjectorFrom(ctx)
	if err != nil {
		return err
	}
	conflicts := conflictsOf(inj.Pod)
	if err := podtemplate.Apply(ctx, name, template, &agentspec.Spec{ShareIdentity: true}); err != nil {
		return err
	}
	for _, c := range conflicts {
		if inj.Warn != nil {
			inj.Warn(c)
		}
	}
	return nil
}

// PodTemplate returns the template that Patch applies.
func (Driver) PodTemplate() string { return template }

// Proxyless returns true: the application is the client and the server.
func (Driver) Proxyless() bool { return true }

// Start serves gRPC's xDS clients on the ControllerContext's port, by default 15130, until
// ctx ends.
func (Driver) Start(ctx context.Context) (health.Probes, error) {
	t := newTranslator()
	return xds.Start(ctx, xds.Service{Name: name, Port: defaultPort, DebugPath: "/debug/grpc"}, xds.Options{Types: types, Translate: t.config})
}

// Features returns what gRPC does exactly as the mesh means it.
func (Driver) Features() []mesh.Feature {
	return []mesh.Feature{mesh.FeatureHTTP2, mesh.FeatureHTTP2Resets, mesh.FeatureIPv6, mesh.FeatureTimeouts, mesh.FeatureLeastRequest, mesh.FeatureAccessPolicies}
}

// Lacks returns features that gRPC does not support, with what happens instead. All others
// that Features omits have no effect.
func (Driver) Lacks() map[mesh.Feature]string {
	return map[mesh.Feature]string{
		mesh.FeatureHeaderMatches:         "calls to the path of such a route fail with UNAVAILABLE, and such a condition of an access rule allows nothing: gRPC compares all lines of a header as one value",
		mesh.FeatureQueryMatches:          "such a route or condition matches no call: gRPC has no queries",
		mesh.FeatureHeaderChanges:         "calls of such a route fail with UNAVAILABLE",
		mesh.FeatureRewrites:              "calls of such a route fail with UNAVAILABLE",
		mesh.FeatureRedirects:             "calls of such a route fail with UNAVAILABLE",
		mesh.FeatureExternalAuthorization: "every inbound call is denied",
		mesh.FeatureExternalNames:         "calls fail with UNAVAILABLE",
		mesh.FeaturePermissiveTLS:         "only mesh TLS is accepted",
		mesh.FeatureOnDemand:              "all services that the pod may call are offered; gRPC asks only for those that it calls anyway",
		mesh.FeatureGateways:              "nothing listens at the gateway's ports: gRPC is no proxy",
		mesh.FeatureTermination:           "nothing listens at the gateway's ports: gRPC is no proxy",
		mesh.FeaturePlaintextMesh:         "mesh TLS is used nevertheless",
	}
}
