package mesh_test

import (
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

func TestCovers(t *testing.T) {
	desk := mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "desk"}
	for _, tt := range []struct {
		id   mesh.Identity
		want bool
	}{
		{desk, true},
		{mesh.Identity{TrustDomain: "td", Namespace: "shop"}, true},
		{mesh.Identity{TrustDomain: "td"}, true},
		{mesh.Identity{}, false},
		{mesh.Identity{Namespace: "shop"}, false},
		{mesh.Identity{TrustDomain: "other"}, false},
		{mesh.Identity{TrustDomain: "td", Namespace: "sho"}, false},
		{mesh.Identity{TrustDomain: "td", ServiceAccount: "desk"}, false},
		{mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "de"}, false},
	} {
		if got := tt.id.Covers(desk); got != tt.want {
			t.Errorf("%+v covers %+v: %t", tt.id, desk, got)
		}
	}
	if (mesh.Identity{TrustDomain: "td"}).Covers(mesh.Identity{TrustDomain: "td"}) {
		t.Error("a trust domain stands for a caller without an identity")
	}
}

func TestDenies(t *testing.T) {
	with := func(lines ...string) *mesh.Request {
		return &mesh.Request{Method: "GET", Host: "cart.shop", Path: "/", Headers: map[string][]string{"x-role": lines}}
	}
	path := func(m mesh.StringMatch) mesh.HTTPMatch { return mesh.HTTPMatch{Path: m} }
	role := func(m mesh.StringMatch) mesh.HTTPMatch {
		return mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: "x-role", StringMatch: m}}}
	}
	debug := mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "debug", StringMatch: mesh.StringMatch{Exact: "1"}}}}
	for _, tt := range []struct {
		name    string
		match   mesh.HTTPMatch
		request *mesh.Request
		want    bool
	}{
		{"anything", mesh.HTTPMatch{}, get("/a//b"), true},
		{"a connection", mesh.HTTPMatch{Methods: []string{"PUT"}}, nil, true},
		{"path", path(mesh.StringMatch{Prefix: "/admin"}), get("/admin/x?y"), true},
		{"another path", path(mesh.StringMatch{Prefix: "/admin"}), get("/administrator"), false},
		{"exact path", path(mesh.StringMatch{Exact: "/admin"}), get("/admin/"), false},
		{"a path that is read differently", path(mesh.StringMatch{Exact: "/admin"}), get("/x/..;/admin"), true},
		{"an escaped slash", path(mesh.StringMatch{Prefix: "/admin"}), get("/x%2fadmin"), true},
		{"such a path where none is compared", mesh.HTTPMatch{Methods: []string{"PUT"}}, get("/x%2fadmin"), false},
		{"method", mesh.HTTPMatch{Methods: []string{"GET", "PUT"}}, get("/"), true},
		{"value", role(mesh.StringMatch{Exact: "admin"}), with("admin"), true},
		{"another value", role(mesh.StringMatch{Exact: "admin"}), with("administrator"), false},
		{"an element of a list", role(mesh.StringMatch{Exact: "admin"}), with("user, admin ,guest"), true},
		{"a value that is not ASCII", role(mesh.StringMatch{Exact: "admin"}), with("us\xffer"), true},
		{"presence of such a value", path(mesh.StringMatch{Exact: "/admin"}), with("us\xffer"), false},
		{"a part of an element", role(mesh.StringMatch{Exact: "admin"}), with("user, an admin"), false},
		{"two lines", role(mesh.StringMatch{Exact: "admin"}), with("user", "guest"), true},
		{"no line", role(mesh.StringMatch{Exact: "admin"}), with(), false},
		{"presence", role(mesh.StringMatch{Present: true}), with(""), true},
		{"absence", role(mesh.StringMatch{Present: true}), with(), false},
		{"prefix", role(mesh.StringMatch{Prefix: "ad"}), with("user,admin"), true},
		{"expression", role(mesh.StringMatch{Regex: "a.*n|root"}), with("user, root"), true},
		{"an expression that does not hold", role(mesh.StringMatch{Regex: "a.*n|root"}), with("user"), false},
		{"an invalid expression", role(mesh.StringMatch{Regex: "("}), with("user"), true},
		{"query", debug, get("/?a=2&debug=1"), true},
		{"another query", debug, get("/?debug=2"), false},
		{"an escaped value", debug, get("/?debug=%31"), true},
		{"an escaped value that is not ASCII", debug, get("/?debug=%ff"), false},
		{"such a value and an expression", mesh.HTTPMatch{Query: []mesh.KeyMatch{{Name: "debug", StringMatch: mesh.StringMatch{Regex: "[0-9]"}}}}, get("/?debug=%ff"), true},
		{"an escaped name", debug, get("/?%64ebug=2"), true},
		{"a parameter twice", debug, get("/?debug=2&x&debug=3"), true},
		{"another one twice", debug, get("/?x=2&debug=2&x=3"), false},
		{"a semicolon", debug, get("/?x=1;debug=2"), true},
		{"no query", debug, get("/"), false},
	} {
		if got := tt.match.Denies(tt.request); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

// TestAbnormalPath looks for paths that are normalized, or refused, and count as normal.
func TestAbnormalPath(t *testing.T) {
	odd, refused := regexp.MustCompile(mesh.AmbiguousPath+"|"+mesh.AbnormalPath), regexp.MustCompile(mesh.RefusedPath)
	random := rand.New(rand.NewPCG(5, 6))
	pieces := []string{"/", "/", "%2e", "%2E", "%00", "\t", "a", "Z", "9", "%", "%2", "%6", "1", "f", "F", "2", "5", "7", "e", "E", ".", ";", "\\", "#", "{", "|", "^", "~", "-", "_", "`", "\"", "<", " ", "\x7f", "\xff", "é", ":", "@", "!", "*"}
	normal := 0
	for range 200_000 {
		var path strings.Builder
		for range random.IntN(9) {
			path.WriteString(pieces[random.IntN(len(pieces))])
		}
		got, ok := mesh.NormalPath(path.String())
		if ok == refused.MatchString(path.String()) {
			t.Fatalf("%q is refused: %t", path.String(), !ok)
		}
		if again, also := mesh.NormalPath(got); ok && (again != got || !also) {
			t.Fatalf("%q is normalized to %q, and that to %q", path.String(), got, again)
		}
		if isOdd := odd.MatchString(path.String()); (!ok || got != path.String()) && !isOdd {
			t.Fatalf("%q is normalized to %q, %t", path.String(), got, ok)
		} else if !isOdd {
			normal++
		}
	}
	if normal < 1000 {
		t.Errorf("only %d paths were normal", normal)
	}
}

// TestDenials asks a port that allows everybody, and one that nobody may call without them.
func TestDenials(t *testing.T) {
	origin := drivertest.Origin("AccessPolicy", "shop/no")
	office := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	port := func(d mesh.Denial) *mesh.Inbound {
		d.Origin = origin
		return &mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{{
			Port: 80, Protocol: mesh.HTTP,
			Access:  mesh.Access{Anyone: true, Denials: []mesh.Denial{d}},
			Ingress: []mesh.Ingress{{Ranges: office, Requests: anything}},
		}}}
	}
	shop, desk := mesh.Identity{TrustDomain: "td", Namespace: "shop"}, identity("desk")
	admin := []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/admin"}}}
	from := func(peer mesh.Identity, address, path string) mesh.Arrival {
		a := mesh.Arrival{Port: 80, Source: netip.MustParseAddr(address), Security: mesh.MeshTLS, Peer: peer, Request: get(path)}
		if peer == (mesh.Identity{}) {
			a.Security = mesh.Plaintext
		}
		return a
	}
	denied := mesh.Decision{Reason: mesh.DeniedByRule, Origin: origin}
	for _, tt := range []struct {
		name    string
		denial  mesh.Denial
		arrival mesh.Arrival
		want    mesh.Decision
	}{
		{"everyone", mesh.Denial{Everyone: true, Requests: anything}, from(desk, "10.0.0.1", "/"), denied},
		{"everyone, in plaintext", mesh.Denial{Everyone: true, Requests: anything}, from(mesh.Identity{}, "10.0.0.1", "/"), denied},
		{"everyone, by an ingress", mesh.Denial{Everyone: true, Requests: anything}, from(mesh.Identity{}, "192.0.2.1", "/"), denied},
		{"everyone else", mesh.Denial{Everyone: true, Except: []mesh.Identity{shop}, Requests: anything}, from(desk, "10.0.0.1", "/"), allowed(mesh.AllowedToAnyone, "")},
		{"a namespace", mesh.Denial{Sources: []mesh.Identity{shop}, Requests: anything}, from(desk, "10.0.0.1", "/"), denied},
		{"a namespace but one", mesh.Denial{Sources: []mesh.Identity{shop}, Except: []mesh.Identity{desk}, Requests: anything}, from(desk, "10.0.0.1", "/"), allowed(mesh.AllowedToAnyone, "")},
		{"a namespace, and nobody", mesh.Denial{Sources: []mesh.Identity{shop}, Requests: anything}, from(mesh.Identity{}, "10.0.0.1", "/"), allowed(mesh.AllowedByMode, "")},
		{"a path", mesh.Denial{Everyone: true, Requests: admin}, from(desk, "10.0.0.1", "/admin"), denied},
		{"another path", mesh.Denial{Everyone: true, Requests: admin}, from(desk, "10.0.0.1", "/"), allowed(mesh.AllowedToAnyone, "")},
		{"nothing", mesh.Denial{Everyone: true}, from(desk, "10.0.0.1", "/"), allowed(mesh.AllowedToAnyone, "")},
	} {
		if diff := cmp.Diff(tt.want, port(tt.denial).Decide(tt.arrival)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	closed := port(mesh.Denial{Everyone: true, Requests: admin})
	closed.Ports[0].Protocol = mesh.TCP
	if got := closed.Decide(from(desk, "10.0.0.1", "")); got.Allowed {
		t.Error("a denial of requests lets a connection pass whose requests nobody sees")
	}
	if peers := (mesh.Permission{Sources: []mesh.Identity{shop}, Except: []mesh.Identity{desk}}); peers.Names(desk) || !peers.Names(identity("till")) {
		t.Error("a permission does not keep to its exceptions")
	}
}

// TestNoDenialIsLost takes the rule out of which a proxy can make nothing.
func TestNoDenialIsLost(t *testing.T) {
	denial := mesh.Denial{Origin: drivertest.Origin("AccessPolicy", "shop/no"), Everyone: true, Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Regex: "/(a|b)"}}}}
	view := drivertest.RandomView("", 1)
	inbound := &mesh.Inbound{Ports: []mesh.InboundPort{{
		Port: 80, Protocol: mesh.HTTP, Access: mesh.Access{Anyone: true, Denials: []mesh.Denial{denial}},
		Ingress: []mesh.Ingress{{Ranges: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Requests: anything}},
	}}}
	whole := mesh.NewView(view.Proxy, view.Settings, mesh.Seal(inbound), view.Outbound, view.Egress)
	var parts []mesh.Part
	for _, part := range whole.PartsSince(nil) {
		if part.Name == denial.Origin.Name() {
			parts = append(parts, part)
		}
	}
	if len(parts) != 1 {
		t.Fatalf("the parts of the denial are %v", parts)
	}
	left := whole.Without(map[mesh.Part]struct{}{parts[0]: {}})
	for _, a := range []mesh.Arrival{
		{Port: 80, Security: mesh.MeshTLS, Peer: identity("desk"), Request: get("/c")},
		{Port: 80, Security: mesh.Plaintext, Source: netip.MustParseAddr("192.0.2.1"), Request: get("/c")},
	} {
		if !whole.Inbound.Decide(a).Allowed {
			t.Errorf("with the denial %s is refused", a.Request.Path)
		}
		if left.Inbound.Decide(a).Allowed {
			t.Error("without the denial the port is open")
		}
	}
}
