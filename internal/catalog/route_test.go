package catalog

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// versions are a service and two that may take shares of it.
func versions() []fact.Fact {
	facts := town()
	for _, v := range []struct{ name, last string }{{"root", "10"}, {"v1", "11"}, {"v2", "12"}} {
		facts = append(facts, server("shop/"+v.name, "10.96.0."+v.last, "10.1.0."+v.last, port(80, 8080, mesh.HTTP))...)
	}
	return facts
}

func TestSplits(t *testing.T) {
	// Of v1 and v2 nothing changes.
	const own = `
		shop/v1:80 http at [10.96.0.11]:80
		  any -> shop/v1:80*1
		shop/v2:80 http at [10.96.0.12]:80
		  any -> shop/v2:80*1
		shop/root:80 = [10.1.0.10]:8080/root.shop.sa.td
		shop/v1:80 = [10.1.0.11]:8080/v1.shop.sa.td
		shop/v2:80 = [10.1.0.12]:8080/v2.shop.sa.td`
	const root = "shop/root:80 http at [10.96.0.10]:80\n"
	created := func(at int64) func(*fact.Split) { return func(s *fact.Split) { s.Created = at } }
	matching := func(groups ...string) func(*fact.Split) { return func(s *fact.Split) { s.Matches = groups } }
	cases := []joinCase{
		{name: "90 to 10", facts: [][]fact.Fact{list(split("shop/s", "root", "v1=90 v2=10"))}, outbound: "  any -> shop/v1:80*90 shop/v2:80*10 by shop/s"},
		{name: "a share for its own", facts: [][]fact.Fact{list(split("shop/s", "root", "root=1 v2=1"))}, outbound: "  any -> shop/root:80*1 shop/v2:80*1 by shop/s"},
		{name: "a weight of zero", facts: [][]fact.Fact{list(split("shop/s", "root", "v1=0 v2=1"))}, outbound: "  any -> shop/v2:80*1 by shop/s"},
		{
			name: "all weights of zero", facts: [][]fact.Fact{list(split("shop/s", "root", "v1=0 v2=0"))}, outbound: "  any -> nothing by shop/s",
			problems: "TrafficSplit shop/s: NoEffect spec.backends",
		},
		{
			name: "matches go before the rest",
			facts: [][]fact.Fact{list(routes("shop/g", "/buy", "/look"), routes("shop/h", "/sell"),
				split("shop/b", "root", "v1=1"), split("shop/late", "root", "v2=1", matching("h"), created(2)), split("shop/early", "root", "v2=3 v1=1", matching("g"), created(1)))},
			outbound: `
				  /buy -> shop/v2:80*3 shop/v1:80*1 by shop/early
				  /look -> shop/v2:80*3 shop/v1:80*1 by shop/early
				  /sell -> shop/v2:80*1 by shop/late
				  any -> shop/v1:80*1 by shop/b`,
		},
		{
			name:     "with matches alone the rest is the service's own",
			facts:    [][]fact.Fact{list(routes("shop/g", "/buy"), split("shop/s", "root", "v2=1", matching("g")))},
			outbound: "  /buy -> shop/v2:80*1 by shop/s\n  any -> shop/root:80*1",
		},
		{
			name:     "matches that are not there split nothing",
			facts:    [][]fact.Fact{list(split("shop/s", "root", "v2=1", matching("g")))},
			outbound: "  any -> shop/root:80*1",
			problems: "TrafficSplit shop/s: NotFound spec.matches[0]",
		},
		{
			name:     "of two for one service the oldest wins",
			facts:    [][]fact.Fact{list(split("shop/a", "root", "v1=1", created(2)), split("shop/b", "root", "v2=1", created(1)))},
			outbound: "  any -> shop/v2:80*1 by shop/b",
			problems: "TrafficSplit shop/a: Conflict spec.service",
		},
		{
			name:     "of two as old the first by name wins",
			facts:    [][]fact.Fact{list(split("shop/b", "root", "v2=1"), split("shop/a", "root", "v1=1"))},
			outbound: "  any -> shop/v1:80*1 by shop/a",
			problems: "TrafficSplit shop/b: Conflict spec.service",
		},
		{
			name:     "the share of a service that is not there goes to the others",
			facts:    [][]fact.Fact{list(split("shop/s", "root", "v1=90 none=10"))},
			outbound: "  any -> shop/v1:80*90 by shop/s",
			problems: "TrafficSplit shop/s: NotFound spec.backends[1].service",
		},
		{
			name:     "a service that is not there has no shares",
			facts:    [][]fact.Fact{list(split("shop/s", "none", "v1=1"))},
			outbound: "  any -> shop/root:80*1",
			problems: "TrafficSplit shop/s: NotFound spec.service",
		},
		{
			name:     "a cycle is not followed",
			facts:    [][]fact.Fact{list(split("shop/s", "root", "v1=1"), split("shop/v1", "v1", "v2=1"), split("shop/v2", "v2", "root=1"))},
			outbound: "  any -> shop/v1:80*1 by shop/s",
			problems: `
				TrafficSplit shop/s: Cycle spec.backends
				TrafficSplit shop/v1: Cycle spec.backends
				TrafficSplit shop/v2: Cycle spec.backends`,
		},
		{
			name:     "a split of a share does not count",
			facts:    [][]fact.Fact{list(split("shop/s", "root", "v1=1"), split("shop/v1", "v1", "v1=1 v2=1"))},
			outbound: "  any -> shop/v1:80*1 by shop/s",
			problems: "TrafficSplit shop/s: NoEffect spec.backends[0].service",
		},
	}
	for i := range cases {
		// The splits of others change their lines.
		if cases[i].name == "a cycle is not followed" || cases[i].name == "a split of a share does not count" {
			cases[i].outbound = ""
			continue
		}
		cases[i].outbound = root + strings.TrimPrefix(cases[i].outbound, "\n") + own
	}
	runJoinCases(t, versions(), cases)
}

func TestSplitPorts(t *testing.T) {
	http, admin := port(80, 8080, mesh.HTTP), fact.PortSpec{Name: "admin", Port: 81, Target: 8081, Protocol: mesh.HTTP}
	at := func(p fact.PortSpec, number uint16) fact.PortSpec { p.Port = number; return p }
	root := func(ports ...fact.PortSpec) []fact.Fact {
		return append(server("shop/root", "10.96.0.10", "10.1.0.10", ports...), split("shop/s", "root", "v1=1"))
	}
	v1 := func(ports ...fact.PortSpec) []fact.Fact {
		return server("shop/v1", "10.96.0.11", "10.1.0.11", ports...)
	}
	for _, tt := range []struct {
		name  string
		facts [][]fact.Fact
		// shares are those of the root's port 80.
		shares, problems string
	}{
		{"by number", [][]fact.Fact{root(http), v1(at(admin, 80), at(http, 81))}, "shop/v1:80*1", ""},
		{"by name", [][]fact.Fact{root(http), v1(at(admin, 82), at(http, 83))}, "shop/v1:83*1", ""},
		{"the only one", [][]fact.Fact{root(http), v1(admin)}, "shop/v1:81*1", ""},
		{"none", [][]fact.Fact{root(http), v1(at(admin, 82), at(admin, 83))}, "nothing", "TrafficSplit shop/s: NoSuchPort spec.backends[0].service"},
		{"none for one of two", [][]fact.Fact{root(http, admin), v1(http, at(port(0, 0, mesh.TCP), 90))}, "shop/v1:80*1", "TrafficSplit shop/s: NoSuchPort spec.backends[0].service"},
		{"connections", [][]fact.Fact{root(port(80, 80, mesh.TCP)), v1(port(80, 80, mesh.TCP))}, "shop/v1:80*1", ""},
		{"to a headless service", [][]fact.Fact{root(http), list(service("shop/v1", "", http))}, "nothing", "TrafficSplit shop/s: NoEffect spec.backends[0].service"},
		{"to another name of a service", [][]fact.Fact{root(http), v1(http), list(external("shop/v2", "v1.shop.svc.cluster.local.", http), external("shop/v1", "real.shop.svc.cluster.local", http), service("shop/real", "10.96.0.12", http))}, "shop/real:80*1", ""},
		{"to another name of an endpoint", [][]fact.Fact{root(http), list(external("shop/v1", "real-0.real.shop.svc.cluster.local", http), service("shop/real", "", http))}, "nothing", "TrafficSplit shop/s: NoEffect spec.backends[0].service"},
		{"to another name of no service", [][]fact.Fact{root(http), list(external("shop/v1", "real.shop.svc.cluster.local", http))}, "shop/v1:80*1", "Service shop/v1: OutsideMesh spec.ports[0]"},
		{"to names of each other", [][]fact.Fact{root(http), list(external("shop/v1", "v2.shop.svc.cluster.local", http), external("shop/v2", "v1.shop.svc.cluster.local", http))}, "shop/v1:80*1", "Service shop/v1: OutsideMesh spec.ports[0]\nService shop/v2: OutsideMesh spec.ports[0]"},
		{"to an outside host", [][]fact.Fact{root(http), list(external("shop/v1", "example.com", http))}, "shop/v1:80*1", "Service shop/v1: OutsideMesh spec.ports[0]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			facts := town()
			for _, some := range tt.facts {
				facts = append(facts, some...)
			}
			s := Build(facts)
			view, _ := s.Views.Get("uid-shop/web-1")
			d, ok := view.Outbound.Destinations.Get("shop/root:80")
			if !ok {
				t.Fatal("the root is no destination")
			}
			route, _ := d.RouteOf(&mesh.Request{Method: "GET", Path: "/"})
			if got := sharesText(route.Backends); got != tt.shares {
				t.Errorf("it sends to %s, want %s", got, tt.shares)
			}
			for _, share := range route.Backends {
				if _, ok := view.Outbound.Backends.Get(share.Backend); !ok {
					t.Errorf("there is no Backend %s", share.Backend)
				}
			}
			if got := problemsText(t, s); got != tt.problems {
				t.Errorf("the Problems are %q, want %q", got, tt.problems)
			}
		})
	}
}

func TestSplitsWithoutEffect(t *testing.T) {
	headless := list(service("shop/root", "", port(80, 8080, mesh.HTTP)), slice("shop/root", []fact.PortSpec{port(80, 8080, mesh.HTTP)}, ready("root-1", "10.1.0.10")))
	runJoinCases(t, versions()[:3], []joinCase{
		{
			name: "of a headless service", facts: [][]fact.Fact{versions()[3:], headless, list(split("shop/s", "root", "v1=1"))},
			outbound: `
				shop/root:80@root-1 http at [10.1.0.10]:8080
				  any -> shop/root:80@root-1*1
				shop/v1:80 http at [10.96.0.11]:80
				  any -> shop/v1:80*1
				shop/v2:80 http at [10.96.0.12]:80
				  any -> shop/v2:80*1
				shop/root:80@root-1 = [10.1.0.10]:8080/root.shop.sa.td
				shop/v1:80 = [10.1.0.11]:8080/v1.shop.sa.td
				shop/v2:80 = [10.1.0.12]:8080/v2.shop.sa.td`,
			problems: "TrafficSplit shop/s: NoEffect spec.service",
		},
		{
			name:     "of a name for an outside host",
			facts:    [][]fact.Fact{list(settings(permissive, open), external("shop/root", "example.com", port(80, 80, mesh.HTTP)), split("shop/s", "root", "root=1"))},
			outbound: "nothing",
			problems: "TrafficSplit shop/s: NoEffect spec.service",
		},
		{
			name: "with matches of connections",
			facts: [][]fact.Fact{server("shop/root", "10.96.0.10", "10.1.0.10", port(80, 80, mesh.TCP)), list(routes("shop/g", "/buy"), service("shop/v1", "10.96.0.11", port(80, 80, mesh.TCP)),
				split("shop/s", "root", "v1=1", func(s *fact.Split) { s.Matches = []string{"g"} }))},
			outbound: `
				shop/root:80 tcp at [10.96.0.10]:80
				  -> shop/root:80*1
				shop/v1:80 tcp at [10.96.0.11]:80
				  -> shop/v1:80*1
				shop/root:80 = [10.1.0.10]:80/root.shop.sa.td
				shop/v1:80 =`,
			problems: "TrafficSplit shop/s: NoEffect spec.matches",
		},
	})
}

// retry makes a source retry its requests to services.
func retry(name, source string, attempts uint32, created int64, services ...string) fact.Fact {
	rule := &fact.RetryRule{Name: parseName(name), Age: fact.Age{Created: created}, Source: parseName(source), Retry: mesh.Retry{On: []string{"5xx"}, Attempts: attempts}}
	for _, service := range services {
		rule.Destinations = append(rule.Destinations, parseName(service))
	}
	return factOf("Retry", name, rule, nil)
}

func TestRetries(t *testing.T) {
	const plain = `
		shop/cart:80 http at [10.96.0.2]:80
		  any -> shop/cart:80*1
		shop/db:5432 tcp at [10.96.0.3]:5432
		  -> shop/db:5432*1
		shop/cart:80 = [10.1.0.2]:8080/cart.shop.sa.td
		shop/db:5432 = [10.1.0.3]:5432/db.shop.sa.td`
	const again = `
		shop/cart:80 http at [10.96.0.2]:80
		  any -> shop/cart:80*1 retry 3
		shop/db:5432 tcp at [10.96.0.3]:5432
		  -> shop/db:5432*1
		shop/cart:80 = [10.1.0.2]:8080/cart.shop.sa.td
		shop/db:5432 = [10.1.0.3]:5432/db.shop.sa.td`
	facts := append(town(), server("shop/cart", "10.96.0.2", "10.1.0.2", port(80, 8080, mesh.HTTP))...)
	facts = append(facts, server("shop/db", "10.96.0.3", "10.1.0.3", port(5432, 5432, mesh.TCP))...)
	rule := retry("shop/r", "shop/web", 3, 1, "shop/cart")
	runJoinCases(t, facts, []joinCase{
		{name: "of the source", facts: [][]fact.Fact{list(rule)}, outbound: again},
		{name: "of another account", facts: [][]fact.Fact{list(rule)}, pod: "shop/cart-1", outbound: plain},
		{
			name: "with rules about who may call", outbound: `
				shop/cart:80 http at [10.96.0.2]:80
				  any -> shop/cart:80*1 retry 3
				shop/cart:80 = [10.1.0.2]:8080/cart.shop.sa.td`,
			facts: [][]fact.Fact{list(settings(), rule, routes("shop/g", "/"), allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/g"))},
		},
		{name: "of what may not be called", facts: [][]fact.Fact{list(settings(), rule)}, outbound: "nothing"},
		{
			name: "the oldest wins", facts: [][]fact.Fact{list(rule, retry("shop/a", "shop/web", 5, 2, "shop/cart"))}, outbound: again,
			problems: "Retry shop/a: Conflict spec.destinations[0]",
		},
		{
			name: "connections are not tried again", facts: [][]fact.Fact{list(retry("shop/r", "shop/web", 3, 1, "shop/db", "shop/none"))}, outbound: plain,
			problems: "Retry shop/r: NoEffect spec.destinations[0]\nRetry shop/r: NotFound spec.destinations[1]",
		},
		{
			name: "switched off", facts: [][]fact.Fact{list(settings(permissive, func(s *mesh.Settings) { s.RetryPolicy = false }), rule)}, outbound: plain,
			problems: "Retry shop/r: Disabled",
		},
	})
}

// upstream configures calls to a host's service.
func upstream(name, host string, created int64, edits ...func(*fact.UpstreamSetting)) fact.Fact {
	return factOf("UpstreamTrafficSetting", name, &fact.UpstreamSetting{Name: parseName(name), Age: fact.Age{Created: created}, Host: host}, edits)
}

func most(connections uint32) func(*fact.UpstreamSetting) {
	return func(s *fact.UpstreamSetting) { s.Policy.MaxConnections = &connections }
}

func limit(tokens uint32) func(*fact.UpstreamSetting) {
	return func(s *fact.UpstreamSetting) {
		s.Limits.Connections = &mesh.TokenBucket{Tokens: tokens, Interval: time.Second}
	}
}

// TestConnectTimeout has services with and without a timeout of their own.
func TestConnectTimeout(t *testing.T) {
	facts := slices.Concat(
		town(func(s *mesh.Settings) { s.ConnectTimeout = 2 * time.Second }),
		server("shop/cart", "10.96.0.2", "10.1.0.2", port(80, 8080, mesh.HTTP)), server("shop/db", "10.96.0.3", "10.1.0.3", port(3306, 3306, mesh.TCP)),
		list(upstream("shop/u", "db", 1, func(s *fact.UpstreamSetting) { s.Policy.ConnectTimeout = time.Minute })),
	)
	view, _ := Build(facts).Views.Get("uid-shop/web-1")
	for name, want := range map[string]time.Duration{"shop/cart:80": 2 * time.Second, "shop/db:3306": time.Minute} {
		if b, ok := view.Outbound.Backends.Get(name); !ok || b.Policy.ConnectTimeout != want {
			t.Errorf("the Backend %s is %+v, want a timeout of %s", name, b, want)
		}
	}
}

func TestUpstreamSettings(t *testing.T) {
	web := port(80, 8080, mesh.HTTP)
	called := func(policy string) string {
		return "shop/cart:80 http at [10.96.0.2]:80\n  any -> shop/cart:80*1\nshop/cart:80 = [10.1.0.2]:8080/cart.shop.sa.td" + policy
	}
	taken := func(limits string) string {
		return "Strict\nothers from anyone\n8080 http for [shop/cart:80] from anyone" + limits
	}
	both := list(service("shop/also", "10.96.0.9", port(81, 8080, mesh.HTTP)), slice("shop/also", []fact.PortSpec{port(81, 8080, mesh.HTTP)}, ready("cart-1", "10.1.0.2")))
	runJoinCases(t, append(town(), server("shop/cart", "10.96.0.2", "10.1.0.2", web)...), []joinCase{
		{name: "connections", facts: [][]fact.Fact{list(upstream("shop/u", "cart.shop.svc.cluster.local", 1, most(7)))}, outbound: called(" max 7")},
		{name: "by a short name", facts: [][]fact.Fact{list(upstream("shop/u", "cart", 1, most(7)))}, outbound: called(" max 7")},
		{name: "by a name with its namespace", facts: [][]fact.Fact{list(upstream("shop/u", "Cart.shop", 1, most(7)))}, outbound: called(" max 7")},
		{
			name: "of another namespace", facts: [][]fact.Fact{list(namespace("bank"), upstream("bank/u", "cart.shop.svc.cluster.local", 1, most(7)))}, outbound: called(""),
			problems: "UpstreamTrafficSetting bank/u: NotFound spec.host",
		},
		{
			name: "the oldest wins", facts: [][]fact.Fact{list(upstream("shop/a", "cart", 2, most(8)), upstream("shop/b", "cart", 1, most(7)))}, outbound: called(" max 7"),
			problems: "UpstreamTrafficSetting shop/a: Conflict spec.host",
		},
		{
			name: "limits of two ports of one service that lead to a port", pod: "shop/cart-1",
			facts: [][]fact.Fact{list(service("shop/cart", "10.96.0.2", web, fact.PortSpec{Name: "more", Port: 81, Target: 8080, Protocol: mesh.HTTP}),
				slice("shop/cart", []fact.PortSpec{web, {Name: "more", Target: 8080}}, ready("cart-1", "10.1.0.2")), upstream("shop/u", "cart", 1, limit(5)))},
			inbound: "Strict\nothers from anyone\n8080 http for [shop/cart:80 shop/cart:81] from anyone limit 5",
		},
		{
			name: "limits of one that does not count", facts: [][]fact.Fact{both, list(upstream("shop/a", "cart", 2, limit(8)), upstream("shop/b", "cart", 1, limit(5)), upstream("shop/v", "also", 1, limit(6)))},
			problems: "UpstreamTrafficSetting shop/a: Conflict spec.host\nUpstreamTrafficSetting shop/b: Conflict spec.rateLimit",
		},
		{
			name: "of a service that is not there", facts: [][]fact.Fact{list(upstream("shop/u", "none", 1, most(7)))}, outbound: called(""),
			problems: "UpstreamTrafficSetting shop/u: NotFound spec.host",
		},
		{name: "limits are the server's", facts: [][]fact.Fact{list(upstream("shop/u", "cart", 1, limit(5)))}, pod: "shop/cart-1", inbound: taken(" limit 5"), outbound: called("")},
		{
			name: "limits of two services that lead to a port", facts: [][]fact.Fact{both, list(upstream("shop/u", "cart", 1, limit(5)), upstream("shop/v", "also", 1, limit(6)))},
			pod: "shop/cart-1", inbound: "Strict\nothers from anyone\n8080 http for [shop/also:81 shop/cart:80] from anyone limit 6",
			problems: "UpstreamTrafficSetting shop/u: Conflict spec.rateLimit",
		},
		{
			name: "limits of one of two", facts: [][]fact.Fact{both, list(upstream("shop/u", "cart", 1, limit(5)), upstream("shop/v", "also", 1, most(6)))},
			pod: "shop/cart-1", inbound: "Strict\nothers from anyone\n8080 http for [shop/also:81 shop/cart:80] from anyone limit 5",
		},
		{
			name: "the time of a request, and what distinguishes clients",
			facts: [][]fact.Fact{list(upstream("shop/u", "cart", 1, func(s *fact.UpstreamSetting) {
				s.Policy.RequestTimeout = time.Second
				s.Policy.LoadBalancing = mesh.LoadBalancing{Policy: mesh.Maglev, HashOn: []mesh.HashOn{{Header: "x"}}}
			}))},
			outbound: `
				shop/cart:80 http at [10.96.0.2]:80 hash [{x  0s false}]
				  any -> shop/cart:80*1 timeout 1s
				shop/cart:80 = [10.1.0.2]:8080/cart.shop.sa.td`,
		},
	})
}

// TestServiceAffinity checks that the service's affinity applies unless a setting overrides it.
func TestServiceAffinity(t *testing.T) {
	web := []fact.PortSpec{port(80, 8080, mesh.HTTP)}
	cart := func(edit func(*fact.Service)) fact.Fact {
		return factOf("Service", "shop/cart", &fact.Service{Name: parseName("shop/cart"), Addresses: addresses("10.96.0.2"), Ports: web}, []func(*fact.Service){edit})
	}
	sticky := cart(func(s *fact.Service) { s.StickyClients = true })
	for name, tt := range map[string]struct {
		facts []fact.Fact
		want  mesh.LoadBalancing
	}{
		"none":              {list(cart(func(*fact.Service) {})), mesh.LoadBalancing{}},
		"zone":              {list(cart(func(s *fact.Service) { s.PreferZone = true })), mesh.LoadBalancing{PreferZone: true}},
		"sticky":            {list(sticky), mesh.LoadBalancing{Policy: mesh.RingHash, HashOn: []mesh.HashOn{{SourceIP: true}}}},
		"both":              {list(cart(func(s *fact.Service) { s.PreferZone, s.StickyClients = true, true })), mesh.LoadBalancing{Policy: mesh.RingHash, HashOn: []mesh.HashOn{{SourceIP: true}}, PreferZone: true}},
		"zone of a setting": {list(cart(func(*fact.Service) {}), upstream("shop/u", "cart", 1, func(s *fact.UpstreamSetting) { s.Policy.LoadBalancing.PreferZone = true })), mesh.LoadBalancing{PreferZone: true}},
		"of a setting":      {list(sticky, upstream("shop/u", "cart", 1, func(s *fact.UpstreamSetting) { s.Policy.LoadBalancing.Policy = mesh.Random })), mesh.LoadBalancing{Policy: mesh.Random}},
	} {
		view, _ := Build(append(town(), tt.facts...)).Views.Get("uid-shop/web-1")
		b, _ := view.Outbound.Backends.Get("shop/cart:80")
		if asJSON(b.Policy.LoadBalancing) != asJSON(tt.want) {
			t.Errorf("%s: it is %s, want %s", name, asJSON(b.Policy.LoadBalancing), asJSON(tt.want))
		}
	}
}
