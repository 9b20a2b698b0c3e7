package behaviour

import (
	"cmp"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// answer is the application's response to a request.
type answer struct {
	// Pod is the name of the answering pod.
	Pod string `json:"pod"`
	// From is the address that the application saw.
	From   string      `json:"from"`
	Method string      `json:"method"`
	Host   string      `json:"host"`
	Path   string      `json:"path"`
	Header http.Header `json:"header"`
	// Target is the unmodified path and query.
	Target string `json:"target"`
	// Protocol is the version of HTTP.
	Protocol string `json:"protocol"`
}

// application is the server in a pod. It runs in the test process, with sockets in the
// pod.
type application struct {
	pod string

	mu sync.Mutex
	// failures is the number of requests that are still to fail, by their key.
	failures map[string]int
	// broken, if not 0, is the status of every response.
	broken int
	// seen counts requests by path, and those with a body also by path, host and body. The
	// connections of the echo server are at echoes.
	seen map[string]int
	// raw are the answers to requests with the parameter raw.
	raw []odd
	// proceed is sent to when a client has read the first piece of an answer.
	proceed chan struct{}
}

// echoes is not a path.
const echoes = "echoes"

// setBroken makes all requests fail with the status; 0 restores normal responses.
func (a *application) setBroken(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.broken = status
}

// count returns the number of requests for the path.
func (a *application) count(path string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen[path]
}

// startApplication serves on all ports of the test mesh's servers, at every address.
func startApplication(t *testing.T, pod *lab.Pod) *application {
	t.Helper()
	return startApplicationAt(t, pod, "::")
}

// startApplicationAt serves at one address.
func startApplicationAt(t *testing.T, pod *lab.Pod, address string) *application {
	t.Helper()
	a := &application{pod: path.Base(pod.Name()), failures: map[string]int{}, seen: map[string]int{}, proceed: make(chan struct{})}
	listen := func(port int) net.Listener {
		l, err := pod.Listen(t.Context(), "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			t.Fatalf("%s: %v", a.pod, err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	// HTTP/2 clients may expect the server to support it.
	both := new(http.Protocols)
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: a, Protocols: both, ReadHeaderTimeout: 10 * time.Second}
	t.Cleanup(func() { server.Close() })
	go server.Serve(listen(8080))

	secure := &http.Server{Handler: a, ReadHeaderTimeout: 10 * time.Second, TLSConfig: &tls.Config{Certificates: []tls.Certificate{ownCertificate(t)}}}
	t.Cleanup(func() { secure.Close() })
	go secure.ServeTLS(listen(8443), "", "")

	go acceptEach(listen(9000), func(conn net.Conn) {
		a.mu.Lock()
		a.seen[echoes]++
		a.mu.Unlock()
		_, _ = io.Copy(conn, conn)
	})
	go acceptEach(listen(3306), func(conn net.Conn) {
		fmt.Fprintf(conn, "hello from %s\n", a.pod)
		_, _ = io.Copy(io.Discard, conn)
	})

	rpc := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(a.stream))
	healthServer := health.NewServer()
	healthServer.SetServingStatus("cart", healthv1.HealthCheckResponse_SERVING)
	healthRPC := grpc.NewServer()
	healthv1.RegisterHealthServer(healthRPC, healthServer)
	mux := grpcByService{health: healthRPC, others: rpc}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	rpcServer := &http.Server{Handler: mux, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second}
	t.Cleanup(func() { rpcServer.Close() })
	go rpcServer.Serve(listen(50051))
	return a
}

// grpcByService serves the health service, and any other by others.
type grpcByService struct{ health, others *grpc.Server }

func (g grpcByService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == healthv1.Health_Check_FullMethodName {
		g.health.ServeHTTP(w, r)
		return
	}
	g.others.ServeHTTP(w, r)
}

func acceptEach(l net.Listener, serve func(net.Conn)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			serve(conn)
		}()
	}
}

// ServeHTTP answers with a description of the request. Query parameters make it fail or
// wait.
func (a *application) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := ""
	if r.ContentLength > 0 {
		text, _ := io.ReadAll(r.Body)
		body = string(text)
	}
	a.mu.Lock()
	a.seen[r.URL.Path]++
	if body != "" {
		a.seen[r.URL.Path+" "+r.Host+" "+body]++
	}
	broken, wait := a.broken, r.URL.Query().Get("wait")
	if key := r.URL.Query().Get("fail"); key != "" && broken == 0 {
		if _, ok := a.failures[key]; !ok {
			a.failures[key], _ = strconv.Atoi(r.URL.Query().Get("times"))
		}
		if a.failures[key] > 0 {
			a.failures[key]--
			broken, wait = http.StatusServiceUnavailable, cmp.Or(r.URL.Query().Get("stall"), wait)
			if status, err := strconv.Atoi(r.URL.Query().Get("status")); err == nil {
				broken = status
			}
		}
	}
	a.mu.Unlock()
	if wait, err := time.ParseDuration(wait); err == nil {
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
			return
		}
	}
	if broken != 0 {
		http.Error(w, "broken", broken)
		return
	}
	if i, err := strconv.Atoi(r.URL.Query().Get("raw")); err == nil {
		a.mu.Lock()
		raw := a.raw
		a.mu.Unlock()
		if i < len(raw) {
			answerRaw(w, raw[i].raw)
			return
		}
	}
	if shape := r.URL.Query().Get("shape"); shape != "" {
		a.serveShape(w, shape)
		return
	}
	switch strings.ToLower(r.Header.Get("Upgrade")) {
	case "":
	case "websocket":
		a.upgrade(w, r)
		return
	default:
		a.tunnel(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer{Pod: a.pod, From: r.RemoteAddr, Method: r.Method, Host: r.Host, Path: r.URL.Path, Header: r.Header, Target: r.RequestURI, Protocol: r.Proto})
}

// upgrade echoes the bytes after the handshake, without regard to frames.
func (a *application) upgrade(w http.ResponseWriter, r *http.Request) {
	conn, buffer, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n", webSocketAccept(r.Header.Get("Sec-WebSocket-Key")))
	_, _ = io.Copy(conn, buffer)
}

// webSocketAccept returns what a server proves its handshake with (RFC 6455, section 4.2.2).
func webSocketAccept(key string) string {
	accept := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(accept[:])
}

// tunnel accepts any other protocol and parses the following bytes as requests, as an
// h2c application would.
func (a *application) tunnel(w http.ResponseWriter, r *http.Request) {
	conn, buffer, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
	for {
		inner, err := http.ReadRequest(buffer.Reader)
		if err != nil {
			return
		}
		a.mu.Lock()
		a.seen[inner.URL.Path]++
		a.mu.Unlock()
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	}
}

// rawCodec passes messages through unchanged.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (rawCodec) Name() string { return "proto" }

// stream answers calls of gRPC.
func (a *application) stream(_ any, stream grpc.ServerStream) error {
	if done, err := a.callShape(stream); done {
		return err
	}
	return echoStream(nil, stream)
}

// echoStream returns each message until the client ends the stream.
func echoStream(_ any, stream grpc.ServerStream) error {
	for {
		var message []byte
		switch err := stream.RecvMsg(&message); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return status.Error(codes.Unknown, err.Error())
		}
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
	}
}
