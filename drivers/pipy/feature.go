package pipy

import (
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

var _ driver.Featurer = Driver{}

// missing are the features that the scripts do not implement, or only in part, and what happens
// instead.
var missing = map[mesh.Feature]string{
	mesh.FeatureTLSSettings: "versions and ciphers are applied. Curves are not: Pipy has no option for them, and reads those in OpenSSL's configuration only when its process starts",
}

// Features returns the features that Pipy supports with these scripts.
func (Driver) Features() []mesh.Feature { return mesh.FeaturesWithout(missing) }

// Lacks describes what happens with the features that are supported only in part.
func (Driver) Lacks() map[mesh.Feature]string { return missing }
