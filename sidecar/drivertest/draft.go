package drivertest

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// draft is an unfinished View: that of the pod shop/web-1, which serves shop/web and
// calls shop/cart by HTTP and shop/db by TCP.
type draft struct {
	proxy        mesh.Proxy
	settings     mesh.Settings
	inbound      mesh.Inbound
	egress       mesh.Egress
	unknown      []netip.Prefix
	destinations []*mesh.Destination
	backends     []*mesh.Backend
}

// view returns the View. It shares parts with the draft, which must not be changed
// afterwards.
func (d *draft) view() *mesh.View {
	destinations, backends := map[string]*mesh.Destination{}, map[string]*mesh.Backend{}
	for _, destination := range d.destinations {
		destinations[destination.Name] = mesh.Seal(destination)
	}
	for _, backend := range d.backends {
		backends[backend.Name] = mesh.Seal(backend)
	}
	proxy, settings, inbound, egress := d.proxy, d.settings, d.inbound, d.egress
	outbound := mesh.NewOutbound("shop/web", mesh.TableOf(destinations), mesh.TableOf(backends))
	if len(d.unknown) > 0 {
		outbound = outbound.WithUnknown(d.unknown)
	}
	return mesh.NewView(mesh.Seal(&proxy), mesh.Seal(&settings), mesh.Seal(&inbound), outbound, mesh.Seal(&egress))
}

// plain returns a draft that requires no optional feature.
func plain() *draft {
	d := empty()
	cart, rare, db := servicePort("cart", 80), servicePort("rare", 80), servicePort("db", 5432)
	d.destinations = append(d.destinations, &mesh.Destination{
		Name: cart.String(), Service: cart, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.2")}, Port: 80, Protocol: mesh.HTTP,
		Routes: []mesh.Route{{Origin: Origin("TrafficSplit", "shop/split"), Backends: []mesh.WeightedBackend{{Backend: cart.String(), Weight: 3}, {Backend: rare.String(), Weight: 1}}}},
	}, &mesh.Destination{
		Name: db.String(), Service: db, Addresses: []netip.Addr{netip.MustParseAddr("10.96.0.3")}, Port: 5432, Protocol: mesh.TCP,
		Backends: []mesh.WeightedBackend{{Backend: db.String(), Weight: 1}},
	})
	dbEndpoint := endpoint("db-1", "10.244.0.21", "zone-a")
	dbEndpoint.Port = 5432
	d.backends = append(d.backends,
		&mesh.Backend{Name: cart.String(), Service: cart, Protocol: mesh.HTTP, Endpoints: []mesh.Endpoint{
			endpoint("cart-1", "10.244.0.11", "zone-a"), endpoint("cart-2", "10.244.0.12", "zone-b"),
		}},
		&mesh.Backend{Name: db.String(), Service: db, Protocol: mesh.TCP, Endpoints: []mesh.Endpoint{dbEndpoint}},
		&mesh.Backend{Name: rare.String(), Service: rare, Protocol: mesh.HTTP, Endpoints: []mesh.Endpoint{endpoint("rare-1", "10.244.0.31", "zone-a")}},
	)

	caller := mesh.Identity{TrustDomain: trustDomain, Namespace: "shop", ServiceAccount: "front.end"}
	d.inbound.Ports = []mesh.InboundPort{
		{Port: 5433, Protocol: mesh.TCP, Services: []mesh.ServicePort{servicePort("web", 5433)}, Access: allow(caller, mesh.HTTPMatch{})},
		{Port: 8080, Protocol: mesh.HTTP, Services: []mesh.ServicePort{servicePort("web", 80)}, Access: allow(caller, mesh.HTTPMatch{
			Path: mesh.StringMatch{Regex: "/books/.*"}, Methods: []string{"GET", "HEAD"},
		})},
	}
	return d
}

const trustDomain = "cluster.local"

// empty returns a draft of a proxy without destinations and inbound ports.
func empty() *draft {
	return &draft{
		proxy: mesh.Proxy{
			Name: mesh.Name{Namespace: "shop", Name: "web-1"}, UID: "00000000-0000-4000-8000-000000000001", Class: "conformance", Zone: "zone-a",
			Identity:  mesh.Identity{TrustDomain: trustDomain, Namespace: "shop", ServiceAccount: "web"},
			Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.5")},
		},
		settings: mesh.Settings{
			TrustDomain: trustDomain, InboundTLS: mesh.Strict, EgressPolicy: true, IngressPolicy: true, RetryPolicy: true,
			TLS: mesh.TLS{Min: "1.3", Max: "1.3"},
		},
		inbound: mesh.Inbound{TLS: mesh.Strict},
	}
}

func servicePort(name string, port uint16) mesh.ServicePort {
	return mesh.ServicePort{Name: mesh.Name{Namespace: "shop", Name: name}, Port: port}
}

func endpoint(workload, address, zone string) mesh.Endpoint {
	return mesh.Endpoint{
		Addresses: []netip.Addr{netip.MustParseAddr(address)}, Port: 8080,
		ServerName: "cart.shop.sa." + trustDomain, Workload: "shop/" + workload, Zone: zone,
	}
}

// Origin returns the origin of a part that an object asks for, given as namespace/name or as a
// name alone.
func Origin(kind, object string) mesh.Origin {
	namespace, name, ok := strings.Cut(object, "/")
	if !ok {
		namespace, name = "", object
	}
	return mesh.Origin{Object: mesh.ObjectRef{Kind: kind, Namespace: namespace, Name: name}}
}

// allow returns the access for one caller and the given requests.
func allow(caller mesh.Identity, requests ...mesh.HTTPMatch) mesh.Access {
	return mesh.Access{Rules: []mesh.Permission{{Origin: Origin("TrafficTarget", "shop/callers"), Sources: []mesh.Identity{caller}, Requests: requests}}}
}

// service is a Destination with its Backend.
type service struct {
	destination *mesh.Destination
	backend     *mesh.Backend
}

// cart and db are the services that a plain draft calls; web and sql are the ports that
// it serves.
func (d *draft) cart() service { return service{d.destinations[0], d.backends[0]} }
func (d *draft) db() service   { return service{d.destinations[1], d.backends[1]} }

func (d *draft) sql() *mesh.InboundPort { return &d.inbound.Ports[0] }
func (d *draft) web() *mesh.InboundPort { return &d.inbound.Ports[1] }

// without removes a service.
func (d *draft) without(s service) {
	d.destinations = slices.DeleteFunc(d.destinations, func(one *mesh.Destination) bool { return one == s.destination })
	d.backends = slices.DeleteFunc(d.backends, func(one *mesh.Backend) bool { return one == s.backend })
}

// everything returns a draft that requires all features that a single View can require.
func everything() *draft {
	d := plain()
	for _, v := range variants() {
		if !v.alone {
			v.asks(d)
		}
	}
	return d
}

// injecting returns a draft whose free-form texts start a new line with the word
// injected, and contain what ends a string in many languages.
func injecting() *draft {
	d := plain()
	match := mesh.HTTPMatch{Path: mesh.StringMatch{Regex: injectingText + ".*"}}
	d.web().Access.Rules[0].Requests = []mesh.HTTPMatch{match}
	d.web().Access.Rules[0].Origin = Origin("TrafficTarget", "shop/a.b-c")
	d.cart().destination.Routes = slices.Insert(d.cart().destination.Routes, 0, mesh.Route{
		Origin: Origin("HTTPRoute", "shop/a.b-c"), Match: match, Backends: d.cart().destination.Routes[0].Backends,
	})
	d.web().Limits.Requests = &mesh.RequestLimit{
		TokenBucket: mesh.TokenBucket{Tokens: 1, Interval: time.Second}, AddHeaders: []mesh.Header{{Name: "x-note", Value: `"} ${HOME} $(id) #{x} %[src] 'a' \`}},
	}
	return d
}

const (
	// injectingText is a regular expression in which every character stands for itself.
	injectingText = "/\n" + injected + " \t\"'`{}}}\\${HOME} %\\[src] #\r\n" + injected
	injected      = "injected"
)
