package behaviour

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// cartSix is a service that has IPv6 addresses only, and so have its endpoints.
var cartSix = service("cart-six", "ipFamilies: [IPv6], selector: {app: cart, version: v1}, "+
	"ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp-echo, port: 9000}, {name: tcp-server-first-db, port: 3306}]")

// nodeAddress6 is the IPv6 address of the lab's node.
const nodeAddress6 = "2001:db8::1"

// ofFamily dials by one network only, tcp4 or tcp6.
type ofFamily struct {
	dialer
	network string
}

func (f ofFamily) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	return f.dialer.Dial(ctx, f.network, address)
}

// six dials by IPv6 only.
func six(from dialer) dialer { return ofFamily{from, "tcp6"} }

// address6 returns the pod's IPv6 address.
func address6(t *testing.T, pod *lab.Pod) netip.Addr {
	t.Helper()
	for _, a := range pod.Addresses() {
		if a.Is6() {
			return a
		}
	}
	t.Fatalf("%s has no IPv6 address", pod.Name())
	return netip.Addr{}
}

// testIPv6 calls services, a pod, and a server outside the mesh by IPv6.
func testIPv6(t *testing.T, w *testMesh) {
	w.apply(t, "six.yaml", cartSix)
	web, thief := six(w.pod(t, "users/web")), six(w.pod(t, "users/thief"))
	for _, url := range []string{cart, "http://cart-six.shop/cart"} {
		w.eventually(t, func() error { return w.answers(web, url, http.StatusOK, "") })
	}
	w.eventually(t, func() error { return w.answers(web, "http://cart-six.shop/cart", http.StatusOK, "::6") })
	w.eventually(t, func() error {
		return w.answers(six(w.pod(t, "shop/cart-v1")), "http://cart-six.shop/cart", http.StatusOK, "::6")
	})
	w.eventually(t, func() error { return w.answers(thief, "http://cart-six.shop/cart", http.StatusForbidden, "") })
	for address, want := range map[string]string{"cart-six.shop:9000": "echo\n", "cart-six.shop:3306": "hello from cart-v1\n"} {
		send := ""
		if want == "echo\n" {
			send = want
		}
		w.reads(t, web, address, send, want)
		if got, err := line(thief, address, send); !isClosed(err) || got != "" {
			t.Errorf("the thief reads %q (%v) from %s, want that the connection is closed", got, err, address)
		}
	}
	w.enters6(t)
	w.leaves6(t)
	w.alone6(t)
}

// aloneSix is a pod that has no IPv4 address, and its service.
const aloneSix = `
---
apiVersion: v1
kind: Pod
metadata:
  name: alone-six
  namespace: shop
  labels: {app: alone-six}
  annotations: {openservicemesh.io/sidecar-class: %s}
spec:
  serviceAccountName: cart-v1
  containers:
  - {name: app, image: in-the-test, ports: [{name: http, containerPort: 8080}], readinessProbe: {httpGet: {path: /cart, port: http}}}
status: {podIP: "2001:db8::6:6", podIPs: [{ip: "2001:db8::6:6"}]}
`

// alone6 starts a pod without IPv4 addresses, which becomes ready, is called and calls.
func (w *testMesh) alone6(t *testing.T) {
	t.Helper()
	w.apply(t, "alone.yaml", fmt.Sprintf(aloneSix, w.Server)+
		service("alone-six", "ipFamilies: [IPv6], selector: {app: alone-six}, ports: [{name: http, port: 80, targetPort: 8080}]"))
	pod := w.pod(t, "shop/alone-six")
	startApplication(t, pod)
	if err := pod.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"users/web", "shop/alone-six"} {
		w.eventually(t, func() error {
			return w.answers(six(w.pod(t, from)), "http://alone-six.shop/cart", http.StatusOK, "::6")
		})
	}
	w.eventually(t, func() error { return w.answers(six(pod), "http://cart-six.shop/cart", http.StatusOK, "") })
	w.eventually(t, func() error {
		return w.answers(six(w.pod(t, "users/thief")), "http://alone-six.shop/cart", http.StatusForbidden, "")
	})
}

// answers sends a request and returns an error unless the answer has the status and, if
// given, the application saw the address.
func (w *testMesh) answers(from dialer, url string, status int, source string) error {
	r, err := w.send(from, request{url: url})
	if err != nil || r.Status != status {
		return fmt.Errorf("%s: the answer is %d, %v, want %d", url, r.Status, err, status)
	}
	if host, _, _ := net.SplitHostPort(r.From); source != "" && host != source {
		return fmt.Errorf("%s: the application is called from %s, want %s", url, r.From, source)
	}
	return nil
}

// enters6 calls a pod by its IPv6 address, by mesh TLS and in plaintext.
func (w *testMesh) enters6(t *testing.T) {
	t.Helper()
	outsider := w.pod(t, "plain/outsider")
	address := net.JoinHostPort(address6(t, w.pod(t, "shop/cart-v1")).String(), "8080")
	if err := w.enter(t, address, w.meshTLSOf(t, w.certificate(t, webIdentity)), http.StatusOK); err != nil {
		t.Errorf("by mesh TLS: %v", err)
	}
	url := "http://" + address + "/cart"
	if r, err := w.send(outsider, request{url: url}); err == nil {
		t.Errorf("the outsider gets %d in plaintext", r.Status)
	}
	w.apply(t, "ingress.yaml", ingress("cart-v1", "http", "", "{kind: IPRange, name: '"+address6(t, outsider).String()+"/128'}"))
	w.eventually(t, func() error { return w.answers(outsider, url, http.StatusOK, "::6") })
	if err := w.answers(w.Lab().Node(), url, http.StatusForbidden, ""); err != nil {
		t.Errorf("from another address: %v", err)
	}
}

// leaves6 calls a server outside the mesh by its IPv6 address.
func (w *testMesh) leaves6(t *testing.T) {
	t.Helper()
	address := net.JoinHostPort(nodeAddress6, outsidePort)
	go acceptEach(listenOn(t, w.Lab().Node(), address), func(conn net.Conn) {
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintln(conn, "outside")
	})
	web, thief := w.pod(t, "users/web"), w.pod(t, "users/thief")
	if got, err := line(web, address, ""); err == nil {
		t.Errorf("without an Egress the pod reads %q", got)
	}
	w.apply(t, "egress.yaml", fmt.Sprintf(strings.Replace(egressTemplate, "name: out,", "name: out-six,", 1),
		"  ipAddresses: ['"+nodeAddress6+"/128']\n  ports: [{number: "+outsidePort+", protocol: tcp}]\n"))
	w.reads(t, web, address, "", "outside\n")
	if got, err := line(thief, address, ""); err == nil {
		t.Errorf("the thief reads %q", got)
	}
}
