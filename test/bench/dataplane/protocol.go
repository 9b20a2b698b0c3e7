package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/outrigger-mesh/outrigger/test/lab"
)

// protocol is what applications speak.
type protocol string

const (
	http1 protocol = "HTTP/1.1"
	http2 protocol = "HTTP/2"
	gRPC  protocol = "gRPC"
	tcp   protocol = "TCP"
)

// port is a port of the server for a protocol. The name tells the mesh what it speaks.
type port struct {
	name string
	// service and target are the port numbers of the service and of the pod.
	service, target int
}

var ports = map[protocol]port{
	http1: {"http", 80, 8080},
	http2: {"http2", 81, 8081},
	gRPC:  {"grpc", 82, 8082},
	tcp:   {"tcp-echo", 83, 8083},
}

var protocols = []protocol{http1, http2, gRPC, tcp}

// answer is the body of an answer, and message what is sent and returned by TCP.
var (
	answer  = strings.Repeat("a", 128)
	message = []byte(answer)
)

// requestTimeout bounds one request.
const requestTimeout = 10 * time.Second

// exchanger is a connection that carries one request at a time.
type exchanger interface {
	// exchange sends a request and reads the answer.
	exchange(ctx context.Context) error
	close()
}

// open returns a connection of the pod to the server.
func open(ctx context.Context, from *lab.Pod, address string, p protocol) (exchanger, error) {
	switch p {
	case http1, http2:
		var speaks http.Protocols
		speaks.SetHTTP1(p == http1)
		speaks.SetUnencryptedHTTP2(p == http2)
		transport := &http.Transport{DialContext: from.Dial, MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1, DisableCompression: true, Protocols: &speaks}
		return &httpConn{transport: transport, url: "http://" + address, major: map[protocol]int{http1: 1, http2: 2}[p]}, nil
	case gRPC:
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return from.Dial(ctx, "tcp", address) }))
		if err != nil {
			return nil, err
		}
		return &grpcConn{conn, grpc_health_v1.NewHealthClient(conn)}, nil
	case tcp:
		conn, err := from.Dial(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return &tcpConn{Conn: conn, buffer: make([]byte, len(message))}, nil
	}
	return nil, fmt.Errorf("there is no protocol %q", p)
}

type httpConn struct {
	transport *http.Transport
	url       string
	major     int
}

func (c *httpConn) exchange(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || n != int64(len(answer)) || response.ProtoMajor != c.major {
		return fmt.Errorf("%s answers %s %s with %d bytes", c.url, response.Proto, response.Status, n)
	}
	return nil
}

func (c *httpConn) close() { c.transport.CloseIdleConnections() }

type grpcConn struct {
	conn   *grpc.ClientConn
	health grpc_health_v1.HealthClient
}

func (c *grpcConn) exchange(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := c.health.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	return err
}

func (c *grpcConn) close() { _ = c.conn.Close() }

type tcpConn struct {
	net.Conn
	buffer []byte
}

func (c *tcpConn) exchange(context.Context) error {
	if err := c.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	if _, err := c.Write(message); err != nil {
		return err
	}
	_, err := io.ReadFull(c, c.buffer)
	return err
}

func (c *tcpConn) close() { _ = c.Close() }

// serve answers all protocols in the pod until the returned function is called.
func serve(ctx context.Context, pod *lab.Pod) (done func(), err error) {
	var closers []func()
	done = func() {
		for _, c := range closers {
			c()
		}
	}
	defer func() {
		if err != nil {
			done()
		}
	}()
	for _, p := range protocols {
		listener, err := pod.Listen(ctx, "tcp", fmt.Sprintf(":%d", ports[p].target))
		if err != nil {
			return nil, err
		}
		switch p {
		case http1, http2:
			var speaks http.Protocols
			speaks.SetHTTP1(p == http1)
			speaks.SetUnencryptedHTTP2(p == http2)
			server := &http.Server{ReadHeaderTimeout: time.Minute, Protocols: &speaks, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, answer)
			})}
			go func() { _ = server.Serve(listener) }()
			closers = append(closers, func() { _ = server.Close() })
		case gRPC:
			server := grpc.NewServer()
			grpc_health_v1.RegisterHealthServer(server, health.NewServer())
			go func() { _ = server.Serve(listener) }()
			closers = append(closers, server.Stop)
		case tcp:
			go echo(listener)
			closers = append(closers, func() { _ = listener.Close() })
		}
	}
	return done, nil
}

func echo(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}
