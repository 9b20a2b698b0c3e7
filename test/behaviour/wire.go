package behaviour

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/test/lab"
)

// wire is the table of encryption and server verification.
var wire = []Row{
	{"mTLS on the wire", "Requests between two pods are encrypted, the server name is that of the server's identity, and a client without a certificate of the mesh gets nothing.", ofEvery, func(t *testing.T, w *testMesh) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		frames, err := w.pod(t, "shop/cart-v1").Capture(ctx)
		if err != nil {
			t.Fatal(err)
		}
		w.ask(t, "users/web", request{url: cartV1 + "/secret-path"}, isFrom("cart-v1"))
		if got, err := line(w.pod(t, "users/web"), "cart-v1.shop:9000", "secret-path\n"); err != nil || got != "secret-path\n" {
			t.Fatalf("the echo is %q, %v", got, err)
		}
		// The server name is unencrypted in the ClientHello.
		err = frames.WaitFor(ctx, func(f lab.Frame) bool { return bytes.Contains(f.Data, []byte("cart-v1.shop.sa.cluster.local")) })
		if err != nil {
			t.Fatalf("no TLS for the server's identity was seen: %v", err)
		}
		for _, f := range frames.Frames() {
			if bytes.Contains(f.Data, []byte("secret-path")) {
				t.Error("the request can be read on the wire")
			}
		}
		web := w.certificate(t, webIdentity)
		foreign := foreignCertificate(t, webIdentity)
		w.eventually(t, func() error { return w.callDirectly(t, "shop/cart-v1", "cart-v1", http.StatusOK, web) })
		for name, certificates := range map[string][]tls.Certificate{"none": nil, "one of another root": {foreign}} {
			if err := w.callDirectly(t, "shop/cart-v1", "cart-v1", 0, certificates...); err != nil {
				t.Errorf("with the certificate %s: %v", name, err)
			}
		}
	}},
	{"TLS versions", "Both sides use only the TLS versions of the MeshConfig.", ofBoth(mesh.FeatureTLSSettings), testTLSVersions},
	{"TLS curves", "A server accepts only the curves of the MeshConfig.", ofServer(mesh.FeatureTLSCurves), testTLSCurves},
	{"Key exchange", "Two proxies use the strongest key exchange that both have, X25519MLKEM768 if possible.", ofEvery, testKeyExchange},
	{"Plaintext refused", "A strict pod rejects plaintext from pods outside the mesh.", ofEvery, func(t *testing.T, w *testMesh) {
		address := w.pod(t, "shop/cart-v1").Addresses()[0].String()
		for _, port := range []string{"8080", "9000", "4444"} {
			got, err := line(w.pod(t, "plain/outsider"), net.JoinHostPort(address, port), "GET /cart HTTP/1.1\r\nHost: cart\r\n\r\n")
			if !isClosed(err) || got != "" {
				t.Errorf("port %s answers %q (%v), want that it closes", port, got, err)
			}
		}
	}},
	{"Plaintext taken while moving in", "With inboundTLSMode Permissive and permissive policy, pods outside the mesh are served too.", ofServer(mesh.FeaturePermissiveTLS), func(t *testing.T, w *testMesh) {
		w.configure(t, "inboundTLSMode: Permissive", "")
		w.set(t, "mesh.yaml", strings.Replace(meshConfig("inboundTLSMode: Permissive", ""), "PolicyMode: false", "PolicyMode: true", 1))
		address := "http://" + w.address(t, "shop/cart-v1", "8080")
		w.ask(t, "plain/outsider", request{url: address + "/cart"}, isFrom("cart-v1"))
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	}},
	{"No plaintext after a reset", "Where a server resets its connections, no connection of the client's application leaves the pod in plaintext, and none of its sidecar's is redirected into the sidecar.", ofEvery, testResets},
	{"A foreign endpoint is refused", "A client disconnects from an endpoint whose certificate does not have the expected identity.", ofEvery, testWrongServer},
}

// handshake connects and makes a TLS handshake.
func handshake(t *testing.T, from dialer, address string, config *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	client := tls.Client(conn, config)
	err = client.HandshakeContext(ctx)
	return client.ConnectionState(), err
}

// callDirectly sends a request to a pod's port 8080 by mesh TLS from outside the mesh,
// with the certificates. A want of 0 means no answer.
func (w *testMesh) callDirectly(t *testing.T, pod, serviceAccount string, want int, certificates ...tls.Certificate) error {
	t.Helper()
	name := serviceAccount + ".shop.sa.cluster.local"
	config := &tls.Config{RootCAs: w.roots(t), ServerName: name, Certificates: certificates}
	return w.enter(t, w.address(t, pod, "8080"), config, want)
}

// enter sends a request to an address from outside the mesh over TLS. A want of 0 means
// no answer.
func (w *testMesh) enter(t *testing.T, address string, config *tls.Config, want int) error {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return w.pod(t, "plain/outsider").Dial(ctx, network, address)
		},
		DisableKeepAlives: true,
		TLSClientConfig:   config,
	}}
	r, err := w.sendBy(client, request{url: "https://" + config.ServerName + "/cart"})
	switch {
	case want == 0 && err == nil:
		return fmt.Errorf("the answer is %d, want none", r.Status)
	case want != 0 && (err != nil || r.Status != want):
		return fmt.Errorf("the answer is %d, %v, want %d", r.Status, err, want)
	}
	return nil
}

// testWrongServer adds an endpoint with the service account cart-v1 that serves with
// another identity.
func testWrongServer(t *testing.T, w *testMesh) {
	// The pod is annotated as if it had a sidecar, so the mesh calls it.
	w.apply(t, "impostor.yaml", service("impostor", "selector: {app: impostor}, ports: [{name: http, port: 80, targetPort: 8080}]")+`---
apiVersion: v1
kind: Pod
metadata:
  name: impostor
  namespace: shop
  labels: {app: impostor}
  annotations: {openservicemesh.io/sidecar-status: '{"version":1,"class":"`+w.Server+`"}'}
spec:
  serviceAccountName: cart-v1
  containers: [{name: app, image: in-the-test, ports: [{containerPort: 8080}]}]
`)
	listener := listenOn(t, w.pod(t, "shop/impostor"), ":8080")
	present := w.certificate(t, mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "impostor"})
	app := &application{pod: "impostor", failures: map[string]int{}, seen: map[string]int{}}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: app, ErrorLog: log.New(io.Discard, "", 0)}
	defer server.Close()
	var handshakes atomic.Int32
	go server.Serve(tls.NewListener(listener, &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			handshakes.Add(1)
			return &present, nil
		},
		ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"http/1.1"},
	}))
	w.eventually(t, func() error {
		r, err := w.send(w.pod(t, "users/web"), request{url: "http://impostor.shop/cart"})
		if err != nil || r.Status != http.StatusServiceUnavailable && r.Status != http.StatusBadGateway {
			return fmt.Errorf("the answer is %d, %v, want 503 or 502", r.Status, err)
		}
		if handshakes.Load() == 0 {
			return errors.New("the server was not called")
		}
		return nil
	})
	if n := app.count("/cart"); n != 0 {
		t.Errorf("the server with the wrong certificate got %d requests", n)
	}
	// With the right certificate the same server is used, so nothing else blocked it.
	present = w.certificate(t, mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "cart-v1"})
	w.get(t, "users/web", "http://impostor.shop/cart", isFrom("impostor"))
}

// ownCertificate returns a certificate that is unrelated to the mesh.
func ownCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	return drivertest.NewTestAuthority(t).Sign(&x509.Certificate{Subject: pkix.Name{CommonName: "own"}, DNSNames: []string{"own.example.com"}}, time.Hour)
}

// testTLSVersions temporarily restricts the mesh to TLS 1.2.
func testTLSVersions(t *testing.T, w *testMesh) {
	version := func(from, to uint16) (uint16, error) {
		config := w.meshTLSOf(t, w.certificate(t, webIdentity))
		config.MinVersion, config.MaxVersion = from, to
		state, err := handshake(t, w.Lab().Node(), w.address(t, "shop/cart-v1", "8080"), config)
		return state.Version, err
	}
	speaks := func(want, not uint16) {
		t.Helper()
		w.eventually(t, func() error {
			if v, err := version(tls.VersionTLS12, tls.VersionTLS13); err != nil || v != want {
				return fmt.Errorf("the server speaks %s, %v; want %s", tls.VersionName(v), err, tls.VersionName(want))
			}
			if v, err := version(not, not); err == nil {
				return fmt.Errorf("the server also speaks %s", tls.VersionName(v))
			}
			return nil
		})
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	}
	speaks(tls.VersionTLS13, tls.VersionTLS12)
	w.set(t, "mesh.yaml", meshConfig("", "")+"  sidecar: {tlsMinProtocolVersion: TLSv1_2, tlsMaxProtocolVersion: TLSv1_2}\n")
	// Restore the configuration even if the row fails.
	defer w.configure(t, "", "")
	speaks(tls.VersionTLS12, tls.VersionTLS13)
}

// testTLSCurves temporarily restricts the mesh to P-384, which proxies support but do not
// prefer.
func testTLSCurves(t *testing.T, w *testMesh) {
	offer := func(curve tls.CurveID) error {
		config := w.meshTLSOf(t, w.certificate(t, webIdentity))
		config.CurvePreferences = []tls.CurveID{curve}
		_, err := handshake(t, w.Lab().Node(), w.address(t, "shop/cart-v1", "8080"), config)
		return err
	}
	// A configuration of an earlier row may still be in effect.
	w.eventually(t, func() error { return offer(tls.X25519) })
	w.set(t, "mesh.yaml", meshConfig("", "")+"  sidecar: {ecdhCurves: [P-384]}\n")
	// Restore the configuration even if the row fails.
	defer w.configure(t, "", "")
	w.eventually(t, func() error {
		if err := offer(tls.CurveP384); err != nil {
			return fmt.Errorf("a client with P-384 fails: %w", err)
		}
		if err := offer(tls.X25519); err == nil {
			return errors.New("a client with X25519 is accepted")
		}
		return nil
	})
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))
}

// testKeyExchange reads the key exchange that the server's proxy chooses for the client's, which
// TLS 1.3 does not encrypt.
func testKeyExchange(t *testing.T, w *testMesh) {
	want := tls.X25519MLKEM768
	for _, class := range []string{w.Client, w.Server} {
		switch strongest := sidecar.KeyExchange(class, w.found[class]); strongest {
		case driver.KeyExchangeHybrid:
		case driver.KeyExchangeClassic:
			want = tls.X25519
		default:
			t.Fatalf("the version %q of class %s does not tell its key exchange", w.found[class], class)
		}
	}
	// A configuration of an earlier row may still be in effect.
	w.eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		frames, err := w.pod(t, "shop/cart-v1").Capture(ctx)
		if err != nil {
			return err
		}
		if got, err := line(w.pod(t, "users/web"), "cart-v1.shop:9000", "echo\n"); err != nil || got != "echo\n" {
			return fmt.Errorf("the echo is %q, %w", got, err)
		}
		var got tls.CurveID
		err = frames.WaitFor(ctx, func(f lab.Frame) bool {
			var ok bool
			got, ok = chosenKeyExchange(f.Data)
			return ok
		})
		if err != nil || got != want {
			return fmt.Errorf("the proxies use %v, %w, want %v", got, err, want)
		}
		return nil
	})
}

// chosenKeyExchange returns the key exchange in a ServerHello of TLS 1.3 within a frame.
func chosenKeyExchange(frame []byte) (tls.CurveID, bool) {
	// A record of a handshake, its length, and a ServerHello, its length, for TLS 1.2 by name.
	at := regexp.MustCompile(`(?s)\x16\x03\x03..\x02\x00..\x03\x03`).FindIndex(frame)
	const random, cipherAndCompression, keyShare = 32, 3, 51
	if at == nil || len(frame) < at[1]+random+1 {
		return 0, false
	}
	rest := frame[at[1]+random:]
	// The session ID, and the length of the extensions.
	rest = rest[min(len(rest), 1+int(rest[0])+cipherAndCompression+2):]
	for len(rest) >= 6 {
		kind, length := binary.BigEndian.Uint16(rest), int(binary.BigEndian.Uint16(rest[2:]))
		if kind == keyShare {
			return tls.CurveID(binary.BigEndian.Uint16(rest[4:])), true
		}
		rest = rest[min(len(rest), 4+length):]
	}
	return 0, false
}
