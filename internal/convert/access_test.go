package convert_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/convert"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// accessBase has pods of two service accounts, one of which serves requests and connections.
const accessBase = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec: {traffic: {enablePermissiveTrafficPolicyMode: false}}
---
apiVersion: v1
kind: Pod
metadata: {name: cart, namespace: a, labels: {app: cart}}
spec: {serviceAccountName: cart, containers: [{name: app, image: a}]}
---
apiVersion: v1
kind: Pod
metadata: {name: desk, namespace: a, labels: {app: desk}}
spec: {serviceAccountName: desk, containers: [{name: app, image: a}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: a}
spec: {clusterIP: 10.96.1.1, selector: {app: cart}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp-x, port: 90, targetPort: 9000}]}
---
apiVersion: v1
kind: Service
metadata: {name: desk, namespace: a}
spec: {clusterIP: 10.96.1.2, selector: {app: desk}, ports: [{name: http, port: 80, targetPort: 8081}]}
`

// newRandomAccess returns TrafficTargets, IngressBackends and what they refer to.
func newRandomAccess(r *rand.Rand) (groups, policies []string) {
	m := &randomMesh{}
	for g := range 3 {
		var matches []any
		count := r.IntN(4)
		if r.IntN(10) == 0 {
			count = 40
		}
		for i := range count {
			match := map[string]any{"name": fmt.Sprint("m", i)}
			if r.IntN(4) > 0 {
				match["pathRegex"] = pick(r, randomPaths...)
			}
			if r.IntN(3) == 0 {
				match["methods"] = pick(r, []string{"GET"}, []string{"*"}, []string{"GET", "POST"})
			}
			if r.IntN(3) == 0 {
				match["headers"] = pick(r, []map[string]string{{"x-user": "a"}}, []map[string]string{{"x-user": "a.*"}, {"x-user": ".*b"}}, []map[string]string{{"host": "cart.a"}}, []map[string]string{{"x-user": ".*"}})
			}
			matches = append(matches, match)
		}
		m.add("specs.smi-spec.io/v1alpha4", "HTTPRouteGroup", fmt.Sprint("g", g), map[string]any{"matches": matches})
		ports := pick(r, []int{9000}, []int{8080, 9000}, []int{8080}, []int{7000}, []int{})
		m.add("specs.smi-spec.io/v1alpha4", "TCPRoute", fmt.Sprint("g", g), map[string]any{"matches": map[string]any{"ports": ports}})
	}
	groups, m.objects = m.objects, nil
	account := func(name string) map[string]any {
		return map[string]any{"kind": "ServiceAccount", "name": name, "namespace": "a"}
	}
	for i := range 1 + r.IntN(3) {
		var rules, sources []any
		for range 1 + r.IntN(2) {
			rules = append(rules, map[string]any{"kind": pick(r, "HTTPRouteGroup", "HTTPRouteGroup", "TCPRoute"), "name": pick(r, "g0", "g1", "g2", "gone")})
		}
		for range 1 + r.IntN(2) {
			sources = append(sources, account(pick(r, "desk", "web")))
		}
		m.add("access.smi-spec.io/v1alpha3", "TrafficTarget", fmt.Sprint("t", i), map[string]any{"destination": account(pick(r, "cart", "cart", "desk")), "sources": sources, "rules": rules})
	}
	if r.IntN(2) == 0 {
		var matches []any
		if r.IntN(2) == 0 {
			matches = []any{map[string]any{"kind": "HTTPRouteGroup", "name": pick(r, "g0", "gone")}}
		}
		m.add("policy.openservicemesh.io/v1alpha1", "IngressBackend", "t0", map[string]any{
			"backends": []any{map[string]any{"name": "cart", "port": map[string]any{"number": 8080, "protocol": "http"}}},
			"sources":  []any{pick(r, map[string]any{"kind": "IPRange", "name": "192.0.2.0/24"}, map[string]any{"kind": "Service", "namespace": "a", "name": "desk"})},
			"matches":  matches,
		})
	}
	return groups, m.objects
}

// arrivals are what is asked before and after.
func arrivals() []mesh.Arrival {
	var all []mesh.Arrival
	for _, port := range []uint16{8080, 8081, 9000, 7000} {
		for _, name := range []string{"desk", "web", "thief", ""} {
			a := mesh.Arrival{Port: port, Source: netip.MustParseAddr("192.0.2.1"), Security: mesh.MeshTLS, Peer: mesh.Identity{TrustDomain: "cluster.local", Namespace: "a", ServiceAccount: name}}
			if name == "" {
				a.Security, a.Peer = mesh.Plaintext, mesh.Identity{}
			}
			all = append(all, a)
			for _, path := range []string{"/a", "/a/b", "/a%2Fb", "/a b", "/b", "/a.html", "/"} {
				for _, user := range []string{"", "a", "ab"} {
					for _, method := range []string{"GET", "POST"} {
						one := a
						one.Request = &mesh.Request{Method: method, Path: path, Headers: map[string][]string{"host": {"cart.a"}}}
						if user != "" {
							one.Request.Headers["x-user"] = []string{user}
						}
						all = append(all, one)
					}
				}
			}
		}
	}
	return all
}

// TestRandomAccess converts random TrafficTargets and IngressBackends. The policies must allow the
// same, or less if a Note says so, and never more.
func TestRandomAccess(t *testing.T) {
	converted, less := 0, 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 7))
		groups, policies := newRandomAccess(r)
		before := loadManifests(t, slices.Concat([]string{accessBase}, groups, policies))
		former := catalog.Build(before)
		made, notes := convert.AccessPolicies(former, before, nil)
		converted += len(made)
		after := slices.Concat([]string{accessBase}, groups)
		for _, policy := range policies {
			// It stays as the Notes say.
			if strings.Contains(policy, "IngressBackend") && hasNote(notes, "keep it: a policy") {
				after = append(after, policy)
			}
		}
		for _, policy := range made {
			text, err := json.Marshal(policy.Object)
			if err != nil {
				t.Fatal(err)
			}
			after = append(after, string(text))
		}
		facts := loadManifests(t, after)
		for _, f := range facts {
			if _, ok := f.Content.(*fact.AccessPolicy); ok && len(f.Problems) > 0 {
				t.Errorf("seed %d: %s", seed, f.Problems[0])
			}
		}
		now := catalog.Build(facts)
		for uid, view := range former.Views.All() {
			other, _ := now.Views.Get(uid)
			for _, a := range arrivals() {
				was, is := view.Inbound.Decide(a).Allowed, other.Inbound.Decide(a).Allowed
				if was == is {
					continue
				}
				less++
				if is || !hasNote(notes, "keep it") && !hasNote(notes, "add others by hand") {
					t.Fatalf("seed %d: %s: port %d of %s, %+v: allowed before: %t, and after: %t\nnotes: %v\nbefore:\n%s\nafter:\n%s",
						seed, view.Proxy.Name, a.Port, a.Peer, a.Request, was, is, notes, strings.Join(slices.Concat(groups, policies), "\n"), strings.Join(after[len(groups)+1:], "\n"))
				}
			}
		}
	}
	t.Logf("%d policies; %d arrivals are not allowed any more, with a note", converted, less)
	if converted < 150 {
		t.Errorf("only %d policies were made", converted)
	}
}
