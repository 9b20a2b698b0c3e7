package catalog

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// city returns the facts of a mesh with that many services of ten endpoints, in
// namespaces of ten services, and the function that makes one endpoint of the first
// service come and go.
func city(services int, permissive bool) (facts []fact.Fact, flip func(up bool) fact.Fact) {
	add := func(kind, namespace, name string, content mesh.Digester) {
		facts = append(facts, fact.Fact{Object: object("v1", kind, namespace, name), Content: content})
	}
	add("MeshConfig", "osm", "config", mesh.Seal(&mesh.Settings{
		TrustDomain: "cluster.local", PermissivePolicy: permissive, InboundTLS: mesh.Strict, TLS: mesh.TLS{Min: "1.3", Max: "1.3"},
	}))
	slice := func(namespace, service string, i, endpoints int) *fact.EndpointSlice {
		s := &fact.EndpointSlice{
			Name: mesh.Name{Namespace: namespace, Name: service + "-x"}, Service: service, Ports: []fact.SlicePort{{Name: "http", Port: 8080}},
		}
		for k := range endpoints {
			s.Endpoints = append(s.Endpoints, fact.SliceEndpoint{
				Addresses: []netip.Addr{podAddress(i, k)}, Workload: fmt.Sprintf("%s-%d", service, k), Ready: true, Serving: true, Zone: "zone-a",
			})
		}
		return mesh.Seal(s)
	}
	for i := range services {
		namespace, service := fmt.Sprintf("ns-%d", i/10), fmt.Sprintf("svc-%d", i)
		if i%10 == 0 {
			add("Namespace", "", namespace, mesh.Seal(&fact.Namespace{Name: namespace, Member: true}))
		}
		add("Service", namespace, service, mesh.Seal(&fact.Service{
			Name: mesh.Name{Namespace: namespace, Name: service}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports: []fact.PortSpec{{Name: "http", Port: 80, Target: 8080, Protocol: mesh.HTTP}},
		}))
		add("EndpointSlice", namespace, service+"-x", slice(namespace, service, i, 10))
		for k := range 10 {
			name := mesh.Name{Namespace: namespace, Name: fmt.Sprintf("%s-%d", service, k)}
			add("Pod", namespace, name.Name, mesh.Seal(&fact.Workload{
				Name: name, UID: name.String(), ServiceAccount: service, Class: "envoy", Addresses: []netip.Addr{podAddress(i, k)},
				Ports: []fact.WorkloadPort{{Name: "http", Number: 8080}}, Zone: "zone-a",
			}))
		}
	}
	return facts, func(up bool) fact.Fact {
		endpoints := 9
		if up {
			endpoints = 10
		}
		return fact.Fact{Object: object("v1", "EndpointSlice", "ns-0", "svc-0-x"), Content: slice("ns-0", "svc-0", 0, endpoints)}
	}
}

// policiesOf returns policies of every kind for each service of a city: access, splits, settings,
// retries, ingress and egress.
func policiesOf(services int) []fact.Fact {
	var facts []fact.Fact
	for i := range services {
		namespace := fmt.Sprintf("ns-%d", i/10)
		in := func(kind string) string { return fmt.Sprintf("%s/%s-%d", namespace, kind, i) }
		name := fmt.Sprintf("svc-%d", i)
		next := fmt.Sprintf("svc-%d", i/10*10+(i+1)%10)
		account := namespace + "/" + next
		facts = append(facts,
			routes(in("routes"), "/buy", "/look"),
			allow(in("target"), namespace+"/"+name, []string{account}, "HTTPRouteGroup/"+fmt.Sprintf("routes-%d", i)),
			retry(in("retry"), account, 3, 1, namespace+"/"+name),
			upstream(in("upstream"), name, 1, most(10), limit(10)),
			factOf("IngressBackend", in("ingress"), &fact.IngressRule{
				Name: parseName(in("ingress")), Backends: []fact.IngressBackend{{Service: name, Port: 8080}}, Sources: []fact.IngressSource{{Service: parseName(namespace + "/" + next)}},
			}, nil),
			factOf("Egress", in("egress"), &fact.EgressRule{
				Name: parseName(in("egress")), Sources: []fact.ServiceAccount{parseName(account)}, Ports: outPort(443, mesh.EgressTLS), Hosts: []string{"example.com"},
			}, nil),
		)
		if i%2 == 0 {
			facts = append(facts, split(in("split"), name, name+"=1 "+next+"=1"))
		}
	}
	return facts
}

// almostAll returns all features except one that no city requires: objects are checked for
// missing features, but have no Problems.
func almostAll(string) []mesh.Feature { return mesh.Features()[1:] }

// builtCity returns a city with or without policies, and a function that adds or removes one
// endpoint of the first service. With oneProxy all other pods have no sidecar, and are called as
// what is outside the mesh.
func builtCity(services int, policies, oneProxy bool) (*join, func()) {
	facts, flip := city(services, !policies)
	if policies {
		facts = append(facts, policiesOf(services)...)
		facts = append(facts, settings())
	}
	j := newJoin(Options{Features: almostAll})
	for _, f := range facts {
		if oneProxy && f.Object.Name != "svc-0-0" {
			f = withoutProxy(f)
		}
		j.set(f)
	}
	j.snapshot()
	down, up := flip(false), flip(true)
	isUp := true
	return j, func() {
		isUp = !isUp
		if isUp {
			j.set(up)
		} else {
			j.set(down)
		}
		j.snapshot()
	}
}

func podAddress(service, pod int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128 + byte(service>>8), byte(service), byte(pod)})
}

// BenchmarkBuild builds the Snapshot and all Views from cold.
func BenchmarkBuild(b *testing.B) {
	for _, services := range []int{100, 1000} {
		b.Run(fmt.Sprintf("%d-services", services), func(b *testing.B) {
			facts, _ := city(services, true)
			b.ReportAllocs()
			var joined *join
			for b.Loop() {
				joined = newJoin(Options{})
				for _, stated := range facts {
					joined.set(stated)
				}
				joined.snapshot()
			}
			b.StopTimer()
			b.ReportMetric(float64(heapOf(func() any { return facts }, joined)), "heap-B")
		})
	}
}

// heapOf returns the bytes of heap that become free with joined.
func heapOf(_ func() any, joined *join) uint64 {
	var with, without runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&with)
	*joined = join{}
	runtime.GC()
	runtime.ReadMemStats(&without)
	return with.HeapAlloc - without.HeapAlloc
}

// BenchmarkEndpointChange adds or removes one endpoint and updates the Snapshot, in a mesh with
// one proxy, in one with ten for each service, and in the latter with policies of every kind.
func BenchmarkEndpointChange(b *testing.B) {
	for _, services := range []int{100, 1000, 3000} {
		for _, mode := range []string{"one-proxy", "all-proxies", "policies"} {
			b.Run(fmt.Sprintf("%d-services/%s", services, mode), func(b *testing.B) {
				_, change := builtCity(services, mode == "policies", mode == "one-proxy")
				b.ReportAllocs()
				for b.Loop() {
					change()
				}
			})
		}
	}
}

// withoutProxy returns the fact of a pod without a sidecar, and of settings that let others call
// it. Other facts stay as they are.
func withoutProxy(f fact.Fact) fact.Fact {
	switch content := f.Content.(type) {
	case *fact.Workload:
		bare := *content
		bare.Sealed, bare.Class = mesh.Sealed{}, ""
		f.Content = mesh.Seal(&bare)
	case *mesh.Settings:
		open := *content
		open.Sealed, open.Egress = mesh.Sealed{}, true
		f.Content = mesh.Seal(&open)
	}
	return f
}

// BenchmarkAccessChange adds and removes an object that lets one more caller call one of 1,000
// services, in a mesh with policies of every kind.
func BenchmarkAccessChange(b *testing.B) {
	caller := fact.PolicyRule{Sources: []fact.PolicySource{sourceOf("ns-5", "svc-50")}, AnyPort: true, Requests: []mesh.HTTPMatch{{}}}
	of := func(kind string, policy *fact.AccessPolicy) fact.Fact {
		policy.Action, policy.Rules = fact.Allow, []fact.PolicyRule{caller}
		return factOf(kind, policy.Namespace+"/"+policy.Name.Name, policy, nil)
	}
	account := []fact.AccessTarget{{ServiceAccount: "svc-0"}}
	everywhere := fact.NewSelector(labels.Everything())
	for _, object := range []fact.Fact{
		allow("ns-0/more", "ns-0/svc-0", []string{"ns-5/svc-50"}, "HTTPRouteGroup/routes-0"),
		of(kindAccessPolicy, &fact.AccessPolicy{Name: parseName("ns-0/more"), Targets: account}),
		of(kindClusterAccessPolicy, &fact.AccessPolicy{Name: parseName("/more"), Namespaces: everywhere, Targets: account}),
	} {
		b.Run(object.Object.Kind, func(b *testing.B) {
			j, _ := builtCity(1000, true, false)
			b.ReportAllocs()
			for b.Loop() {
				j.set(object)
				j.snapshot()
				j.set(fact.Fact{Object: object.Object})
				j.snapshot()
			}
		})
	}
}
