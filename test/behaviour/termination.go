package behaviour

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// gateListeners are those of a gateway at which TLS ends, and gateRoutes its routes.
const gateListeners = `
  - {name: wild, port: 443, protocol: HTTPS, hostname: "*.example.com", tls: {certificateRefs: [{name: wild}]}, allowedRoutes: {namespaces: {from: All}}}
  - {name: own, port: 443, protocol: HTTPS, hostname: own.example.com, tls: {certificateRefs: [{name: own, namespace: shop}]}, allowedRoutes: {namespaces: {from: All}}}
  - {name: missing, port: 443, protocol: HTTPS, hostname: missing.example.org, tls: {certificateRefs: [{name: nothing}]}, allowedRoutes: {namespaces: {from: All}}}
  - {name: several, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: wild}, {name: second}]}, allowedRoutes: {namespaces: {from: All}}}
  - {name: closed, port: 8444, protocol: HTTPS, tls: {certificateRefs: [{name: broken}]}, allowedRoutes: {namespaces: {from: All}}}
  - {name: tcp, port: 9443, protocol: TLS, tls: {mode: Terminate, certificateRefs: [{name: second}]}, allowedRoutes: {namespaces: {from: All}}}`

const gateRoutes = `
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: gate, namespace: shop}
spec:
  parentRefs: [{name: gate, namespace: users}]
  rules:
  - matches: [{path: {value: /cart}}]
    backendRefs: [{name: cart-v1, port: 80}]
  - matches: [{path: {value: /moved}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: other.example.com}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: gate, namespace: shop}
spec:
  parentRefs: [{name: gate, namespace: users, sectionName: tcp}]
  hostnames: [echo.example.org]
  rules: [{backendRefs: [{name: cart-v1, port: 9000}]}]
`

const gateGrant = `
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: gate, namespace: shop}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: users}]
  to: [{group: "", kind: Secret, name: own}]
`

// testGate calls a gateway at which TLS ends.
func testGate(t *testing.T, w *testMesh) {
	ca := drivertest.NewTestAuthority(t)
	secret := func(namespace, name string, hosts ...string) string {
		return certificateSecret(t, namespace, name, ca.Sign(&x509.Certificate{DNSNames: hosts}, time.Hour))
	}
	w.apply(t, "gate-wild.yaml", secret("users", "wild", "*.example.com"))
	w.apply(t, "gate-grant.yaml", gateGrant)
	w.apply(t, "gate.yaml", fmt.Sprintf(gatewayTemplate, w.Client, "gate", gateListeners)+gateRoutes+
		strings.ReplaceAll(doorTarget, "door", "gate")+
		trafficTarget("shop/gate-echo", "cart-v1", "{kind: TCPRoute, name: cart}", "users/gate")+
		"---\n"+secret("shop", "own", "own.example.com")+"---\n"+secret("users", "second", "second.example.org", "*.example.org")+`---
apiVersion: v1
kind: Secret
metadata: {name: broken, namespace: users}
type: kubernetes.io/tls
stringData: {tls.crt: none, tls.key: none}
`)
	g := &gate{testMesh: w, from: w.pod(t, "plain/outsider"), roots: ca.Pool(), at: func(port string) string { return w.address(t, "users/gate", port) }}

	for _, tt := range []struct {
		port, name, host, path string
		want                   func(reply) error
	}{
		{"443", "shop.example.com", "shop.example.com", "/cart", isFrom("cart-v1")},
		{"443", "own.example.com", "OWN.example.com:443", "/cart", isFrom("cart-v1")},
		{"443", "shop.example.com", "shop.example.com", "/nothing", isStatus(http.StatusNotFound)},
		// A connection belongs to the listener of its server name, and so do its requests.
		{"443", "shop.example.com", "own.example.com", "/cart", isStatus(http.StatusMisdirectedRequest)},
		{"443", "own.example.com", "shop.example.com", "/cart", isStatus(http.StatusMisdirectedRequest)},
		{"443", "own.example.com", "own.example.com", "/cart", isFrom("cart-v1")},
		// Several certificates of a listener are chosen by server name.
		{"8443", "shop.example.com", "shop.example.com", "/cart", isFrom("cart-v1")},
		{"8443", "second.example.org", "second.example.org", "/cart", isFrom("cart-v1")},
		{"8443", "other.example.org", "anything", "/cart", isFrom("cart-v1")},
	} {
		for _, protocol := range []string{"http/1.1", "h2"} {
			g.repeat(t, fmt.Sprintf("%s to %s for %s%s over %s", tt.name, tt.port, tt.host, tt.path, protocol), tt.want, func() (reply, error) {
				return g.ask(tt.port, tt.name, protocol, tt.host, tt.path)
			})
		}
	}
	r, err := g.ask("443", "shop.example.com", "h2", "shop.example.com", "/cart")
	if got := r.answer.Header.Values("X-Forwarded-Proto"); err != nil || strings.Join(got, ",") != "https" {
		t.Errorf("the application gets the x-forwarded-proto %q (%v)", got, err)
	}
	if r.answer.Protocol != "HTTP/1.1" {
		t.Errorf("the application gets %s, which it may not speak", r.answer.Protocol)
	}
	if got := r.answer.Header.Get("X-Outrigger-Listener"); got != "" {
		t.Errorf("a header of the gateway's own arrives: %q", got)
	}
	if r, err = g.ask("443", "shop.example.com", "http/1.1", "shop.example.com", "/moved/a"); err != nil || r.Header.Get("Location") != "https://other.example.com/moved/a" {
		t.Errorf("a redirect goes to %q (%v)", r.Header.Get("Location"), err)
	}
	for _, name := range []string{"missing.example.org", "example.net", "", "own.example.com.evil"} {
		if err := g.handshake("443", name); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a client that names %q gets a certificate (%v)", name, err)
		}
	}
	if err := g.handshake("8444", "shop.example.com"); err == nil {
		t.Error("a listener whose certificate is broken takes connections")
	}
	if _, err := w.send(g.from, request{url: "http://" + g.at("443") + "/cart", host: "shop.example.com"}); err == nil {
		t.Error("a port with TLS answers plaintext")
	}
	w.eventually(t, func() error { return g.echoes("echo.example.org") })
	if g.echoes("other.example.org") == nil {
		t.Error("a connection with a server name without a route is passed on")
	}

	g.rotates(t, func() { w.set(t, "gate-wild.yaml", secret("users", "wild", "*.example.com", "renewed.example.com")) })
	w.forget(t, "gate-grant.yaml")
	w.eventually(t, func() error {
		conn, err := g.connect("443", &tls.Config{ServerName: "own.example.com", RootCAs: g.roots})
		if err != nil {
			return nil
		}
		defer conn.Close()
		if leaf := conn.ConnectionState().PeerCertificates[0]; leaf.VerifyHostname("own.example.com") == nil && len(leaf.DNSNames) == 1 {
			return fmt.Errorf("the certificate of a namespace that no longer permits it is presented: %q", leaf.DNSNames)
		}
		return nil
	})
}

// gate is a gateway, called from outside the mesh.
type gate struct {
	*testMesh
	from  *lab.Pod
	roots *x509.CertPool
	at    func(port string) string
}

// connect connects to a port with TLS.
func (g *gate) connect(port string, config *tls.Config) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := g.from.Dial(ctx, "tcp", g.at(port))
	if err != nil {
		return nil, err
	}
	client := tls.Client(conn, config)
	if err := client.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return client, nil
}

// handshake connects with a server name, without verifying what is presented.
func (g *gate) handshake(port, name string) error {
	conn, err := g.connect(port, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err == nil {
		conn.Close()
	}
	return err
}

// client returns a client that names a server and speaks only a protocol.
func (g *gate) client(port, name, protocol string) *http.Client {
	transport := &http.Transport{
		Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{ServerName: name, RootCAs: g.roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return g.from.Dial(ctx, network, g.at(port))
		},
	}
	transport.Protocols.SetHTTP1(protocol == "http/1.1")
	transport.Protocols.SetHTTP2(protocol == "h2")
	return &http.Client{Timeout: 10 * time.Second, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// ask sends a request over a new connection.
func (g *gate) ask(port, name, protocol, host, path string) (reply, error) {
	client := g.client(port, name, protocol)
	defer client.CloseIdleConnections()
	return g.sendBy(client, request{url: "https://gateway" + path, host: host})
}

// echoes sends bytes through the gateway to a server without HTTP.
func (g *gate) echoes(name string) error {
	conn, err := g.connect("9443", &tls.Config{ServerName: name, RootCAs: g.roots})
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte("echo\n")); err != nil {
		return err
	}
	got := make([]byte, 5)
	if n, err := conn.Read(got); err != nil || string(got[:n]) != "echo\n" {
		return fmt.Errorf("the echo is %q: %w", got[:n], err)
	}
	return nil
}

// rotates replaces a certificate while a client keeps a connection and others open new ones. No request
// may fail.
func (g *gate) rotates(t *testing.T, replace func()) {
	t.Helper()
	kept := g.client("443", "shop.example.com", "h2")
	defer kept.CloseIdleConnections()
	var sent, failed atomic.Int32
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		var last error
		defer func() { ended <- last }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, ask := range []func() (reply, error){
				func() (reply, error) {
					return g.sendBy(kept, request{url: "https://gateway/cart", host: "shop.example.com"})
				},
				func() (reply, error) {
					return g.ask("443", "shop.example.com", "http/1.1", "shop.example.com", "/cart")
				},
			} {
				r, err := ask()
				sent.Add(1)
				if err == nil {
					err = isFrom("cart-v1")(r)
				}
				if err != nil {
					failed.Add(1)
					last = err
				}
			}
		}
	}()
	replace()
	g.eventually(t, func() error {
		conn, err := g.connect("443", &tls.Config{ServerName: "shop.example.com", RootCAs: g.roots})
		if err != nil {
			return err
		}
		defer conn.Close()
		if names := conn.ConnectionState().PeerCertificates[0].DNSNames; len(names) != 2 {
			return fmt.Errorf("the former certificate is presented: %q", names)
		}
		return nil
	})
	close(stop)
	if err := <-ended; failed.Load() > 0 {
		t.Errorf("%d of %d requests failed while a certificate was replaced, the last with %v", failed.Load(), sent.Load(), err)
	}
}

// certificateSecret returns the manifest of a Secret with a certificate.
func certificateSecret(t *testing.T, namespace, name string, c tls.Certificate) string {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	var chain []byte
	for _, der := range c.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: %s, namespace: %s}
type: kubernetes.io/tls
stringData:
  tls.crt: %q
  tls.key: %q
`, name, namespace, chain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
}
