package behaviour

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// protocols is the table of protocols other than HTTP/1.
var protocols = []Row{
	{"TCP", "The sources of a TCPRoute connect over mTLS. Connections of others are closed before they reach the application.", ofEvery, func(t *testing.T, w *testMesh) {
		w.reads(t, w.pod(t, "users/web"), "cart-v1.shop:9000", "echo\n", "echo\n")
		w.closes(t, "users/thief", "cart-v1.shop:9000", "echo\n")
	}},
	{"Server-first TCP", "A server that sends first reaches a silent client, but no client that may not call it.", ofBoth(mesh.FeatureServerFirst), func(t *testing.T, w *testMesh) {
		w.reads(t, w.pod(t, "users/web"), "cart-v1.shop:3306", "", "hello from cart-v1\n")
		w.closes(t, "users/thief", "cart-v1.shop:3306", "")
	}},
	{"An application's own TLS", "The application's own TLS is passed through mTLS, end to end.", ofEvery, testOwnTLS},
	{"gRPC streaming", "An open stream carries messages in both directions.", ofBoth(mesh.FeatureHTTP2), testStreaming},
	{"Cut messages of HTTP/1.1", "A message of HTTP/1.1 that its sender breaks off, with a length or in chunks, never looks complete to its receiver, in either direction.", ofEvery, testCutHTTP1},
	{"Cut messages of HTTP/2", "A message of HTTP/2 or a stream of gRPC that its sender breaks off never looks complete to its receiver, in either direction.", ofBoth(mesh.FeatureHTTP2, mesh.FeatureHTTP2Resets), testCutHTTP2},
	{"Servers that stop", "A gRPC server that stops gracefully finishes the streams that it has. One that stops at once ends them with an error.", ofBoth(mesh.FeatureHTTP2), testStop},
	{"Idle connections", "If an application closes an idle connection just when the next request arrives on it, the request succeeds if it may be repeated.", ofEvery, testIdleConnections},
	{"WebSocket", "A strict client's upgraded connection carries bytes in both directions, however it spells the headers.", ofBoth(mesh.FeatureWebSocket), func(t *testing.T, w *testMesh) {
		for _, headers := range [][2]string{{"Upgrade", "websocket"}, {"keep-alive, Upgrade", "WebSocket"}} {
			w.eventually(t, func() error { return webSocket(w.pod(t, "users/web"), "cart-v1.shop:80", headers[0], headers[1]) })
		}
	}},
	{"Headless", "The addresses of a headless service and the names of its pods are called over mTLS.", ofEvery, func(t *testing.T, w *testMesh) {
		w.get(t, "users/web", "http://db.shop:8080/cart", isFrom("db-0"))
		w.get(t, "users/web", "http://db-0.db.shop:8080/cart", isFrom("db-0"))
		w.denies(t, "users/thief", "http://db-0.db.shop:8080/cart")
	}},
	{"Several services on one pod", "A pod is called by each of its services, at the same and at other ports, and a policy for one service leaves the others alone.", ofClient(mesh.FeatureTimeouts), testServicesOfOnePod},
	{"A StatefulSet on its pods' addresses", "Applications that listen only on their pod's address are called by services, by splits, by the names of their pods, and by themselves.", ofBoth(mesh.FeatureServerFirst), testStatefulSet},
	{"IPv6", "Services, pods, IngressBackends and Egresses work by IPv6 too, and deny the same.", Needs{
		Client: []mesh.Feature{mesh.FeatureIPv6, mesh.FeatureServerFirst, mesh.FeatureEgressTCP},
		Server: []mesh.Feature{mesh.FeatureIPv6, mesh.FeatureServerFirst, mesh.FeatureIngress},
	}, testIPv6},
}

// webSocket upgrades a connection with the headers, checks the handshake as strictly as RFC 6455
// demands of clients (section 4.1), and has a few bytes echoed.
func webSocket(from dialer, address, connection, upgrade string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(conn, "GET /cart/ws HTTP/1.1\r\nHost: %s\r\nConnection: %s\r\nUpgrade: %s\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n", address, connection, upgrade, webSocketKey)
	buffered := bufio.NewReader(conn)
	answer, err := http.ReadResponse(buffered, nil)
	if err != nil {
		return err
	}
	connections, upgrades := strings.ToLower(strings.Join(answer.Header.Values("Connection"), ",")), answer.Header.Values("Upgrade")
	switch {
	case answer.StatusCode != http.StatusSwitchingProtocols:
		return fmt.Errorf("the status is %s", answer.Status)
	case !slices.Contains(strings.Split(strings.ReplaceAll(connections, " ", ""), ","), "upgrade"):
		return fmt.Errorf("the answer has connection: %q", connections)
	case len(upgrades) != 1 || !strings.EqualFold(upgrades[0], "websocket"):
		return fmt.Errorf("the answer has upgrade: %q", upgrades)
	case answer.Header.Get("Sec-WebSocket-Accept") != webSocketAccept(webSocketKey):
		return fmt.Errorf("the answer accepts %q", answer.Header.Get("Sec-WebSocket-Accept"))
	}
	for range 3 {
		if _, err := conn.Write([]byte("ping")); err != nil {
			return err
		}
		echo := make([]byte, 4)
		if _, err := io.ReadFull(buffered, echo); err != nil || string(echo) != "ping" {
			return fmt.Errorf("the echo is %q, %v", echo, err)
		}
	}
	return nil
}

const webSocketKey = "AAAAAAAAAAAAAAAAAAAAAA=="

// testOwnTLS connects to the application by the application's own TLS.
func testOwnTLS(t *testing.T, w *testMesh) {
	w.eventually(t, func() error { return w.ownTLS(t, "users/web", "own.example.com") })
	w.closesTLS(t, "users/thief", "own.example.com")
}

// ownTLS makes a TLS connection with the application of cart-v1 through both proxies.
func (w *testMesh) ownTLS(t *testing.T, from, serverName string) error {
	state, err := handshake(t, w.pod(t, from), "cart-v1.shop:8443", &tls.Config{ServerName: serverName, InsecureSkipVerify: true})
	if err != nil {
		return err
	}
	if name := state.PeerCertificates[0].Subject.CommonName; name != "own" {
		return fmt.Errorf("the certificate is of %q, want the application's own", name)
	}
	return nil
}

// closesTLS waits until such a connection is closed before the handshake.
func (w *testMesh) closesTLS(t *testing.T, from, serverName string) {
	t.Helper()
	w.eventually(t, func() error {
		if err := w.ownTLS(t, from, serverName); err == nil || errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("the handshake from %s with %s ends with %v, want that the connection is closed", from, serverName, err)
		}
		return nil
	})
}

// testStreaming sends messages in both directions.
func testStreaming(t *testing.T, w *testMesh) {
	w.eventually(t, func() error { return w.stream(t, "users/web", "/town.Cart/Echo") })
	w.eventually(t, func() error {
		if err := w.stream(t, "users/thief", "/town.Cart/Echo"); err == nil || !strings.Contains(err.Error(), "PermissionDenied") {
			return fmt.Errorf("the thief gets %v, want PermissionDenied", err)
		}
		return nil
	})
}

// stream calls a method of gRPC on cart-v1 and exchanges messages.
func (w *testMesh) stream(t *testing.T, from, method string) error {
	return w.streamWithin(t, 5*time.Second, from, method)
}

func (w *testMesh) streamWithin(t *testing.T, limit time.Duration, from, method string) error {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	s, end, err := w.openStream(ctx, t, from, method)
	if err != nil {
		return err
	}
	defer end()
	for i := range 5 {
		sent := fmt.Appendf(nil, "message %d", i)
		var got []byte
		if err := s.SendMsg(&sent); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := s.RecvMsg(&got); err != nil {
			return err
		}
		if string(got) != string(sent) {
			return fmt.Errorf("%q comes back as %q", sent, got)
		}
	}
	return nil
}

// openStream calls a method of gRPC on cart-v1. The returned function closes the connection.
func (w *testMesh) openStream(ctx context.Context, t *testing.T, from, method string) (grpc.ClientStream, func(), error) {
	conn, err := grpc.NewClient("passthrough:///cart-v1.shop:50051", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return w.pod(t, from).Dial(ctx, "tcp", address)
		}), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		return nil, nil, err
	}
	end := func() { conn.Close() }
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		end()
		return nil, nil, err
	}
	return s, end, nil
}

// line connects, sends the text, and returns the first line of the response.
func line(from dialer, address, send string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, send); err != nil {
		return "", err
	}
	var got []byte
	for one := make([]byte, 1); ; {
		if _, err := conn.Read(one); err != nil {
			return string(got), err
		}
		got = append(got, one[0])
		if one[0] == '\n' {
			return string(got), nil
		}
	}
}

// reads waits until a connection on which the text is sent gets the line.
func (w *testMesh) reads(t *testing.T, from dialer, address, send, want string) {
	t.Helper()
	w.eventually(t, func() error {
		if got, err := line(from, address, send); err != nil || got != want {
			return fmt.Errorf("%s answers %q, %v; want %q", address, got, err, want)
		}
		return nil
	})
}

// closes waits until a pod's connections are closed before any data arrives. What the
// previous row allowed may apply a moment longer.
func (w *testMesh) closes(t *testing.T, from, address, send string) {
	t.Helper()
	w.eventually(t, func() error {
		if got, err := line(w.pod(t, from), address, send); !isClosed(err) || got != "" {
			return fmt.Errorf("%s reads %q (%v), want that the connection is closed", from, got, err)
		}
		return nil
	})
}

// isClosed reports whether the error means that the peer has closed the connection.
func isClosed(err error) bool {
	var timeout net.Error
	return err != nil && (!errors.As(err, &timeout) || !timeout.Timeout())
}
