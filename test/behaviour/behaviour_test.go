package behaviour_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/test/behaviour"
)

func TestMain(m *testing.M) { behaviour.Main(m) }

// TestBehaviour tests every pair of the proxies on this machine, and checks that the page
// has the results. With -short it tests the pairs of one class, without Pipy.
func TestBehaviour(t *testing.T) {
	t.Parallel()
	var options behaviour.Options
	if testing.Short() {
		options.Pairs = []behaviour.Pair{{Client: "envoy", Server: "envoy"}, {Client: "haproxy", Server: "haproxy"}}
		t.Log("SKIPPED: the pairs of the table of behaviours with Pipy, and most rows where the two sides differ; run 'make test-all'")
	}
	result := behaviour.Run(t, options)
	for class, err := range result.Missing {
		t.Logf("SKIPPED: the pairs with class %s: %v", class, err)
	}
	if !t.Failed() && !filtered() {
		checkPage(t, result)
	}
}

// TestMixed tests Envoy with HAProxy when TestBehaviour does not, by the rows that depend most
// on what one class of proxy sends to another.
func TestMixed(t *testing.T) {
	if !testing.Short() {
		t.Skip("TestBehaviour tests all rows")
	}
	t.Parallel()
	behaviour.Run(t, behaviour.Options{
		Pairs: []behaviour.Pair{{Client: "envoy", Server: "haproxy"}, {Client: "haproxy", Server: "envoy"}},
		Rows: []string{
			"Allowed by one rule only", "Allowed by header", "Spoofed headers", "A request within another", "Broken messages",
			"mTLS on the wire", "TLS versions", "Plaintext refused", "No plaintext after a reset", "A foreign endpoint is refused",
			"TCP", "Server-first TCP", "gRPC streaming", "WebSocket", "IPv6",
			"Split 90/10", "Retry", "Timeout", "HTTPRoute: matches", "GRPCRoute", "Traces",
			"The proxy is killed", "Packets are lost", "Certificates are renewed",
		},
	})
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
