package haproxy

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/drivers/haproxy/syntax"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestGatewayHostsCost holds that eight times the hosts and routes of a gateway's port take about eight times as
// long, not 64 times.
func TestGatewayHostsCost(t *testing.T) {
	takes := func(hosts int) time.Duration {
		d := &mesh.Destination{Name: "gateway/edge/web:80", Addresses: []netip.Addr{netip.IPv4Unspecified()}, Port: 80, Protocol: mesh.HTTP, Listens: true}
		for i := range hosts {
			host := fmt.Sprintf("h%06d.example.com", i)
			d.Hosts = append(d.Hosts, host)
			d.Routes = append(d.Routes, mesh.Route{Host: host, Backends: []mesh.WeightedBackend{{Weight: 1}}})
		}
		best := time.Duration(math.MaxInt64)
		for range 3 {
			begun := time.Now()
			new(document).addGatewayPort(d, syntax.Section(d.Name))
			best = min(best, time.Since(begun))
		}
		return best
	}
	if few, many := takes(2000), takes(16000); many > 30*few {
		t.Errorf("2,000 hosts take %v, and 16,000 take %v", few, many)
	}
}

// TestGatewayHostsShareRules holds that hosts with the same routes add no rules, and that others do.
func TestGatewayHostsShareRules(t *testing.T) {
	d := &mesh.Destination{Name: "gateway/edge/web:80", Addresses: []netip.Addr{netip.IPv4Unspecified()}, Port: 80, Protocol: mesh.HTTP, Listens: true}
	d.Hosts = []string{"a.example.com", "b.example.com", "c.example.com", "*.d.example.com", "*.e.example.com", mesh.AnyHost}
	for i, host := range d.Hosts {
		route := mesh.Route{Host: host, Backends: []mesh.WeightedBackend{{Weight: 1}}}
		if i%3 == 2 {
			route.Match.Path.Prefix = "/own"
		}
		d.Routes = append(d.Routes, route)
	}
	doc := new(document)
	doc.addGatewayPort(d, syntax.Section(d.Name))
	rules := 0
	for _, r := range doc.Routes {
		rules += len(r.Matches)
	}
	if rules != 2 {
		t.Errorf("for two kinds of hosts there are %d rules", rules)
	}
	names := map[string]bool{}
	for _, h := range doc.HTTPPorts[0].Hosts {
		names[h.Name.String()] = true
	}
	if len(names) != 3 {
		t.Errorf("the rules of three wildcards are called %v", names)
	}
}
