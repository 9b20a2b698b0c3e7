package behaviour

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
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
	client := &http.Client{Timeout: limit, Transport: &http.Transport{DialContext: w.pod(t, "users/web").Dial}}
	defer client.CloseIdleConnections()
	url := fmt.Sprintf("http://idle.shop:%d/", idlePort)
	w.repeat(t, "the first request", ok, func() (reply, error) { return w.sendBy(client, request{url: url}) })
	for i := range 30 {
		r, err := w.sendBy(client, request{url: url})
		if err != nil || r.Status != http.StatusOK {
			t.Errorf("request %d gets %d, %v: %.100s", i, r.Status, err, r.Body)
		}
	}
}
