package explain

import (
	"net/netip"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// shop is a mesh of a few workloads, with and without permissive policy mode.
//
//	desk, till     call cart, which is split to cart-v1 and cart-v2
//	db             is headless and TCP, with two pods of two service accounts
//	two            has endpoints of two service accounts, many has many of none
//	legacy         has no sidecar, old speaks no mesh TLS
//
// If it is audited, which includes the permissive mode, cart's rules are only audited.
func shop(permissive, audited bool) *fact.Snapshot {
	permissive = permissive || audited
	b := &builder{settings: mesh.Seal(&mesh.Settings{
		TrustDomain: "cluster.local", PermissivePolicy: permissive, InboundTLS: mesh.Strict, TLS: mesh.TLS{Min: "1.3", Max: "1.3"},
	})}
	b.service("cart", "10.1.0.1", fact.PortSpec{Name: "http", Port: 80, Protocol: mesh.HTTP}, fact.PortSpec{Name: "admin", Port: 81, Protocol: mesh.HTTP})
	b.service("cart-v1", "10.1.0.2", fact.PortSpec{Port: 80, Protocol: mesh.HTTP})
	b.service("cart-v2", "10.1.0.3", fact.PortSpec{Port: 80, Protocol: mesh.HTTP})
	b.service("db", "", fact.PortSpec{Port: 5432, Protocol: mesh.TCP})
	b.service("stock", "10.1.0.5", fact.PortSpec{Port: 80, Protocol: mesh.HTTP})
	b.service("empty", "10.1.0.6", fact.PortSpec{Port: 80, Protocol: mesh.HTTP})
	b.service("two", "10.1.0.8", fact.PortSpec{Port: 80, Protocol: mesh.HTTP})
	b.service("many", "", fact.PortSpec{Port: 80, Protocol: mesh.HTTP})
	b.service("bare", "10.1.0.9", fact.PortSpec{Name: "http", Port: 80, Target: 8080, Protocol: mesh.HTTP})
	b.service("bare-0", "", fact.PortSpec{Name: "http", Port: 80, Target: 8080, Protocol: mesh.HTTP})
	b.service("mail", "", fact.PortSpec{Port: 80, Protocol: mesh.HTTP})

	books := mesh.HTTPMatch{Path: mesh.StringMatch{Regex: "/books.*"}, Methods: []string{"GET"}}
	rule := func(name string, requests []mesh.HTTPMatch, sources ...string) mesh.Permission {
		p := mesh.Permission{Origin: drivertest.Origin("TrafficTarget", "shop/"+name), Requests: requests}
		for _, source := range sources {
			p.Sources = append(p.Sources, identity(source))
		}
		return p
	}
	anything := []mesh.HTTPMatch{{}}
	cart := mesh.Access{Anyone: permissive, Audit: audited}
	db := mesh.Access{Anyone: permissive}
	if !permissive || audited {
		cart.Rules = []mesh.Permission{
			rule("guests", []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/public"}}}, "guest"),
			rule("admins", anything, "admin"),
			rule("books", []mesh.HTTPMatch{books}, "desk", "till"),
		}
		db.Rules = []mesh.Permission{rule("db", anything, "cart")}
	}
	limits := mesh.RateLimits{
		Connections: &mesh.TokenBucket{Tokens: 10, Interval: time.Second},
		Requests:    &mesh.RequestLimit{TokenBucket: mesh.TokenBucket{Tokens: 100, Burst: 20, Interval: time.Minute}},
	}
	cartIn := func(services ...mesh.ServicePort) *mesh.Inbound {
		return mesh.Seal(&mesh.Inbound{TLS: mesh.Strict, Others: mesh.Access{Anyone: permissive}, Ports: []mesh.InboundPort{{
			Port: 8080, Protocol: mesh.HTTP, Services: services, Access: cart, Limits: limits,
			Ingress: []mesh.Ingress{{
				Origin: drivertest.Origin("IngressBackend", "shop/gateway"), Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.9.0/24")},
				Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Prefix: "/public"}}},
			}},
		}}})
	}
	dbIn := func(access mesh.Access) *mesh.Inbound {
		return mesh.Seal(&mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{{
			Port: 5432, Protocol: mesh.TCP, Services: []mesh.ServicePort{port("db", 5432)}, Access: access,
		}}})
	}
	none := mesh.Seal(&mesh.Inbound{TLS: mesh.Strict, Others: mesh.Access{Anyone: permissive}})
	closed := mesh.Seal(&mesh.Egress{})
	egress := mesh.Seal(&mesh.Egress{Ports: []mesh.EgressRoutes{
		{Port: 80, Protocol: mesh.EgressHTTP, Ranges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, Hosts: []mesh.EgressHost{
			{Host: "*.example", Matches: []mesh.HTTPMatch{books}}, {Host: "mail.shop", Matches: anything},
		}},
		{Port: 5432, Protocol: mesh.EgressTCP, Ranges: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("::/0")}},
		{Port: 8081, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{{Host: "*.example", Matches: []mesh.HTTPMatch{books}}}},
		{Port: 8443, Protocol: mesh.EgressTCP, Ranges: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
		{Port: 443, Protocol: mesh.EgressTLS, Hosts: []mesh.EgressHost{{Host: "pay.example", Matches: anything}}},
	}})

	both := []mesh.ServicePort{port("cart", 80), port("cart-v1", 80)}
	full := b.outbound(permissive)
	only := func(names ...string) *mesh.Outbound { return b.only(full, names...) }
	seen := func(o *mesh.Outbound) *mesh.Outbound {
		if permissive {
			return full
		}
		return o
	}
	b.proxy("desk-1", "desk", "10.0.0.1", none, seen(only("shop/cart:80", "shop/stock:80", "shop/empty:80")), egress)
	b.proxy("desk-2", "desk", "10.0.0.2", none, seen(only("shop/cart:80")), egress)
	b.proxy("guest", "guest", "10.0.0.3", none, seen(only("shop/cart:80")), closed)
	b.proxy("thief", "thief", "10.0.0.4", none, seen(only()), mesh.Seal(&mesh.Egress{AllowAll: true}))
	b.proxy("narrow", "narrow", "10.0.0.6", none, only(), closed)
	b.workloads["shop/narrow"].OutboundServices = fact.Services{{Namespace: "bank", Name: "*"}, {Namespace: "shop", Name: "db"}}
	b.proxy("lazy", "lazy", "10.0.0.7", none, only().WithUnknown([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("10.1.0.0/16")}), closed)
	b.proxy("locked", "locked", "10.0.0.5", none, seen(only()), closed)
	b.proxy("cart-v1-1", "cart", "10.0.0.11", cartIn(both...), full, closed)
	b.proxy("cart-v1-2", "cart", "10.0.0.12", cartIn(both...), full, closed)
	b.proxy("cart-v2-1", "cart", "10.0.0.13", cartIn(port("cart-v2", 80)), full, closed)
	b.proxy("db-0", "db", "10.0.0.21", dbIn(db), full, closed)
	b.proxy("db-1", "spare", "10.0.0.22", dbIn(mesh.Access{}), full, closed)
	b.workload("legacy", "legacy", "10.0.0.31", "")
	b.workload("gone", "gone", "", "").Ended = true
	b.plain("old", "old", "10.0.9.1", none, seen(only("shop/cart:80")), closed)
	return b.snapshot()
}

// surroundingFacts are what the Snapshot of the shop leaves out: namespace outside with
// service api, namespace new with nothing, and the endpoint of bare and bare-0.
func surroundingFacts() []fact.Fact {
	of := func(kind string, n mesh.Name, content mesh.Digester) fact.Fact {
		return fact.Fact{Object: mesh.ObjectRef{Kind: kind, Namespace: n.Namespace, Name: n.Name}, Content: content}
	}
	api := mesh.Name{Namespace: "outside", Name: "api"}
	facts := []fact.Fact{
		of("Namespace", mesh.Name{Name: "shop"}, mesh.Seal(&fact.Namespace{Name: "shop", Member: true})),
		of("Namespace", mesh.Name{Name: "new"}, mesh.Seal(&fact.Namespace{Name: "new", Member: true})),
		of("Namespace", mesh.Name{Name: "outside"}, mesh.Seal(&fact.Namespace{Name: "outside"})),
		of("Service", api, mesh.Seal(&fact.Service{Name: api, Ports: []fact.PortSpec{{Name: "http", Port: 14001, Protocol: mesh.HTTP}}})),
	}
	facts = append(facts,
		of("TCPRoute", name("admin"), mesh.Seal(&fact.RouteGroup{Name: name("admin"), TCP: &fact.TCPMatch{Ports: []uint16{9901}}})),
		of("TrafficTarget", name("narrow"), mesh.Seal(&fact.AccessRule{
			Name: name("narrow"), Destination: name("cart"), Sources: []fact.ServiceAccount{name("desk")},
			Rules: []fact.AccessRoutes{{Kind: "HTTPRouteGroup", Group: "all"}, {Kind: "TCPRoute", Group: "admin"}},
		})))
	for _, service := range []string{"bare", "bare-0"} {
		slice := mesh.Seal(&fact.EndpointSlice{
			Name: name(service + "-x"), Service: service, Ports: []fact.SlicePort{{Name: "http", Port: 8080}},
			Endpoints: []fact.SliceEndpoint{
				{Addresses: addresses("10.0.0.31"), Workload: "legacy", Ready: true, Serving: true},
				{Addresses: addresses("10.0.0.32"), Workload: "gone"},
			},
		})
		facts = append(facts, of("EndpointSlice", slice.Name, slice), of("EndpointSlice", slice.Name, slice))
	}
	return facts
}

func identity(sa string) mesh.Identity {
	return mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: sa}
}

func name(n string) mesh.Name { return mesh.Name{Namespace: "shop", Name: n} }

func port(service string, number uint16) mesh.ServicePort {
	return mesh.ServicePort{Name: name(service), Port: number}
}

// builder collects the parts of a Snapshot.
type builder struct {
	settings  *mesh.Settings
	services  map[string]*fact.Service
	workloads map[string]*fact.Workload
	views     map[string]*mesh.View
}

func addresses(texts ...string) []netip.Addr {
	var addrs []netip.Addr
	for _, text := range texts {
		if text != "" {
			addrs = append(addrs, netip.MustParseAddr(text))
		}
	}
	return addrs
}

func (b *builder) service(n, address string, ports ...fact.PortSpec) {
	s := &fact.Service{Name: name(n), Addresses: addresses(address), Ports: ports, Headless: n == "db" || n == "many" || n == "bare-0"}
	if n == "mail" {
		s.ExternalName = "smtp.example"
	}
	if b.services == nil {
		b.services = make(map[string]*fact.Service)
	}
	b.services[s.String()] = mesh.Seal(s)
}

func (b *builder) workload(n, account, address, class string) *fact.Workload {
	if b.workloads == nil {
		b.workloads = make(map[string]*fact.Workload)
	}
	w := &fact.Workload{Name: name(n), UID: "uid-" + n, ServiceAccount: account, Addresses: addresses(address), Class: class}
	b.workloads[w.String()] = w
	return w
}

func (b *builder) proxy(n, account, address string, in *mesh.Inbound, out *mesh.Outbound, egress *mesh.Egress) {
	b.view(n, account, address, "envoy", false, in, out, egress)
}

func (b *builder) plain(n, account, address string, in *mesh.Inbound, out *mesh.Outbound, egress *mesh.Egress) {
	b.view(n, account, address, "pipy", true, in, out, egress)
}

func (b *builder) view(n, account, address, class string, plaintext bool, in *mesh.Inbound, out *mesh.Outbound, egress *mesh.Egress) {
	w := b.workload(n, account, address, class)
	if b.views == nil {
		b.views = make(map[string]*mesh.View)
	}
	b.views[w.UID] = mesh.NewView(mesh.Seal(&mesh.Proxy{
		Name: w.Name, UID: w.UID, Class: class, Identity: identity(account), Addresses: w.Addresses, Plaintext: plaintext,
	}), b.settings, in, out, egress)
}

// outbound is all that there is to call.
func (b *builder) outbound(permissive bool) *mesh.Outbound {
	endpoint := func(n, account, address string, port uint16) mesh.Endpoint {
		e := mesh.Endpoint{Addresses: addresses(address), Port: port, Workload: "shop/" + n}
		if account != "" {
			e.ServerName = identity(account).DNSName()
		}
		return e
	}
	one, two := endpoint("cart-v1-1", "cart", "10.0.0.11", 8080), endpoint("cart-v1-2", "cart", "10.0.0.12", 8080)
	draining := endpoint("cart-v1-0", "cart", "10.0.0.10", 8080)
	draining.Draining = true
	backends := make(map[string]*mesh.Backend)
	backend := func(at mesh.ServicePort, suffix string, policy mesh.UpstreamPolicy, endpoints ...mesh.Endpoint) {
		backends[at.String()+suffix] = mesh.Seal(&mesh.Backend{Name: at.String() + suffix, Service: at, Protocol: mesh.HTTP, Endpoints: endpoints, Policy: policy})
	}
	backend(port("cart-v1", 80), "", mesh.UpstreamPolicy{
		MaxConnections: new(uint32(100)), ConnectTimeout: time.Second, Ejection: &mesh.Ejection{ConsecutiveErrors: 5},
		LoadBalancing: mesh.LoadBalancing{Policy: mesh.LeastRequest, PreferZone: true},
	}, draining, one, two)
	backend(port("cart-v2", 80), "", mesh.UpstreamPolicy{}, endpoint("cart-v2-1", "cart", "10.0.0.13", 8080))
	backend(port("stock", 80), "", mesh.UpstreamPolicy{}, endpoint("legacy", "", "10.0.0.31", 8080))
	backend(port("two", 80), "", mesh.UpstreamPolicy{}, endpoint("desk-1", "desk", "10.0.0.1", 8080), endpoint("guest", "guest", "10.0.0.3", 8080))
	backend(port("empty", 80), "", mesh.UpstreamPolicy{})
	backend(port("db", 5432), "@db-0", mesh.UpstreamPolicy{}, endpoint("db-0", "db", "10.0.0.21", 5432))
	backend(port("db", 5432), "@db-1", mesh.UpstreamPolicy{}, endpoint("db-1", "spare", "10.0.0.22", 5432))

	share := func(name string, weight uint32) mesh.WeightedBackend {
		return mesh.WeightedBackend{Backend: name, Weight: weight}
	}
	destinations := make(map[string]*mesh.Destination)
	web := func(n, address string, routes ...mesh.Route) {
		at := port(n, 80)
		destinations[at.String()] = mesh.Seal(&mesh.Destination{
			Name: at.String(), Service: at, Addresses: addresses(address), Port: 80, Protocol: mesh.HTTP, Routes: routes,
		})
	}
	web("cart", "10.1.0.1",
		mesh.Route{
			Origin: drivertest.Origin("HTTPRoute", "shop/canary"), Match: mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: "x-canary", StringMatch: mesh.StringMatch{Present: true}}}},
			Backends: []mesh.WeightedBackend{share("shop/cart-v1:80", 0), share("shop/cart-v2:80", 1)},
		},
		mesh.Route{
			Origin: drivertest.Origin("TrafficSplit", "shop/split"), Backends: []mesh.WeightedBackend{share("shop/cart-v1:80", 90), share("shop/cart-v2:80", 10)}, Timeout: 15 * time.Second,
			Retry: &mesh.Retry{On: []string{"5xx", "connect-failure"}, Attempts: 3, PerTry: time.Second, Backoff: 20 * time.Millisecond},
		},
	)
	web("stock", "10.1.0.5", mesh.Route{Backends: []mesh.WeightedBackend{share("shop/stock:80", 1)}})
	web("empty", "10.1.0.6", mesh.Route{Backends: []mesh.WeightedBackend{share("shop/empty:80", 1)}})
	web("two", "10.1.0.8", mesh.Route{Backends: []mesh.WeightedBackend{share("shop/two:80", 1)}})
	for i := range 7 {
		n := port("many", 80).String() + "@many-" + string(rune('0'+i))
		address := "10.0.2." + string(rune('1'+i))
		backend(port("many", 80), n[len("shop/many:80"):], mesh.UpstreamPolicy{}, endpoint("many-"+string(rune('0'+i)), "", address, 80))
		destinations[n] = mesh.Seal(&mesh.Destination{
			Name: n, Service: port("many", 80), Addresses: addresses(address), Port: 80, Protocol: mesh.HTTP,
			Routes: []mesh.Route{{Backends: []mesh.WeightedBackend{share(n, 1)}}},
		})
	}
	for i, address := range []string{"10.0.0.21", "10.0.0.22"} {
		n := port("db", 5432).String() + "@db-" + string(rune('0'+i))
		destinations[n] = mesh.Seal(&mesh.Destination{
			Name: n, Service: port("db", 5432), Addresses: addresses(address), Port: 5432, Protocol: mesh.TCP,
			Backends: []mesh.WeightedBackend{share(n, 1)},
		})
	}
	return mesh.NewOutbound("*", mesh.TableOf(destinations), mesh.TableOf(backends))
}

// only leaves of an Outbound the named Destinations.
func (b *builder) only(all *mesh.Outbound, names ...string) *mesh.Outbound {
	some := make(map[string]*mesh.Destination)
	for _, n := range names {
		some[n], _ = all.Destinations.Get(n)
	}
	return mesh.NewOutbound("some", mesh.TableOf(some), all.Backends)
}

func (b *builder) snapshot() *fact.Snapshot {
	for _, w := range b.workloads {
		mesh.Seal(w)
	}
	problem := func(kind, namespace, n string) (string, *fact.Problems) {
		ref := mesh.ObjectRef{Kind: kind, Namespace: namespace, Name: n}
		return ref.String(), mesh.Seal(&fact.Problems{Object: ref, List: []mesh.Problem{{Object: ref, Reason: "Wrong", Message: "it is wrong"}}})
	}
	problems := make(map[string]*fact.Problems)
	for _, p := range [][3]string{
		{"TrafficTarget", "shop", "typo"}, {"TrafficSplit", "shop", "split"}, {"Service", "shop", "other"}, {"TrafficTarget", "elsewhere", "typo"},
	} {
		key, list := problem(p[0], p[1], p[2])
		problems[key] = list
	}
	return &fact.Snapshot{
		Settings: b.settings, Views: fact.ViewsOf(b.views), Services: mesh.TableOf(b.services),
		Workloads: mesh.TableOf(b.workloads), Problems: mesh.TableOf(problems),
	}
}
