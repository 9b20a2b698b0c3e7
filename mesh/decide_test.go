package mesh_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

func identity(sa string) mesh.Identity {
	return mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: sa}
}

func get(path string) *mesh.Request {
	return &mesh.Request{Method: "GET", Host: "cart.shop", Path: path}
}

var anything = []mesh.HTTPMatch{{}}

func allowed(reason mesh.Reason, rule string) mesh.Decision {
	d := mesh.Decision{Allowed: true, Reason: reason}
	switch {
	case reason == mesh.AllowedByIngress:
		d.Origin = drivertest.Origin("IngressBackend", rule)
	case rule != "":
		d.Origin = drivertest.Origin("TrafficTarget", rule)
	}
	return d
}

func refused(reason mesh.Reason) mesh.Decision { return mesh.Decision{Reason: reason} }

func TestAccess(t *testing.T) {
	books := []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/books"}}, {Methods: []string{"PUT"}}}
	rules := mesh.Access{Rules: []mesh.Permission{
		{Origin: drivertest.Origin("TrafficTarget", "shop/books"), Sources: []mesh.Identity{identity("desk"), identity("till")}, Requests: books},
		{Origin: drivertest.Origin("TrafficTarget", "shop/all"), Sources: []mesh.Identity{identity("till")}, Requests: anything},
		{Origin: drivertest.Origin("TrafficTarget", "shop/nobody"), Requests: anything},
		{Origin: drivertest.Origin("TrafficTarget", "shop/nothing"), Sources: []mesh.Identity{identity("thief")}},
	}}
	other := identity("desk")
	other.TrustDomain = "other"
	for _, tt := range []struct {
		name    string
		access  mesh.Access
		peer    mesh.Identity
		request *mesh.Request
		want    mesh.Decision
	}{
		{"zero Access", mesh.Access{}, identity("desk"), get("/"), refused(mesh.NoRule)},
		{"anyone", mesh.Access{Anyone: true}, identity("desk"), get("/"), allowed(mesh.AllowedToAnyone, "")},
		{"anyone, and a connection", mesh.Access{Anyone: true}, identity("desk"), nil, allowed(mesh.AllowedToAnyone, "")},
		{"anyone, and nobody asks", mesh.Access{Anyone: true}, mesh.Identity{}, get("/"), refused(mesh.IdentityNeeded)},
		{"anyone, and half an identity asks", mesh.Access{Anyone: true}, mesh.Identity{Namespace: "shop", ServiceAccount: "desk"}, get("/"), refused(mesh.IdentityNeeded)},
		{"first match", rules, identity("desk"), get("/books/1"), allowed(mesh.AllowedByRule, "shop/books")},
		{"second match", rules, identity("desk"), &mesh.Request{Method: "PUT", Path: "/"}, allowed(mesh.AllowedByRule, "shop/books")},
		{"another path", rules, identity("desk"), get("/admin"), refused(mesh.NoRule)},
		{"another rule", rules, identity("till"), get("/admin"), allowed(mesh.AllowedByRule, "shop/all")},
		{"a connection, with a rule for any", rules, identity("till"), nil, allowed(mesh.AllowedByRule, "shop/all")},
		{"a connection, with a rule for requests", rules, identity("desk"), nil, refused(mesh.NoRule)},
		{"no source", rules, identity("guest"), get("/books"), refused(mesh.NoRule)},
		{"no requests", rules, identity("thief"), get("/books"), refused(mesh.NoRule)},
		{"another trust domain", rules, other, get("/books"), refused(mesh.NoRule)},
		{"nobody", rules, mesh.Identity{}, get("/books"), refused(mesh.IdentityNeeded)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.access.Decide(tt.peer, tt.request)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if (mesh.Access{Rules: []mesh.Permission{{Sources: []mesh.Identity{{}}, Requests: anything}}}).Decide(mesh.Identity{}, nil).Allowed {
		t.Error("a rule that names the zero identity lets nobody in particular call")
	}
}

func TestInbound(t *testing.T) {
	tillOnly := mesh.Access{Rules: []mesh.Permission{{Origin: drivertest.Origin("TrafficTarget", "shop/till"), Sources: []mesh.Identity{identity("till")}, Requests: anything}}}
	booksOnly := mesh.Access{Rules: []mesh.Permission{{
		Origin: drivertest.Origin("TrafficTarget", "shop/books"), Sources: []mesh.Identity{identity("till")}, Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/books"}}},
	}}}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	gateway := []mesh.Identity{identity("gateway")}
	inbound := func(mode mesh.TLSMode) *mesh.Inbound {
		return &mesh.Inbound{
			TLS: mode,
			Ports: []mesh.InboundPort{
				{Port: 80, Protocol: mesh.HTTP, Access: booksOnly},
				{Port: 81, Protocol: mesh.TCP, Access: tillOnly},
				{Port: 82, Protocol: mesh.TCP, Access: booksOnly},
				{Port: 90, Protocol: mesh.HTTP, Access: mesh.Access{Anyone: true}},
				{Port: 100, Protocol: mesh.HTTP, Ingress: []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/in"), Ranges: ranges, Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: "/books"}}}}}},
				{Port: 101, Protocol: mesh.HTTP, Ingress: []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/none"), Requests: anything}}},
				{Port: 102, Protocol: mesh.HTTP, Ingress: []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/tls"), TLS: true, Ranges: ranges, SNIHosts: []string{"books.example"}, Requests: anything}}},
				{Port: 103, Protocol: mesh.HTTP, Ingress: []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/skip"), TLS: true, Ranges: ranges, SkipClientCert: true, Requests: anything}}},
				{Port: 104, Protocol: mesh.HTTP, Ingress: []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/who"), TLS: true, SkipClientCert: true, Principals: gateway, Requests: anything}}},
				{Port: 105, Protocol: mesh.HTTP, Ingress: []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/any"), TLS: true, SkipClientCert: true, AnyPrincipal: true, Requests: anything}}},
				{Port: 106, Protocol: mesh.HTTP, Ingress: []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/plain"), Ranges: ranges, Principals: gateway, Requests: anything}}},
				{Port: 107, Protocol: mesh.HTTP, Ingress: []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/both"), TLS: true, Ranges: ranges, Principals: gateway, Requests: anything}}},
			},
			Others: tillOnly,
		}
	}
	near, far := netip.MustParseAddr("10.9.1.1"), netip.MustParseAddr("10.8.1.1")
	meshTLS := func(port uint16, sa, path string) mesh.Arrival {
		return mesh.Arrival{Port: port, Source: far, Security: mesh.MeshTLS, Peer: identity(sa), Request: get(path)}
	}
	plain := func(port uint16, from netip.Addr, path string) mesh.Arrival {
		return mesh.Arrival{Port: port, Source: from, Security: mesh.Plaintext, Request: get(path)}
	}
	tls := func(port uint16, from netip.Addr, name string, peer mesh.Identity) mesh.Arrival {
		return mesh.Arrival{Port: port, Source: from, Security: mesh.OtherTLS, ServerName: name, Peer: peer, Request: get("/")}
	}
	const strict, permissive = mesh.Strict, mesh.Permissive
	nobody, name := mesh.Identity{}, "books.example"
	for _, tt := range []struct {
		name    string
		mode    mesh.TLSMode
		arrival mesh.Arrival
		want    mesh.Decision
	}{
		{"a rule", strict, meshTLS(80, "till", "/books?a"), allowed(mesh.AllowedByRule, "shop/books")},
		{"another path", strict, meshTLS(80, "till", "/"), refused(mesh.NoRule)},
		{"another source", strict, meshTLS(80, "desk", "/books"), refused(mesh.NoRule)},
		{"a connection", strict, meshTLS(81, "till", "/x"), allowed(mesh.AllowedByRule, "shop/till")},
		{"a connection, and a rule for requests", strict, meshTLS(82, "till", "/books"), refused(mesh.NoRule)},
		{"a port that nothing names", strict, meshTLS(7, "till", "/x"), allowed(mesh.AllowedByRule, "shop/till")},
		{"a port that nothing names, by another", strict, meshTLS(7, "desk", "/x"), refused(mesh.NoRule)},
		{"no certificate", strict, mesh.Arrival{Port: 90, Security: mesh.MeshTLS, Request: get("/")}, refused(mesh.IdentityNeeded)},
		{"no certificate, Permissive", permissive, mesh.Arrival{Port: 90, Security: mesh.MeshTLS, Request: get("/")}, refused(mesh.IdentityNeeded)},
		{"anyone", strict, meshTLS(90, "desk", "/"), allowed(mesh.AllowedToAnyone, "")},
		{"plaintext, Strict", strict, plain(90, near, "/"), refused(mesh.MeshTLSOnly)},
		{"plaintext, Permissive", permissive, plain(90, near, "/"), allowed(mesh.AllowedByMode, "")},
		{"other TLS, Permissive", permissive, tls(90, near, name, nobody), allowed(mesh.AllowedByMode, "")},
		{"plaintext, Permissive, with rules", permissive, plain(80, near, "/books"), refused(mesh.IdentityNeeded)},
		{"mesh TLS, Permissive, with rules", permissive, meshTLS(80, "desk", "/books"), refused(mesh.NoRule)},
		{"plaintext, no mode at all", "", plain(90, near, "/"), refused(mesh.MeshTLSOnly)},

		{"ingress", strict, plain(100, near, "/books"), allowed(mesh.AllowedByIngress, "shop/in")},
		{"ingress from IPv4 in IPv6", strict, plain(100, netip.MustParseAddr("::ffff:10.9.1.1"), "/books"), allowed(mesh.AllowedByIngress, "shop/in")},
		{"ingress from elsewhere", strict, plain(100, far, "/books"), refused(mesh.MeshTLSOnly)},
		{"ingress to elsewhere", strict, plain(100, near, "/"), refused(mesh.MeshTLSOnly)},
		{"ingress by TLS where it is plaintext", strict, tls(100, near, name, identity("gateway")), refused(mesh.MeshTLSOnly)},
		{"ingress by mesh TLS", strict, meshTLS(100, "gateway", "/books"), refused(mesh.NoRule)},
		{"ingress TLS by mesh TLS, with a server name asked for", strict, mesh.Arrival{Port: 102, Source: near, Security: mesh.MeshTLS, ServerName: name, Peer: identity("gateway"), Request: get("/")}, refused(mesh.NoRule)},
		{"ingress TLS by mesh TLS, with no certificate asked for", strict, mesh.Arrival{Port: 103, Source: near, Security: mesh.MeshTLS, Peer: identity("gateway"), Request: get("/")}, refused(mesh.NoRule)},
		{"principal by mesh TLS", strict, meshTLS(104, "gateway", "/"), allowed(mesh.AllowedByIngress, "shop/who")},
		{"another principal by mesh TLS", strict, meshTLS(104, "till", "/"), refused(mesh.NoRule)},
		{"no principal by mesh TLS", strict, mesh.Arrival{Port: 105, Source: near, Security: mesh.MeshTLS, Request: get("/")}, refused(mesh.IdentityNeeded)},
		{"ingress without a source", strict, plain(101, near, "/"), refused(mesh.MeshTLSOnly)},
		{"ingress TLS", strict, tls(102, near, name, identity("gateway")), allowed(mesh.AllowedByIngress, "shop/tls")},
		{"ingress TLS without a certificate", strict, tls(102, near, name, nobody), refused(mesh.MeshTLSOnly)},
		{"ingress TLS with another server name", strict, tls(102, near, "b.example", identity("gateway")), refused(mesh.MeshTLSOnly)},
		{"ingress TLS in plaintext", strict, plain(102, near, "/"), refused(mesh.MeshTLSOnly)},
		{"ingress TLS that needs no certificate", strict, tls(103, near, "", nobody), allowed(mesh.AllowedByIngress, "shop/skip")},
		{"ingress TLS that needs no certificate, from elsewhere", strict, tls(103, far, "", nobody), refused(mesh.MeshTLSOnly)},
		{"ingress TLS that needs no certificate, in plaintext", strict, plain(103, near, "/"), refused(mesh.MeshTLSOnly)},
		{"principal", strict, tls(104, far, name, identity("gateway")), allowed(mesh.AllowedByIngress, "shop/who")},
		{"another principal", strict, tls(104, far, name, identity("till")), refused(mesh.MeshTLSOnly)},
		{"no principal", strict, tls(104, far, name, nobody), refused(mesh.MeshTLSOnly)},
		{"any principal", strict, tls(105, far, name, identity("till")), allowed(mesh.AllowedByIngress, "shop/any")},
		{"any principal, and none", strict, tls(105, far, name, nobody), refused(mesh.MeshTLSOnly)},
		{"principal in plaintext", strict, plain(106, near, "/"), refused(mesh.MeshTLSOnly)},
		{"principal from elsewhere", strict, tls(107, far, name, identity("gateway")), refused(mesh.MeshTLSOnly)},
		{"principal and range", strict, tls(107, near, name, identity("gateway")), allowed(mesh.AllowedByIngress, "shop/both")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, inbound(tt.mode).Decide(tt.arrival)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if got := (&mesh.Inbound{}).Decide(meshTLS(80, "till", "/")); got.Allowed {
		t.Error("the zero Inbound lets somebody in")
	}
}

// TestAudit has a port at which anyone is let through and rules are audited, beside one that
// is not audited.
func TestAudit(t *testing.T) {
	in := &mesh.Inbound{TLS: mesh.Permissive, Ports: []mesh.InboundPort{
		{Port: 80, Protocol: mesh.HTTP, Access: mesh.Access{Anyone: true, Audit: true, Rules: []mesh.Permission{
			{Origin: drivertest.Origin("TrafficTarget", "shop/books"), Sources: []mesh.Identity{identity("desk")}, Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/books"}}}},
		}}, Ingress: []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/gate"), Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Requests: anything}}},
		{Port: 81, Protocol: mesh.HTTP, Access: mesh.Access{Anyone: true}},
	}, Others: mesh.Access{Anyone: true, Audit: true}}
	for _, tt := range []struct {
		name    string
		arrival mesh.Arrival
		want    mesh.Decision
		audited bool
	}{
		{"allowed by a rule", mesh.Arrival{Port: 80, Security: mesh.MeshTLS, Peer: identity("desk"), Request: get("/books")}, allowed(mesh.AllowedByRule, "shop/books"), true},
		{"another path", mesh.Arrival{Port: 80, Security: mesh.MeshTLS, Peer: identity("desk"), Request: get("/")}, refused(mesh.NoRule), true},
		{"another caller", mesh.Arrival{Port: 80, Security: mesh.MeshTLS, Peer: identity("thief"), Request: get("/books")}, refused(mesh.NoRule), true},
		{"plaintext", mesh.Arrival{Port: 80, Security: mesh.Plaintext, Request: get("/books")}, refused(mesh.IdentityNeeded), true},
		{"plaintext from a gateway", mesh.Arrival{Port: 80, Security: mesh.Plaintext, Source: netip.MustParseAddr("192.0.2.1"), Request: get("/")}, allowed(mesh.AllowedByIngress, "shop/gate"), true},
		{"a port without rules", mesh.Arrival{Port: 99, Security: mesh.MeshTLS, Peer: identity("desk")}, refused(mesh.NoRule), true},
		{"a port that is not audited", mesh.Arrival{Port: 81, Security: mesh.MeshTLS, Peer: identity("thief"), Request: get("/")}, mesh.Decision{}, false},
	} {
		got, audited := in.Audit(tt.arrival)
		if audited != tt.audited || got != tt.want {
			t.Errorf("%s: %+v, %t, want %+v, %t", tt.name, got, audited, tt.want, tt.audited)
		}
		if !in.Decide(tt.arrival).Allowed {
			t.Errorf("%s: it is refused, not only audited", tt.name)
		}
	}
}

// TestAuditChangesNoHeader has a rule that compares a header.
func TestAuditChangesNoHeader(t *testing.T) {
	port := mesh.InboundPort{Protocol: mesh.HTTP, Access: mesh.Access{Rules: []mesh.Permission{{Requests: []mesh.HTTPMatch{
		{Headers: []mesh.KeyMatch{{Name: "x-ticket", StringMatch: mesh.StringMatch{Exact: "gold"}}}},
	}}}}}
	if got := port.ComparedHeaders(); len(got) != 1 {
		t.Errorf("an enforced rule compares %q, want its header", got)
	}
	port.Access.Anyone, port.Access.Audit = true, true
	if got := port.ComparedHeaders(); len(got) != 0 {
		t.Errorf("an audit changes the form of %q", got)
	}
}

func TestRouteOf(t *testing.T) {
	one, two := []mesh.WeightedBackend{{Backend: "one", Weight: 1}}, []mesh.WeightedBackend{{Backend: "two", Weight: 1}}
	web := &mesh.Destination{Protocol: mesh.GRPC, Routes: []mesh.Route{
		{Origin: drivertest.Origin("HTTPRoute", "shop/split"), Match: mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/books"}}, Backends: one},
		{Origin: drivertest.Origin("HTTPRoute", "later"), Match: mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/books/1"}}, Backends: two},
		{Backends: two},
	}}
	for path, want := range map[string]string{"/books/1": "shop/split", "/": ""} {
		if route, ok := web.RouteOf(get(path)); !ok || route.Name() != want {
			t.Errorf("RouteOf(%s) = %q, %t, want %q", path, route.Name(), ok, want)
		}
	}
	web.Routes = web.Routes[:2]
	if route, ok := web.RouteOf(get("/")); ok {
		t.Errorf("no route matches, and RouteOf() = %+v", route)
	}
	db := &mesh.Destination{Protocol: mesh.TCP, Backends: one, Routes: web.Routes}
	if route, ok := db.RouteOf(nil); !ok || !cmp.Equal(route.Backends, one) {
		t.Errorf("RouteOf(nil) = %+v, %t", route, ok)
	}
}

func TestLimitOf(t *testing.T) {
	all := &mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 1}}
	limits := mesh.RateLimits{Requests: all, Routes: []mesh.RouteLimit{
		{Path: "/books(/.*)?", Limit: mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 2}}},
		{Path: "/books/1", Limit: mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 3}}},
	}}
	for path, want := range map[string]uint32{"/books/1?a=b": 2, "/": 1, "/bookshelf": 1} {
		if got := limits.LimitOf(get(path)); got == nil || got.Tokens != want {
			t.Errorf("LimitOf(%s) = %+v, want %d tokens", path, got, want)
		}
	}
	if got := limits.LimitOf(nil); got != all {
		t.Errorf("LimitOf(nil) = %+v", got)
	}
	if got := (mesh.RateLimits{}).LimitOf(get("/")); got != nil {
		t.Errorf("without limits LimitOf() = %+v", got)
	}
}

func TestEgress(t *testing.T) {
	books := []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/books"}}}
	ranges := []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	elsewhere := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	egress := func(all bool) *mesh.Egress {
		return &mesh.Egress{AllowAll: all, Ports: []mesh.EgressRoutes{
			{Port: 22, Protocol: mesh.EgressTCP},
			{Port: 25, Protocol: mesh.EgressTCP, Ranges: ranges},
			{Port: 80, Protocol: mesh.EgressHTTP, Ranges: ranges, Hosts: []mesh.EgressHost{
				{Host: "*.b.example", Matches: anything},
				{Host: "*.example", Matches: books},
				{Host: "a.example", Matches: anything},
				{Host: "none.example"},
				{Host: "in.example", Within: []mesh.EgressWithin{{Ranges: elsewhere, Matches: books}}},
			}},
			{Port: 443, Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "a.example", Matches: anything}}},
		}}
	}
	web := func(to, host, path string) mesh.Departure {
		return mesh.Departure{To: netip.MustParseAddrPort(to), Request: &mesh.Request{Method: "GET", Host: host, Path: path}}
	}
	raw := func(to, name string) mesh.Departure {
		return mesh.Departure{To: netip.MustParseAddrPort(to), ServerName: name}
	}
	byRule := func(host string) mesh.Decision {
		return mesh.Decision{Allowed: true, Reason: mesh.AllowedByRule, Outside: host}
	}
	unnamed := refused(mesh.EgressClosed)
	for _, tt := range []struct {
		name      string
		departure mesh.Departure
		want      mesh.Decision
	}{
		{"a port for any address", raw("192.0.2.1:22", ""), byRule("")},
		{"an address in a range", raw("203.0.113.7:25", ""), byRule("203.0.113.0/24")},
		{"an IPv6 address in a range", raw("[2001:db8::1]:25", ""), byRule("2001:db8::/32")},
		{"an address in no range", raw("192.0.2.1:25", ""), unnamed},
		{"an exact host", web("192.0.2.1:80", "a.example", "/"), byRule("a.example")},
		{"an exact host with a port, in another case", web("192.0.2.1:80", "A.example:80", "/"), byRule("a.example")},
		{"a wild host", web("192.0.2.1:80", "c.example", "/books"), byRule("*.example")},
		{"a request that no match holds for", web("192.0.2.1:80", "c.example", "/"), mesh.Decision{Reason: mesh.RequestRefused, Outside: "*.example"}},
		{"the longer wild host", web("192.0.2.1:80", "x.b.example", "/"), byRule("*.b.example")},
		{"a host without matches", web("192.0.2.1:80", "none.example", "/"), mesh.Decision{Reason: mesh.RequestRefused, Outside: "none.example"}},
		{"a host at its addresses", web("198.51.100.7:80", "in.example", "/books"), byRule("in.example")},
		{"a host at its addresses, another request", web("198.51.100.7:80", "in.example", "/"), mesh.Decision{Reason: mesh.RequestRefused, Outside: "in.example"}},
		{"a host at another address", web("192.0.2.1:80", "in.example", "/books"), mesh.Decision{Reason: mesh.RequestRefused, Outside: "in.example"}},
		{"another host", web("192.0.2.1:80", "a.test", "/"), unnamed},
		{"another host in a range", web("203.0.113.7:80", "a.test", "/"), byRule("203.0.113.0/24")},
		{"a connection without a request", raw("192.0.2.1:80", "a.example"), unnamed},
		{"a server name", raw("192.0.2.1:443", "a.example"), byRule("a.example")},
		{"another server name", raw("192.0.2.1:443", "b.example"), unnamed},
		{"no server name", raw("192.0.2.1:443", ""), unnamed},
		{"a request's host where server names count", web("192.0.2.1:443", "a.example", "/"), unnamed},
		{"a port that nothing names", raw("203.0.113.7:26", ""), unnamed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, egress(false).Decide(tt.departure)); diff != "" {
				t.Errorf("closed (-want +got):\n%s", diff)
			}
			want := tt.want
			if want == unnamed {
				want = allowed(mesh.EgressOpen, "")
			}
			if diff := cmp.Diff(want, egress(true).Decide(tt.departure)); diff != "" {
				t.Errorf("open (-want +got):\n%s", diff)
			}
		})
	}
	if (&mesh.Egress{}).Decide(raw("192.0.2.1:80", "")).Allowed {
		t.Error("the zero Egress lets something out")
	}
}
