package envoy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
)

// bodies returns all resources of a Config as text.
func bodies(c *Config) map[string]string {
	out := make(map[string]string)
	for _, typeURL := range types {
		for name, r := range c.table(typeURL).All() {
			out[r.TypeURL+" "+name+" "+r.Digest().String()] = string(r.Body())
		}
	}
	return out
}

// walk is a mesh that changes randomly.
type walk struct {
	random       *rand.Rand
	destinations map[string]*mesh.Destination
	backends     map[string]*mesh.Backend
	settings     *mesh.Settings
	inbound      *mesh.Inbound
	egress       *mesh.Egress
}

func newWalk(seed uint64) *walk {
	w := &walk{
		random:       rand.New(rand.NewPCG(seed, seed)),
		destinations: map[string]*mesh.Destination{}, backends: map[string]*mesh.Backend{},
		settings: settings(), inbound: mesh.Seal(&mesh.Inbound{TLS: mesh.Strict}), egress: mesh.Seal(&mesh.Egress{}),
	}
	for range 20 {
		w.step()
	}
	return w
}

func (w *walk) step() {
	service := port(fmt.Sprintf("service-%d", w.random.IntN(12)), 80)
	protocols := []mesh.Protocol{mesh.HTTP, mesh.GRPC, mesh.TCP, mesh.TCPServerFirst}
	protocol := protocols[w.random.IntN(len(protocols))]
	switch w.random.IntN(10) {
	case 0:
		delete(w.destinations, service.String())
	case 1:
		delete(w.backends, service.String())
	case 2:
		changed := *settings()
		changed.AccessLog = mesh.AccessLog{Enabled: w.random.IntN(2) == 0, Sampled: uint32(w.random.IntN(3)) * mesh.EverythingSampled / 2}
		w.settings = mesh.Seal(&changed)
	case 3:
		w.inbound = mesh.Seal(&mesh.Inbound{TLS: mesh.Strict, Ports: []mesh.InboundPort{
			{Port: uint16(8000 + w.random.IntN(3)), Protocol: protocol, Access: mesh.Access{Anyone: true}},
		}})
	case 4:
		changed := everyEgress()
		changed.Ports = changed.Ports[:w.random.IntN(len(changed.Ports))]
		w.egress = mesh.Seal(&changed)
	case 5, 6:
		w.destinations[service.String()] = mesh.Seal(
			destination(service, protocol, fmt.Sprintf("10.96.0.%d", w.random.IntN(200)), backend(service, protocol)))
	default:
		b := backend(service, protocol)
		for range w.random.IntN(4) {
			e := endpoint(8080, fmt.Sprintf("10.244.0.%d", w.random.IntN(200)))
			e.Zone = []string{"", "zone-a", "zone-b"}[w.random.IntN(3)]
			e.Draining = w.random.IntN(5) == 0
			if w.random.IntN(5) == 0 {
				e.ServerName = ""
			}
			b.Endpoints = append(b.Endpoints, e)
		}
		b.Policy.MaxConnections = new(uint32(w.random.IntN(3)))
		b.Policy.LoadBalancing.PreferZone = w.random.IntN(2) == 0
		if w.random.IntN(8) == 0 {
			b.ExternalName = "www.example.com"
		}
		w.backends[b.Name] = mesh.Seal(b)
	}
}

// view returns the View of one of several proxies, of all services or of some.
func (w *walk) view() *mesh.View {
	client := newProxy()
	client.Plaintext = w.random.IntN(3) == 0
	client.Zone = []string{"", "zone-a", "zone-b"}[w.random.IntN(3)]
	if w.random.IntN(2) == 0 {
		client.Addresses = addresses("fd00::5")
	}
	scope, destinations := "*", maps.Clone(w.destinations)
	if w.random.IntN(2) == 0 {
		scope = "bookbuyer/bookbuyer"
		maps.DeleteFunc(destinations, func(name string, _ *mesh.Destination) bool { return name > "bookstore/service-5" })
	}
	return mesh.NewView(mesh.Seal(client), w.settings, w.inbound,
		mesh.NewOutbound(scope, mesh.TableOf(destinations), mesh.TableOf(w.backends)), w.egress)
}

// TestRandomWalk compares a Translator with full caches with a new one.
func TestRandomWalk(t *testing.T) {
	for seed := range uint64(4) {
		w := newWalk(seed)
		translator := NewTranslator()
		// Small caches, so that much is dropped on the way.
		translator.parts, translator.proxies = delivery.NewCache[partKey, partState](10), delivery.NewCache[proxyKey, proxyState](5)
		translator.outbounds, translator.builders = delivery.NewOutbounds[outboundKey, *Config](3), delivery.NewCache[builderKey, builderState](2)
		for step := range 100 {
			w.step()
			view := w.view()
			got, want := bodies(translator.Config(view)), bodies(NewTranslator().Config(view))
			if !maps.Equal(want, got) {
				t.Fatalf("seed %d, step %d: caches make a difference (-fresh +cached):\n%s", seed, step, cmp.Diff(want, got))
			}
		}
	}
}

// TestManyGoroutines translates the same Views concurrently.
func TestManyGoroutines(t *testing.T) {
	w := newWalk(1)
	var views []*mesh.View
	var want []map[string]string
	for range 40 {
		w.step()
		views = append(views, w.view())
		want = append(want, bodies(NewTranslator().Config(views[len(views)-1])))
	}
	translator := NewTranslator()
	var group sync.WaitGroup
	for offset := range 8 {
		group.Go(func() {
			for i := range views {
				i = (i + 5*offset) % len(views)
				if got := bodies(translator.Config(views[i])); !maps.Equal(want[i], got) {
					t.Errorf("View %d (-alone +at once):\n%s", i, cmp.Diff(want[i], got))
				}
			}
		})
	}
	group.Wait()
}

// TestEndpointChangeIsOneResource changes an endpoint of a mesh.
func TestEndpointChangeIsOneResource(t *testing.T) {
	m := newBenchmarkMesh(50, 3)
	translator := NewTranslator()
	before, after := translator.Config(m.view), translator.Config(m.changed(1))
	for _, typeURL := range types {
		var changed []string
		for change := range after.table(typeURL).Diff(*before.table(typeURL)) {
			changed = append(changed, change.Name)
		}
		switch {
		case typeURL != endpointType && len(changed) > 0:
			t.Errorf("an endpoint changed, and with it %s %q", typeURL, changed)
		case typeURL == endpointType && len(changed) != 1:
			t.Errorf("an endpoint changed, and with it the endpoints of %q", changed)
		}
	}
}

// TestProxiesShare compares the resources of proxies by pointer.
func TestProxiesShare(t *testing.T) {
	f := views()["split"]
	one := f.view()
	second := newProxy()
	second.Name.Name, second.UID, second.Zone, second.Addresses = "bookbuyer-2", "uid-2", "zone-a", addresses("10.244.0.6")
	other := mesh.NewView(mesh.Seal(second), one.Settings, one.Inbound, one.Outbound, one.Egress)
	scoped := mesh.NewView(one.Proxy, one.Settings, one.Inbound,
		mesh.NewOutbound("bookbuyer/bookbuyer", one.Outbound.Destinations, one.Outbound.Backends), one.Egress)

	translator := NewTranslator()
	first := translator.Config(one)
	if translator.Config(f.view()) != first {
		t.Error("an equal View gives a different Config")
	}
	for name, view := range map[string]*mesh.View{"another pod": other, "another scope": scoped} {
		config := translator.Config(view)
		for _, typeURL := range types {
			for resource, r := range first.table(typeURL).All() {
				if same, _ := config.table(typeURL).Get(resource); same != r {
					t.Errorf("%s: %s %q was made again", name, typeURL, resource)
				}
			}
		}
	}
}

// TestClusterChangeRenamesEndpoints changes a policy: the endpoints must get a new
// name, for which Envoy waits.
func TestClusterChangeRenamesEndpoints(t *testing.T) {
	f := views()["http"]
	translator := NewTranslator()
	before := translator.Config(f.view()).Endpoints.Names()
	changed := *f.backends[0]
	changed.Policy.MaxConnections = new(uint32(3))
	f.backends = []*mesh.Backend{&changed}
	after := translator.Config(f.view()).Endpoints.Names()
	if len(before) != 1 || len(after) != 1 || before[0] == after[0] {
		t.Errorf("the endpoints are named %q before and %q after the cluster changed", before, after)
	}
}

func TestTranslateRefusesPartialViews(t *testing.T) {
	if files, err := (Driver{}).Translate(&mesh.View{}); err == nil {
		t.Errorf("a View without parts becomes %v", files)
	}
}

// TestTextThatIsNotUTF8 has a match with such a text never hold, and Envoy reject only the
// resource that cannot be encoded.
func TestTextThatIsNotUTF8(t *testing.T) {
	f := views()["split"]
	f.destinations[0].Routes[0].Match.Headers[0].Prefix = "\xff"
	config := NewTranslator().Config(f.view())
	r, ok := config.Routes.Get(f.destinations[0].Name)
	if !ok {
		t.Fatal("there are no routes")
	}
	message, err := r.Message()
	if err != nil {
		t.Fatal(err)
	}
	first := message.(*routev3.RouteConfiguration).VirtualHosts[0].Routes[0]
	if !proto.Equal(first.Match, never) {
		t.Errorf("the route matches %v", first.Match)
	}

	f.destinations[0].Service.Name.Name = "\xff"
	config = NewTranslator().Config(f.view())
	if l, ok := config.Listeners.Get(f.destinations[0].Name); !ok || len(l.Body()) != 0 {
		t.Errorf("the listener is %v", l)
	}
	if config.Clusters.Len() == 0 || config.Routes.Len() == 0 || slices.Contains(config.Clusters.Names(), "") {
		t.Error("other resources are missing")
	}
}
