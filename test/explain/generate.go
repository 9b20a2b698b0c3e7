// Package explain tests that 'outrigger explain' and real proxies give the same answers in
// generated meshes. This file generates the meshes as a user would write them, and must not
// import other packages of the module.
package explain

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// The fixed part of every mesh, its town: clients and servers in the namespaces users and
// shop, a StatefulSet shop/db behind a headless service, and the pods users/bare and
// plain/outsider without a sidecar, the latter in a namespace outside the mesh.
//
// The applications of all pods answer HTTP at HTTPPorts and echo at TCPPorts. A host
// outside the mesh answers HTTP at 8081 and echoes within TLS at 8443.
const (
	// OutsideHost and OutsideAddress are the host outside the mesh.
	OutsideHost    = "out.example.com"
	OutsideAddress = "198.18.0.1"
	HTTPPort       = 8080
	OutsidePort    = 8081
	OutsideTLSPort = 8443
)

// HTTPPorts are the ports at which applications answer requests, and TCPPorts those at
// which they echo. There are no questions about other ports, since the mesh does not know
// where applications listen.
var (
	HTTPPorts = []int{HTTPPort, 80}
	TCPPorts  = []int{9000, 5432}
)

// Question is a question for both.
type Question struct {
	// From is a pod, namespace/name.
	From string
	// To is a host or an address with a port, as a client writes it.
	To string
	// Pods are the pods, namespace/name, that a name with several addresses resolves to.
	Pods []string
	// Method, Path and Headers describe an HTTP request; a connection has none.
	Method, Path string
	Headers      []string
	// TLS says that the client itself uses TLS, with the host's name as the server name.
	TLS bool
}

func (q Question) String() string {
	if q.TLS {
		return fmt.Sprintf("%s to %s in TLS", q.From, q.To)
	}
	return strings.TrimSpace(fmt.Sprintf("%s to %s %s %s %s", q.From, q.To, q.Method, q.Path, strings.Join(q.Headers, " ")))
}

// Generator generates meshes from a seed.
type Generator struct {
	random  *rand.Rand
	classes []string
}

// NewGenerator returns a Generator whose pods have sidecars of the classes. Equal seeds
// and classes give equal meshes.
func NewGenerator(seed uint64, classes []string) *Generator {
	return &Generator{rand.New(rand.NewPCG(seed, 11)), classes}
}

func (g *Generator) chance(percent int) bool { return g.random.IntN(100) < percent }

func pick[T any](g *Generator, from ...T) T { return from[g.random.IntN(len(from))] }

// some returns one or more of the elements, in their order.
func some[T comparable](g *Generator, from ...T) []T {
	chosen := pick(g, from...)
	return slices.DeleteFunc(slices.Clone(from), func(t T) bool { return t != chosen && !g.chance(40) })
}

func (g *Generator) class() string { return pick(g, g.classes...) }

// Town returns the manifests of the fixed part: namespaces, pods and services, and the
// ports and ranges that pods exclude from redirection.
func (g *Generator) Town() string {
	var out strings.Builder
	write := func(format string, args ...any) { fmt.Fprintf(&out, "---\n"+format+"\n", args...) }
	for _, namespace := range []string{"users", "shop"} {
		write(`apiVersion: v1
kind: Namespace
metadata:
  name: %s
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled}`, namespace)
	}
	write("apiVersion: v1\nkind: Namespace\nmetadata: {name: plain}")
	pod := func(namespace, name, account, labels string, exclusions []string) {
		annotations := append([]string{"openservicemesh.io/sidecar-class: " + g.class()}, exclusions...)
		write(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {%s}, annotations: {%s}}
spec:
  serviceAccountName: %s
  containers: [{name: app, image: in-the-test, ports: [{name: http, containerPort: 8080}]}]`, name, namespace, labels, strings.Join(annotations, ", "), account)
	}
	pod("users", "web", "web", "app: web", nil)
	pod("users", "ops", "ops", "app: ops", g.exclusions("outbound"))
	pod("shop", "cart-v1", "cart", "app: cart, version: v1", nil)
	pod("shop", "cart-v2", pick(g, "cart", "cart-v2"), "app: cart, version: v2", g.exclusions("inbound"))
	pod("users", "bare", "bare", "app: bare", []string{"openservicemesh.io/sidecar-injection: disabled"})
	pod("plain", "outsider", "default", "app: outsider", nil)
	write(`apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}, annotations: {openservicemesh.io/sidecar-class: %s}}
    spec:
      serviceAccountName: db
      containers: [{name: app, image: in-the-test}]`, g.class())
	write(`apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {selector: {app: cart}, ports: [{name: http, port: 80, targetPort: 8080}]}`)
	for _, version := range []string{"v1", "v2"} {
		write(`apiVersion: v1
kind: Service
metadata: {name: cart-%[1]s, namespace: shop}
spec: {selector: {app: cart, version: %[1]s}, ports: [{name: http, port: 80, targetPort: http}, {name: tcp-echo, port: 9000}]}`, version)
	}
	write(`apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp-db, port: 5432}, {name: http-admin, port: %s, targetPort: 8080}]}`, pick(g, "80", "8080"))
	for _, alias := range [][2]string{
		{"alias", "cart.shop.svc.cluster.local"}, {"again", "alias.users.svc.cluster.local"}, {"first", "db-0.db.shop.svc.cluster.local"}, {"mail", OutsideHost},
	} {
		write(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: users}
spec: {type: ExternalName, externalName: %s, ports: [{name: http, port: 80}]}`, alias[0], alias[1])
	}
	return out.String()
}

// exclusions sometimes returns annotations that exclude ports or ranges from redirection.
func (g *Generator) exclusions(direction string) []string {
	var annotations []string
	if g.chance(50) {
		annotations = append(annotations, fmt.Sprintf("openservicemesh.io/%s-port-exclusion-list: %q", direction, pick(g, "9000", "5432,9000", "8080", "8081")))
	}
	if direction == "outbound" && g.chance(40) {
		annotations = append(annotations, fmt.Sprintf("openservicemesh.io/outbound-ip-range-%s-list: %q", pick(g, "exclusion", "inclusion"), pick(g, OutsideAddress+"/32", "198.18.0.0/16")))
	}
	return annotations
}

// Policies returns the manifests of the variable part: the MeshConfig and all policies.
func (g *Generator) Policies() string {
	var out strings.Builder
	write := func(format string, args ...any) { fmt.Fprintf(&out, "---\n"+format+"\n", args...) }
	write(`apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  traffic: {enablePermissiveTrafficPolicyMode: %t, enableEgress: %t, inboundTLSMode: %s}
  observability: {enableDebugServer: true}
  featureFlags: {enableEgressPolicy: true, enableIngressBackendPolicy: true, enableRetryPolicy: true}`, g.chance(25), g.chance(30), pick(g, "Strict", "Strict", "Permissive"))
	for _, name := range []string{"reads", "writes"} {
		var matches []string
		for i := range 1 + g.random.IntN(2) {
			match := []string{fmt.Sprintf("name: m%d", i), "pathRegex: " + pick(g, "/a", "/a.*", "/b/.*", "'.*'")}
			if g.chance(60) {
				match = append(match, "methods: ["+strings.Join(some(g, "GET", "POST"), ", ")+"]")
			}
			if g.chance(30) {
				match = append(match, "headers: [{x-tenant: "+pick(g, "blue", "'.*'")+"}]")
			}
			matches = append(matches, "{"+strings.Join(match, ", ")+"}")
		}
		write(`apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: %s, namespace: shop}
spec: {matches: [%s]}`, name, strings.Join(matches, ", "))
	}
	write(`apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: ports, namespace: shop}
spec: {matches: {ports: [%s]}}`, strings.Join(some(g, "9000", "5432", "8080"), ", "))
	for _, destination := range []string{"cart", "cart-v2", "db"} {
		for i := range g.random.IntN(3) {
			var sources, rules []string
			for _, source := range some(g, "users/web", "users/ops", "shop/cart", "shop/db") {
				namespace, name, _ := strings.Cut(source, "/")
				sources = append(sources, fmt.Sprintf("{kind: ServiceAccount, name: %s, namespace: %s}", name, namespace))
			}
			for _, rule := range some(g, "HTTPRouteGroup reads", "HTTPRouteGroup writes", "TCPRoute ports") {
				kind, name, _ := strings.Cut(rule, " ")
				rules = append(rules, fmt.Sprintf("{kind: %s, name: %s}", kind, name))
			}
			write(`apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: %s-%d, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: %s, namespace: shop}
  sources: [%s]
  rules: [%s]`, destination, i, destination, strings.Join(sources, ", "), strings.Join(rules, ", "))
		}
	}
	if g.chance(60) {
		matches := ""
		if g.chance(40) {
			matches = "\n  matches: [{kind: HTTPRouteGroup, name: " + pick(g, "reads", "writes") + "}]"
		}
		write(`apiVersion: split.smi-spec.io/v1alpha4
kind: TrafficSplit
metadata: {name: cart, namespace: shop}
spec:
  service: cart
  backends: [{service: cart-v1, weight: %d}, {service: %s, weight: %d}]%s`, g.random.IntN(2)*50, pick(g, "cart-v2", "cart-v2", "missing"), g.random.IntN(2)*50, matches)
	}
	for i := range g.random.IntN(3) {
		to := pick(g, "hosts: ["+OutsideHost+"]", "ipAddresses: ["+OutsideAddress+"/32]", "hosts: [cart.shop]")
		port := pick(g, "number: 8081, protocol: http", "number: 8081, protocol: tcp", "number: 8080, protocol: http",
			"number: 8443, protocol: https", "number: 8443, protocol: https", "number: 8443, protocol: tcp")
		write(`apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {name: out-%d, namespace: users}
spec:
  sources: [{kind: ServiceAccount, name: %s, namespace: users}]
  %s
  ports: [{%s}]`, i, pick(g, "web", "ops"), to, port)
	}
	if g.chance(40) {
		write(`apiVersion: policy.openservicemesh.io/v1alpha1
kind: IngressBackend
metadata: {name: in, namespace: shop}
spec:
  backends: [{name: %s, port: {number: 8080, protocol: http}}]
  sources: [{kind: IPRange, name: %s}]`, pick(g, "cart-v1", "cart", "cart-v2"), pick(g, "198.18.0.0/16", "192.0.2.0/24"))
	}
	if g.chance(60) {
		principals := some(g, "web.users.cluster.local", "ops.users.cluster.local", "db.shop.cluster.local")
		if g.chance(20) {
			principals = []string{"'*'"}
		}
		var sources []string
		for _, principal := range principals {
			sources = append(sources, "{kind: AuthenticatedPrincipal, name: "+principal+"}")
		}
		if g.chance(30) {
			sources = append(sources, "{kind: IPRange, name: "+pick(g, "198.18.0.0/16", "192.0.2.0/24")+"}")
		}
		tls := pick(g, "", "", "", ", tls: {skipClientCertValidation: false}", ", tls: {skipClientCertValidation: true, sniHosts: [cart.example.com]}")
		matches := ""
		if g.chance(40) {
			matches = "\n  matches: [{kind: HTTPRouteGroup, name: " + pick(g, "reads", "writes") + "}]"
		}
		write(`apiVersion: policy.openservicemesh.io/v1alpha1
kind: IngressBackend
metadata: {name: in-by-name, namespace: shop}
spec:
  backends: [{name: %s, port: {number: 8080, protocol: https}%s}]
  sources: [%s]%s`, pick(g, "cart-v1", "cart", "cart-v2"), tls, strings.Join(sources, ", "), matches)
	}
	g.bystanders(write)
	return out.String()
}

// bystanders writes policies about how services are called, which must not change who may
// call them: their limits are not reached.
func (g *Generator) bystanders(write func(format string, args ...any)) {
	for _, account := range []string{"users/web", "users/ops", "shop/cart", "shop/db"} {
		if !g.chance(30) {
			continue
		}
		namespace, name, _ := strings.Cut(account, "/")
		var destinations []string
		for _, service := range some(g, "cart", "cart-v1", "cart-v2", "db") {
			destinations = append(destinations, "{kind: Service, name: "+service+", namespace: shop}")
		}
		write(`apiVersion: policy.openservicemesh.io/v1alpha1
kind: Retry
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  source: {kind: ServiceAccount, name: %[2]s, namespace: %[1]s}
  destinations: [%[3]s]
  retryPolicy: {retryOn: %[4]s, numRetries: %[5]d, perTryTimeout: 2s, retryBackoffBaseInterval: 20ms}`,
			namespace, name, strings.Join(destinations, ", "), pick(g, "5xx", "'5xx,connect-failure,retriable-4xx'", "reset"), 1+g.random.IntN(3))
	}
	for _, service := range []string{"cart", "cart-v1", "cart-v2", "db"} {
		if !g.chance(40) {
			continue
		}
		settings := some(g,
			"connectionSettings: {tcp: {maxConnections: 100, connectTimeout: 2s}, http: {maxRequests: 100, maxPendingRequests: 100, maxRetries: 10, maxRequestsPerConnection: 1}}",
			"rateLimit: {local: {tcp: {connections: 10000, unit: second}, http: {requests: 10000, unit: second}}}",
			"httpRoutes: [{path: /a.*, rateLimit: {local: {requests: 10000, unit: second}}}]")
		write(`apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: %[1]s, namespace: shop}
spec:
  host: %[1]s.shop.svc.cluster.local
  %[2]s`, service, strings.Join(settings, "\n  "))
	}
}

// Questions returns that many questions. Address returns a pod's address.
func (g *Generator) Questions(number int, address func(pod string) string) []Question {
	databases := []string{"shop/db-0", "shop/db-1"}
	suffix := func() string { return pick(g, "", ".svc", ".svc.cluster.local") }
	all := make([]Question, 0, number)
	for range number {
		q := Question{From: pick(g, "users/web", "users/ops", "shop/cart-v1", "shop/db-0", "users/bare")}
		http := true
		port := HTTPPort
		switch g.random.IntN(14) {
		case 0, 1:
			q.To, port = pick(g, "cart", "cart-v1", "cart-v2")+".shop"+suffix(), 80
		case 2:
			q.To, port, http = pick(g, "cart-v1", "cart-v2")+".shop"+suffix(), 9000, false
		case 3:
			q.To, q.Pods = "db.shop"+suffix(), databases
			port = pick(g, HTTPPort, 5432, 80, 9000)
		case 4, 5:
			q.To, port = pick(g, "db-0", "db-1")+".db.shop"+suffix(), pick(g, HTTPPort, 5432, 9000)
		case 6:
			q.To, port = pick(g, "alias", "again")+".users"+suffix(), 80
		case 7:
			q.To = "first.users" + suffix()
			port = pick(g, HTTPPort, 5432)
		case 8:
			q.To, port = pick(g, OutsideHost, OutsideAddress, "mail.users"+suffix()), OutsidePort
		case 9:
			q.To, q.From = pick(g, OutsideHost, OutsideAddress), pick(g, "users/web", "users/ops", q.From)
			port, http, q.TLS = OutsideTLSPort, false, true
		case 10, 11, 12:
			q.From = pick(g, "users/web", "users/ops", "shop/db-0")
			q.To, port = pick(g, "cart-v1", "cart-v2")+".shop"+suffix(), 80
		default:
			q.To = address(pick(g, "shop/cart-v1", "shop/cart-v2", "shop/db-1", "users/web", "users/bare", "plain/outsider"))
			port = pick(g, HTTPPort, 9000)
		}
		q.To = fmt.Sprintf("%s:%d", q.To, port)
		if http && !slices.Contains(TCPPorts, port) {
			q.Method, q.Path = pick(g, "GET", "POST"), pick(g, "/a", "/a/c", "/b/1", "/")
			if g.chance(30) {
				q.Headers = []string{"x-tenant=" + pick(g, "blue", "red")}
			}
		}
		all = append(all, q)
	}
	return all
}
