package behaviour

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// cutPort serves HTTP/1.1, and cutHTTP2Port HTTP/2.
	cutPort, cutHTTP2Port = 9701, 9702
	// cutHalf is what arrives of a message before it is broken off.
	cutHalf = 5000
	// cutPatience is how long the receiver of such a message may wait for its end.
	cutPatience = 5 * time.Second
)

// testCutHTTP1 breaks messages of HTTP/1.1 off, with and without a length.
func testCutHTTP1(t *testing.T, w *testMesh) {
	cuts := w.serveCuts(t)
	cuts.each(func(with string) {
		cuts.answer(t, 1, with)
		cuts.upload(t, with, func(ctx context.Context, path string) { cuts.sendHalf(t, path, with) })
	})
}

// testCutHTTP2 breaks messages of HTTP/2 off, with and without a length, and streams of gRPC.
func testCutHTTP2(t *testing.T, w *testMesh) {
	cuts := w.serveCuts(t)
	cuts.each(func(with string) {
		cuts.answer(t, 2, with)
		cuts.upload(t, "HTTP/2 "+with, func(ctx context.Context, path string) { cuts.cancelHalf(ctx, t, path, with) })
	})
	cuts.upload(t, "a client of gRPC that dies", func(ctx context.Context, path string) { cuts.dieAfterThree(ctx, t, path) })
	cuts.abortedStream(t)
}

// cuts are a server that breaks its answers off and reports how requests have ended.
type cuts struct {
	w    *testMesh
	http [3]*http.Client // by the version of HTTP

	mu   sync.Mutex
	next int
	// begun are the requests that the application has seen, and ended how their bodies ended.
	begun map[string]bool
	ended map[string]chan error
}

// serveCuts starts the server in cart-v1, for users/web.
func (w *testMesh) serveCuts(t *testing.T) *cuts {
	t.Helper()
	c := &cuts{w: w, begun: map[string]bool{}, ended: map[string]chan error{}}
	w.apply(t, "cuts.yaml", service("cuts", fmt.Sprintf("selector: {app: cart, version: v1}, ports: [{name: http-cuts, port: %d}, {name: grpc-cuts, port: %d}]", cutPort, cutHTTP2Port))+
		routeGroup("shop/cuts", ` [{name: all, pathRegex: ".*", methods: ["*"]}]`)+
		trafficTarget("shop/cuts", "cart-v1", "{kind: HTTPRouteGroup, name: cuts}", "users/web"))
	server := &http.Server{Handler: c, Protocols: new(http.Protocols), ReadHeaderTimeout: 10 * time.Second}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(func() { server.Close() })
	for _, port := range []int{cutPort, cutHTTP2Port} {
		l, err := w.pod(t, "shop/cart-v1").Listen(t.Context(), "tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			t.Fatal(err)
		}
		go server.Serve(l)
	}
	for version := 1; version <= 2; version++ {
		transport := &http.Transport{DialContext: w.pod(t, "users/web").Dial, Protocols: new(http.Protocols), DisableKeepAlives: true}
		transport.Protocols.SetHTTP1(version == 1)
		transport.Protocols.SetUnencryptedHTTP2(version == 2)
		c.http[version] = &http.Client{Transport: transport, Timeout: 2 * cutPatience}
		w.repeat(t, fmt.Sprintf("a request by HTTP/%d", version), ok, func() (reply, error) {
			return w.sendBy(c.http[version], request{url: c.url(version, "/ready")})
		})
	}
	return c
}

func (c *cuts) url(version int, path string) string {
	return fmt.Sprintf("http://cuts.shop:%d%s", cutPort+version-1, path)
}

// each calls the function for messages that tell their length, and for others.
func (c *cuts) each(f func(with string)) {
	for _, with := range []string{"length", "chunks"} {
		f(with)
	}
}

// ServeHTTP reads uploads and breaks answers off.
func (c *cuts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch kind {
	case "upload":
		c.mu.Lock()
		c.begun[key] = true
		ended := c.ended[key]
		c.mu.Unlock()
		_, err := io.Copy(io.Discard, r.Body)
		select {
		case ended <- err:
		default:
		}
	case "answer":
		if key == "length" {
			w.Header().Set("Content-Length", fmt.Sprint(2*cutHalf))
		}
		_, _ = w.Write(make([]byte, cutHalf))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case "stream":
		w.Header().Set("Content-Type", "application/grpc")
		for range 3 {
			_, _ = w.Write([]byte("\x00\x00\x00\x00\x04half"))
		}
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// answer requests an answer that the application breaks off.
func (c *cuts) answer(t *testing.T, version int, with string) {
	t.Helper()
	began := time.Now()
	response, err := c.http[version].Get(c.url(version, "/answer/"+with))
	if err == nil {
		var body []byte
		body, err = io.ReadAll(response.Body)
		response.Body.Close()
		// The whole answer may be lost, and replaced by that of a sidecar.
		if err == nil && response.StatusCode == http.StatusOK {
			t.Errorf("half of an answer by HTTP/%d with %s arrives as %d bytes that look complete", version, with, len(body))
		}
	}
	if lasted := time.Since(began); lasted > cutPatience {
		t.Errorf("an answer by HTTP/%d with %s that was broken off ended after %s: %v", version, with, lasted.Round(time.Millisecond), err)
	}
}

// upload has the function send half a request to the path, and checks what the application gets.
// A sidecar may hold back what is not complete.
func (c *cuts) upload(t *testing.T, what string, send func(ctx context.Context, path string)) {
	t.Helper()
	ended := make(chan error, 1)
	c.mu.Lock()
	c.next++
	key := fmt.Sprint(c.next)
	c.ended[key] = ended
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 2*cutPatience)
	defer cancel()
	send(ctx, "/upload/"+key)
	wait := cutPatience
	time.Sleep(200 * time.Millisecond)
	c.mu.Lock()
	if !c.begun[key] {
		wait = 300 * time.Millisecond
	}
	c.mu.Unlock()
	select {
	case err := <-ended:
		if err == nil {
			t.Errorf("half of an upload (%s) looks complete to the application", what)
		}
	case <-time.After(wait):
		if wait == cutPatience {
			t.Errorf("the application is not told that an upload (%s) was broken off", what)
		}
	}
}

// sendHalf sends half a request of HTTP/1.1 and closes the connection.
func (c *cuts) sendHalf(t *testing.T, path, with string) {
	t.Helper()
	conn, err := c.w.pod(t, "users/web").Dial(t.Context(), "tcp", fmt.Sprintf("cuts.shop:%d", cutPort))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	half := strings.Repeat("a", cutHalf)
	if with == "length" {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: cuts.shop\r\nContent-Length: %d\r\n\r\n%s", path, 2*cutHalf, half)
	} else {
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: cuts.shop\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", path, cutHalf, half)
	}
	time.Sleep(200 * time.Millisecond)
}

// cancelHalf cancels a request of HTTP/2 after half of its body.
func (c *cuts) cancelHalf(ctx context.Context, t *testing.T, path, with string) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reader, writer := io.Pipe()
	defer reader.Close()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url(2, path), reader)
	if err != nil {
		t.Fatal(err)
	}
	if with == "length" {
		r.ContentLength = 2 * cutHalf
	}
	go func() {
		_, _ = writer.Write(make([]byte, cutHalf))
		time.Sleep(200 * time.Millisecond)
		cancel()
	}()
	if response, err := c.http[2].Do(r); err == nil {
		response.Body.Close()
	}
}

// call opens a stream of gRPC, and returns it with its connection.
func (c *cuts) call(ctx context.Context, t *testing.T, path string) (grpc.ClientStream, net.Conn) {
	t.Helper()
	web, dialed := c.w.pod(t, "users/web"), make(chan net.Conn, 10)
	client, err := grpc.NewClient("passthrough:///"+fmt.Sprintf("cuts.shop:%d", cutHTTP2Port), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := web.Dial(ctx, "tcp", address)
			if err == nil {
				dialed <- conn
			}
			return conn, err
		}), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	stream, err := client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, path)
	if err != nil {
		t.Fatal(err)
	}
	return stream, <-dialed
}

// dieAfterThree sends three messages of gRPC, and closes the connection.
func (c *cuts) dieAfterThree(ctx context.Context, t *testing.T, path string) {
	t.Helper()
	stream, conn := c.call(ctx, t, path)
	message := []byte("half")
	for range 3 {
		if err := stream.SendMsg(&message); err != nil {
			t.Errorf("sending a message: %v", err)
		}
	}
	time.Sleep(200 * time.Millisecond)
	conn.Close()
}

// abortedStream receives three messages of a stream that the application then breaks off.
func (c *cuts) abortedStream(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cutPatience)
	defer cancel()
	stream, _ := c.call(ctx, t, "/stream/download")
	var err error
	for n := 0; err == nil && n < 10; n++ {
		var message []byte
		err = stream.RecvMsg(&message)
	}
	if err == nil || errors.Is(err, io.EOF) || ctx.Err() != nil {
		t.Errorf("a stream of gRPC that the application broke off ends with %v", err)
	}
}
