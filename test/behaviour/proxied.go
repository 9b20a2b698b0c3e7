package behaviour

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// proxiedPod is a pod whose application gets its callers' addresses by the PROXY protocol.
const proxiedPod = `
---
apiVersion: v1
kind: Pod
metadata:
  name: proxied
  namespace: shop
  labels: {app: proxied}
  annotations: {openservicemesh.io/sidecar-class: %s, openservicemesh.io/proxy-protocol-port-list: "8080,3306"}
spec:
  serviceAccountName: cart-v1
  containers: [{name: app, image: in-the-test, ports: [{name: http, containerPort: 8080}, {name: tcp, containerPort: 3306}]}]
`

// startProxied serves at the ports of the pod: the answer to a request and the first line of a
// connection are the caller's address.
func startProxied(t *testing.T, pod *lab.Pod) {
	t.Helper()
	listen := func(port string) net.Listener { return drivertest.ProxiedListener(t, listenOn(t, pod, ":"+port)) }
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.RemoteAddr)
	})}
	t.Cleanup(func() { server.Close() })
	go server.Serve(listen("8080"))
	go acceptEach(listen("3306"), func(conn net.Conn) { fmt.Fprintln(conn, conn.RemoteAddr()) })
}

// testProxied calls an application as a member of the mesh and as a client of an IngressBackend,
// by each family of addresses.
func testProxied(t *testing.T, w *testMesh) {
	families := map[string]func(netip.Addr) bool{"IPv4": netip.Addr.Is4}
	six := []mesh.Feature{mesh.FeatureIPv6}
	if w.has(w.Client, six...) && w.has(w.Server, six...) {
		families["IPv6"] = netip.Addr.Is6
	}
	web, outsider := w.pod(t, "users/web"), w.pod(t, "plain/outsider")
	of := func(pod *lab.Pod, family func(netip.Addr) bool) netip.Addr {
		t.Helper()
		for _, address := range pod.Addresses() {
			if family(address) {
				return address
			}
		}
		t.Fatalf("%s lacks a family of addresses", pod.Name())
		return netip.Addr{}
	}
	var sources []string
	var services strings.Builder
	for name, family := range families {
		source := of(outsider, family)
		services.WriteString(service(proxiedBy(name), "ipFamilies: ["+name+"], selector: {app: proxied}, ports: [{name: http, port: 8080}, {name: tcp-server-first-db, port: 3306}]"))
		sources = append(sources, fmt.Sprintf("{kind: IPRange, name: '%s/%d'}", source, source.BitLen()))
	}
	w.apply(t, "proxied.yaml", fmt.Sprintf(proxiedPod, w.Server)+services.String())
	pod := w.pod(t, "shop/proxied")
	startProxied(t, pod)
	w.apply(t, "ingress.yaml", ingress(proxiedBy("IPv4"), "http", "", strings.Join(sources, ", ")))
	for name, family := range families {
		host := proxiedBy(name) + ".shop"
		for from, url := range map[*lab.Pod]string{
			web:      "http://" + host + ":8080/cart",
			outsider: "http://" + net.JoinHostPort(of(pod, family).String(), "8080") + "/cart",
		} {
			w.eventually(t, func() error {
				r, err := w.send(from, request{url: url})
				if err != nil || r.Status != http.StatusOK {
					return fmt.Errorf("%s: the answer is %d, %v", url, r.Status, err)
				}
				return isFromAddress(r.Body, of(from, family))
			})
		}
		w.eventually(t, func() error {
			got, err := line(web, host+":3306", "")
			if err != nil {
				return fmt.Errorf("%s: %w", host, err)
			}
			return isFromAddress(strings.TrimSpace(got), of(web, family))
		})
	}
}

// proxiedBy is the service of the pod's addresses of a family.
func proxiedBy(family string) string { return "proxied-" + strings.ToLower(family) }

func isFromAddress(seen string, want netip.Addr) error {
	if got, err := netip.ParseAddrPort(seen); err != nil || got.Addr() != want {
		return fmt.Errorf("the application is called from %q, want %s", seen, want)
	}
	return nil
}
