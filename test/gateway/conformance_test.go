// Package gateway runs the conformance suite of Gateway API for service meshes on the
// cluster of KUBECONFIG. run.sh passes the suite's flags.
package gateway

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestConformance(t *testing.T) { conformance.RunConformance(t) }
