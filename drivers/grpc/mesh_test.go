package grpc

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

func freePort(t *testing.T) uint16 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return netip.MustParseAddrPort(listener.Addr().String()).Port()
}

// sni is what the injector sets in the application's container.
var sni = []string{envSNI + "=true"}

// backendOf returns a Backend whose endpoints are the pods.
func backendOf(name string, port uint16, pods ...*mesh.Proxy) *mesh.Backend {
	b := &mesh.Backend{Name: name, Protocol: mesh.GRPC}
	for _, p := range pods {
		b.Endpoints = append(b.Endpoints, mesh.Endpoint{Addresses: p.Addresses, Port: port, ServerName: p.Identity.DNSName()})
	}
	return b
}

func split(backends ...mesh.WeightedBackend) []mesh.Route { return []mesh.Route{{Backends: backends}} }

func share(name string, weight uint32) mesh.WeightedBackend {
	return mesh.WeightedBackend{Backend: name, Weight: weight}
}

func rule(path string, callers ...*mesh.Proxy) mesh.Access {
	r := mesh.Permission{Origin: drivertest.Origin("TrafficTarget", "shop/rule"), Requests: []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: path}}}}
	for _, c := range callers {
		r.Sources = append(r.Sources, c.Identity)
	}
	return mesh.Access{Rules: []mesh.Permission{r}}
}

// TestMesh has real servers and clients of grpc-go call each other.
func TestMesh(t *testing.T) {
	w := newTestMesh(t)
	port := freePort(t)
	v1, v2, web, other := pod("cart", 11), pod("cart-v2", 12), pod("web", 13), pod("other", 14)
	access := rule(check, web)
	for server, name := range map[*mesh.Proxy]string{v1: "v1", v2: "v2"} {
		w.ctrl.SetView(server.UID, view(server, port, access, nil))
		p := w.run(view(server, port, access, nil), sni, "serve", netip.AddrPortFrom(server.Addresses[0], port).String(), name)
		if got := p.line(); !strings.HasPrefix(got, "SERVING") {
			t.Fatalf("server %s: %s", name, got)
		}
	}
	client := func(proxy *mesh.Proxy, env []string, target string, routes []mesh.Route, backends ...*mesh.Backend) *process {
		v := view(proxy, port, mesh.Access{}, routes, backends...)
		w.ctrl.SetView(proxy.UID, v)
		return w.run(v, env, "call", target)
	}

	allowed := client(web, sni, "xds:///cart:80", split(share("a", 1)), backendOf("a", port, v1))
	t.Run("allowed", func(t *testing.T) {
		if got := allowed.call(check); got != "OK [v1]" {
			t.Error(got)
		}
	})
	t.Run("a method that no rule allows", func(t *testing.T) {
		if got := allowed.call(list); !strings.HasPrefix(got, "PermissionDenied") {
			t.Error(got)
		}
	})
	t.Run("conditions", func(t *testing.T) {
		for _, c := range []struct {
			match mesh.HTTPMatch
			want  string
		}{
			{mesh.HTTPMatch{Methods: []string{"GET", "HEAD"}}, "PermissionDenied"},
			{mesh.HTTPMatch{Methods: []string{"GET", "POST"}}, "OK [v1]"},
			{mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/grpc.health.v1"}}, "PermissionDenied"},
			{mesh.HTTPMatch{Path: mesh.StringMatch{Prefix: "/grpc.health.v1.Health/"}}, "OK [v1]"},
			{mesh.HTTPMatch{Path: mesh.StringMatch{Regex: "/grpc.*/Chec"}}, "PermissionDenied"},
			{mesh.HTTPMatch{Path: mesh.StringMatch{Regex: "/grpc.*/Check"}}, "OK [v1]"},
			{mesh.HTTPMatch{Headers: []mesh.KeyMatch{{Name: "content-type", StringMatch: mesh.StringMatch{Present: true}}}}, "PermissionDenied"},
			{mesh.HTTPMatch{}, "OK [v1]"},
		} {
			changed := rule("", web)
			changed.Rules[0].Requests = []mesh.HTTPMatch{c.match}
			w.ctrl.SetView(v1.UID, view(v1, port, changed, nil))
			allowed.await(check, c.want)
		}
		w.ctrl.SetView(v1.UID, view(v1, port, mesh.Access{Anyone: true}, nil))
		allowed.await(list, "OK [v1]")
		w.ctrl.SetView(v1.UID, view(v1, port, access, nil))
		allowed.await(list, "PermissionDenied")
	})
	t.Run("another identity", func(t *testing.T) {
		p := client(other, sni, "xds:///cart.shop.svc.cluster.local:80", split(share("a", 1)), backendOf("a", port, v1))
		if got := p.call(check); !strings.HasPrefix(got, "PermissionDenied") {
			t.Error(got)
		}
	})
	t.Run("changed access", func(t *testing.T) {
		w.ctrl.SetView(v1.UID, view(v1, port, rule(list, web), nil))
		allowed.await(check, "PermissionDenied")
		allowed.await(list, "OK [v1]")
		w.ctrl.SetView(v1.UID, view(v1, port, access, nil))
		allowed.await(check, "OK [v1]")
	})
	t.Run("denied", func(t *testing.T) {
		all := web.Identity
		all.ServiceAccount = ""
		denying := func(d mesh.Denial) mesh.Access { return mesh.Access{Anyone: true, Denials: []mesh.Denial{d}} }
		checks := []mesh.HTTPMatch{{Path: mesh.StringMatch{Exact: check}}}
		w.ctrl.SetView(v1.UID, view(v1, port, denying(mesh.Denial{Sources: []mesh.Identity{all}, Requests: checks}), nil))
		allowed.await(check, "PermissionDenied")
		allowed.await(list, "OK [v1]")
		w.ctrl.SetView(v1.UID, view(v1, port, denying(mesh.Denial{Everyone: true, Except: []mesh.Identity{all}, Requests: []mesh.HTTPMatch{{}}}), nil))
		allowed.await(check, "OK [v1]")
		w.ctrl.SetView(v1.UID, view(v1, port, denying(mesh.Denial{Everyone: true, Requests: []mesh.HTTPMatch{{}}}), nil))
		allowed.await(list, "PermissionDenied")
		w.ctrl.SetView(v1.UID, view(v1, port, denying(mesh.Denial{Everyone: true, Requests: []mesh.HTTPMatch{{Methods: []string{"PUT"}}}}), nil))
		allowed.await(list, "OK [v1]")
		w.ctrl.SetView(v1.UID, view(v1, port, access, nil))
		allowed.await(check, "OK [v1]")
	})
	t.Run("a port that nothing names any more", func(t *testing.T) {
		closed := view(v1, port, mesh.Access{}, nil)
		w.ctrl.SetView(v1.UID, mesh.NewView(closed.Proxy, closed.Settings, mesh.Seal(&mesh.Inbound{TLS: mesh.Strict}), closed.Outbound, closed.Egress))
		allowed.await(check, "Unavailable")
		w.ctrl.SetView(v1.UID, view(v1, port, access, nil))
		allowed.await(check, "OK [v1]")
	})
	t.Run("a changed endpoint", func(t *testing.T) {
		w.ctrl.SetView(web.UID, view(web, port, mesh.Access{}, split(share("a", 1)), backendOf("a", port, v2)))
		allowed.await(check, "OK [v2]")
	})
	t.Run("weights", func(t *testing.T) {
		w.ctrl.SetView(web.UID, view(web, port, mesh.Access{}, split(share("a", 3), share("b", 1), share("c", 0)),
			backendOf("a", port, v1), backendOf("b", port, v2), backendOf("c", port)))
		allowed.await(check, "OK [v1]")
		counts := map[string]int{}
		for range 400 {
			counts[allowed.call(check)]++
		}
		if n := counts["OK [v1]"]; n < 250 || n > 350 || n+counts["OK [v2]"] != 400 {
			t.Errorf("got %v, want 300 to v1 and 100 to v2", counts)
		}
	})
	t.Run("a route that gRPC can't follow", func(t *testing.T) {
		routes := append([]mesh.Route{{
			Match:    mesh.HTTPMatch{Path: mesh.StringMatch{Exact: check}, Headers: []mesh.KeyMatch{{Name: "x", StringMatch: mesh.StringMatch{Exact: "y"}}}},
			Backends: []mesh.WeightedBackend{share("b", 1)},
		}}, split(share("a", 1))...)
		w.ctrl.SetView(web.UID, view(web, port, mesh.Access{}, routes, backendOf("a", port, v1), backendOf("b", port, v2)))
		allowed.await(check, "route action type")
		allowed.await(list, "PermissionDenied")
	})
	t.Run("a share without a backend", func(t *testing.T) {
		w.ctrl.SetView(web.UID, view(web, port, mesh.Access{}, split(share("", 1))))
		allowed.await(check, "no targets to pick from")
	})
	t.Run("an impostor", func(t *testing.T) {
		b := backendOf("a", port, v1)
		b.Endpoints[0].ServerName = v2.Identity.DNSName()
		w.ctrl.SetView(web.UID, view(web, port, mesh.Access{}, split(share("a", 1)), b))
		allowed.await(check, "do not match the SNI")
	})
	t.Run("an impostor, without SNI", func(t *testing.T) {
		b := backendOf("a", port, v1)
		b.Endpoints[0].ServerName = web.Identity.DNSName()
		p := client(web, nil, "xds:///cart:80", split(share("a", 1)), b)
		if got := p.call(check); !strings.Contains(got, "do not match any of the accepted SANs") {
			t.Error(got)
		}
	})
}

// TestClosed has conditions that gRPC lacks or no call fulfils: they allow nothing.
func TestClosed(t *testing.T) {
	web := pod("web", 13)
	settings := &mesh.Settings{TrustDomain: "cluster.local"}
	port := &mesh.InboundPort{Access: rule(check, web)}
	if len(access(settings, port)) != 1 {
		t.Fatal("the rule allows nothing")
	}
	for name, match := range map[string]mesh.HTTPMatch{
		"header":        {Headers: []mesh.KeyMatch{{Name: "x"}}},
		"query":         {Query: []mesh.KeyMatch{{Name: "x"}}},
		"invalid regex": {Path: mesh.StringMatch{Regex: "("}},
	} {
		port.Access.Rules[0].Requests = []mesh.HTTPMatch{match}
		if got := access(settings, port); len(got) > 0 {
			t.Errorf("%s: %v allows calls", name, got)
		}
	}
	port.Access = mesh.Access{Anyone: true}
	settings.Authorization = &mesh.Authorization{}
	if got := access(settings, port); len(got) > 0 {
		t.Errorf("with external authorization, %v allows calls", got)
	}
}

func TestTargets(t *testing.T) {
	v := view(pod("web", 13), 1, mesh.Access{}, nil)
	d, _ := v.Outbound.Destinations.Get("shop/cart:80")
	short := []string{"10.96.0.2:80", "cart.shop:80", "cart.shop.svc:80", "cart.shop.svc.cluster.local:80"}
	if got := targets(d, "shop"); !slices.Equal(got, append(slices.Clone(short), "cart:80")) {
		t.Error(got)
	}
	if got := targets(d, "other"); !slices.Equal(got, short) {
		t.Error(got)
	}
}

// TestEndpoints calls endpoints with an identity only, each once, and none that drains while
// another does not.
func TestEndpoints(t *testing.T) {
	a, b := pod("a", 1), pod("b", 2)
	back := backendOf("x", 80, a, a, b)
	back.Endpoints[2].Draining = true
	back.Endpoints = append(back.Endpoints, mesh.Endpoint{Addresses: pod("plain", 3).Addresses, Port: 80})
	called := func() string {
		var all []string
		for _, locality := range assignment(back.Name, reachable(back)).GetEndpoints() {
			for _, e := range locality.GetLbEndpoints() {
				all = append(all, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()+" as "+e.GetEndpoint().GetHostname())
			}
		}
		return strings.Join(all, ", ")
	}
	if got, want := called(), "127.0.0.1 as a.shop.sa.cluster.local"; got != want {
		t.Errorf("calls %s, want %s", got, want)
	}
	back.Endpoints = back.Endpoints[2:]
	if got, want := called(), "127.0.0.2 as b.shop.sa.cluster.local"; got != want {
		t.Errorf("if all drain, calls %s, want %s", got, want)
	}
	back.Policy.MaxConnections = new(uint32)
	if got := called(); got != "" {
		t.Errorf("with a limit of 0, calls %s", got)
	}
}
