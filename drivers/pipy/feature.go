package pipy

import (
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

var _ driver.Featurer = Driver{}

// missing are the features that Pipy does not support, and why.
var missing = map[mesh.Feature]string{
	mesh.FeatureProxyProtocol: "the scripts do not send the header; the application gets its connections without one",
	mesh.FeatureTokens:        "every rule with a condition on tokens allows nothing, and denies what it could deny: after a signature that Pipy could not verify it would close TLS connections",
	mesh.FeatureTokensPSS:     "no token is verified",
	mesh.FeatureTokensEdDSA:   "no token is verified",
	mesh.FeatureTLSCurves:     "Pipy has no option for them, and reads those in OpenSSL's configuration only when its process starts",
}

// Features returns the features that Pipy supports with these scripts.
func (Driver) Features() []mesh.Feature { return mesh.FeaturesWithout(missing) }

// Lacks says why Pipy does not support the others.
func (Driver) Lacks() map[mesh.Feature]string { return missing }
