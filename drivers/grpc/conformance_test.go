package grpc

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

func TestConformance(t *testing.T) { drivertest.TestDriver(t, Driver{}) }

// TestSNI checks for the variable without which pods with a proxy refuse the calls.
func TestSNI(t *testing.T) {
	if got := injected(t, envSNI); got != "true" {
		t.Errorf("%s is %q", envSNI, got)
	}
}
