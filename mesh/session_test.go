package mesh_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

func TestSessionAttributes(t *testing.T) {
	for want, session := range map[string]mesh.Session{
		"; Path=/a; HttpOnly":             {Cookie: "c", Path: "/a", Lifetime: time.Hour},
		"; Path=/; HttpOnly; Max-Age=2":   {Cookie: "c", Path: "/", Lifetime: 1500 * time.Millisecond, Permanent: true},
		"; Path=/; HttpOnly; Max-Age=300": {Cookie: "c", Path: "/", Lifetime: 5 * time.Minute, Permanent: true},
	} {
		if got := session.Attributes(); got != want {
			t.Errorf("the attributes are %q, want %q", got, want)
		}
	}
}

// TestSessionTokens checks that tokens tell rules, backends and endpoints apart, and that an
// endpoint keeps its key with another address, which the key does not show.
func TestSessionTokens(t *testing.T) {
	a, b := mesh.Session{Rule: "HTTPRoute shop/a/0"}, mesh.Session{Rule: "HTTPRoute shop/a/1"}
	shares := map[string]bool{a.Share("shop/x:80"): true, a.Share("shop/y:80"): true, b.Share("shop/x:80"): true}
	if len(shares) != 3 {
		t.Errorf("three shares have the names %v", shares)
	}
	endpoint := func(workload, address string, port uint16) mesh.Endpoint {
		return mesh.Endpoint{Workload: workload, Addresses: []netip.Addr{netip.MustParseAddr(address)}, Port: port}
	}
	keys := map[string]bool{}
	for _, e := range []mesh.Endpoint{
		endpoint("shop/x-0", "10.0.0.1", 80), endpoint("shop/x-0", "10.0.0.1", 81), endpoint("shop/x-1", "10.0.0.1", 80),
		endpoint("", "10.0.0.1", 80), endpoint("", "10.0.0.2", 80),
	} {
		keys[e.Key()] = true
		if len(e.Key()) != 16 || strings.Trim(e.Key(), "0123456789abcdef") != "" {
			t.Errorf("the key %q is not 16 hexadecimal digits", e.Key())
		}
	}
	if len(keys) != 5 {
		t.Errorf("five endpoints have the keys %v", keys)
	}
	if was, is := endpoint("shop/x-0", "10.0.0.1", 80), endpoint("shop/x-0", "10.0.0.9", 80); was.Key() != is.Key() {
		t.Errorf("with another address the key is %s, not %s", is.Key(), was.Key())
	}
}
