package envoy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// A match with one of these paths is translated to something that Envoy rejects, in a route
// configuration or in a listener.
const (
	poisonedRoutes   = "/poisoned-routes"
	poisonedListener = "/poisoned-listener"
)

// A Backend with this connect timeout is translated to a cluster that Envoy rejects.
const poisonedTimeout = 77 * time.Second

var poisons = map[string]proto.Message{
	clusterType:  &clusterv3.Cluster{ConnectTimeout: durationpb.New(-time.Second)},
	routeType:    &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{Name: "twin", Domains: anyHost}}},
	listenerType: &listenerv3.Listener{FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "nonsense"}}}}},
}

// faulty translates like the driver, with faults.
func faulty(t *testing.T, translator *Translator, view *mesh.View) xds.Config {
	config := translator.Config(view).delivered()
	poison := func(typeURL, name string) {
		for i := range deliveredTypes {
			good, ok := config[i].Get(name)
			if deliveredTypes[i].URL != typeURL || !ok {
				continue
			}
			more, err := deterministic.Marshal(poisons[typeURL])
			if err != nil {
				t.Error(err)
			}
			bad := xds.NewResource(typeURL, name, mesh.DigestBytes(append(more, good.Body()...)), good.Body(), more)
			config[i] = config[i].With(mesh.Change[*Resource]{Name: name, Value: bad})
		}
	}
	check := func(matches []mesh.HTTPMatch, routes, listener string) {
		for _, m := range matches {
			switch m.Path.Exact {
			case poisonedRoutes:
				poison(routeType, routes)
			case poisonedListener:
				poison(listenerType, listener)
			}
		}
	}
	for name, d := range view.Outbound.Destinations.All() {
		for _, r := range d.Routes {
			check([]mesh.HTTPMatch{r.Match}, name, name)
		}
	}
	for name, b := range view.Outbound.Backends.All() {
		if b.Policy.ConnectTimeout == poisonedTimeout {
			poison(clusterType, name)
		}
	}
	for _, port := range view.Egress.Ports {
		for _, host := range port.Hosts {
			check(host.Matches, egressName(port.Port), outboundListener)
		}
	}
	for _, port := range view.Inbound.Ports {
		for _, rule := range port.Access.Rules {
			check(rule.Requests, portName(port.Port), inboundListener)
		}
	}
	return config
}

// startFaultyController starts a controller that makes what Envoy rejects.
func (m *machine) startFaultyController(c *core) (stop func()) {
	m.t.Helper()
	translator := NewTranslator()
	return m.serve(func(ctx context.Context) error {
		_, err := xds.Start(c.context(ctx, 0), xds.Service{Name: name, Port: driver.ADSPort, DebugPath: debugPath}, xds.Options{
			Types: deliveredTypes, Objects: objects, Parts: isMadeOf,
			Translate: func(view *mesh.View) xds.Config { return faulty(m.t, translator, view) },
		})
		return err
	})
}

// someParts is a View that is in part made of other namespaces' objects. Each of the names is
// a part that is poisoned, and each of the callers an account that is allowed.
type someParts struct{ poisoned, callers []string }

func (s someParts) view() *mesh.View {
	path := func(name, path string) mesh.StringMatch {
		if slices.Contains(s.poisoned, name) {
			return mesh.StringMatch{Exact: path}
		}
		return mesh.StringMatch{Exact: "/good"}
	}
	f := fixture{scope: "own/own"}
	for i, kind := range []string{poisonedRoutes, poisonedListener, "/good", "/good"} {
		service := mesh.ServicePort{Name: mesh.Name{Namespace: "elsewhere", Name: fmt.Sprint("s", i)}, Port: 80}
		b := backend(service, mesh.HTTP, endpoint(8080, fmt.Sprint("10.244.1.", i)))
		d := destination(service, mesh.HTTP, fmt.Sprint("10.96.1.", i), b)
		d.Routes[0].Match.Path = path(service.Name.Name, kind)
		if i == 3 && slices.Contains(s.poisoned, "cluster") {
			b.Policy.ConnectTimeout = poisonedTimeout
		}
		f.destinations, f.backends = append(f.destinations, d), append(f.backends, b)
	}
	f.egress = mesh.Egress{Ports: []mesh.EgressRoutes{{Port: 80, Protocol: mesh.EgressHTTP, Hosts: []mesh.EgressHost{
		{Host: "egress-routes.example.com", Matches: []mesh.HTTPMatch{{Path: path("egress-routes", poisonedRoutes)}}},
		{Host: "egress-listener.example.com", Matches: []mesh.HTTPMatch{{Path: path("egress-listener", poisonedListener)}}},
		{Host: "good.example.com", Matches: []mesh.HTTPMatch{{Path: path("good", "")}}},
	}}}}
	inbound := &mesh.Inbound{TLS: mesh.Strict}
	for i, kind := range []string{poisonedRoutes, poisonedListener} {
		p := mesh.InboundPort{Port: uint16(8080 + i), Protocol: mesh.HTTP}
		for _, caller := range append([]string{fmt.Sprint("rule", i)}, s.callers...) {
			p.Access.Rules = append(p.Access.Rules, mesh.Permission{
				Origin: drivertest.Origin("TrafficTarget", "bookbuyer/"+caller), Requests: []mesh.HTTPMatch{{Path: path(caller, kind)}},
				Sources: []mesh.Identity{{TrustDomain: "cluster.local", Namespace: "callers", ServiceAccount: caller}},
			})
		}
		inbound.Ports = append(inbound.Ports, p)
	}
	v := f.view()
	return mesh.NewView(v.Proxy, v.Settings, mesh.Seal(inbound), v.Outbound, v.Egress)
}

// TestRevocationDespiteRejection removes permissions in the same version in which parts of
// other namespaces, and another permission, become something that Envoy rejects.
func TestRevocationDespiteRejection(t *testing.T) {
	m, c := newMachine(t), newCore(t)
	all := []string{"s0", "s1", "egress-routes", "egress-listener", "cluster"}
	start := someParts{callers: []string{"one", "two", "three"}}.view()
	c.set(start)
	stop := m.startFaultyController(c)
	envoy := m.startSidecar(start.Proxy, c, loopbackHosts)
	runs := func(view *mesh.View, leftOut ...string) {
		t.Helper()
		m.eventually("Envoy runs the View", func() bool { return c.runs(view) })
		var got []string
		m.eventually("what is left out is reported", func() bool {
			got = nil
			for _, r := range c.rejections() {
				if r.LeftOut && r.Version == view.Digest().String() {
					got = append(got, r.Resources...)
				}
			}
			return len(got) >= len(leftOut)
		})
		slices.Sort(got)
		if diff := cmp.Diff(leftOut, slices.Compact(got)); diff != "" {
			t.Errorf("left out (-want +got):\n%s", diff)
		}
	}
	config := func() string { return envoy.admin("/config_dump") }
	allows := func(caller string) bool { return strings.Contains(config(), "/ns/callers/sa/"+caller) }
	runs(start)
	if !allows("one") || !allows("two") {
		t.Fatal("the callers are not allowed")
	}

	for _, bad := range all {
		next := someParts{poisoned: []string{bad}, callers: []string{"two", "three"}}.view()
		c.set(next)
		m.eventually("the revocation beside "+bad, func() bool { return !allows("one") })
		m.eventually("it runs without "+bad, func() bool { return c.runs(next) })
		c.set(start)
		runs(start)
	}

	every := someParts{poisoned: all, callers: []string{"two", "three"}}.view()
	c.set(every)
	m.eventually("the revocation beside all of them", func() bool { return !allows("one") })
	leftOut := []string{
		"backend elsewhere/s3:80", "destination elsewhere/s0:80", "destination elsewhere/s1:80",
		"egress match egress-listener.example.com:80", "egress match egress-routes.example.com:80",
	}
	runs(every, leftOut...)
	if now := config(); strings.Contains(now, poisonedRoutes) || !strings.Contains(now, "good.example.com") || !strings.Contains(now, "elsewhere/s2:80") {
		t.Error("more or less than the bad parts is left out")
	}

	if !slices.ContainsFunc(c.rejections(), func(r driver.Rejection) bool {
		return r.LeftOut && slices.Equal(r.Resources, leftOut[:1]) && slices.ContainsFunc(r.Objects, func(o mesh.ObjectRef) bool {
			return o.String() == "UpstreamTrafficSetting elsewhere/s3"
		})
	}) {
		t.Errorf("no rejection of the cluster names the UpstreamTrafficSetting: %+v", c.rejections())
	}

	every = someParts{poisoned: append(slices.Clone(all), "rule0", "rule1"), callers: []string{"three"}}.view()
	c.set(every)
	m.eventually("the revocation beside rejected permissions", func() bool { return !allows("two") })
	leftOut = append(leftOut, "permission bookbuyer/rule0", "permission bookbuyer/rule1")
	runs(every, leftOut...)
	if !allows("three") || allows("rule") {
		t.Error("more or less than the bad permissions is left out")
	}

	// A new pod gets a good configuration, also from a controller that knows of no fault.
	envoy.end()
	stop()
	m.startFaultyController(c)
	envoy = m.startSidecar(start.Proxy, c, loopbackHosts)
	m.eventually("a new pod is ready", envoy.ready)
	runs(every, leftOut...)

	c.set(start)
	runs(start)
	if !allows("one") || !allows("rule0") {
		t.Error("what was left out has not come back")
	}
}
