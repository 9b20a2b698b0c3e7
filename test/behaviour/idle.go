package behaviour

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

const idlePort = 9703

// testIdleConnections has an application close each connection just when its second request
// arrives, as one does that has been idle for too long.
func testIdleConnections(t *testing.T, w *testMesh) {
	w.apply(t, "idle.yaml", service("idle", fmt.Sprintf("selector: {app: cart, version: v1}, ports: [{name: http-idle, port: %d}]", idlePort))+
		routeGroup("shop/idle", ` [{name: all, pathRegex: ".*", methods: ["*"]}]`)+
		trafficTarget("shop/idle", "cart-v1", "{kind: HTTPRouteGroup, name: idle}", "users/web"))
	l, err := w.pod(t, "shop/cart-v1").Listen(t.Context(), "tcp", fmt.Sprintf(":%d", idlePort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go acceptEach(l, func(conn net.Conn) {
		reader := bufio.NewReader(conn)
		if _, err := http.ReadRequest(reader); err != nil {
			return
		}
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		_, _ = reader.ReadByte()
	})
	w.ask(t, "users/web", request{url: fmt.Sprintf("http://idle.shop:%d/", idlePort)}, ok)
	// A client that repeats nothing itself.
	conn, err := w.pod(t, "users/web").Dial(t.Context(), "tcp", fmt.Sprintf("idle.shop:%d", idlePort))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(limit))
	answers := bufio.NewReader(conn)
	for i := range 30 {
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: idle.shop\r\n\r\n")
		answer, err := http.ReadResponse(answers, nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("request %d gets %v, %v", i, answer, err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
	}
}
