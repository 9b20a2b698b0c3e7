package chart_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// TestTextsThatLookLikeNumbers checks that values that YAML would take for numbers or booleans stay
// texts: the objects are decoded into their types.
func TestTextsThatLookLikeNumbers(t *testing.T) {
	for _, text := range []string{"1234", "1e3", "true", "on", "null"} {
		for _, provider := range []string{
			"certificateProvider: {kind: tresor}",
			fmt.Sprintf("certificateProvider: {kind: vault}, vault: {host: %[1]q, role: %[1]q, token: %[1]q}", text),
			fmt.Sprintf("certificateProvider: {kind: cert-manager}, certmanager: {issuerName: %q}", text),
		} {
			all := documents(t, fmt.Sprintf("revision: default\nosm: {osmNamespace: %[1]q, meshName: %[1]q, trustDomain: %[1]q, %[2]s}\n", text, provider))
			if service := find[*corev1.Service](all, "Service/outrigger-controller"); service.Namespace != text {
				t.Errorf("the namespace %s becomes %q", text, service.Namespace)
			}
		}
	}
}

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
