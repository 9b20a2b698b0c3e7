package behaviour_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest/behaviour"
)

func TestMain(m *testing.M) { behaviour.Main(m) }

// TestBehaviour tests every pair of the proxies on this machine, and checks that the page
// has the results.
func TestBehaviour(t *testing.T) {
	result := behaviour.Run(t, behaviour.Options{})
	for class, err := range result.Missing {
		t.Logf("SKIPPED: the pairs with class %s: %v", class, err)
	}
	if !t.Failed() && !filtered() {
		checkPage(t, result)
	}
}

// TestNetwork tests the rows about a network that fails, which take minutes.
func TestNetwork(t *testing.T) {
	if os.Getenv("NETWORK") == "" {
		t.Skip("it takes minutes: run 'make network'")
	}
	behaviour.Run(t, behaviour.Options{Long: true})
}

// filtered reports whether only some rows were selected.
func filtered() bool { return strings.Contains(flag.Lookup("test.run").Value.String(), "/") }
