package catalog

import (
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestClassFeatures holds that the features of a class of gateways are those of its proxies.
func TestClassFeatures(t *testing.T) {
	class := func(name string) fact.Fact {
		return fact.Fact{Object: object(gatewayVersion, "GatewayClass", "", "outrigger-"+name), Content: mesh.Seal(&fact.GatewayClass{Name: "outrigger-" + name, Class: name})}
	}
	facts := list(settings(), class("envoy"), class("unknown"))
	s := BuildFor(facts, Options{Features: func(class string) []mesh.Feature {
		return map[string][]mesh.Feature{"envoy": {mesh.FeatureGateways, mesh.FeatureCORS}}[class]
	}})
	for name, want := range map[string][]mesh.Feature{"envoy": {mesh.FeatureGateways, mesh.FeatureCORS}, "unknown": nil} {
		var got []mesh.Feature
		if found, ok := s.Problems.Get(class(name).Object.String()); ok {
			got = found.Features
		}
		if !slices.Equal(got, want) {
			t.Errorf("the class %s has the features %s, want %s", name, got, want)
		}
	}
}
