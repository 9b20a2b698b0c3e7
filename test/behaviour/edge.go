package behaviour

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// The server outside the mesh, which runs on the node.
const (
	outsideHost = "out.example.com"
	outsidePort = "8081"
)

// nodeAddress is the address of the lab's node.
const nodeAddress = "198.18.0.1"

const egressTemplate = `
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {name: out, namespace: users}
spec:
  sources: [{kind: ServiceAccount, name: web, namespace: users}]
%s`

// edge is the table of what enters and leaves the mesh.
var edge = []Row{
	{"Egress denied", "Traffic that no Egress allows does not leave the mesh.", ofEvery, func(t *testing.T, w *testMesh) {
		w.serveOutside(t)
		w.eventually(t, func() error { return w.blockedOutside(t, "users/web") })
	}},
	{"Egress allowed", "An Egress allows only its sources to call its hosts at its ports, by HTTP and by address.", ofClient(mesh.FeatureEgressHTTP, mesh.FeatureEgressTCP), func(t *testing.T, w *testMesh) {
		w.serveOutside(t)
		w.set(t, "egress.yaml", fmt.Sprintf(egressTemplate, "  hosts: ["+outsideHost+"]\n  ports: [{number: "+outsidePort+", protocol: http}]\n"))
		w.get(t, "users/web", "http://"+outsideHost+":"+outsidePort+"/", isOutside)
		w.eventually(t, func() error { return w.blockedOutside(t, "users/thief") })
		if r, err := w.send(w.pod(t, "users/web"), request{url: "http://" + outsideHost + ":" + outsidePort + "/", host: "other.example.com"}); err == nil && r.Status == http.StatusOK {
			t.Errorf("another host is called as well: %q", r.Body)
		}
		w.apply(t, "egress-address.yaml", fmt.Sprintf(strings.Replace(egressTemplate, "name: out,", "name: out-address,", 1), "  ipAddresses: ["+nodeAddress+"/32]\n  ports: [{number: "+outsidePort+", protocol: tcp}]\n"))
		w.forget(t, "egress.yaml")
		w.get(t, "users/web", "http://"+net.JoinHostPort(nodeAddress, outsidePort)+"/", isOutside)
	}},
	{"Egress by request", "An Egress with an HTTPRouteGroup allows only its requests, and ends with the Egress.", ofClient(mesh.FeatureEgressHTTP), testEgressByRequest},
	{"Egress by host and address", "An Egress with hosts and addresses requires both: its hosts may be called only at its addresses.", ofClient(mesh.FeatureEgressHTTP, mesh.FeatureEgressTCP), testEgressByBoth},
	{"Egress by server name", "An Egress allows TLS by server name, at its addresses if it has any, and passes it through unchanged.", ofClient(mesh.FeatureEgressTLS, mesh.FeatureEgressTCP), testEgressTLS},
	{"Egress for all", "With enableEgress everything outside the mesh may be called, while traffic within the mesh still uses mTLS.", ofClient(mesh.FeatureEgressTCP), func(t *testing.T, w *testMesh) {
		w.serveOutside(t)
		w.set(t, "mesh.yaml", strings.Replace(meshConfig("", ""), "enableEgress: false", "enableEgress: true", 1))
		defer w.configure(t, "", "")
		w.get(t, "users/thief", "http://"+outsideHost+":"+outsidePort+"/", isOutside)
		w.get(t, "users/thief", cartV1, isStatus(http.StatusForbidden))
	}},
	{"Ingress in plaintext", "An IngressBackend admits its source addresses without a certificate, and no other address.", ofServer(mesh.FeatureIngress), func(t *testing.T, w *testMesh) {
		outsider := w.pod(t, "plain/outsider").Addresses()[0].String()
		url := "http://" + w.address(t, "shop/cart-v1", "8080") + "/cart"
		w.apply(t, "ingress.yaml", ingress("cart-v1", "http", "", "{kind: IPRange, name: "+outsider+"/32}"))
		w.get(t, "plain/outsider", url, isFrom("cart-v1"))
		if r, err := w.send(w.Lab().Node(), request{url: url}); err != nil || r.Status != http.StatusForbidden {
			t.Errorf("another address gets %d, %v, want 403", r.Status, err)
		}
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	}},
	{"Opened again for some only", "A port that was open to everybody and then closed admits nobody else, not even briefly, when it is opened to some.", ofServer(mesh.FeaturePermissiveTLS, mesh.FeatureIngress), testOpenedForSome},
	{"Ingress with a client certificate", "An IngressBackend with a principal admits only clients with its certificate. Without a principal it admits nobody.", ofServer(mesh.FeatureIngressTLS), func(t *testing.T, w *testMesh) {
		address := w.address(t, "shop/cart-v1", "8080")
		w.apply(t, "ingress.yaml", ingress("cart-v1", "https", "    tls: {skipClientCertValidation: false, sniHosts: [in.example.com]}\n",
			"{kind: AuthenticatedPrincipal, name: gateway.edge.cluster.local}"))
		gateway := w.certificate(t, mesh.Identity{TrustDomain: "cluster.local", Namespace: "edge", ServiceAccount: "gateway"})
		other := w.certificate(t, mesh.Identity{TrustDomain: "cluster.local", Namespace: "edge", ServiceAccount: "other"})
		w.eventually(t, func() error { return w.enter(t, address, ingressTLS(gateway), http.StatusOK) })
		if err := w.enter(t, address, ingressTLS(other), http.StatusForbidden); err != nil {
			t.Errorf("with another's certificate: %v", err)
		}
		if err := w.enter(t, address, ingressTLS(), 0); err != nil {
			t.Errorf("without a certificate: %v", err)
		}
		again := ingressTLS(gateway)
		again.ClientSessionCache = tls.NewLRUClientSessionCache(0)
		for range 3 {
			if err := w.enter(t, address, again, http.StatusOK); err != nil {
				t.Errorf("by a client that resumes sessions: %v", err)
			}
		}
		if err := w.Apply(t.Context(), "ingress.yaml", ingress("cart-v1", "https", "    tls: {skipClientCertValidation: false, sniHosts: [in.example.com]}\n",
			"{kind: IPRange, name: 0.0.0.0/0}")); err != nil {
			t.Fatal(err)
		}
		w.eventually(t, func() error { return w.enter(t, address, ingressTLS(gateway), 0) })
	}},
	{"Ingress without a client certificate", "With skipClientCertValidation the source addresses need only TLS.", ofServer(mesh.FeatureIngressTLS), func(t *testing.T, w *testMesh) {
		address := w.address(t, "shop/cart-v1", "8080")
		outsider := w.pod(t, "plain/outsider").Addresses()[0].String()
		w.apply(t, "ingress.yaml", ingress("cart-v1", "https", "    tls: {skipClientCertValidation: true, sniHosts: [in.example.com]}\n",
			"{kind: IPRange, name: "+outsider+"/32}"))
		w.eventually(t, func() error { return w.enter(t, address, ingressTLS(), http.StatusOK) })
	}},
	{"Gateway", "A gateway takes requests from outside the mesh by port and host, routes them as its HTTPRoutes say, and calls the mesh with its own identity. Hosts and paths without a route get 404, and nothing that a client claims about itself arrives.", ofClient(mesh.FeatureGateways, mesh.FeatureRewrites, mesh.FeatureRedirects), testDoor},
	{"A request within another, at a gateway", "A body, the data after an upgrade, or a field of HTTP/2, that a client outside the mesh sends cannot smuggle a request past the routes of a gateway, whatever parsers may read in it.", ofClient(mesh.FeatureGateways), testHatch},
	{"Gateway for connections", "A gateway passes connections on by port, and those with TLS by server name. It closes those that no route is for.", ofClient(mesh.FeatureGateways, mesh.FeatureServerNames), testLock},
	{"Gateway with TLS", "TLS of clients outside the mesh ends at a gateway, which presents the certificate of the listener for the server name, and a new one without a failed request. A request for another listener's host gets 421. Without a certificate nothing is taken, and certificates of other namespaces need a ReferenceGrant.", ofClient(mesh.FeatureTermination, mesh.FeatureServerNames, mesh.FeatureRedirects), testGate},
	{"Excluded from the mesh", "Connections to ports and address ranges that a pod or the MeshConfig excludes, and to excluded ports of a pod, bypass the sidecar; all others do not.", ofEvery, testExclusions},
	{"The caller's address", "With traffic.enableForwardedFor an application gets the caller's address in x-forwarded-for, as the last one. Without it the header stays as the caller wrote it. Classes with the PROXY protocol announce the address by it, where an annotation asks for that.", ofServer(mesh.FeatureForwardedFor), func(t *testing.T, w *testMesh) {
		testForwardedFor(t, w)
		if w.has(w.Server, mesh.FeatureProxyProtocol) {
			testProxied(t, w)
		}
	}},
	{"External authorization", "The mesh's authorization service is asked about every request, and its denial is final.", ofServer(mesh.FeatureExternalAuthorization), func(t *testing.T, w *testMesh) {
		const node = nodeAddress
		server := grpc.NewServer()
		authv3.RegisterAuthorizationServer(server, authorizer{})
		go server.Serve(listenOn(t, w.Lab().Node(), net.JoinHostPort(node, "9191")))
		defer server.Stop()
		w.configure(t, "inboundExternalAuthorization: {enable: true, address: "+node+", port: 9191, timeout: 5s, statPrefix: authz, failureModeAllow: false}", "")
		w.ask(t, "users/web", request{url: cartV1, header: http.Header{"X-Ticket": {"none"}}}, isStatus(http.StatusUnauthorized))
		w.ask(t, "users/web", request{url: cartV1, header: http.Header{"X-Ticket": {"good"}}}, isFrom("cart-v1"))
		server.Stop()
		w.ask(t, "users/web", request{url: cartV1, header: http.Header{"X-Ticket": {"good"}}}, isStatus(http.StatusForbidden))
	}},
}

// ingress returns an IngressBackend for a service's port 8080.
func ingress(service, protocol, tls, source string) string {
	return fmt.Sprintf(`
apiVersion: policy.openservicemesh.io/v1alpha1
kind: IngressBackend
metadata: {name: in, namespace: shop}
spec:
  backends:
  - name: %s
    port: {number: 8080, protocol: %s}
%s  sources: [%s]
`, service, protocol, tls, source)
}

// ingressTLS is the TLS configuration of a client outside the mesh, which calls the
// host of an IngressBackend without verifying it.
func ingressTLS(certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{ServerName: "in.example.com", Certificates: certificates, InsecureSkipVerify: true}
}

// serveOutside serves on the node, outside the mesh.
func (w *testMesh) serveOutside(t *testing.T) {
	t.Helper()
	serveOutsideAt(t, w.Lab().Node(), net.JoinHostPort(nodeAddress, outsidePort), nil)
}

// serveOutsideAt serves at an address of the node or of a pod without a sidecar, over TLS if
// config is set.
func serveOutsideAt(t *testing.T, on listener, address string, config *tls.Config) {
	t.Helper()
	l := listenOn(t, on, address)
	if config != nil {
		l = tls.NewListener(l, config)
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "outside")
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
}

// listenOn listens on the node or a pod until the test ends.
func listenOn(t *testing.T, on listener, address string) net.Listener {
	t.Helper()
	l, err := on.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	// A server that has not started yet does not know the listener.
	t.Cleanup(func() { l.Close() })
	return l
}

func isOutside(r reply) error {
	if r.Status != http.StatusOK || r.Body != "outside" {
		return fmt.Errorf("the answer is %d %.200q, want that of the outside server", r.Status, r.Body)
	}
	return nil
}

// blockedOutside returns an error if the pod can call outside the mesh.
func (w *testMesh) blockedOutside(t *testing.T, pod string) error {
	for _, url := range []string{"http://" + outsideHost + ":" + outsidePort + "/", "http://" + net.JoinHostPort(nodeAddress, outsidePort) + "/"} {
		if r, err := w.send(w.pod(t, pod), request{url: url, timeout: 5 * time.Second}); err == nil && (r.Status < 400 || r.Body == "outside") {
			return fmt.Errorf("%s gets %d %q of %s", pod, r.Status, r.Body, url)
		}
	}
	return nil
}

// authorizer allows requests with a good ticket.
type authorizer struct{}

func (authorizer) Check(_ context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	if r.Attributes.Request.Http.Headers["x-ticket"] == "good" {
		return &authv3.CheckResponse{Status: &status.Status{Code: int32(codes.OK)}}, nil
	}
	return &authv3.CheckResponse{
		Status: &status.Status{Code: int32(codes.PermissionDenied)},
		HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: &authv3.DeniedHttpResponse{
			Status: &typev3.HttpStatus{Code: typev3.StatusCode_Unauthorized},
		}},
	}, nil
}

// testOpenedForSome checks that a proxy does not reuse its former open state.
func testOpenedForSome(t *testing.T, w *testMesh) {
	url := "http://" + w.address(t, "shop/cart-v1", "8080") + "/cart"
	open := strings.Replace(meshConfig("inboundTLSMode: Permissive", ""), "PolicyMode: false", "PolicyMode: true", 1)
	w.set(t, "mesh.yaml", open)
	w.get(t, "plain/outsider", url, isFrom("cart-v1"))
	w.set(t, "mesh.yaml", meshConfig("", ""))
	outsider := w.pod(t, "plain/outsider")
	w.eventually(t, func() error {
		if r, err := w.send(outsider, request{url: url}); err == nil {
			return fmt.Errorf("the outsider still gets %d", r.Status)
		}
		return nil
	})
	stop := make(chan struct{})
	admitted := make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				admitted <- n
				return
			default:
				if r, err := w.send(outsider, request{url: url}); err == nil && r.Status == http.StatusOK {
					n++
				}
			}
		}
	}()
	w.apply(t, "ingress.yaml", ingress("cart-v1", "http", "", "{kind: IPRange, name: "+nodeAddress+"/32}"))
	w.repeat(t, "a request of the node", ok, func() (reply, error) { return w.send(w.Lab().Node(), request{url: url}) })
	close(stop)
	if n := <-admitted; n > 0 {
		t.Errorf("the outsider was admitted %d times", n)
	}
}

// testEgressTLS calls an outside server over TLS, which the mesh cannot decrypt.
func testEgressTLS(t *testing.T, w *testMesh) {
	const port = "8444"
	serveOutsideAt(t, w.Lab().Node(), net.JoinHostPort(nodeAddress, port), &tls.Config{Certificates: []tls.Certificate{ownCertificate(t)}})
	call := func(pod, name string) (reply, error) {
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			DialContext: w.pod(t, pod).Dial, DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{ServerName: name, InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
				if own := state.PeerCertificates[0].Subject.CommonName; own != "own" {
					return fmt.Errorf("the certificate is of %q, want the server's own", own)
				}
				return nil
			}},
		}}
		return w.sendBy(client, request{url: "https://" + outsideHost + ":" + port + "/"})
	}
	w.apply(t, "egress.yaml", fmt.Sprintf(egressTemplate, "  hosts: ["+outsideHost+"]\n  ports: [{number: "+port+", protocol: https}]\n"))
	w.repeat(t, "a call by server name", isOutside, func() (reply, error) { return call("users/web", outsideHost) })
	if r, err := call("users/web", "other.example.com"); err == nil {
		t.Errorf("another server name gets %d %q", r.Status, r.Body)
	}
	if r, err := call("users/thief", outsideHost); err == nil {
		t.Errorf("the thief gets %d %q", r.Status, r.Body)
	}
	w.greetsSpelled(t, outsideHost+":"+port, outsideHost)
	for _, tt := range []struct {
		ranges string
		out    bool
	}{{"203.0.113.0/24", false}, {nodeAddress + "/32", true}} {
		w.set(t, "egress.yaml", fmt.Sprintf(egressTemplate, "  hosts: ["+outsideHost+"]\n  ipAddresses: ["+tt.ranges+"]\n  ports: [{number: "+port+", protocol: https}]\n"))
		w.eventually(t, func() error {
			if _, err := call("users/web", outsideHost); (err == nil) != tt.out {
				return fmt.Errorf("with the addresses %s: %v, want that it gets out: %v", tt.ranges, err, tt.out)
			}
			return nil
		})
	}
}

// testEgressByBoth calls the outside server by name, while an Egress allows the name at
// the server's address, and while it allows it only at other addresses.
func testEgressByBoth(t *testing.T, w *testMesh) {
	w.serveOutside(t)
	rule := func(addresses string) string {
		return fmt.Sprintf(egressTemplate, "  hosts: ["+outsideHost+"]\n  ipAddresses: ["+addresses+"]\n  ports: [{number: "+outsidePort+", protocol: http}]\n")
	}
	url := "http://" + outsideHost + ":" + outsidePort + "/"
	const here, elsewhere = nodeAddress + "/32", "203.0.113.0/24"
	w.apply(t, "egress.yaml", rule(here))
	w.get(t, "users/web", url, isOutside)
	// The previous row allowed the address.
	w.eventually(t, func() error {
		if r, err := w.send(w.pod(t, "users/web"), request{url: url, host: "other.example.com"}); err == nil && r.Status == http.StatusOK {
			return fmt.Errorf("another host is called at the address as well: %q", r.Body)
		}
		return nil
	})
	w.get(t, "users/web", url, isOutside)
	w.set(t, "egress.yaml", rule(elsewhere))
	w.eventually(t, func() error { return w.blockedOutside(t, "users/web") })
}

// outsideRequests are the requests that an Egress allows.
var outsideRequests = routeGroup("users/outside", ` [{name: status, pathRegex: "/status/.*", methods: [GET]}]`)

// testEgressByRequest restricts an Egress to some requests.
func testEgressByRequest(t *testing.T, w *testMesh) {
	w.serveOutside(t)
	// The Egresses of other rows have ended.
	w.eventually(t, func() error { return w.blockedOutside(t, "users/web") })
	w.apply(t, "outside.yaml", outsideRequests)
	w.apply(t, "egress.yaml", fmt.Sprintf(egressTemplate, "  hosts: ["+outsideHost+"]\n  ports: [{number: "+outsidePort+", protocol: http}]\n"+
		"  matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: outside}]\n"))
	const server = "http://" + outsideHost + ":" + outsidePort
	w.get(t, "users/web", server+"/status/200", isOutside)
	for _, r := range []request{{url: server + "/admin"}, {url: server + "/status/200", method: http.MethodDelete}} {
		if got, err := w.send(w.pod(t, "users/web"), r); err == nil && (got.Status < 400 || strings.Contains(got.Body, "outside")) {
			t.Errorf("%s %s gets %d %q", r.method, r.url, got.Status, got.Body)
		}
	}
	w.forget(t, "egress.yaml")
	w.eventually(t, func() error { return w.blockedOutside(t, "users/web") })
}

func testForwardedFor(t *testing.T, w *testMesh) {
	const claimed = "192.0.2.7"
	mine := w.pod(t, "users/web").Addresses()[0].String()
	gets := func(want string) {
		t.Helper()
		for _, header := range []http.Header{{}, {"X-Forwarded-For": {claimed}}} {
			want := want
			if len(header) > 0 {
				want = strings.TrimSuffix(claimed+","+want, ",")
			}
			w.ask(t, "users/web", request{url: cartV1, header: header}, func(r reply) error {
				got := strings.ReplaceAll(strings.Join(r.answer.Header.Values("X-Forwarded-For"), ","), " ", "")
				if r.Status != http.StatusOK || got != want {
					return fmt.Errorf("the application gets %q with status %d, want %q", got, r.Status, want)
				}
				return nil
			})
		}
	}
	gets("")
	w.configure(t, "enableForwardedFor: true", "")
	gets(mine)
}
