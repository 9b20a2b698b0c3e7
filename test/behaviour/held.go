package behaviour

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// held is a connection or stream that stays open, and echoes what it is sent.
type held struct {
	kind string
	echo func(text string) error
}

// holdTCP opens a TCP connection.
func (w *testMesh) holdTCP(t *testing.T) (held, error) {
	conn, err := w.pod(t, "users/web").Dial(t.Context(), "tcp", "cart-v1.shop:9000")
	if err != nil {
		return held{}, err
	}
	t.Cleanup(func() { conn.Close() })
	return held{"TCP connection", echoOn(conn, bufio.NewReader(conn))}, nil
}

func echoOn(conn net.Conn, answers *bufio.Reader) func(string) error {
	return func(text string) error {
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(conn, text+"\n"); err != nil {
			return err
		}
		got, err := answers.ReadString('\n')
		if err == nil && got != text+"\n" {
			err = fmt.Errorf("the echo is %q", got)
		}
		return err
	}
}

// holdWebSocket opens a WebSocket.
func (w *testMesh) holdWebSocket(t *testing.T) (held, error) {
	conn, err := w.pod(t, "users/web").Dial(t.Context(), "tcp", "cart-v1.shop:80")
	if err != nil {
		return held{}, err
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(conn, "GET /cart/ws HTTP/1.1\r\nHost: cart-v1.shop\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n", webSocketKey)
	buffered := bufio.NewReader(conn)
	answer, err := http.ReadResponse(buffered, nil)
	if err == nil && answer.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("the status is %s", answer.Status)
	}
	return held{"WebSocket", echoOn(conn, buffered)}, err
}

// holdStream opens a gRPC stream over a connection of its own.
func (w *testMesh) holdStream(t *testing.T) (held, error) {
	conn, err := grpc.NewClient("passthrough:///cart-v1.shop:50051", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return w.pod(t, "users/web").Dial(ctx, "tcp", address)
		}), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		return held{}, err
	}
	t.Cleanup(func() { conn.Close() })
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/town.Cart/Echo")
	if err != nil {
		return held{}, err
	}
	return held{"gRPC stream", func(text string) error {
		sent, got := []byte(text), []byte(nil)
		if err := s.SendMsg(&sent); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		err := s.RecvMsg(&got)
		if err == nil && string(got) != text {
			err = fmt.Errorf("the echo is %q", got)
		}
		return err
	}}, nil
}

// hold opens that many TCP connections, WebSockets and gRPC streams.
func (w *testMesh) hold(t *testing.T, tcp, webSockets, streams int) []held {
	t.Helper()
	var all []held
	for _, kind := range []struct {
		hold  func(*testing.T) (held, error)
		count int
	}{{w.holdTCP, tcp}, {w.holdWebSocket, webSockets}, {w.holdStream, streams}} {
		for range kind.count {
			var h held
			w.eventually(t, func() (err error) {
				if h, err = kind.hold(t); err == nil {
					err = h.echo("begin")
				}
				return err
			})
			all = append(all, h)
		}
	}
	return all
}

// heldChange is a change of the mesh's objects.
type heldChange struct{ name, objects string }

// heldThrough are changes during which connections stay open.
var heldThrough = []heldChange{
	{"an account is allowed", trafficTarget("shop/held", "cart-v1", "{kind: HTTPRouteGroup, name: cart}", "users/thief")},
	{"limits of requests and connections", upstream("cart-v1", "  rateLimit: {local: {http: {requests: 10000, unit: second}, tcp: {connections: 10000, unit: second}}}\n")},
	{"retries", retryOf("users", "cart-v1")},
	{"an IngressBackend", ingress("cart-v1", "http", "", "{kind: IPRange, name: 192.0.2.0/24}")},
	{"another Service", service("held", "selector: {app: cart, version: v1}, ports: [{name: http, port: 80, targetPort: 8080}]")},
}

// holdAll opens connections of each kind, and returns a function that checks that all of them are
// still open.
func (w *testMesh) holdAll(t *testing.T) (check func(after string)) {
	t.Helper()
	streams := 4
	if w.Client == "pipy" && w.Server == "haproxy" {
		// HAProxy announces that it reloads, and Pipy then ends the streams of the connection.
		streams = 0
	}
	all := w.hold(t, 8, 8, streams)
	return func(after string) {
		t.Helper()
		cut := map[string]int{}
		for _, h := range all {
			if err := h.echo(after); err != nil {
				cut[h.kind]++
				t.Logf("%s, %s: %v", after, h.kind, err)
			}
		}
		if len(cut) > 0 {
			t.Fatalf("%s: these were cut: %v", after, cut)
		}
	}
}

// testHeld makes all changes at once and takes them back. With BEHAVIOUR_HELD=all, it makes one
// after the other, and waits after each until a proxy that lets connections end has done so.
func testHeld(t *testing.T, w *testMesh) {
	check := w.holdAll(t)
	if os.Getenv("BEHAVIOUR_HELD") == "all" {
		for _, c := range heldThrough {
			w.set(t, "held.yaml", c.objects)
			time.Sleep(drainTime)
			check(c.name)
			w.forget(t, "held.yaml")
			time.Sleep(drainTime)
			check(c.name + ", taken back")
		}
		return
	}
	w.changeAndBack(t, check)
}

// changeAndBack makes all changes at once and takes them back, with a check after each step.
func (w *testMesh) changeAndBack(t *testing.T, check func(after string)) {
	t.Helper()
	objects := ""
	for _, c := range heldThrough {
		objects += "---\n" + c.objects
	}
	w.apply(t, "held.yaml", objects)
	w.get(t, "users/thief", cartV1, ok)
	check("the changes")
	w.forget(t, "held.yaml")
	w.denies(t, "users/thief", cartV1)
	check("the changes were taken back")
}

// heldChanges is how often the row about load makes all changes and takes them back. HAProxy
// reloads for each, and ends connections that are older than 50 reloads.
const heldChanges = 12

// testHeldUnderLoad makes all changes again and again while certificates are renewed every few
// seconds and programs need all processors.
func testHeldUnderLoad(t *testing.T, w *testMesh) {
	w.shortLives(t)
	check := w.holdAll(t)
	keepBusy(t, 4*runtime.NumCPU())
	for i := range heldChanges {
		w.changeAndBack(t, func(after string) {
			t.Helper()
			check(fmt.Sprintf("change %d of %d: %s", i+1, heldChanges, after))
		})
	}
}

// drainTime is longer than any proxy lets connections live that a change ends.
const drainTime = 50 * time.Second

// testRevokedWhileOpen ends the permissions of a client that has an open connection.
func testRevokedWhileOpen(t *testing.T, w *testMesh) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: w.pod(t, "users/web").Dial, MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	w.eventually(t, func() error {
		r, err := w.sendBy(client, request{url: cartV1})
		if err == nil && r.Status != http.StatusOK {
			err = fmt.Errorf("the status is %d", r.Status)
		}
		return err
	})
	t.Cleanup(func() {
		if err := w.Apply(context.WithoutCancel(t.Context()), "policies.yaml", policies); err != nil {
			t.Error(err)
		}
	})
	w.set(t, "policies.yaml", tcpRoute("nothing", "[1]"))
	w.eventually(t, func() error {
		if r, err := w.sendBy(client, request{url: cartV1}); err == nil && r.Status < 400 {
			return fmt.Errorf("the status on the open connection is %d", r.Status)
		}
		return nil
	})
}
