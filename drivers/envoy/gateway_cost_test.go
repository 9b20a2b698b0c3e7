package envoy

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestGatewayHostsCost holds that eight times the hosts and routes of a gateway's port take about eight times as
// long, not 64 times.
func TestGatewayHostsCost(t *testing.T) {
	port := func(hosts int) *mesh.Destination {
		d := &mesh.Destination{Name: "gateway/edge/web:80", Port: 80, Protocol: mesh.HTTP, Listens: true}
		for i := range hosts {
			host := fmt.Sprintf("h%06d.example.com", i)
			d.Hosts = append(d.Hosts, host)
			d.Routes = append(d.Routes, mesh.Route{Host: host, Backends: []mesh.WeightedBackend{{Backend: "shop/cart:80", Weight: 1}}})
		}
		return d
	}
	takes := func(hosts int) time.Duration {
		d, best := port(hosts), time.Duration(math.MaxInt64)
		for range 3 {
			begun := time.Now()
			routes(d)
			best = min(best, time.Since(begun))
		}
		return best
	}
	if few, many := takes(2000), takes(16000); many > 30*few {
		t.Errorf("2,000 hosts take %v, and 16,000 take %v", few, many)
	}
}
