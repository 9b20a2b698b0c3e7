package pipy

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

var _ driver.Featurer = Driver{}

// missing are the features that the scripts do not have.
var missing = []mesh.Feature{
	// Pipy's versions and ciphers can be set, and its curves can't.
	mesh.FeatureTLSSettings,
	mesh.FeatureHealthChecks,
	// Every request is denied then, unless the user says that it may pass when the
	// service does not answer.
	mesh.FeatureExternalAuthorization,
	mesh.FeatureOTLPTracing,
}

// Features returns what Pipy can do with the scripts.
func (Driver) Features() []mesh.Feature {
	return slices.DeleteFunc(mesh.Features(), func(f mesh.Feature) bool { return slices.Contains(missing, f) })
}

// Lacks returns what is missing where a feature is not declared and some of it is there
// all the same.
func (Driver) Lacks() map[mesh.Feature]string {
	return map[mesh.Feature]string{
		mesh.FeatureTLSSettings:           "versions and ciphers are kept, curves are not",
		mesh.FeatureExternalAuthorization: "every inbound HTTP request is denied, unless requests may pass while the service does not answer",
	}
}
