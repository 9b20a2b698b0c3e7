package catalog

import (
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// shop is a mesh with a client and two servers, one for requests and one for
// connections.
func shop() []fact.Fact {
	return slices.Concat(
		list(settings(), namespace("shop"), pod("shop/web-1", "web", "10.1.0.1")),
		server("shop/cart", "10.96.0.2", "10.1.0.2", port(80, 8080, mesh.HTTP)),
		server("shop/db", "10.96.0.3", "10.1.0.3", port(5432, 5432, mesh.TCPServerFirst)),
	)
}

func TestAccess(t *testing.T) {
	byPath := routes("shop/paths", "/buy", "/look.*")
	all := `
		shop/cart:80 http at [10.96.0.2]:80
		  any -> shop/cart:80*1
		shop/db:5432 tcp-server-first at [10.96.0.3]:5432
		  -> shop/db:5432*1
		shop/cart:80 = [10.1.0.2]:8080/cart.shop.sa.td
		shop/db:5432 = [10.1.0.3]:5432/db.shop.sa.td`
	cart := `
		shop/cart:80 http at [10.96.0.2]:80
		  any -> shop/cart:80*1
		shop/cart:80 = [10.1.0.2]:8080/cart.shop.sa.td`
	db := `
		shop/db:5432 tcp-server-first at [10.96.0.3]:5432
		  -> shop/db:5432*1
		shop/db:5432 = [10.1.0.3]:5432/db.shop.sa.td`
	client := list(pod("shop/web-1", "web", "10.1.0.1"))
	twoPorts := server("shop/cart", "10.96.0.2", "10.1.0.2", port(80, 8080, mesh.HTTP), portNamed("admin", port(81, 9090, mesh.HTTP)))
	runJoinCases(t, shop(), []joinCase{
		{
			name:  "permissive policy lets everybody call everybody",
			facts: [][]fact.Fact{list(settings(permissive))},
			pod:   "shop/cart-1",
			// A pod without a service offers the ports that it declares: web-1 declares none.
			outbound: all,
			inbound: `
				Strict
				others from anyone
				8080 http for [shop/cart:80] from anyone`,
		},
		{
			name:     "a rule waits for the end of permissive policy",
			facts:    [][]fact.Fact{list(settings(permissive), byPath, allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths"))},
			outbound: all,
		},
		{
			name: "what no rule allows is denied",
			pod:  "shop/cart-1",
			// Not even the pod itself may call.
			outbound: "nothing",
			inbound: `
				Strict
				others from nobody
				8080 http for [shop/cart:80] from nobody`,
		},
		{
			name:  "requests by path",
			facts: [][]fact.Fact{list(byPath, allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths"))},
			pod:   "shop/cart-1",
			inbound: `
				Strict
				others from nobody
				8080 http for [shop/cart:80] from shop/t(web.shop.sa.td: /buy,/look.*)`,
		},
		{
			name:     "the client finds what it may call",
			facts:    [][]fact.Fact{list(byPath, allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths"))},
			outbound: cart,
		},
		{
			name:  "one match of a group",
			facts: [][]fact.Fact{list(byPath, allow("shop/t", "shop/cart", []string{"shop/web", "shop/db"}, "HTTPRouteGroup/paths/buy"))},
			pod:   "shop/cart-1",
			inbound: `
				Strict
				others from nobody
				8080 http for [shop/cart:80] from shop/t(db.shop.sa.td,web.shop.sa.td: /buy)`,
		},
		{
			name:     "a match that is not there",
			facts:    [][]fact.Fact{list(byPath, allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths/sell"))},
			pod:      "shop/cart-1",
			inbound:  "Strict\nothers from nobody\n8080 http for [shop/cart:80] from nobody",
			problems: `TrafficTarget shop/t: NotFound spec.rules[0].matches[0]`,
		},
		{
			name:     "a group that is not there",
			facts:    [][]fact.Fact{list(allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths", "TCPRoute/paths"))},
			pod:      "shop/cart-1",
			inbound:  "Strict\nothers from nobody\n8080 http for [shop/cart:80] from nobody",
			problems: "TrafficTarget shop/t: NotFound spec.rules[0].name\nTrafficTarget shop/t: NotFound spec.rules[1].name",
		},
		{
			name:     "a rule that allows nothing shows the client nothing",
			facts:    [][]fact.Fact{list(allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths"))},
			outbound: "nothing",
			problems: "TrafficTarget shop/t: NotFound spec.rules[0].name",
		},
		{
			name:    "a rule without sources",
			facts:   [][]fact.Fact{list(byPath, allow("shop/t", "shop/cart", nil, "HTTPRouteGroup/paths"))},
			pod:     "shop/cart-1",
			inbound: "Strict\nothers from nobody\n8080 http for [shop/cart:80] from nobody",
		},
		{
			name:     "connections to a port",
			facts:    [][]fact.Fact{list(tcpRoute("shop/sql", 5432), allow("shop/t", "shop/db", []string{"shop/web"}, "TCPRoute/sql"))},
			outbound: db,
		},
		{
			name:  "connections to a port, of the server",
			facts: [][]fact.Fact{list(tcpRoute("shop/sql", 5432), allow("shop/t", "shop/db", []string{"shop/web"}, "TCPRoute/sql"))},
			pod:   "shop/db-1",
			inbound: `
				Strict
				others from nobody
				5432 tcp-server-first for [shop/db:5432] from shop/t(web.shop.sa.td: any)`,
		},
		{
			name:  "connections to a port that no service leads to",
			facts: [][]fact.Fact{list(tcpRoute("shop/sql", 9999), allow("shop/t", "shop/db", []string{"shop/web"}, "TCPRoute/sql"))},
			pod:   "shop/db-1",
			inbound: `
				Strict
				others from nobody
				5432 tcp-server-first for [shop/db:5432] from nobody
				9999 tcp for [] from shop/t(web.shop.sa.td: any)`,
		},
		{
			name:  "connections to any port",
			facts: [][]fact.Fact{list(tcpRoute("shop/sql"), allow("shop/t", "shop/db", []string{"shop/web"}, "TCPRoute/sql"))},
			pod:   "shop/db-1",
			inbound: `
				Strict
				others from shop/t(web.shop.sa.td: any)
				5432 tcp-server-first for [shop/db:5432] from shop/t(web.shop.sa.td: any)`,
		},
		{
			name:  "a TCPRoute allows nothing on a port of requests",
			facts: [][]fact.Fact{list(tcpRoute("shop/any", 8080, 9999), allow("shop/t", "shop/cart", []string{"shop/web"}, "TCPRoute/any"))},
			pod:   "shop/cart-1",
			inbound: `
				Strict
				others from nobody
				8080 http for [shop/cart:80] from nobody
				9999 tcp for [] from shop/t(web.shop.sa.td: any)`,
			problems: `TrafficTarget shop/t: NoEffect spec.rules[0]`,
		},
		{
			name: "the ports of a TCPRoute narrow the requests beside it",
			facts: [][]fact.Fact{twoPorts, list(byPath, tcpRoute("shop/main", 8080),
				allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths", "TCPRoute/main"))},
			pod: "shop/cart-1",
			inbound: `
				Strict
				others from nobody
				8080 http for [shop/cart:80] from shop/t(web.shop.sa.td: /buy,/look.*)
				9090 http for [shop/cart:81] from nobody`,
		},
		{
			name: "a TCPRoute without ports narrows nothing",
			facts: [][]fact.Fact{twoPorts, list(byPath, tcpRoute("shop/any"),
				allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths", "TCPRoute/any"))},
			pod: "shop/cart-1",
			inbound: `
				Strict
				others from shop/t(web.shop.sa.td: any)
				8080 http for [shop/cart:80] from shop/t(web.shop.sa.td: /buy,/look.*)
				9090 http for [shop/cart:81] from shop/t(web.shop.sa.td: /buy,/look.*)`,
		},
		{
			name: "a TCPRoute that is not there leaves no port to the requests beside it",
			facts: [][]fact.Fact{list(byPath,
				allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths", "TCPRoute/main"))},
			pod:      "shop/cart-1",
			inbound:  "Strict\nothers from nobody\n8080 http for [shop/cart:80] from nobody",
			problems: `TrafficTarget shop/t: NotFound spec.rules[1].name`,
		},
		{
			name: "each rule has ports of its own",
			facts: [][]fact.Fact{twoPorts, list(byPath, tcpRoute("shop/main", 8080), tcpRoute("shop/other", 9090),
				allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths/buy", "TCPRoute/main"),
				allow("shop/u", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths/look.*", "TCPRoute/other"))},
			pod: "shop/cart-1",
			inbound: `
				Strict
				others from nobody
				8080 http for [shop/cart:80] from shop/t(web.shop.sa.td: /buy)
				9090 http for [shop/cart:81] from shop/u(web.shop.sa.td: /look.*)`,
		},
		{
			name: "requests narrowed to ports that carry none",
			facts: [][]fact.Fact{list(byPath, tcpRoute("shop/main", 9999),
				allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths", "TCPRoute/main"))},
			pod: "shop/cart-1",
			inbound: `
				Strict
				others from nobody
				8080 http for [shop/cart:80] from nobody
				9999 tcp for [] from shop/t(web.shop.sa.td: any)`,
			problems: `TrafficTarget shop/t: NoEffect spec.rules[0]`,
		},
		{
			name: "a TCPRoute without ports does not open a port of requests",
			facts: [][]fact.Fact{list(tcpRoute("shop/any"),
				allow("shop/t", "shop/cart", []string{"shop/web"}, "TCPRoute/any"))},
			pod: "shop/cart-1",
			inbound: `
				Strict
				others from shop/t(web.shop.sa.td: any)
				8080 http for [shop/cart:80] from nobody`,
			problems: `TrafficTarget shop/t: NoEffect spec.rules[0]`,
		},
		{
			name: "but another rule may open it",
			facts: [][]fact.Fact{list(byPath, tcpRoute("shop/any"),
				allow("shop/t", "shop/cart", []string{"shop/web"}, "TCPRoute/any"),
				allow("shop/u", "shop/cart", []string{"shop/web", "shop/db"}, "HTTPRouteGroup/paths"))},
		},
		{
			name:     "an HTTPRouteGroup allows nothing where there are no requests",
			facts:    [][]fact.Fact{list(byPath, allow("shop/t", "shop/db", []string{"shop/web"}, "HTTPRouteGroup/paths"))},
			pod:      "shop/db-1",
			inbound:  "Strict\nothers from nobody\n5432 tcp-server-first for [shop/db:5432] from nobody",
			problems: `TrafficTarget shop/t: NoEffect spec.rules[0]`,
		},
		{
			name: "accounts that nobody runs as, and namespaces that are not of the mesh",
			facts: [][]fact.Fact{list(byPath, namespace("out", func(n *fact.Namespace) { n.Member = false }),
				allow("shop/t", "shop/cart", []string{"shop/nobody", "out/web", "none/web"}, "HTTPRouteGroup/paths"))},
			problems: `
				TrafficTarget shop/t: NotFound spec.sources[0]
				TrafficTarget shop/t: NotFound spec.sources[1]
				TrafficTarget shop/t: NotFound spec.sources[2]`,
		},
		{
			name:    "a rule in a namespace that is not of the mesh",
			facts:   [][]fact.Fact{list(routes("out/paths", "/"), allow("out/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths"))},
			pod:     "shop/cart-1",
			inbound: "Strict\nothers from nobody\n8080 http for [shop/cart:80] from nobody",
		},
		{
			name: "of the endpoints of two accounts those of the one that may be called",
			facts: [][]fact.Fact{client, list(
				pod("shop/cart-2", "two", "10.1.0.9"), slice("shop/cart", []fact.PortSpec{port(80, 8080, mesh.HTTP)}, ready("cart-1", "10.1.0.2"), ready("cart-2", "10.1.0.9")),
				byPath, allow("shop/t", "shop/two", []string{"shop/web"}, "HTTPRouteGroup/paths"),
			)},
			outbound: `
				shop/cart:80 http at [10.96.0.2]:80
				  any -> shop/cart:80*1
				shop/cart:80 = [10.1.0.9]:8080/two.shop.sa.td`,
		},
		{
			name: "of the endpoints of two accounts all, where both may be called",
			facts: [][]fact.Fact{client, list(
				pod("shop/cart-2", "two", "10.1.0.9"), slice("shop/cart", []fact.PortSpec{port(80, 8080, mesh.HTTP)}, ready("cart-1", "10.1.0.2"), ready("cart-2", "10.1.0.9")),
				byPath, allow("shop/t", "shop/two", []string{"shop/web"}, "HTTPRouteGroup/paths"), allow("shop/u", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths"),
			)},
			outbound: `
				shop/cart:80 http at [10.96.0.2]:80
				  any -> shop/cart:80*1
				shop/cart:80 = [10.1.0.2]:8080/cart.shop.sa.td [10.1.0.9]:8080/two.shop.sa.td`,
		},
		{
			name: "a share that nobody lets the client call answers for itself",
			facts: [][]fact.Fact{
				server("shop/old", "10.96.0.8", "10.1.0.8", port(80, 8080, mesh.HTTP)),
				list(byPath, allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths"), split("shop/s", "cart", "cart=1 old=1")),
			},
			outbound: `
				shop/cart:80 http at [10.96.0.2]:80
				  any -> shop/cart:80*1 shop/old:80*1 by shop/s
				shop/cart:80 = [10.1.0.2]:8080/cart.shop.sa.td
				shop/old:80 = [10.1.0.8]:8080/old.shop.sa.td`,
		},
		{
			name: "a headless service offers the pods that may be called",
			facts: [][]fact.Fact{list(
				pod("shop/db-2", "two", "10.1.0.9"), service("shop/db", "", port(5432, 5432, mesh.TCP)),
				slice("shop/db", []fact.PortSpec{port(5432, 5432, mesh.TCP)}, ready("db-1", "10.1.0.3"), ready("db-2", "10.1.0.9")),
				tcpRoute("shop/sql"), allow("shop/t", "shop/two", []string{"shop/web"}, "TCPRoute/sql"),
			)},
			outbound: `
				shop/db:5432@db-2 tcp at [10.1.0.9]:5432
				  -> shop/db:5432@db-2*1
				shop/db:5432@db-2 = [10.1.0.9]:5432/two.shop.sa.td`,
		},
	})
}

// TestAudit checks which access a pod's proxy has, and that an audit which has no effect has a
// Problem.
func TestAudit(t *testing.T) {
	audited := func(n *fact.Namespace) { n.Audit = true }
	rule := func(edits ...func(*fact.AccessRule)) fact.Fact {
		f := allow("shop/t", "shop/cart", []string{"shop/web"}, "HTTPRouteGroup/paths")
		made := *f.Content.(*fact.AccessRule)
		for _, edit := range edits {
			edit(&made)
		}
		f.Content = mesh.Seal(&made)
		return f
	}
	auditedRule := func(a *fact.AccessRule) { a.Audit = true }
	paths, sql := routes("shop/paths", "/buy"), tcpRoute("shop/sql", 9000)
	tcp := allow("shop/sql", "shop/cart", []string{"shop/web"}, "TCPRoute/sql")
	const open = "Strict\nothers from anyone\n8080 http for [shop/cart:80] from anyone"
	const audit = "Strict\nothers from anyone, audited\n8080 http for [shop/cart:80] from anyone, audited shop/t(web.shop.sa.td: /buy)"
	runJoinCases(t, shop(), []joinCase{
		{name: "a namespace", facts: [][]fact.Fact{list(settings(permissive), namespace("shop", audited), paths, rule())}, pod: "shop/cart-1", inbound: audit},
		{name: "a rule", facts: [][]fact.Fact{list(settings(permissive), paths, rule(auditedRule))}, pod: "shop/cart-1", inbound: audit},
		{name: "another pod of the namespace", facts: [][]fact.Fact{list(settings(permissive), paths, rule(auditedRule))}, pod: "shop/web-1", inbound: "Strict\nothers from anyone"},
		{name: "a rule of a namespace outside the mesh", facts: [][]fact.Fact{list(settings(permissive), paths, func() fact.Fact {
			f := rule(auditedRule)
			f.Object.Namespace = "out"
			made := *f.Content.(*fact.AccessRule)
			made.Name.Namespace = "out"
			f.Content = mesh.Seal(&made)
			return f
		}())}, pod: "shop/cart-1", inbound: open},
		{
			name:  "ports that only a rule names",
			facts: [][]fact.Fact{list(settings(permissive), namespace("shop", audited), sql, tcp)}, pod: "shop/cart-1",
			inbound: "Strict\nothers from anyone, audited\n8080 http for [shop/cart:80] from anyone, audited\n9000 tcp for [] from anyone, audited shop/sql(web.shop.sa.td: any)",
		},
		{name: "no audit", facts: [][]fact.Fact{list(settings(permissive), paths, rule())}, pod: "shop/cart-1", inbound: open},
		{
			name:     "rules that are enforced anyway",
			facts:    [][]fact.Fact{list(namespace("shop", audited), paths, rule(auditedRule))},
			pod:      "shop/cart-1",
			inbound:  "Strict\nothers from nobody\n8080 http for [shop/cart:80] from shop/t(web.shop.sa.td: /buy)",
			problems: "Namespace shop: NoEffect metadata.annotations[openservicemesh.io/access-mode]\nTrafficTarget shop/t: NoEffect metadata.annotations[openservicemesh.io/access-mode]",
		},
	})
	for _, tt := range []struct {
		name  string
		facts []fact.Fact
		want  bool
	}{
		{"policies are enforced", nil, true},
		{"permissive policy", list(settings(permissive)), false},
	} {
		s := Build(slices.Concat(shop(), list(namespace("shop", audited), paths, rule(auditedRule)), tt.facts))
		for _, object := range []string{"Namespace shop", "TrafficTarget shop/t"} {
			problems, _ := s.Problems.Get(object)
			has := problems != nil && slices.ContainsFunc(problems.List, func(p mesh.Problem) bool { return p.Reason == ReasonNoEffect && p.Field == fieldAccessMode })
			if has != tt.want {
				t.Errorf("%s: %s has the Problem: %t, want %t", tt.name, object, has, tt.want)
			}
		}
	}
}

// TestInboundTLS checks that a pod's mode overrides that of its namespace, and that the latter
// overrides the mesh's.
func TestInboundTLS(t *testing.T) {
	mode := func(m mesh.TLSMode) func(*fact.Workload) { return func(w *fact.Workload) { w.InboundTLS = m } }
	of := func(m mesh.TLSMode) func(*fact.Namespace) { return func(n *fact.Namespace) { n.InboundTLS = m } }
	all := func(m mesh.TLSMode) func(*mesh.Settings) { return func(s *mesh.Settings) { s.InboundTLS = m } }
	plaintext := func(s *mesh.Settings) { s.PlaintextClasses = []string{"envoy"} }
	web := func(m mesh.TLSMode) fact.Fact { return pod("shop/web-1", "web", "10.1.0.1", mode(m)) }
	for name, tt := range map[string]struct {
		facts []fact.Fact
		want  mesh.TLSMode
	}{
		"the mesh's":                    {list(settings(all(mesh.Permissive)), namespace("shop"), web("")), mesh.Permissive},
		"the namespace's":               {list(settings(all(mesh.Permissive)), namespace("shop", of(mesh.Strict)), web("")), mesh.Strict},
		"the pod's":                     {list(settings(all(mesh.Permissive)), namespace("shop", of(mesh.Strict)), web(mesh.Permissive)), mesh.Permissive},
		"nobody's":                      {list(settings(all("")), namespace("shop"), web("")), mesh.Strict},
		"without settings":              {list(namespace("shop"), web("")), mesh.Strict},
		"of a class without mesh TLS":   {list(settings(plaintext), namespace("shop"), web("")), mesh.Permissive},
		"of a class without, as Strict": {list(settings(plaintext), namespace("shop"), web(mesh.Strict)), mesh.Permissive},
	} {
		view, ok := Build(tt.facts).Views.Get("uid-shop/web-1")
		if !ok || view.Inbound.TLS != tt.want {
			t.Errorf("%s: the mode is %+v, want %s", name, view, tt.want)
		}
		// Without settings nothing passes.
		if name == "without settings" && (view.Inbound.Others.Anyone || view.Egress.AllowAll) {
			t.Errorf("without settings something passes: %s %s", inboundText(view.Inbound), egressText(view.Egress))
		}
	}
}
