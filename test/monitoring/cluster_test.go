package monitoring_test

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/lab"
)

func startCluster(t *testing.T, at *lab.Lab) []map[string]any { return nil }
