package grpc

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

func TestConformance(t *testing.T) { drivertest.TestDriver(t, Driver{}) }
