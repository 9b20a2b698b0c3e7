package behaviour_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/test/behaviour"
)

// oldestEnvoy is the oldest version in PyPI that is supported.
const oldestEnvoy = "1.38.3"

// TestUpgrade starts the oldest Envoy that is supported, and upgrades it to the current one
// in running pods.
func TestUpgrade(t *testing.T) {
	envoy, err := sidecar.Capabilities("envoy")
	if err != nil {
		t.Fatal(err)
	}
	current, err := envoy.Finder.FindProxy()
	if err != nil {
		t.Skip("SKIPPED: ", err)
	}
	cache := os.Getenv("OUTRIGGER_CACHE")
	if user, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(user, "outrigger")
	}
	oldest := filepath.Join(cache, "envoy-"+oldestEnvoy, "envoy")
	if _, err := os.Stat(oldest); err != nil {
		t.Skipf("SKIPPED: run ENVOY_VERSION=%s test/envoy/install.sh for it: %v", oldestEnvoy, err)
	}
	t.Setenv("ENVOY", oldest)
	result := behaviour.Run(t, behaviour.Options{
		Pairs: []behaviour.Pair{{Client: "envoy", Server: "envoy"}},
		Rows:  []string{"The proxy is upgraded"},
		Later: map[string]string{"envoy": current},
	})
	t.Logf("from Envoy %s to %s", result.Versions["envoy"], current)
}
