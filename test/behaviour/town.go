package behaviour

import "fmt"

// The manifests of the test mesh. Its clients are the pods users/web, which the policies
// allow, and users/thief, which may do next to nothing. Its servers are in the namespace
// shop. plain/outsider has no sidecar.
//
// %[1]s is the class of the clients' proxies, %[2]s that of the servers', and %[3]s
// longAccount.
const meshTemplate = `
apiVersion: v1
kind: Namespace
metadata:
  name: users
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled, openservicemesh.io/sidecar-class: %[1]s}
---
apiVersion: v1
kind: Namespace
metadata:
  name: shop
  labels: {openservicemesh.io/monitored-by: osm}
  annotations: {openservicemesh.io/sidecar-injection: enabled, openservicemesh.io/sidecar-class: %[2]s}
---
apiVersion: v1
kind: Namespace
metadata: {name: plain}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: users, labels: {app: web, topology.kubernetes.io/zone: north}}
spec:
  serviceAccountName: web
  containers: [{name: app, image: in-the-test}]
---
apiVersion: v1
kind: Pod
metadata: {name: thief, namespace: users, labels: {app: thief}}
spec:
  serviceAccountName: thief
  containers: [{name: app, image: in-the-test}]
---
apiVersion: v1
kind: Pod
metadata: {name: outsider, namespace: plain, labels: {app: outsider}}
spec:
  containers: [{name: app, image: in-the-test}]
---
# Two versions, each with a service account of its own, behind one service.
apiVersion: v1
kind: Pod
metadata: {name: cart-v1, namespace: shop, labels: {app: cart, version: v1, topology.kubernetes.io/zone: north}}
spec:
  serviceAccountName: cart-v1
  containers:
  - name: app
    image: in-the-test
    ports: [{name: http, containerPort: 8080}]
    livenessProbe: {httpGet: {path: /probe/http, port: http, httpHeaders: [{name: X-Probe, value: "yes"}]}}
    readinessProbe: {tcpSocket: {port: 9000}}
    startupProbe: {grpc: {port: 50051, service: cart}}
  - name: second
    image: in-the-test
    livenessProbe: {httpGet: {path: /probe/https, port: 8443, scheme: HTTPS}}
---
apiVersion: v1
kind: Pod
metadata: {name: cart-v2, namespace: shop, labels: {app: cart, version: v2, topology.kubernetes.io/zone: south}}
spec:
  serviceAccountName: cart-v2
  containers:
  - {name: app, image: in-the-test, ports: [{name: http, containerPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {app: cart}
  ports:
  - {name: http, port: 80, targetPort: 8080}
---
apiVersion: v1
kind: Service
metadata: {name: cart-v1, namespace: shop}
spec:
  selector: {app: cart, version: v1}
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: tcp-echo, port: 9000}
  - {name: tcp-server-first-db, port: 3306}
  - {name: grpc, port: 50051}
  - {name: tcp-tls, port: 8443}
---
apiVersion: v1
kind: Service
metadata: {name: cart-v2, namespace: shop}
spec:
  selector: {app: cart, version: v2}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
# This pod has no service.
apiVersion: v1
kind: Pod
metadata: {name: lone, namespace: shop, labels: {app: lone}}
spec:
  serviceAccountName: %[3]s
  containers: [{name: app, image: in-the-test, ports: [{name: http, containerPort: 8080}]}]
---
# Nobody calls these services; they give their pods IPv6 addresses.
apiVersion: v1
kind: Service
metadata: {name: web, namespace: users}
spec: {ipFamilyPolicy: PreferDualStack, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: thief, namespace: users}
spec: {ipFamilyPolicy: PreferDualStack, selector: {app: thief}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: outsider, namespace: plain}
spec: {ipFamilyPolicy: PreferDualStack, selector: {app: outsider}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
# Headless, as a StatefulSet's.
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{name: http, port: 8080}]
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, namespace: shop, labels: {app: db}}
spec:
  hostname: db-0
  subdomain: db
  serviceAccountName: db
  containers: [{name: app, image: in-the-test}]
`

// longAccount is a service account whose certificates contain only a hash of its name.
const longAccount = "the-service-account-of-a-pod-with-a-name-that-is-too-long-for-one-label-of-dns"

// policies are the policies that no row changes.
var policies = routeGroup("shop/cart", `
  - {name: read, pathRegex: "/cart(/.*)?", methods: [GET]}
  - {name: put, pathRegex: /cart/items, methods: [PUT]}
  - {name: rpc, pathRegex: "/town.Cart/.*", methods: [POST]}
`) +
	// The thief may request one path, so its proxy has a route to the service.
	routeGroup("shop/window", " [{name: look, pathRegex: /window, methods: [GET]}]") +
	tcpRoute("cart", "[9000, 3306, 8443]") + tcpRoute("lone", "[8080]") +
	trafficTarget("shop/window", "cart-v1", "{kind: HTTPRouteGroup, name: window}", "users/thief") +
	trafficTarget("shop/cart-v1", "cart-v1", "{kind: HTTPRouteGroup, name: cart}", "users/web", "shop/cart-v1") +
	// Separate, since the ports would restrict the HTTP routes of the same target.
	trafficTarget("shop/cart-v1-tcp", "cart-v1", "{kind: TCPRoute, name: cart}", "users/web", "shop/cart-v1") +
	trafficTarget("shop/cart-v2", "cart-v2", "{kind: HTTPRouteGroup, name: cart}", "users/web") +
	trafficTarget("shop/lone", longAccount, "{kind: TCPRoute, name: lone}", "users/web") +
	trafficTarget("shop/db", "db", "{kind: HTTPRouteGroup, name: cart}", "users/web")

// service returns a Service of the namespace shop.
func service(name, spec string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop}
spec: {%s}
`, name, spec)
}

// meshConfig returns the MeshConfig with additions to its traffic and observability
// parts.
func meshConfig(traffic, more string) string {
	return `
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshConfig
metadata: {name: osm-mesh-config, namespace: osm-system}
spec:
  traffic: {enablePermissiveTrafficPolicyMode: false, enableEgress: false` + comma(traffic) + `}
  observability: {enableDebugServer: true` + comma(more) + `}
  featureFlags: {enableRetryPolicy: true}
`
}

func comma(s string) string {
	if s == "" {
		return ""
	}
	return ", " + s
}
