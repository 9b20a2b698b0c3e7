// Package grpc is for pods without a proxy: the gRPC library of the application is the
// client and the server of the mesh. It turns Views into the xDS resources that gRPC
// reads, which package sidecar/xds serves.
//
// It does not patch pods yet, so it is not registered as a driver; docs/grpc.md describes
// what such a pod needs, and what gRPC does not protect.
package grpc

import (
	"context"

	"github.com/outrigger-mesh/outrigger/health"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

const name = "grpc"

// Class serves the pods of the class.
type Class struct{}

var (
	_ driver.Translator = Class{}
	_ driver.Featurer   = Class{}
)

// Start serves gRPC's xDS clients.
func (Class) Start(ctx context.Context) (health.Probes, error) {
	t := newTranslator()
	return xds.Start(ctx, xds.Service{Name: name, Port: driver.ADSPort, DebugPath: "/debug/grpc"}, xds.Options{Types: types, Translate: t.config})
}

// Features returns what gRPC does exactly as the mesh means it.
func (Class) Features() []mesh.Feature {
	return []mesh.Feature{mesh.FeatureHTTP2, mesh.FeatureIPv6, mesh.FeatureTimeouts, mesh.FeatureLeastRequest}
}

// Lacks returns features that gRPC does not support, with what happens instead. All others
// that Features omits have no effect.
func (Class) Lacks() map[mesh.Feature]string {
	return map[mesh.Feature]string{
		mesh.FeatureHeaderMatches:         "calls to the path of such a route fail with UNAVAILABLE, and such a condition of an access rule allows nothing: gRPC compares all lines of a header as one value",
		mesh.FeatureQueryMatches:          "such a route or condition matches no call: gRPC has no queries",
		mesh.FeatureHeaderChanges:         "calls of such a route fail with UNAVAILABLE",
		mesh.FeatureRewrites:              "calls of such a route fail with UNAVAILABLE",
		mesh.FeatureRedirects:             "calls of such a route fail with UNAVAILABLE",
		mesh.FeatureExternalAuthorization: "every inbound call is denied",
		mesh.FeatureExternalNames:         "calls fail with UNAVAILABLE",
		mesh.FeaturePermissiveTLS:         "only mesh TLS is accepted",
		mesh.FeaturePlaintextMesh:         "mesh TLS is used nevertheless",
	}
}
