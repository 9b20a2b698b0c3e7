package behaviour_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/lab"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	cart   = "http://cart.shop/cart"
	cartV1 = "http://cart-v1.shop/cart"
	cartV2 = "http://cart-v2.shop/cart"

	webID = "spiffe://cluster.local/ns/users/sa/web"
)

// access is who may call what.
var access = []row{
	{"Denied by default", "A client that no TrafficTarget names reaches nothing: its own proxy does not know the way, and the server denies who gets around that.", func(t *testing.T, w *world) {
		for _, url := range []string{"http://db.shop:8080/cart", "http://cart-v2.shop/cart"} {
			if r, err := w.send(w.pod(t, "users/thief"), request{url: url}); err == nil && r.Status < 400 {
				t.Errorf("the thief gets %d from %s", r.Status, url)
			}
		}
		thief := w.certificate(t, mesh.Identity{TrustDomain: "cluster.local", Namespace: "users", ServiceAccount: "thief"})
		w.eventually(t, func() error { return w.callDirectly(t, "shop/db-0", "db", thief, http.StatusForbidden) })
		web := w.certificate(t, mesh.Identity{TrustDomain: "cluster.local", Namespace: "users", ServiceAccount: "web"})
		w.eventually(t, func() error { return w.callDirectly(t, "shop/db-0", "db", web, http.StatusOK) })
	}},
	{"Allowed by one rule only", "Each rule is for itself: who may ask for one path gets 403 for another.", func(t *testing.T, w *world) {
		w.get(t, "users/thief", "http://cart-v1.shop/window", isFrom("cart-v1"))
		w.get(t, "users/thief", cartV1, isStatus(http.StatusForbidden))
	}},
	{"Allowed by path", "A TrafficTarget lets its sources ask for the paths of its routes, and for no others.", func(t *testing.T, w *world) {
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
		w.get(t, "users/web", cartV1+"/items", isFrom("cart-v1"))
		w.get(t, "users/web", "http://cart-v1.shop/admin", isStatus(http.StatusForbidden))
	}},
	{"Allowed by method", "A route's methods are the only ones.", func(t *testing.T, w *world) {
		w.ask(t, "users/web", request{method: http.MethodPut, url: cartV1 + "/items"}, ok)
		w.ask(t, "users/web", request{method: http.MethodDelete, url: cartV1 + "/items"}, isStatus(http.StatusForbidden))
	}},
	{"Spoofed headers", "Who calls is read from the certificate: headers that claim an identity change nothing and do not reach the application.", func(t *testing.T, w *world) {
		claims := http.Header{
			"X-Forwarded-Client-Cert": {"By=spiffe://cluster.local/ns/shop/sa/cart-v1;URI=" + webID},
			"Serviceidentity":         {"web.users"},
			"X-Forwarded-For":         {"10.0.0.1"},
		}
		w.ask(t, "users/thief", request{url: cartV1, header: claims}, isStatus(http.StatusForbidden))
		claims.Set("X-Forwarded-Client-Cert", "URI=spiffe://cluster.local/ns/shop/sa/admin")
		got := w.ask(t, "users/web", request{url: cartV1, header: claims}, ok)
		certs := strings.Join(got.answer.Header.Values("X-Forwarded-Client-Cert"), ",")
		if strings.Contains(certs, "admin") || !strings.Contains(certs, webID) {
			t.Errorf("the application is told of %q, want the client's own identity only", certs)
		}
	}},
	{"A service with two service accounts", "A service whose endpoints have different service accounts is called like any other, and each endpoint is verified by its own name.", func(t *testing.T, w *world) {
		seen := map[string]bool{}
		w.eventually(t, func() error {
			r, err := w.send(w.pod(t, "users/web"), request{url: cart})
			if err != nil || r.Status != http.StatusOK {
				return fmt.Errorf("%d %s %v", r.Status, r.Body, err)
			}
			if seen[r.Pod] = true; !seen["cart-v1"] || !seen["cart-v2"] {
				return fmt.Errorf("only %v have answered", seen)
			}
			return nil
		})
	}},
	{"A pod calls itself", "A pod that calls its own Service is let in by its own identity, and comes back by the loopback.", func(t *testing.T, w *world) {
		got := w.get(t, "shop/cart-v1", cartV1, isFrom("cart-v1"))
		if host, _, _ := net.SplitHostPort(got.From); host != "127.0.0.6" {
			t.Errorf("the application saw %s, want 127.0.0.6", got.From)
		}
	}},
	{"A pod without a service", "A pod that no service leads to is called by its own address, over mTLS and by the same rules.", func(t *testing.T, w *world) {
		url := "http://" + net.JoinHostPort(w.pod(t, "shop/lone").Addresses()[0].String(), "8080") + "/cart"
		w.get(t, "users/web", url, isFrom("lone"))
		if r, err := w.send(w.pod(t, "users/thief"), request{url: url}); err == nil && r.Status < 400 {
			t.Errorf("the thief gets %d", r.Status)
		}
	}},
}

// wire is what is on the network.
var wire = []row{
	{"mTLS on the wire", "Nothing of a request can be read between two pods, the server's name is its identity's, and both sides have verified the other.", func(t *testing.T, w *world) {
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
		// The server name is in the clear, in the client's first message.
		err = frames.WaitFor(ctx, func(f lab.Frame) bool { return bytes.Contains(f.Data, []byte("cart-v1.shop.sa.cluster.local")) })
		if err != nil {
			t.Fatalf("no TLS for the server's identity was seen: %v", err)
		}
		for _, f := range frames.Frames() {
			if bytes.Contains(f.Data, []byte("secret-path")) {
				t.Error("the request can be read on the wire")
			}
		}
		w.eventually(t, func() error {
			for line := range strings.Lines(w.logs.of("shop/cart-v1/outrigger-proxy")) {
				if strings.Contains(line, "secret-path") && strings.Contains(line, webID) {
					return nil
				}
			}
			return errors.New("the server's proxy has not logged the client's identity")
		})
	}},
	{"Plaintext refused", "A pod outside of the mesh gets nothing in plaintext from a pod that is strict.", func(t *testing.T, w *world) {
		address := w.pod(t, "shop/cart-v1").Addresses()[0].String()
		for _, port := range []string{"8080", "9000", "4444"} {
			got, err := line(w.pod(t, "plain/outsider"), net.JoinHostPort(address, port), "GET /cart HTTP/1.1\r\nHost: cart\r\n\r\n")
			if !isClosed(err) || got != "" {
				t.Errorf("port %s answers %q (%v), want that it closes", port, got, err)
			}
		}
	}},
	{"Plaintext taken while moving in", "With inboundTLSMode Permissive and permissive policy, pods outside of the mesh are served as well.", func(t *testing.T, w *world) {
		w.configure(t, "inboundTLSMode: Permissive", "")
		if err := w.Apply(t.Context(), "mesh.yaml", strings.Replace(meshConfig("inboundTLSMode: Permissive", ""), "PolicyMode: false", "PolicyMode: true", 1)); err != nil {
			t.Fatal(err)
		}
		address := "http://" + net.JoinHostPort(w.pod(t, "shop/cart-v1").Addresses()[0].String(), "8080")
		w.ask(t, "plain/outsider", request{url: address + "/cart"}, isFrom("cart-v1"))
		w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	}},
	{"A foreign endpoint is refused", "A client hangs up on an endpoint whose certificate is not of the identity that the mesh expects there.", testWrongServer},
}

// protocols are what else than HTTP/1 is spoken.
var protocols = []row{
	{"TCP", "TCP passes over mTLS for the sources of a TCPRoute, and is closed for others before the application hears of them.", func(t *testing.T, w *world) {
		w.eventually(t, func() error {
			got, err := line(w.pod(t, "users/web"), "cart-v1.shop:9000", "echo\n")
			if err != nil || got != "echo\n" {
				return fmt.Errorf("%q, %v", got, err)
			}
			return nil
		})
		if got, err := line(w.pod(t, "users/thief"), "cart-v1.shop:9000", "echo\n"); !isClosed(err) || got != "" {
			t.Errorf("the thief reads %q (%v), want that the connection is closed", got, err)
		}
	}},
	{"Server-first TCP", "A server that speaks first is heard by a client that says nothing, and by nobody who may not call it.", func(t *testing.T, w *world) {
		w.eventually(t, func() error {
			got, err := line(w.pod(t, "users/web"), "cart-v1.shop:3306", "")
			if err != nil || got != "hello from cart-v1\n" {
				return fmt.Errorf("%q, %v", got, err)
			}
			return nil
		})
		if got, err := line(w.pod(t, "users/thief"), "cart-v1.shop:3306", ""); !isClosed(err) || got != "" {
			t.Errorf("the thief reads %q (%v), want that the connection is closed", got, err)
		}
	}},
	{"An application's own TLS", "TLS of the application's own passes through mTLS, end to end.", testOwnTLS},
	{"gRPC streaming", "A stream of messages goes both ways while it is open.", testStreaming},
	{"WebSocket", "An upgraded connection carries bytes both ways.", func(t *testing.T, w *world) {
		w.eventually(t, func() error { return webSocket(w.pod(t, "users/web"), "cart-v1.shop:80") })
	}},
	{"Headless", "The addresses of a headless service and the names of its pods are called over mTLS.", func(t *testing.T, w *world) {
		w.get(t, "users/web", "http://db.shop:8080/cart", isFrom("db-0"))
		w.get(t, "users/web", "http://db-0.db.shop:8080/cart", isFrom("db-0"))
		if r, err := w.send(w.pod(t, "users/thief"), request{url: "http://db-0.db.shop:8080/cart"}); err == nil && r.Status < 400 {
			t.Errorf("the thief gets %d", r.Status)
		}
	}},
	{"IPv6", "A service is called by its IPv6 address as by that of IPv4.", func(t *testing.T, w *world) {
		six := func(ctx context.Context, _, address string) (net.Conn, error) {
			return w.pod(t, "users/web").Dial(ctx, "tcp6", address)
		}
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: six, DisableKeepAlives: true}}
		w.eventually(t, func() error {
			r, err := w.sendBy(client, request{url: cart})
			if err != nil || r.Status != http.StatusOK {
				return fmt.Errorf("%d, %v", r.Status, err)
			}
			return nil
		})
	}},
}

// webSocket upgrades a connection and has a few bytes echoed.
func webSocket(from dialer, address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(conn, "GET /cart/ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", address)
	head := make([]byte, 0, 4096)
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		one := make([]byte, 1)
		if _, err := conn.Read(one); err != nil {
			return fmt.Errorf("%w after %q", err, head)
		}
		head = append(head, one[0])
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 101")) {
		return fmt.Errorf("the answer is %q", head)
	}
	for range 3 {
		if _, err := conn.Write([]byte("ping")); err != nil {
			return err
		}
		echo := make([]byte, 4)
		if _, err := io.ReadFull(conn, echo); err != nil || string(echo) != "ping" {
			return fmt.Errorf("the echo is %q, %v", echo, err)
		}
	}
	return nil
}

// callDirectly asks a pod's port 8080 by mesh TLS from outside of the mesh, with a
// certificate of the mesh.
func (w *world) callDirectly(t *testing.T, pod, serviceAccount string, certificate tls.Certificate, want int) error {
	t.Helper()
	address := net.JoinHostPort(w.pod(t, pod).Addresses()[0].String(), "8080")
	name := serviceAccount + ".shop.sa.cluster.local"
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return w.pod(t, "plain/outsider").Dial(ctx, network, address)
		},
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: w.roots(t), ServerName: name, Certificates: []tls.Certificate{certificate}},
	}}
	r, err := w.sendBy(client, request{url: "https://" + name + "/cart"})
	if err != nil || r.Status != want {
		return fmt.Errorf("the answer is %d, %v, want %d", r.Status, err, want)
	}
	return nil
}
