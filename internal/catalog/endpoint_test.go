package catalog

import (
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// town returns a permissive mesh with a client.
func town(edits ...func(*mesh.Settings)) []fact.Fact {
	return list(settings(append([]func(*mesh.Settings){permissive}, edits...)...), namespace("shop"), pod("shop/web-1", "web", "10.1.0.1"))
}

func TestEndpoints(t *testing.T) {
	web := []fact.PortSpec{port(80, 8080, mesh.HTTP)}
	both := func(w *fact.Workload) { w.Addresses = addresses("10.1.0.2", "fd00::2") }
	two := list(pod("shop/cart-1", "cart", "10.1.0.2", both), pod("shop/cart-2", "cart", "10.1.0.3"), service("shop/cart", "10.96.0.2", web...))
	const head = "shop/cart:80 http at [10.96.0.2]:80\n  any -> shop/cart:80*1\nshop/cart:80 ="
	one := func(e fact.SliceEndpoint) []fact.Fact {
		return list(slice("shop/cart", web, ready("cart-1", "10.1.0.2"), e))
	}
	const first = head + " [10.1.0.2]:8080/cart.shop.sa.td"
	outside := func(w *fact.Workload) { w.Class = "" }
	reported := func(w *fact.Workload) { w.Ready = true }
	unready := func(workload, address string) fact.SliceEndpoint {
		return fact.SliceEndpoint{Workload: workload, Addresses: addresses(address)}
	}
	runJoinCases(t, town(), []joinCase{
		{name: "ready", facts: [][]fact.Fact{two, one(ready("cart-2", "10.1.0.3"))}, outbound: first + " [10.1.0.3]:8080/cart.shop.sa.td"},
		{name: "not ready", facts: [][]fact.Fact{two, one(fact.SliceEndpoint{Workload: "cart-2", Addresses: addresses("10.1.0.3")})}, outbound: first},
		{name: "ending", facts: [][]fact.Fact{two, one(ending("cart-2", "10.1.0.3"))}, outbound: first + " [10.1.0.3]:8080/cart.shop.sa.td/draining"},
		{
			name:  "all are ending",
			facts: [][]fact.Fact{two, list(slice("shop/cart", web, ending("cart-1", "10.1.0.2"), ending("cart-2", "10.1.0.3")))}, outbound: first + " [10.1.0.3]:8080/cart.shop.sa.td",
		},
		{
			name: "ended, and serves no more", outbound: first,
			facts: [][]fact.Fact{two, one(fact.SliceEndpoint{Workload: "cart-2", Addresses: addresses("10.1.0.3"), Terminating: true})},
		},
		{
			// Kubernetes writes this if a service publishes addresses that are not ready.
			name: "published as ready while it ends", outbound: first + " [10.1.0.3]:8080/cart.shop.sa.td",
			facts: [][]fact.Fact{two, one(fact.SliceEndpoint{Workload: "cart-2", Addresses: addresses("10.1.0.3"), Ready: true, Terminating: true})},
		},
		{
			name: "of nodes that do not report", outbound: first + " [10.1.0.3]:8080/cart.shop.sa.td",
			facts: [][]fact.Fact{two, list(pod("shop/cart-1", "cart", "10.1.0.2", reported), pod("shop/cart-2", "cart", "10.1.0.3", reported),
				slice("shop/cart", web, unready("cart-1", "10.1.0.2"), unready("cart-2", "10.1.0.3")))},
		},
		{
			name: "of a node that does not report", outbound: first,
			facts: [][]fact.Fact{two, list(pod("shop/cart-2", "cart", "10.1.0.3", reported)), one(unready("cart-2", "10.1.0.3"))},
		},
		{
			name: "of a node that does not report, beside one that ends", outbound: first,
			facts: [][]fact.Fact{two, list(pod("shop/cart-2", "cart", "10.1.0.3", reported),
				slice("shop/cart", web, ending("cart-1", "10.1.0.2"), unready("cart-2", "10.1.0.3")))},
		},
		{
			name: "not ready, and its node says so", outbound: head,
			facts: [][]fact.Fact{two, list(slice("shop/cart", web, unready("cart-1", "10.1.0.2")))},
		},
		{
			name: "ended, and its node does not report", outbound: head,
			facts: [][]fact.Fact{two, list(pod("shop/cart-1", "cart", "10.1.0.2", reported),
				slice("shop/cart", web, fact.SliceEndpoint{Workload: "cart-1", Addresses: addresses("10.1.0.2"), Terminating: true}))},
		},
		{name: "no address", facts: [][]fact.Fact{two, one(fact.SliceEndpoint{Workload: "cart-2", Ready: true})}, outbound: first},
		{name: "nobody", facts: [][]fact.Fact{two, list(slice("shop/cart", web))}, outbound: head},
		{name: "no slice", facts: [][]fact.Fact{two}, outbound: head},
		{
			name: "a slice without the port", outbound: head,
			facts: [][]fact.Fact{two, list(slice("shop/cart", []fact.PortSpec{port(81, 81, mesh.TCP)}, ready("cart-1", "10.1.0.2")))},
		},
		{
			name: "both families, ready in one of them",
			facts: [][]fact.Fact{two, list(
				slice("shop/cart", web, ending("cart-1", "10.1.0.2"), ready("cart-2", "10.1.0.3")),
				another("cart-6", slice("shop/cart", web, ready("cart-1", "fd00::2"))),
			)},
			outbound: head + " [10.1.0.2 fd00::2]:8080/cart.shop.sa.td [10.1.0.3]:8080/cart.shop.sa.td",
		},
		{
			name: "in two slices, with two addresses of a family", outbound: first + " [10.1.0.3]:8080/cart.shop.sa.td",
			facts: [][]fact.Fact{two, one(ready("cart-2", "10.1.0.3")), list(another("cart-2", slice("shop/cart", web, ready("cart-1", "10.1.0.9"))))},
		},
		{
			name: "both families, two addresses of each",
			facts: [][]fact.Fact{two, list(
				slice("shop/cart", web, ready("cart-1", "10.1.0.2")), another("cart-2", slice("shop/cart", web, ready("cart-1", "10.1.0.9"))),
				another("cart-3", slice("shop/cart", web, ready("cart-1", "fd00::2"))), another("cart-4", slice("shop/cart", web, ready("cart-1", "fd00::9"))),
			)},
			outbound: head + " [10.1.0.2 fd00::2]:8080/cart.shop.sa.td",
		},
		{
			name: "ending in both families",
			facts: [][]fact.Fact{two, list(
				slice("shop/cart", web, ready("cart-2", "10.1.0.3"), ending("cart-1", "10.1.0.2")), another("cart-6", slice("shop/cart", web, ending("cart-1", "fd00::2"))),
			)},
			outbound: head + " [10.1.0.2 fd00::2]:8080/cart.shop.sa.td/draining [10.1.0.3]:8080/cart.shop.sa.td",
		},
		{
			name: "an address that is not the pod's own", facts: [][]fact.Fact{two, one(ready("cart-2", "10.96.0.1"))}, outbound: first,
			problems: `Service shop/cart: OutsideMesh spec.ports[0]`,
		},
		{
			name: "two services with one address", outbound: first,
			facts:    [][]fact.Fact{two, one(fact.SliceEndpoint{}), list(service("shop/late", "10.96.0.2", web...), slice("shop/late", web, ready("cart-2", "10.1.0.3")))},
			problems: `Service shop/late: Conflict spec.ports[0]`,
		},
		{
			name:  "an endpoint without a sidecar gets nothing",
			facts: [][]fact.Fact{two, one(ready("cart-2", "10.1.0.3")), list(pod("shop/cart-2", "cart", "10.1.0.3", outside))}, outbound: first,
			problems: `Service shop/cart: OutsideMesh spec.ports[0]`,
		},
		{
			name: "an endpoint that is no pod gets nothing", facts: [][]fact.Fact{two, one(ready("", "192.0.2.1"))}, outbound: first,
			problems: `Service shop/cart: OutsideMesh spec.ports[0]`,
		},
		{
			name:  "endpoints without a sidecar are called in plaintext where all may leave the mesh",
			facts: [][]fact.Fact{list(settings(permissive, open)), two, one(ready("cart-2", "10.1.0.3")), list(pod("shop/cart-2", "cart", "10.1.0.3", outside))},
			// Its key is the name of its workload.
			outbound: first + " [10.1.0.3]:8080/plaintext",
		},
		{
			name:     "and so are those that are no pods",
			facts:    [][]fact.Fact{list(settings(permissive, open)), two, one(ready("", "192.0.2.1")), list(another("again", slice("shop/cart", web, ready("", "192.0.2.1"))))},
			outbound: first + " [192.0.2.1]:8080/plaintext",
		},
		{
			name:  "a pod that is not known never gets plaintext",
			facts: [][]fact.Fact{list(settings(permissive, open)), two, one(ready("cart-9", "10.1.0.9"))}, outbound: first,
			problems: `Service shop/cart: OutsideMesh spec.ports[0]`,
		},
		{
			name: "of a class that speaks no mesh TLS",
			facts: [][]fact.Fact{
				list(settings(permissive, func(s *mesh.Settings) { s.PlaintextClasses = []string{"plain"} })), two, one(ready("cart-2", "10.1.0.3")),
				list(pod("shop/cart-2", "cart", "10.1.0.3", func(w *fact.Workload) { w.Class = "plain" })),
			},
			outbound: first + " [10.1.0.3]:8080/plaintext",
		},
		{
			name:  "a name for an outside host is no destination",
			facts: [][]fact.Fact{list(external("shop/else", "example.com", port(443, 443, mesh.TCP)))}, outbound: "nothing",
			problems: `Service shop/else: OutsideMesh spec.ports[0]`,
		},
	})
}

func external(name, host string, ports ...fact.PortSpec) fact.Fact {
	return factOf("Service", name, &fact.Service{Name: parseName(name), ExternalName: host, Ports: ports}, nil)
}

func TestPods(t *testing.T) {
	named := func(ports ...fact.WorkloadPort) func(*fact.Workload) {
		return func(w *fact.Workload) { w.Ports = ports }
	}
	sql, web := port(5432, 5432, mesh.TCP), port(80, 8080, mesh.HTTP)
	statefulSet := func(name string, p fact.PortSpec) []fact.Fact {
		return list(service(name, "", p), slice(name, []fact.PortSpec{p}, ready("db-0", "10.1.0.5"), ready("db-1", "10.1.0.6")))
	}
	databases := list(pod("shop/db-0", "db", "10.1.0.5"), pod("shop/db-1", "db", "10.1.0.6"))
	runJoinCases(t, town(), []joinCase{
		{
			name:  "a headless service has a destination for each pod",
			facts: [][]fact.Fact{databases, statefulSet("shop/db", sql)},
			outbound: `
				shop/db:5432@db-0 tcp at [10.1.0.5]:5432
				  -> shop/db:5432@db-0*1
				shop/db:5432@db-1 tcp at [10.1.0.6]:5432
				  -> shop/db:5432@db-1*1
				shop/db:5432@db-0 = [10.1.0.5]:5432/db.shop.sa.td
				shop/db:5432@db-1 = [10.1.0.6]:5432/db.shop.sa.td`,
		},
		{
			name:  "of two headless services the first has the pods",
			facts: [][]fact.Fact{databases, statefulSet("shop/db", sql), statefulSet("shop/also", port(5432, 5432, mesh.TCP))},
			outbound: `
				shop/also:5432@db-0 tcp at [10.1.0.5]:5432
				  -> shop/also:5432@db-0*1
				shop/also:5432@db-1 tcp at [10.1.0.6]:5432
				  -> shop/also:5432@db-1*1
				shop/also:5432@db-0 = [10.1.0.5]:5432/db.shop.sa.td
				shop/also:5432@db-1 = [10.1.0.6]:5432/db.shop.sa.td
				shop/db:5432@db-0 = [10.1.0.5]:5432/db.shop.sa.td
				shop/db:5432@db-1 = [10.1.0.6]:5432/db.shop.sa.td`,
		},
		{
			name: "of two headless services the second has the pod that is not ready for the first",
			facts: [][]fact.Fact{
				databases, statefulSet("shop/db", sql),
				list(service("shop/also", "", sql), slice("shop/also", []fact.PortSpec{sql}, fact.SliceEndpoint{Workload: "db-0", Addresses: addresses("10.1.0.5")}, ready("db-1", "10.1.0.6"))),
			},
			outbound: `
				shop/also:5432@db-1 tcp at [10.1.0.6]:5432
				  -> shop/also:5432@db-1*1
				shop/db:5432@db-0 tcp at [10.1.0.5]:5432
				  -> shop/db:5432@db-0*1
				shop/also:5432@db-1 = [10.1.0.6]:5432/db.shop.sa.td
				shop/db:5432@db-0 = [10.1.0.5]:5432/db.shop.sa.td
				shop/db:5432@db-1 = [10.1.0.6]:5432/db.shop.sa.td`,
		},
		{
			name: "two services with two protocols for one port of the pods",
			pod:  "shop/cart-1",
			facts: [][]fact.Fact{
				server("shop/cart", "10.96.0.2", "10.1.0.2", web),
				list(service("shop/zebra", "10.96.0.3", port(81, 8080, mesh.TCP)), slice("shop/zebra", []fact.PortSpec{port(81, 8080, mesh.TCP)}, ready("cart-1", "10.1.0.2"))),
			},
			inbound: `
				Strict
				others from anyone
				8080 http for [shop/cart:80 shop/zebra:81] from anyone`,
			problems: `Service shop/zebra: Conflict spec.ports[0]`,
		},
		{
			name: "a conflict of a headless service is reported once",
			facts: [][]fact.Fact{
				databases, statefulSet("shop/db", sql), list(service("shop/also", "10.96.0.9", port(80, 5432, mesh.HTTP)),
					slice("shop/also", []fact.PortSpec{port(80, 5432, mesh.HTTP)}, ready("db-0", "10.1.0.5"), ready("db-1", "10.1.0.6"))),
			},
			pod:      "shop/db-0",
			inbound:  "Strict\nothers from anyone\n5432 http for [shop/also:80 shop/db:5432] from anyone",
			problems: `Service shop/db: Conflict spec.ports[0]`,
		},
		{
			name:  "a pod without a service is called at its own address",
			facts: [][]fact.Fact{list(pod("shop/job-1", "job", "10.1.0.7", named(fact.WorkloadPort{Number: 9090}, fact.WorkloadPort{Name: "sql", Number: 5432})))},
			outbound: `
				pod/shop/job-1:5432 tcp at [10.1.0.7]:5432
				  -> pod/shop/job-1:5432*1
				pod/shop/job-1:9090 tcp at [10.1.0.7]:9090
				  -> pod/shop/job-1:9090*1
				pod/shop/job-1:5432 = [10.1.0.7]:5432/job.shop.sa.td
				pod/shop/job-1:9090 = [10.1.0.7]:9090/job.shop.sa.td`,
		},
		{
			name: "a pod without a service by rules",
			facts: [][]fact.Fact{list(settings(), pod("shop/job-1", "job", "10.1.0.7", named(fact.WorkloadPort{Number: 9090})), pod("shop/job-2", "other", "10.1.0.8", named(fact.WorkloadPort{Number: 9090})),
				tcpRoute("shop/any"), allow("shop/t", "shop/job", []string{"shop/web"}, "TCPRoute/any"))},
			outbound: `
				pod/shop/job-1:9090 tcp at [10.1.0.7]:9090
				  -> pod/shop/job-1:9090*1
				pod/shop/job-1:9090 = [10.1.0.7]:9090/job.shop.sa.td`,
		},
		{
			name: "pods that have ended or have no sidecar are not called",
			facts: [][]fact.Fact{list(
				pod("shop/job-1", "job", "10.1.0.7", named(fact.WorkloadPort{Number: 9090}), func(w *fact.Workload) { w.Ended = true }),
				pod("shop/job-2", "job", "10.1.0.8", named(fact.WorkloadPort{Number: 9090}), func(w *fact.Workload) { w.Class = "" }),
				pod("shop/job-3", "job", "", named(fact.WorkloadPort{Number: 9090})),
				pod("shop/job-4", "job", "10.1.0.9", named(fact.WorkloadPort{Number: 9091})),
			)},
			outbound: `
				pod/shop/job-4:9091 tcp at [10.1.0.9]:9091
				  -> pod/shop/job-4:9091*1
				pod/shop/job-4:9091 = [10.1.0.9]:9091/job.shop.sa.td`,
		},
		{
			name: "a pod that has ended is not called while its slice lags",
			facts: [][]fact.Fact{list(
				settings(permissive, func(s *mesh.Settings) { s.Egress = true }),
				pod("shop/cart-1", "cart", "10.1.0.2", func(w *fact.Workload) { w.Ended = true }),
				pod("shop/cart-2", "cart", "10.1.0.3"),
				service("shop/cart", "10.96.0.2", web), slice("shop/cart", []fact.PortSpec{web}, ready("cart-1", "10.1.0.2"), ready("cart-2", "10.1.0.3")),
			)},
			outbound: `
				shop/cart:80 http at [10.96.0.2]:80
				  any -> shop/cart:80*1
				shop/cart:80 = [10.1.0.3]:8080/cart.shop.sa.td`,
		},
		{
			name: "only endpoints that allow the port and its protocol",
			facts: [][]fact.Fact{list(
				settings(), pod("shop/one-1", "one", "10.1.0.2"), pod("shop/two-1", "two", "10.1.0.3"),
				service("shop/db", "10.96.0.2", port(80, 8080, mesh.HTTP), port(5432, 9090, mesh.TCP)),
				slice("shop/db", []fact.PortSpec{port(80, 8080, mesh.HTTP), port(5432, 9090, mesh.TCP)}, ready("one-1", "10.1.0.2"), ready("two-1", "10.1.0.3")),
				tcpRoute("shop/db", 9090), routes("shop/g", "/"),
				allow("shop/one", "shop/one", []string{"shop/web"}, "TCPRoute/db"), allow("shop/two", "shop/two", []string{"shop/web"}, "HTTPRouteGroup/g"),
			)},
			outbound: `
				shop/db:5432 tcp at [10.96.0.2]:5432
				  -> shop/db:5432*1
				shop/db:80 http at [10.96.0.2]:80
				  any -> shop/db:80*1
				shop/db:5432 = [10.1.0.2]:9090/one.shop.sa.td
				shop/db:80 = [10.1.0.3]:8080/two.shop.sa.td`,
		},
		{
			name: "named target ports are each pod's own",
			pod:  "shop/cart-2",
			facts: [][]fact.Fact{list(
				pod("shop/cart-1", "cart", "10.1.0.2", named(fact.WorkloadPort{Name: "web", Number: 8080})),
				pod("shop/cart-2", "cart", "10.1.0.3", named(fact.WorkloadPort{Name: "web", Number: 9090})),
				service("shop/cart", "10.96.0.2", fact.PortSpec{Name: "http", Port: 80, TargetName: "web", Protocol: mesh.HTTP}),
				slice("shop/cart", []fact.PortSpec{{Name: "http", Target: 8080}}, ready("cart-1", "10.1.0.2")),
				another("cart-2", slice("shop/cart", []fact.PortSpec{{Name: "http", Target: 9090}}, ready("cart-2", "10.1.0.3"))),
			)},
			inbound: "Strict\nothers from anyone\n9090 http for [shop/cart:80] from anyone",
			outbound: `
				shop/cart:80 http at [10.96.0.2]:80
				  any -> shop/cart:80*1
				shop/cart:80 = [10.1.0.2]:8080/cart.shop.sa.td [10.1.0.3]:9090/cart.shop.sa.td`,
		},
		{
			name:  "what is in a namespace outside the mesh is not there",
			facts: [][]fact.Fact{list(namespace("out", func(n *fact.Namespace) { n.Member = false })), server("out/cart", "10.96.0.2", "10.1.0.2", web), server("none/cart", "10.96.0.3", "10.1.0.3", web)},
			pod:   "shop/web-1", outbound: "nothing",
		},
	})
}

// TestWhoHasAView checks which namespaces and pods are there, which of them have proxies, and
// the content of Proxy.
func TestWhoHasAView(t *testing.T) {
	s := Build(slices.Concat(town(func(s *mesh.Settings) { s.PlaintextClasses = []string{"plain"} }), list(
		pod("shop/a", "one", "10.1.0.2", func(w *fact.Workload) { w.Class, w.Zone = "plain", "z" }),
		pod("shop/bare", "one", "10.1.0.3", func(w *fact.Workload) { w.Class = "" }),
		pod("shop/ended", "one", "10.1.0.4", func(w *fact.Workload) { w.Ended = true }),
		pod("out/b", "one", "10.1.0.5"),
		namespace("out", func(n *fact.Namespace) { n.Member = false }),
	)))
	if got, want := s.Namespaces.Names(), []string{"shop"}; !slices.Equal(got, want) {
		t.Errorf("there are namespaces %v, want %v", got, want)
	}
	if got, want := s.Views.Names(), []string{"uid-shop/a", "uid-shop/web-1"}; !slices.Equal(got, want) {
		t.Errorf("there are Views of %v, want %v", got, want)
	}
	if got, want := s.Workloads.Names(), []string{"shop/a", "shop/bare", "shop/ended", "shop/web-1"}; !slices.Equal(got, want) {
		t.Errorf("there are workloads %v, want %v", got, want)
	}
	view, _ := s.Views.Get("uid-shop/a")
	want := mesh.Seal(&mesh.Proxy{
		Name: parseName("shop/a"), UID: "uid-shop/a", Class: "plain", Zone: "z", Addresses: addresses("10.1.0.2"), Plaintext: true,
		Identity: mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "one"},
	})
	if view.Proxy.Digest() != want.Digest() {
		t.Errorf("the proxy is %s, want %s", asJSON(view.Proxy), asJSON(want))
	}
}
