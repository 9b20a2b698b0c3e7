package haproxy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// targetWith returns a target with an endpoint in the zone north, one in south, and one in
// north that is draining.
func targetWith(policy mesh.UpstreamPolicy) target {
	endpoint := func(address, zone string, draining bool) mesh.Endpoint {
		return mesh.Endpoint{Addresses: []netip.Addr{netip.MustParseAddr(address)}, Port: 80, Zone: zone, Draining: draining}
	}
	return target{Backend: &mesh.Backend{Policy: policy, Endpoints: []mesh.Endpoint{
		endpoint("10.0.0.1", "north", false), endpoint("10.0.0.2", "south", false), endpoint("10.0.0.3", "north", true),
	}}}
}

func TestServersOfOtherZones(t *testing.T) {
	for zone, want := range map[string]string{"north": "1 2:backup 3", "west": "1:backup 2:backup 3:backup", "": "1 2 3"} {
		got := ""
		for _, s := range targetWith(mesh.UpstreamPolicy{LoadBalancing: mesh.LoadBalancing{PreferZone: true}}).Servers(zone) {
			if got != "" {
				got += " "
			}
			if got += strings.TrimSuffix(strings.TrimPrefix(s.Address.String(), "10.0.0."), ":80"); s.Backup {
				got += ":backup"
			}
		}
		if got != want {
			t.Errorf("in the zone %q the servers are %s, want %s", zone, got, want)
		}
	}
}

// TestEjectedServersHaveBackups holds that a target whose endpoints are all ejected still has
// servers.
func TestEjectedServersHaveBackups(t *testing.T) {
	servers := targetWith(mesh.UpstreamPolicy{Ejection: &mesh.Ejection{ConsecutiveErrors: 3}}).Servers("north")
	if len(servers) != 6 {
		t.Fatalf("there are %d servers, want 6", len(servers))
	}
	for i, s := range servers {
		if last := i >= 3; s.Backup != last || s.Ejected == last || s.Address != servers[i%3].Address {
			t.Errorf("server %d is %+v", i, s)
		}
	}
}

// TestServerIDs holds that the place of an endpoint on the ring depends neither on its
// position nor on the others.
func TestServerIDs(t *testing.T) {
	all := targetWith(mesh.UpstreamPolicy{LoadBalancing: mesh.LoadBalancing{Policy: mesh.RingHash, HashOn: []mesh.HashOn{{SourceIP: true}}}})
	fewer := all
	backend := *all.Backend
	backend.Endpoints = backend.Endpoints[1:]
	fewer.Backend = &backend
	if a, b := all.Servers("")[1], fewer.Servers("")[0]; a.ID == 0 || a.ID != b.ID || a.Address != b.Address {
		t.Errorf("the IDs of %s and %s are %d and %d", a.Address, b.Address, a.ID, b.ID)
	}
	taken := map[uint32]bool{}
	if a, b := uniqueID("same", taken), uniqueID("same", taken); a == b {
		t.Errorf("two servers have the ID %d", a)
	}
}
