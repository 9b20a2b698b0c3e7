package golden_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// lists is a mesh whose access rules have each list set.
const lists = `
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {clusterIP: 10.96.0.1, selector: {app: cart}, ports: [{name: http, port: 8080}, {name: tcp-db, port: 9000}, {name: tcp-log, port: 9001}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: cart, namespace: shop, labels: {app: cart}}, spec: {serviceAccountName: cart, containers: [{name: app}]}, status: {podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {serviceAccountName: web, containers: [{name: app}]}, status: {podIP: 10.0.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: thief, namespace: shop, labels: {app: thief}}, spec: {serviceAccountName: thief, containers: [{name: app}]}, status: {podIP: 10.0.0.3}}
---
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec: {traffic: {enablePermissiveTrafficPolicyMode: false}}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: pages, namespace: shop}
spec: {matches: [{name: a, pathRegex: /a, methods: [GET], headers: [{x-kind: red}]}, {name: b, pathRegex: /b, methods: [GET]}]}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: db, namespace: shop}
spec: {matches: {ports: [9000]}}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: pages, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: cart, namespace: shop}
  sources: [{kind: ServiceAccount, name: web, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: pages, matches: [a]}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: db, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: cart, namespace: shop}
  sources: [{kind: ServiceAccount, name: web, namespace: shop}]
  rules: [{kind: TCPRoute, name: db}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: thief, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: thief, namespace: shop}
  sources: [{kind: ServiceAccount, name: web, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: pages}]
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {name: out, namespace: shop}
spec:
  sources: [{kind: ServiceAccount, name: web, namespace: shop}]
  hosts: [a.example.com]
  ipAddresses: [192.0.2.0/24]
  ports: [{number: 80, protocol: http}]
  matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: pages}]
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: IngressBackend
metadata: {name: in, namespace: shop}
spec:
  backends: [{name: cart, port: {number: 8080, protocol: http}}]
  sources: [{kind: IPRange, name: 192.0.2.0/24}]
  matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: pages}]
`

// meansAll are the lists that mean everything when they are empty, as when they are missing, by
// the Service Mesh Interface and Open Service Mesh, with what is allowed then.
var meansAll = map[string]bool{
	"HTTPRouteGroup pages spec.matches[0].methods": true,
	"HTTPRouteGroup pages spec.matches[0].headers": true,
	"HTTPRouteGroup pages spec.matches[1].methods": true,
	"TCPRoute db spec.matches.ports":               true,
	"TrafficTarget pages spec.rules[0].matches":    true,
	"Egress out spec.ipAddresses":                  true,
	"Egress out spec.matches":                      true,
	"IngressBackend in spec.matches":               true,
}

// emptied yields copies of a value in each of which one list or selector is empty, by its path.
func emptied(path string, value any, yield func(path string, with any)) {
	switch value := value.(type) {
	case manifestObject:
		if path == "spec.selector" {
			yield(path, manifestObject{})
		}
		for key, field := range value {
			emptied(path+"."+key, field, func(path string, with any) {
				copied := maps.Clone(value)
				copied[key] = with
				yield(path, copied)
			})
		}
	case []any:
		yield(path, []any{})
		for i, element := range value {
			emptied(fmt.Sprintf("%s[%d]", path, i), element, func(path string, with any) {
				copied := slices.Clone(value)
				copied[i] = with
				yield(path, copied)
			})
		}
	}
}

// granted is what the mesh allows, of many requests and connections in and out, and who is called.
func granted(snapshot *fact.Snapshot) map[string]bool {
	all := map[string]bool{}
	var requests []*mesh.Request
	for _, path := range []string{"/a", "/b", "/c"} {
		for _, method := range []string{"GET", "POST"} {
			for _, header := range []map[string][]string{nil, {"x-kind": {"red"}}} {
				for _, host := range []string{"a.example.com", "b.example.com"} {
					requests = append(requests, &mesh.Request{Method: method, Host: host, Path: path, Headers: header})
				}
			}
		}
	}
	requests = append(requests, nil)
	for _, view := range snapshot.Views.All() {
		for _, r := range requests {
			text := "nothing"
			if r != nil {
				text = fmt.Sprintf("%s %s%s %v", r.Method, r.Host, r.Path, r.Headers)
			}
			for _, port := range []uint16{8080, 9000, 9001, 9002} {
				for _, account := range []string{"web", "thief"} {
					peer := view.Proxy.Identity
					peer.ServiceAccount = account
					if view.Inbound.Decide(mesh.Arrival{Port: port, Security: mesh.MeshTLS, Peer: peer, Request: r}).Allowed {
						all[fmt.Sprintf("%s to %s:%d %s", account, view.Proxy.Name, port, text)] = true
					}
				}
				for _, source := range []string{"192.0.2.1", "198.51.100.1"} {
					if view.Inbound.Decide(mesh.Arrival{Port: port, Security: mesh.Plaintext, Source: netip.MustParseAddr(source), Request: r}).Allowed {
						all[fmt.Sprintf("%s to %s:%d %s", source, view.Proxy.Name, port, text)] = true
					}
				}
			}
			for _, to := range []string{"192.0.2.1:80", "192.0.2.1:81", "198.51.100.1:80", "198.51.100.1:443"} {
				if view.Egress.Decide(mesh.Departure{To: netip.MustParseAddrPort(to), Request: r}).Allowed {
					all[fmt.Sprintf("%s to %s %s", view.Proxy.Name, to, text)] = true
				}
			}
		}
		for _, b := range view.Outbound.Backends.All() {
			for _, e := range b.Endpoints {
				all[fmt.Sprintf("%s calls %s at %v", view.Proxy.Name, b.Name, e.Addresses)] = true
			}
		}
	}
	return all
}

// TestEmptyLists empties each list and selector of the objects that decide about access. None may
// allow more than before, except for those that are documented to mean everything.
func TestEmptyLists(t *testing.T) {
	objects := objectsOf(t, []byte(lists))
	before := granted(snapshotWith(t, objects))
	if len(before) == 0 {
		t.Fatal("the mesh allows nothing")
	}
	wider := map[string]bool{}
	for i, o := range objects {
		if o["kind"] == "Pod" || o["spec"] == nil {
			continue
		}
		emptied("spec", o["spec"], func(path string, spec any) {
			with := slices.Clone(objects)
			with[i] = maps.Clone(o)
			with[i]["spec"] = spec
			name := fmt.Sprintf("%s %s %s", o["kind"], o["metadata"].(manifestObject)["name"], path)
			for allowed := range granted(snapshotWith(t, with)) {
				if !before[allowed] {
					if !meansAll[name] {
						t.Errorf("without %s: %s is allowed", name, allowed)
					}
					wider[name] = true
				}
			}
		})
	}
	if diff := gocmp.Diff(meansAll, wider); diff != "" {
		t.Errorf("the lists that mean everything when they are empty (-want +got):\n%s", diff)
	}
}
