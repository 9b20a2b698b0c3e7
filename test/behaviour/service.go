package behaviour

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// twins are further services of the pod cart-v1.
var twins = service("twin", "selector: {app: cart, version: v1}, ports: [{name: http, port: 80, targetPort: 8080}]") +
	service("twin-web", "selector: {app: cart, version: v1}, ports: [{name: http, port: 8088, targetPort: http}]") +
	service("twin-echo", "selector: {app: cart, version: v1}, ports: [{name: tcp-echo, port: 80, targetPort: 9000}]") +
	service("twin-headless", "clusterIP: None, selector: {app: cart, version: v1}, ports: [{name: http, port: 8080}]")

// testServicesOfOnePod calls a pod by services with the same and with other ports, of
// which one has a policy.
func testServicesOfOnePod(t *testing.T, w *testMesh) {
	w.apply(t, "twins.yaml", twins)
	w.apply(t, "timeout.yaml", upstream("twin", "  timeouts: {request: 300ms}\n"))
	for _, server := range []string{"http://cart-v1.shop", "http://twin.shop", "http://twin-web.shop:8088", "http://twin-headless.shop:8080"} {
		w.get(t, "users/web", server+"/cart", isFrom("cart-v1"))
		w.get(t, "users/thief", server+"/window", isFrom("cart-v1"))
		w.get(t, "users/thief", server+"/cart", isStatus(http.StatusForbidden))
	}
	w.reads(t, w.pod(t, "users/web"), "twin-echo.shop:80", "echo\n", "echo\n")
	w.closes(t, "users/thief", "twin-echo.shop:80", "echo\n")
	w.get(t, "users/web", "http://twin.shop/cart?wait=1s", isStatus(http.StatusGatewayTimeout))
	for _, server := range []string{"http://cart-v1.shop", "http://twin-web.shop:8088"} {
		w.get(t, "users/web", server+"/cart?wait=1s", isFrom("cart-v1"))
	}
}

// testOutboundServices limits the clients' namespace to one service.
func testOutboundServices(t *testing.T, w *testMesh) {
	town := fmt.Sprintf(meshTemplate, w.Client, w.Server, longAccount)
	limited := strings.Replace(town, "sidecar-class: "+w.Client, "sidecar-class: "+w.Client+", openservicemesh.io/outbound-services: shop/cart-v1", 1)
	open := strings.Replace(meshConfig("", ""), "PolicyMode: false", "PolicyMode: true", 1)
	defer w.configure(t, "", "")
	for _, config := range []string{meshConfig("", ""), open} {
		w.set(t, "mesh.yaml", config)
		w.set(t, "town.yaml", town)
		w.get(t, "users/web", cart, ok)
		w.set(t, "town.yaml", limited)
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
		w.reads(t, w.pod(t, "users/web"), "cart-v1.shop:9000", "echo\n", "echo\n")
		w.eventually(t, func() error {
			if r, err := w.send(w.pod(t, "users/web"), request{url: cart, timeout: 5 * time.Second}); err == nil && r.Status < 400 {
				return fmt.Errorf("users/web gets %d of %s", r.Status, cart)
			}
			return nil
		})
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
		w.set(t, "town.yaml", town)
		w.get(t, "users/web", cart, ok)
	}
}

// memberServices are those of a StatefulSet: its headless service, one for clients, and
// one for each member.
var memberServices = service("member", "clusterIP: None, selector: {app: member}, ports: [{name: http, port: 8080}, {name: tcp-echo, port: 9000}, {name: tcp-server-first-db, port: 3306}]") +
	service("members", "selector: {app: member}, ports: [{name: http, port: 80, targetPort: 8080}]") +
	service("member-0", "selector: {statefulset.kubernetes.io/pod-name: member-0}, ports: [{name: http, port: 80, targetPort: 8080}]") +
	service("member-1", "selector: {statefulset.kubernetes.io/pod-name: member-1}, ports: [{name: http, port: 80, targetPort: 8080}]") +
	trafficTarget("shop/member", "member", "{kind: HTTPRouteGroup, name: cart}", "users/web", "shop/member") +
	trafficTarget("shop/peers", "member", "{kind: TCPRoute, name: cart}", "shop/member")

// memberTemplate is a member: its name and class.
const memberTemplate = `---
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  namespace: shop
  labels: {app: member, statefulset.kubernetes.io/pod-name: %[1]s}
  annotations: {openservicemesh.io/sidecar-class: %[2]s}
spec:
  hostname: %[1]s
  subdomain: member
  serviceAccountName: member
  containers: [{name: app, image: in-the-test}]
`

// testStatefulSet starts two members, of both classes, whose applications listen on no
// address but the pod's.
func testStatefulSet(t *testing.T, w *testMesh) {
	w.apply(t, "members.yaml", memberServices+fmt.Sprintf(memberTemplate, "member-0", w.Client)+fmt.Sprintf(memberTemplate, "member-1", w.Server))
	members := []string{"member-0", "member-1"}
	for _, member := range members {
		pod := w.pod(t, "shop/"+member)
		startApplicationAt(t, pod, pod.Addresses()[0].String())
		if err := pod.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if conn, err := pod.Dial(t.Context(), "tcp", "127.0.0.1:8080"); err == nil {
			conn.Close()
			t.Fatalf("the application of %s listens on loopback", member)
		}
	}
	for _, member := range members {
		w.get(t, "users/web", "http://"+member+".member.shop:8080/cart", isFrom(member))
		for _, other := range members {
			from := w.pod(t, "shop/"+other)
			w.get(t, "shop/"+other, "http://"+member+".shop/cart", isFrom(member))
			w.reads(t, from, member+".member.shop:3306", "", "hello from "+member+"\n")
			w.reads(t, from, member+".member.shop:9000", "echo\n", "echo\n")
		}
		w.denies(t, "users/thief", "http://"+member+".member.shop:8080/cart")
		w.closes(t, "users/web", member+".member.shop:9000", "echo\n")
	}
	// Both members have the same service account.
	for _, member := range members {
		w.apply(t, "split.yaml", split("members", "{service: "+member+", weight: 1}"))
		w.allFrom(t, "users/web", request{url: "http://members.shop/cart"}, member)
		w.allFrom(t, "shop/member-0", request{url: "http://members.shop/cart"}, member)
	}
}
