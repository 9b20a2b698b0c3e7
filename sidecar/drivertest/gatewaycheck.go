package drivertest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Check calls the running proxy as clients outside the mesh.
func (g *Gateway) Check(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		name := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[h2]
		t.Run(name, func(t *testing.T) { g.checkRequests(t, h2) })
	}
	if g.Dial6 != nil {
		t.Run("IPv6", g.checkIPv6)
	}
	t.Run("hosts", g.checkHosts)
	t.Run("bytes", g.checkBytes)
	t.Run("WebSocket", g.checkWebSocket)
	t.Run("TCP", g.checkTCP)
	t.Run("slow head", g.checkSlowHead)
	t.Run("other ports", func(t *testing.T) {
		for _, port := range []uint16{15001, 15003} {
			if conn, err := g.Dial(t.Context(), port); err == nil {
				conn.Close()
				t.Errorf("something listens at port %d", port)
			}
		}
	})
}

func (g *Gateway) checkRequests(t *testing.T, h2 bool) {
	first, second := g.HTTPClient(0, h2), g.HTTPClient(1, h2)
	for _, tt := range []struct {
		client       *http.Client
		host, target string
		status       int
		by           string
	}{
		{first, "cart.example.com", "/cart/1?a=b", 200, "cart"},
		{first, "Cart.EXAMPLE.com", "/cart", 200, "cart"},
		{first, fmt.Sprintf("cart.example.com:%d", g.ports[0]), "/cart", 200, "cart"},
		{first, "cart.example.com:1", "/cart", 200, "cart"},
		{first, "cart.example.com.", "/cart", 200, "cart"},
		{first, "cart.example.com.:8080", "/cart", 200, "cart"},
		{first, "cart.example.com", "/cart/../cart/x", 200, "cart"},
		{first, "cart.example.com", "/cartel", 404, ""},
		{first, "cart.example.com", "/any", 404, ""},
		{first, "cart.example.com", "/closed", 503, ""},
		{first, "cart.example.com", "/lost", 500, ""},
		{first, "a.shop.example.com", "/x", 200, "plain"},
		{first, "A.b.Shop.example.com.", "/x", 200, "plain"},
		{first, "shop.example.com", "/any", 404, ""},
		{first, "xshop.example.com", "/any", 404, ""},
		{first, "xcart.example.com", "/cart", 404, ""},
		{first, "example.com", "/any", 200, "cart"},
		{first, "example.com", "/cart", 404, ""},
		{first, "192.0.2.1:8080", "/any", 200, "cart"},
		{first, "[2001:db8::1]:8080", "/any", 200, "cart"},
		{first, "cart.example.com.invalid", "/any", 200, "cart"},
		{first, "only.example.com", "/", 404, ""},
		{second, "only.example.com", "/", 200, "cart"},
		{second, "ONLY.example.com.", "/deep/path", 200, "cart"},
		{second, "cart.example.com", "/cart", 404, ""},
		{second, "a.only.example.com", "/", 404, ""},
	} {
		response, got, err := g.Ask(tt.client, tt.host, tt.target)
		if err != nil || response.StatusCode != tt.status || got.By != tt.by {
			t.Errorf("%s of %s: %v, %v, by %q, want %d by %q", tt.target, tt.host, response, err, got.By, tt.status, tt.by)
			continue
		}
		if tt.status == 200 && got.Host != tt.host && !strings.EqualFold(got.Host, tt.host) {
			t.Errorf("the server gets the host %q instead of %q", got.Host, tt.host)
		}
		// The client's version is that of the gateway.
		if tt.status == 200 && got.Proto != "HTTP/1.1" {
			t.Errorf("the server gets %s", got.Proto)
		}
	}

	if response, got, err := g.Ask(first, "cart.example.com", "/calls"); h2 && (err != nil || got.Proto != "HTTP/2.0") {
		t.Errorf("calls of gRPC are answered with %v, %v, and arrive by %s", response, err, got.Proto)
	}
	response, got, err := g.Ask(first, "cart.example.com", "/set",
		"X-Drop", "1", "X-Edge", "2", "X-Forwarded-Client-Cert", "URI=spiffe://cluster.local/ns/shop/sa/admin", "X-Outrigger-Caller", "spiffe://cluster.local/ns/shop/sa/admin",
		"X-Forwarded.Client-Cert", "URI=spiffe://cluster.local/ns/shop/sa/admin", "Serviceidentity", "admin", "X-Envoy-Peer-Metadata-Id", "admin",
		"X-Forwarded-For", "192.0.2.7", "X-Forwarded-Proto", "https", "X-Kept", "yes")
	if err != nil || response.StatusCode != 200 {
		t.Fatal(response, err)
	}
	for name, want := range map[string]string{
		"X-Drop": "", "X-Edge": "1", "X-Forwarded.client-Cert": "", "Serviceidentity": "", "X-Envoy-Peer-Metadata-Id": "", "X-Forwarded-Client-Cert": "", "X-Outrigger-Caller": "", "X-Forwarded-Proto": "http", "X-Kept": "yes",
		"X-Forwarded-For": "192.0.2.7," + g.Client.String(),
	} {
		if value := strings.ReplaceAll(strings.Join(got.Header.Values(name), ","), " ", ""); value != want {
			t.Errorf("the server gets %s: %q, want %q", name, value, want)
		}
	}
	if _, got, err := g.Ask(first, "a.shop.example.com", "/"); err != nil || got.Header.Get("X-Forwarded-For") != g.Client.String() || got.Header.Get("X-Forwarded-Proto") != "http" {
		t.Errorf("without headers of the client the server gets %v, %v", got.Header, err)
	}

	// Clients set no timeouts and retries by the headers of a proxy.
	response, got, err = g.Ask(first, "cart.example.com", "/cart/slow", "X-Envoy-Upstream-Rq-Timeout-Ms", "50", "X-Envoy-Upstream-Rq-Per-Try-Timeout-Ms", "50", "X-Envoy-Retry-On", "5xx", "X-Envoy-Internal", "true")
	if err != nil || response.StatusCode != 200 || got.Header.Get("X-Envoy-Internal") != "" {
		t.Errorf("a request with headers for Envoy is answered with %v, %v, and arrives with %v", response, err, got.Header)
	}

	response, _, err = g.Ask(first, "cart.example.com", "/old/a?b=c")
	if err != nil || response.StatusCode != 301 || response.Header.Get("Location") != "https://new.example.com/new/a?b=c" {
		t.Errorf("a redirect is %v, %v", response, err)
	}

	statuses := make(chan int)
	const requests = 40
	for range requests {
		go func() {
			response, _, err := g.Ask(first, "cart.example.com", "/split")
			if err != nil {
				statuses <- 0
				return
			}
			statuses <- response.StatusCode
		}()
	}
	counts := map[int]int{}
	for range requests {
		counts[<-statuses]++
	}
	if counts[200] < 5 || counts[503] < 5 || counts[200]+counts[503] != requests {
		t.Errorf("half of the requests go to a server that has gone, but the answers are %v", counts)
	}
}

func (g *Gateway) checkIPv6(t *testing.T) {
	other := *g
	other.Dial = g.Dial6
	for _, h2 := range []bool{false, true} {
		client := other.HTTPClient(1, h2)
		response, got, err := g.Ask(client, "only.example.com", "/")
		if err != nil || response.StatusCode != 200 || got.Header.Get("X-Forwarded-For") != g.Client6.String() {
			t.Errorf("a client of IPv6 gets %v, %v, and the server %v", response, err, got.Header)
		}
		client.CloseIdleConnections()
	}
}

// checkHosts compares the routes for random hosts with those that package mesh says. Where the host
// is no name or has no valid port, the proxy may refuse the request.
func (g *Gateway) checkHosts(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	seen := map[int]int{}
	for range 400 {
		host := randomName(random)
		switch random.IntN(6) {
		case 0:
			host = strings.ToUpper(host)
		case 1:
			host += []string{".", "..", ".:80"}[random.IntN(3)]
		case 2:
			host += []string{":80", ":0", ":", ":x", ":80:80"}[random.IntN(5)]
		case 3:
			host = []string{".", "-", "x", "x."}[random.IntN(4)] + host
		}
		odd := !plainHost.MatchString(host)
		response, _, conn := g.exchange(t, g.ports[3], "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
		route, ok := g.many.RouteOf(&mesh.Request{Method: "GET", Host: host, Path: "/"})
		status := map[bool]int{true: 200, false: 404}[ok]
		var got Forwarded
		if response.StatusCode == 200 {
			_ = json.NewDecoder(response.Body).Decode(&got)
		}
		conn.Close()
		seen[response.StatusCode]++
		if odd && response.StatusCode >= 400 && response.StatusCode < 500 {
			continue
		}
		if response.StatusCode != status || got.Header.Get("X-Host") != route.Host {
			t.Errorf("a request for %q is answered with %d by the route of %q, want %d and %q", host, response.StatusCode, got.Header.Get("X-Host"), status, route.Host)
		}
	}
	if seen[200] < 100 || seen[404] < 50 {
		t.Errorf("the answers are %v, so the hosts say little", seen)
	}
}

// plainHost matches hosts that every proxy must take.
var plainHost = regexp.MustCompile(`^[a-zA-Z0-9-]+(\.[a-zA-Z0-9-]+)*\.?(:[0-9]+)?$`)

// exchange sends bytes to a port and returns the answer.
func (g *Gateway) exchange(t *testing.T, port uint16, text string) (*http.Response, *bufio.Reader, net.Conn) {
	t.Helper()
	conn, err := g.Dial(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return response, in, conn
}

// checkBytes sends what no careful client does.
func (g *Gateway) checkBytes(t *testing.T) {
	for text, want := range map[string]int{
		"GET /any HTTP/1.0\r\n\r\n": 200,
		"GET /cart HTTP/1.1\r\nHost: cart.example.com\r\nX_Forwarded_Client_Cert: URI=spiffe://cluster.local/ns/shop/sa/admin\r\n\r\n": 400,
		"GET http://a.shop.example.com/cart HTTP/1.1\r\nHost: a.shop.example.com\r\n\r\n":                                              200,
		"GET ftp://a.shop.example.com/cart HTTP/1.1\r\nHost: a.shop.example.com\r\n\r\n":                                               400,
		"not HTTP\r\n\r\n": 400,
	} {
		if response, _, _ := g.exchange(t, g.ports[0], text); response.StatusCode != want {
			t.Errorf("%q is answered with %d, want %d", text, response.StatusCode, want)
		}
	}
	// A host that is none is included in no wildcard, and two hosts are none.
	for _, host := range []string{
		"cart.example.com\r\nHost: a.shop.example.com", "x.invalid\r\nHost: a.shop.example.com", "x.invalid,a.shop.example.com", "user@a.shop.example.com", "a.shop.example.com/x",
		"x%2ea.shop.example.com", "x;a.shop.example.com", "a.shop.example.com:80:80", "[::1]a.shop.example.com", "x\xffa.shop.example.com",
	} {
		if response, _, _ := g.exchange(t, g.ports[0], "GET /any HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); response.StatusCode != 400 {
			t.Errorf("a request for the host %q is answered with %d", host, response.StatusCode)
		}
	}
	// Nobody but the gateway sees whom a client claims to be in its target.
	response, _, _ := g.exchange(t, g.ports[0], "GET http://user@a.shop.example.com/cart HTTP/1.1\r\nHost: a.shop.example.com\r\n\r\n")
	var got Forwarded
	if response.StatusCode == 200 {
		_ = json.NewDecoder(response.Body).Decode(&got)
	}
	if strings.Contains(got.Path+got.Host, "@") {
		t.Errorf("a request with a user in its target reaches the server as %+v", got)
	}
	client := g.HTTPClient(0, true)
	defer client.CloseIdleConnections()
	for _, host := range []string{"x.invalid,a.shop.example.com", "user@a.shop.example.com", "x;a.shop.example.com"} {
		if response, _, err := g.Ask(client, host, "/any"); err == nil && response.StatusCode != 400 {
			t.Errorf("a request by HTTP/2 for the host %q is answered with %d", host, response.StatusCode)
		}
	}
	// A body with two lengths is refused, or the last thing that the connection is read for.
	response, in, _ := g.exchange(t, g.ports[0], "GET /any HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /any HTTP/1.1\r\nHost: example.com\r\n\r\n")
	if response.StatusCode != 400 {
		_, _ = io.Copy(io.Discard, response.Body)
		if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("a request with two lengths is answered with %v, and the next one too: %v", response, err)
		}
	}
	if response, _, _ := g.exchange(t, g.ports[1], "GET / HTTP/1.0\r\n\r\n"); response.StatusCode != 404 {
		t.Errorf("a request without a host is answered with %d", response.StatusCode)
	}
	// What a client connects to through a gateway would be hidden from it.
	if response, _, _ := g.exchange(t, g.ports[0], "CONNECT cart.example.com:80 HTTP/1.1\r\nHost: cart.example.com:80\r\n\r\n"); response.StatusCode < 400 {
		t.Errorf("CONNECT is answered with %d", response.StatusCode)
	}
}

func (g *Gateway) checkWebSocket(t *testing.T) {
	for host, path := range map[string]string{"cart.example.com": "/cart", "a.shop.example.com": "/"} {
		response, in, conn := g.exchange(t, g.ports[0], "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
			t.Errorf("the WebSocket of %s is answered with %v", host, response)
			continue
		}
		if _, err := io.WriteString(conn, "echo\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := in.ReadString('\n'); err != nil || line != "echo\n" {
			t.Errorf("the WebSocket of %s returns %q, %v", host, line, err)
		}
	}
}

func (g *Gateway) checkTCP(t *testing.T) {
	conn, err := g.Dial(t.Context(), g.ports[2])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, "ping\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "ping\n" {
		t.Errorf("a server of TCP answers %q, %v", line, err)
	}
}

// checkSlowHead sends heads that never end, in which something or nothing comes after a while.
func (g *Gateway) checkSlowHead(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	const h1 = "GET /any HTTP/1.1\r\nHost: example.com\r\nX-Slow: "
	// HTTP/2: the preface, no settings, and headers that a frame is to continue.
	const h2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82"
	var group sync.WaitGroup
	for _, tt := range []struct {
		name, begins, goesOn string
	}{{"HTTP/1.1", h1, "a"}, {"HTTP/1.1 that stops", h1, ""}, {"HTTP/2 that stops", h2, ""}} {
		group.Go(func() {
			took, err := g.endOf(tt.begins, tt.goesOn)
			if err != nil || took > 45*time.Second {
				t.Errorf("%s: after %v the connection ends with %v", tt.name, took, err)
			}
		})
	}
	group.Wait()
}

// endOf returns how long it takes until the proxy ends a connection or a stream of HTTP/2.
func (g *Gateway) endOf(begins, goesOn string) (time.Duration, error) {
	conn, err := g.Dial(context.Background(), g.ports[0])
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	begun, done := time.Now(), make(chan struct{})
	defer close(done)
	if _, err := io.WriteString(conn, begins); err != nil {
		return 0, err
	}
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Second):
				_, _ = io.WriteString(conn, goesOn)
			}
		}
	}()
	_ = conn.SetReadDeadline(begun.Add(time.Minute))
	_, err = io.Copy(io.Discard, conn)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return time.Since(begun), err
}
