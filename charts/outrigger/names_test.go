package chart_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// TestInjectorNames checks that the commands and the chart use the same names for the
// injector.
func TestInjectorNames(t *testing.T) {
	for _, mesh := range []string{"osm", "Other_Mesh"} {
		for _, revision := range []string{"default", "canary"} {
			all := documents(t, fmt.Sprintf("revision: %s\nosm: {meshName: %s}\n", revision, mesh))
			for _, name := range []string{"Deployment/" + inject.ObjectName(revision), "MutatingWebhookConfiguration/" + inject.WebhookName(revision, mesh)} {
				if find[runtime.Object](all, name) == nil {
					t.Errorf("the chart has no %s for revision %s of mesh %s", name, revision, mesh)
				}
			}
		}
	}
}
