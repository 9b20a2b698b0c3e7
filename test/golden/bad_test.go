package golden_test

import (
	"strings"
	"testing"
)

// goodMesh is a mesh without a Problem, in which shop/web may read shop/cart.
const goodMesh = `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  traffic: {enablePermissiveTrafficPolicyMode: false}
  featureFlags: {enableRetryPolicy: true}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {selector: {app: cart}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart-v2, namespace: shop}
spec: {selector: {app: cart-v2}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec: {selector: {app: cart-v2}, ports: [{name: http-a, port: 8081}, {name: http-b, port: 8082}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec: {clusterIP: None, selector: {app: cart}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: cart, namespace: shop, labels: {app: cart}}
spec: {serviceAccountName: cart, containers: [{name: app}]}
---
apiVersion: v1
kind: Pod
metadata: {name: cart-v2, namespace: shop, labels: {app: cart-v2}}
spec: {serviceAccountName: cart, containers: [{name: app}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {serviceAccountName: web, containers: [{name: app}]}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: reads, namespace: shop}
spec: {matches: [{name: read, pathRegex: /cart/.*, methods: [GET]}]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: good, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: cart, namespace: shop}
  sources: [{kind: ServiceAccount, name: web, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: reads}]
`

// policy and the others abbreviate the objects of the table below.
func policy(kind, name, spec string) string {
	return "---\napiVersion: policy.openservicemesh.io/v1alpha1\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: shop}\nspec: " + spec + "\n"
}

func target(name, spec string) string {
	return "---\napiVersion: access.smi-spec.io/v1alpha3\nkind: TrafficTarget\nmetadata: {name: " + name + ", namespace: shop}\nspec: " + spec + "\n"
}

func split(name, spec string) string {
	return "---\napiVersion: split.smi-spec.io/v1alpha4\nkind: TrafficSplit\nmetadata: {name: " + name + ", namespace: shop}\nspec: " + spec + "\n"
}

func group(name, matches string) string {
	return "---\napiVersion: specs.smi-spec.io/v1alpha4\nkind: HTTPRouteGroup\nmetadata: {name: " + name + ", namespace: shop}\nspec: {matches: " + matches + "}\n"
}

const (
	cartAccount = "{kind: ServiceAccount, name: cart, namespace: shop}"
	webAccount  = "{kind: ServiceAccount, name: web, namespace: shop}"
)

// TestBadInput adds one bad object to a good mesh. There must be a Problem with the
// object's name, no additional access, and a working rest of the mesh: Envoy accepts its
// proxies' configuration.
func TestBadInput(t *testing.T) {
	tests := []struct {
		name, object string
		// want is the prefix of a Problem.
		want string
	}{
		{"target of a service account without pods",
			target("bad", "{destination: {kind: ServiceAccount, name: nobody, namespace: shop}, sources: ["+webAccount+"], rules: [{kind: HTTPRouteGroup, name: reads}]}"),
			"TrafficTarget shop/bad: NotFound: spec.destination"},
		{"target of a namespace outside the mesh",
			"---\napiVersion: v1\nkind: Namespace\nmetadata: {name: far}\n" +
				target("bad", "{destination: "+cartAccount+", sources: [{kind: ServiceAccount, name: web, namespace: far}], rules: [{kind: HTTPRouteGroup, name: missing}]}"),
			"TrafficTarget shop/bad: NotFound: spec.sources[0]"},
		{"target with a dangling group",
			target("bad", "{destination: "+cartAccount+", sources: ["+webAccount+"], rules: [{kind: HTTPRouteGroup, name: missing}]}"),
			"TrafficTarget shop/bad: NotFound: spec.rules[0].name"},
		{"target with a dangling match",
			target("bad", "{destination: "+cartAccount+", sources: ["+webAccount+"], rules: [{kind: HTTPRouteGroup, name: reads, matches: [missing]}]}"),
			"TrafficTarget shop/bad: NotFound: spec.rules[0].matches[0]"},
		{"target without sources",
			target("bad", "{destination: "+cartAccount+", rules: [{kind: HTTPRouteGroup, name: reads}]}"),
			"TrafficTarget shop/bad: "},
		{"target without rules",
			target("bad", "{destination: "+cartAccount+", sources: ["+webAccount+"]}"),
			"TrafficTarget shop/bad: "},
		{"target whose source is a group",
			target("bad", "{destination: "+cartAccount+", sources: [{kind: Group, name: all, namespace: shop}], rules: [{kind: HTTPRouteGroup, name: reads}]}"),
			"TrafficTarget shop/bad: "},
		{"target narrowed by a dangling TCPRoute",
			target("bad", "{destination: "+cartAccount+", sources: ["+webAccount+"], rules: [{kind: HTTPRouteGroup, name: reads}, {kind: TCPRoute, name: missing}]}"),
			"TrafficTarget shop/bad: NotFound: spec.rules[1].name"},
		{"target narrowed by a rule of an unknown kind",
			target("bad", "{destination: "+cartAccount+", sources: ["+webAccount+"], rules: [{kind: HTTPRouteGroup, name: reads}, {kind: TCPRoutes, name: main}]}"),
			"TrafficTarget shop/bad: UnknownKind: spec.rules[1].kind"},
		{"target with a TCPRoute alone beside an HTTP port",
			"---\napiVersion: specs.smi-spec.io/v1alpha4\nkind: TCPRoute\nmetadata: {name: any, namespace: shop}\nspec: {matches: {}}\n" +
				target("bad", "{destination: "+cartAccount+", sources: [{kind: ServiceAccount, name: cart, namespace: shop}], rules: [{kind: TCPRoute, name: any}]}"),
			"TrafficTarget shop/bad: NoEffect: spec.rules[0]"},
		{"invalid path expression", group("bad", `[{name: m, pathRegex: "/cart/["}]`), "HTTPRouteGroup shop/bad: Invalid"},
		{"invalid header expression", group("bad", `[{name: m, headers: [{x-user: "("}]}]`), "HTTPRouteGroup shop/bad: Invalid"},
		{"unknown method", group("bad", `[{name: m, methods: ["G ET"]}]`), "HTTPRouteGroup shop/bad: "},
		{"two splits of a service",
			split("a", "{service: cart, backends: [{service: cart, weight: 1}]}") + split("bad", "{service: cart, backends: [{service: cart-v2, weight: 1}]}"),
			"TrafficSplit shop/bad: Conflict: spec.service"},
		{"split without weight", split("bad", "{service: cart, backends: [{service: cart, weight: 0}, {service: cart-v2, weight: 0}]}"), "TrafficSplit shop/bad: "},
		{"split with a negative weight", split("bad", "{service: cart, backends: [{service: cart, weight: -1}, {service: cart-v2, weight: 1}]}"), "TrafficSplit shop/bad: "},
		{"split to a service that is not there", split("bad", "{service: cart, backends: [{service: missing, weight: 1}, {service: cart, weight: 1}]}"), "TrafficSplit shop/bad: NotFound: spec.backends[0].service"},
		{"split of a service that is not there", split("bad", "{service: missing, backends: [{service: cart, weight: 1}]}"), "TrafficSplit shop/bad: NotFound: spec.service"},
		{"split to a service without the port", split("bad", "{service: cart, backends: [{service: cart, weight: 1}, {service: other, weight: 1}]}"), "TrafficSplit shop/bad: NoSuchPort: spec.backends[1].service"},
		{"split of a headless service", split("bad", "{service: headless, backends: [{service: cart, weight: 1}]}"), "TrafficSplit shop/bad: NoEffect: spec.service"},
		{"splits in a circle",
			split("bad", "{service: cart, backends: [{service: cart-v2, weight: 1}]}") + split("worse", "{service: cart-v2, backends: [{service: cart, weight: 1}]}"),
			"TrafficSplit shop/bad: Cycle: spec.backends"},
		{"split by a dangling match",
			split("bad", "{service: cart, matches: [{apiGroup: specs.smi-spec.io, kind: HTTPRouteGroup, name: missing}], backends: [{service: cart-v2, weight: 1}]}"),
			"TrafficSplit shop/bad: NotFound: spec.matches[0]"},
		{"egress port with two protocols",
			policy("Egress", "a", "{sources: ["+webAccount+"], hosts: [a.example.com], ports: [{number: 80, protocol: http}]}") +
				policy("Egress", "bad", "{sources: ["+webAccount+"], ipAddresses: [192.0.2.0/24], ports: [{number: 80, protocol: tcp}]}"),
			"Egress shop/bad: Conflict: spec.sources[0]"},
		{"egress host that is none", policy("Egress", "bad", `{sources: [`+webAccount+`], hosts: ["a b"], ports: [{number: 80, protocol: http}]}`), "Egress shop/bad: "},
		{"egress range that is none", policy("Egress", "bad", "{sources: ["+webAccount+"], ipAddresses: [192.0.2.0/99], ports: [{number: 80, protocol: tcp}]}"), "Egress shop/bad: "},
		{"egress port that is none", policy("Egress", "bad", "{sources: ["+webAccount+"], hosts: [a.example.com], ports: [{number: 99999, protocol: http}]}"), "Egress shop/bad: "},
		{"egress with a dangling match",
			policy("Egress", "bad", "{sources: ["+webAccount+"], hosts: [a.example.com], ports: [{number: 80, protocol: http}], matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: missing}]}"),
			"Egress shop/bad: NotFound: spec.matches[0]"},
		{"egress with a dangling setting",
			policy("Egress", "bad", "{sources: ["+webAccount+"], hosts: [a.example.com], ports: [{number: 80, protocol: http}], matches: [{apiGroup: policy.openservicemesh.io/v1alpha1, kind: UpstreamTrafficSetting, name: missing}]}"),
			"Egress shop/bad: NotFound: spec.matches"},
		{"ingress by a certificate of nobody in particular", policy("IngressBackend", "bad", "{backends: [{name: cart, port: {number: 8080, protocol: https}}], sources: [{kind: IPRange, name: 192.0.2.0/24}]}"), "IngressBackend shop/bad: Missing: spec.backends[0].tls"},
		{"ingress to a service that is not there", policy("IngressBackend", "bad", "{backends: [{name: missing, port: {number: 8080, protocol: http}}], sources: [{kind: IPRange, name: 192.0.2.0/24}]}"), "IngressBackend shop/bad: NotFound: spec.backends[0].name"},
		{"ingress to a port that is not there", policy("IngressBackend", "bad", "{backends: [{name: cart, port: {number: 1, protocol: http}}], sources: [{kind: IPRange, name: 192.0.2.0/24}]}"), "IngressBackend shop/bad: NoSuchPort: spec.backends[0].port.number"},
		{"ingress from a service without endpoints", policy("IngressBackend", "bad", "{backends: [{name: cart, port: {number: 8080, protocol: http}}], sources: [{kind: Service, name: gateway, namespace: edge}]}"), "IngressBackend shop/bad: NotFound: spec.sources[0]"},
		{"ingress from a principal of nowhere", policy("IngressBackend", "bad", "{backends: [{name: cart, port: {number: 8080, protocol: https}}], sources: [{kind: AuthenticatedPrincipal, name: somebody}]}"), "IngressBackend shop/bad: "},
		{"ingress from a range that is none", policy("IngressBackend", "bad", "{backends: [{name: cart, port: {number: 8080, protocol: http}}], sources: [{kind: IPRange, name: everywhere}]}"), "IngressBackend shop/bad: "},
		{"retry of a service that is not there", policy("Retry", "bad", "{source: "+webAccount+", destinations: [{kind: Service, name: missing, namespace: shop}], retryPolicy: {retryOn: 5xx}}"), "Retry shop/bad: NotFound: spec.destinations[0]"},
		{"retry on a condition that is none", policy("Retry", "bad", "{source: "+webAccount+", destinations: [{kind: Service, name: cart, namespace: shop}], retryPolicy: {retryOn: sometimes}}"), "Retry shop/bad: "},
		{"two settings of a host", policy("UpstreamTrafficSetting", "a", "{host: cart.shop.svc.cluster.local}") + policy("UpstreamTrafficSetting", "bad", "{host: cart}"), "UpstreamTrafficSetting shop/bad: Conflict: spec.host"},
		{"setting of a host that is not there", policy("UpstreamTrafficSetting", "bad", "{host: missing.shop.svc.cluster.local}"), "UpstreamTrafficSetting shop/bad: NotFound: spec.host"},
		{"setting with a timeout that is none", policy("UpstreamTrafficSetting", "bad", "{host: cart, connectionSettings: {tcp: {connectTimeout: soon}}}"), "UpstreamTrafficSetting shop/bad: "},
		{"limit of a path that is no expression", policy("UpstreamTrafficSetting", "bad", `{host: cart, httpRoutes: [{path: "(", rateLimit: {local: {requests: 1, unit: second}}}]}`), "UpstreamTrafficSetting shop/bad: "},
		{"two protocols on one port of the pods",
			"---\napiVersion: v1\nkind: Service\nmetadata: {name: late, namespace: shop}\nspec: {selector: {app: cart}, ports: [{name: tcp-x, port: 81, targetPort: 8080}]}\n",
			"Service shop/late: Conflict: spec.ports[0]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			snapshot := build(t, strings.NewReader(goodMesh+tt.object))
			problems := string(problemsOf(snapshot))
			found := false
			for line := range strings.Lines(problems) {
				found = found || strings.HasPrefix(line, tt.want)
			}
			if !found {
				t.Errorf("no Problem begins with %q; there are:\n%s", tt.want, problems)
			}
			client, server := viewOf(t, snapshot, "shop/web"), viewOf(t, snapshot, "shop/cart")
			if _, ok := client.Outbound.Destinations.Get("shop/cart:80"); !ok {
				t.Errorf("shop/web no longer sees shop/cart:80")
			}
			for _, port := range server.Inbound.Ports {
				for _, rule := range port.Access.Rules {
					if rule.Origin.Name() != "shop/good" {
						t.Errorf("TrafficTarget %s allows requests on port %d", rule.Origin.Name(), port.Port)
					}
				}
				if len(port.Ingress) > 0 {
					t.Errorf("IngressBackend %s allows requests on port %d", port.Ingress[0].Origin.Name(), port.Port)
				}
			}
			for _, port := range client.Egress.Ports {
				if strings.Contains(tt.want, "Egress shop/bad: NotFound: spec.matches") && len(port.Hosts)+len(port.Ranges) > 0 {
					t.Errorf("the Egress allows connections to port %d", port.Port)
				}
			}
			check(t, client)
			check(t, server)
		})
	}
	t.Run("the good mesh", func(t *testing.T) {
		if problems := problemsOf(build(t, strings.NewReader(goodMesh))); len(problems) > 0 {
			t.Errorf("the good mesh has Problems:\n%s", problems)
		}
	})
}
