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

// outside is what is outside of the mesh: a server on the node, by a name and by its
// address.
const (
	outsideHost = "out.example.com"
	outsidePort = "8081"
)

// nodeAddress is the lab's node's.
const nodeAddress = "198.18.0.1"

const egressTemplate = `
apiVersion: policy.openservicemesh.io/v1alpha1
kind: Egress
metadata: {name: out, namespace: users}
spec:
  sources: [{kind: ServiceAccount, name: web, namespace: users}]
%s`

// edge is what enters and leaves the mesh.
var edge = []Row{
	{"Egress denied", "What no Egress allows does not leave the mesh.", ofEvery, func(t *testing.T, w *world) {
		w.serveOutside(t)
		w.eventually(t, func() error { return w.notOut(t, "users/web") })
	}},
	{"Egress allowed", "An Egress lets its sources call its hosts at its ports, by HTTP and by address, and nobody else.", ofClient(mesh.FeatureEgressHTTP, mesh.FeatureEgressTCP), func(t *testing.T, w *world) {
		w.serveOutside(t)
		if err := w.Apply(t.Context(), "egress.yaml", fmt.Sprintf(egressTemplate, "  hosts: ["+outsideHost+"]\n  ports: [{number: "+outsidePort+", protocol: http}]\n")); err != nil {
			t.Fatal(err)
		}
		w.get(t, "users/web", "http://"+outsideHost+":"+outsidePort+"/", isOutside)
		w.eventually(t, func() error { return w.notOut(t, "users/thief") })
		if r, err := w.send(w.pod(t, "users/web"), request{url: "http://" + outsideHost + ":" + outsidePort + "/", host: "other.example.com"}); err == nil && r.Status == http.StatusOK {
			t.Errorf("another host is called as well: %q", r.Body)
		}
		w.apply(t, "egress-address.yaml", fmt.Sprintf(strings.Replace(egressTemplate, "name: out,", "name: out-address,", 1), "  ipAddresses: ["+nodeAddress+"/32]\n  ports: [{number: "+outsidePort+", protocol: tcp}]\n"))
		if err := w.Delete(t.Context(), "egress.yaml"); err != nil {
			t.Fatal(err)
		}
		w.get(t, "users/web", "http://"+net.JoinHostPort(nodeAddress, outsidePort)+"/", isOutside)
	}},
	{"Egress by host and address", "An Egress with hosts and addresses asks for both: its hosts may be called at its addresses only.", ofClient(mesh.FeatureEgressHTTP, mesh.FeatureEgressTCP), testEgressByBoth},
	{"Egress by server name", "An Egress lets TLS out by the server's name, at its addresses if it names any, and passes it through as it is.", ofClient(mesh.FeatureEgressTLS, mesh.FeatureEgressTCP), testEgressTLS},
	{"Egress for all", "With enableEgress everything outside of the mesh may be called, and what is inside is still called over mTLS.", ofClient(mesh.FeatureEgressTCP), func(t *testing.T, w *world) {
		w.serveOutside(t)
		if err := w.Apply(t.Context(), "mesh.yaml", strings.Replace(meshConfig("", ""), "enableEgress: false", "enableEgress: true", 1)); err != nil {
			t.Fatal(err)
		}
		defer w.configure(t, "", "")
		w.get(t, "users/thief", "http://"+outsideHost+":"+outsidePort+"/", isOutside)
		w.get(t, "users/thief", cartV1, isStatus(http.StatusForbidden))
	}},
	{"Ingress in plaintext", "An IngressBackend lets its source addresses in without a certificate, and no other address.", ofServer(mesh.FeatureIngress), func(t *testing.T, w *world) {
		outsider := w.pod(t, "plain/outsider").Addresses()[0].String()
		url := "http://" + net.JoinHostPort(w.pod(t, "shop/cart-v1").Addresses()[0].String(), "8080") + "/cart"
		w.apply(t, "ingress.yaml", ingress("cart-v1", "http", "", "{kind: IPRange, name: "+outsider+"/32}"))
		w.get(t, "plain/outsider", url, isFrom("cart-v1"))
		if r, err := w.send(w.Lab().Node(), request{url: url}); err != nil || r.Status != http.StatusForbidden {
			t.Errorf("another address gets %d, %v, want 403", r.Status, err)
		}
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	}},
	{"Opened again for some only", "A port that was open to everybody, was closed, and is opened to some lets nobody else in, not for a moment.", ofServer(mesh.FeaturePermissiveTLS, mesh.FeatureIngress), testOpenedForSome},
	{"Ingress with a client certificate", "An IngressBackend with a principal lets in who has its certificate, and nobody else. Without one it lets nobody in.", ofServer(mesh.FeatureIngressTLS), func(t *testing.T, w *world) {
		address := net.JoinHostPort(w.pod(t, "shop/cart-v1").Addresses()[0].String(), "8080")
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
	{"Ingress without a client certificate", "With skipClientCertValidation TLS is enough, from the source addresses.", ofServer(mesh.FeatureIngressTLS), func(t *testing.T, w *world) {
		address := net.JoinHostPort(w.pod(t, "shop/cart-v1").Addresses()[0].String(), "8080")
		outsider := w.pod(t, "plain/outsider").Addresses()[0].String()
		w.apply(t, "ingress.yaml", ingress("cart-v1", "https", "    tls: {skipClientCertValidation: true, sniHosts: [in.example.com]}\n",
			"{kind: IPRange, name: "+outsider+"/32}"))
		w.eventually(t, func() error { return w.enter(t, address, ingressTLS(), http.StatusOK) })
	}},
	{"External authorization", "The mesh's authorization service is asked about every request, and its no is final.", ofServer(mesh.FeatureExternalAuthorization), func(t *testing.T, w *world) {
		const node = nodeAddress
		listener, err := w.Lab().Node().Listen(t.Context(), "tcp", net.JoinHostPort(node, "9191"))
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		authv3.RegisterAuthorizationServer(server, authorizer{})
		go server.Serve(listener)
		defer server.Stop()
		w.configure(t, "inboundExternalAuthorization: {enable: true, address: "+node+", port: 9191, timeout: 5s, statPrefix: authz, failureModeAllow: false}", "")
		w.ask(t, "users/web", request{url: cartV1, header: http.Header{"X-Ticket": {"none"}}}, isStatus(http.StatusUnauthorized))
		w.ask(t, "users/web", request{url: cartV1, header: http.Header{"X-Ticket": {"good"}}}, isFrom("cart-v1"))
		server.Stop()
		w.ask(t, "users/web", request{url: cartV1, header: http.Header{"X-Ticket": {"good"}}}, isStatus(http.StatusForbidden))
	}},
}

// ingress returns an IngressBackend of a service's port 8080.
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

// ingressTLS is TLS of a client outside of the mesh, which calls the host of an
// IngressBackend and has its own reasons to trust it.
func ingressTLS(certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{ServerName: "in.example.com", Certificates: certificates, InsecureSkipVerify: true}
}

// serveOutside answers on the node, which is not in the mesh.
func (w *world) serveOutside(t *testing.T) {
	t.Helper()
	listener, err := w.Lab().Node().Listen(t.Context(), "tcp", net.JoinHostPort(nodeAddress, outsidePort))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "outside")
	})}
	go server.Serve(listener)
	t.Cleanup(func() {
		server.Close()
		// A server that has not begun to serve yet does not know of it.
		listener.Close()
	})
}

func isOutside(r reply) error {
	if r.Status != http.StatusOK || r.Body != "outside" {
		return fmt.Errorf("the answer is %d %.200q, want that of the outside", r.Status, r.Body)
	}
	return nil
}

// notOut wants that a pod does not get out.
func (w *world) notOut(t *testing.T, pod string) error {
	for _, url := range []string{"http://" + outsideHost + ":" + outsidePort + "/", "http://" + net.JoinHostPort(nodeAddress, outsidePort) + "/"} {
		if r, err := w.send(w.pod(t, pod), request{url: url, timeout: 5 * time.Second}); err == nil && (r.Status < 400 || r.Body == "outside") {
			return fmt.Errorf("%s gets %d %q of %s", pod, r.Status, r.Body, url)
		}
	}
	return nil
}

// authorizer lets requests with a good ticket pass.
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

// testOpenedForSome has a proxy that remembers what it let in before.
func testOpenedForSome(t *testing.T, w *world) {
	url := "http://" + net.JoinHostPort(w.pod(t, "shop/cart-v1").Addresses()[0].String(), "8080") + "/cart"
	open := strings.Replace(meshConfig("inboundTLSMode: Permissive", ""), "PolicyMode: false", "PolicyMode: true", 1)
	if err := w.Apply(t.Context(), "mesh.yaml", open); err != nil {
		t.Fatal(err)
	}
	w.get(t, "plain/outsider", url, isFrom("cart-v1"))
	if err := w.Apply(t.Context(), "mesh.yaml", meshConfig("", "")); err != nil {
		t.Fatal(err)
	}
	outsider := w.pod(t, "plain/outsider")
	w.eventually(t, func() error {
		if r, err := w.send(outsider, request{url: url}); err == nil {
			return fmt.Errorf("the outsider still gets %d", r.Status)
		}
		return nil
	})
	stop := make(chan struct{})
	let := make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				let <- n
				return
			default:
				if r, err := w.send(outsider, request{url: url}); err == nil && r.Status == http.StatusOK {
					n++
				}
			}
		}
	}()
	w.apply(t, "ingress.yaml", ingress("cart-v1", "http", "", "{kind: IPRange, name: "+nodeAddress+"/32}"))
	w.eventually(t, func() error {
		r, err := w.send(w.Lab().Node(), request{url: url})
		if err != nil || r.Status != http.StatusOK {
			return fmt.Errorf("the node gets %d, %v", r.Status, err)
		}
		return nil
	})
	close(stop)
	if n := <-let; n > 0 {
		t.Errorf("the outsider was let in %d times", n)
	}
}

// testEgressTLS calls a server of the outside over TLS, which the mesh cannot read.
func testEgressTLS(t *testing.T, w *world) {
	const port = "8444"
	listener, err := w.Lab().Node().Listen(t.Context(), "tcp", net.JoinHostPort(nodeAddress, port))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "outside")
	}), TLSConfig: &tls.Config{Certificates: []tls.Certificate{ownCertificate(t)}}}
	go server.ServeTLS(listener, "", "")
	t.Cleanup(func() { server.Close() })
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
	w.eventually(t, func() error {
		r, err := call("users/web", outsideHost)
		if err != nil {
			return err
		}
		return isOutside(r)
	})
	if r, err := call("users/web", "other.example.com"); err == nil {
		t.Errorf("another server name gets %d %q", r.Status, r.Body)
	}
	if r, err := call("users/thief", outsideHost); err == nil {
		t.Errorf("the thief gets %d %q", r.Status, r.Body)
	}
	for _, tt := range []struct {
		ranges string
		out    bool
	}{{"203.0.113.0/24", false}, {nodeAddress + "/32", true}} {
		if err := w.Apply(t.Context(), "egress.yaml", fmt.Sprintf(egressTemplate, "  hosts: ["+outsideHost+"]\n  ipAddresses: ["+tt.ranges+"]\n  ports: [{number: "+port+", protocol: https}]\n")); err != nil {
			t.Fatal(err)
		}
		w.eventually(t, func() error {
			if _, err := call("users/web", outsideHost); (err == nil) != tt.out {
				return fmt.Errorf("with the addresses %s: %v, want that it gets out: %v", tt.ranges, err, tt.out)
			}
			return nil
		})
	}
}

// testEgressByBoth calls the outside by its name while an Egress allows the name at the
// outside's address, and while it allows the name at other addresses only.
func testEgressByBoth(t *testing.T, w *world) {
	w.serveOutside(t)
	rule := func(addresses string) string {
		return fmt.Sprintf(egressTemplate, "  hosts: ["+outsideHost+"]\n  ipAddresses: ["+addresses+"]\n  ports: [{number: "+outsidePort+", protocol: http}]\n")
	}
	url := "http://" + outsideHost + ":" + outsidePort + "/"
	const here, elsewhere = nodeAddress + "/32", "203.0.113.0/24"
	w.apply(t, "egress.yaml", rule(here))
	w.get(t, "users/web", url, isOutside)
	// The row before let out by address.
	w.eventually(t, func() error {
		if r, err := w.send(w.pod(t, "users/web"), request{url: url, host: "other.example.com"}); err == nil && r.Status == http.StatusOK {
			return fmt.Errorf("another host is called at the address as well: %q", r.Body)
		}
		return nil
	})
	w.get(t, "users/web", url, isOutside)
	if err := w.Apply(t.Context(), "egress.yaml", rule(elsewhere)); err != nil {
		t.Fatal(err)
	}
	w.eventually(t, func() error { return w.notOut(t, "users/web") })
}
