package pipy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

const trustDomain = "cluster.local"

func account(namespace, name string) mesh.Identity {
	return mesh.Identity{TrustDomain: trustDomain, Namespace: namespace, ServiceAccount: name}
}

var (
	store = account("bookstore", "bookstore")
	buyer = account("bookbuyer", "book.buyer")
	ops   = account("ops", "admin")

	storeAddress = netip.MustParseAddr("198.18.0.10")
)

// inboundView returns the View of a bookstore with the Inbound.
func inboundView(in *mesh.Inbound, change ...func(*mesh.Proxy, *mesh.Settings)) *mesh.View {
	proxy := &mesh.Proxy{
		Name: mesh.Name{Namespace: "bookstore", Name: "bookstore-1"}, UID: "uid-store", Class: name,
		Identity: store, Addresses: []netip.Addr{storeAddress, netip.MustParseAddr("2001:db8::10")},
	}
	settings := &mesh.Settings{TrustDomain: trustDomain, InboundTLS: mesh.Strict, TLS: mesh.TLS{Min: "1.3", Max: "1.3"}}
	for _, c := range change {
		c(proxy, settings)
	}
	return mesh.NewView(mesh.Seal(proxy), mesh.Seal(settings), mesh.Seal(in),
		mesh.NewOutbound("*", mesh.Table[*mesh.Destination]{}, mesh.Table[*mesh.Backend]{}), mesh.Seal(&mesh.Egress{}))
}

var (
	anyRequest = []mesh.HTTPMatch{{}}
	anyone     = mesh.Access{Anyone: true}
)

func rules(rules ...mesh.Permission) mesh.Access { return mesh.Access{Rules: rules} }

func rule(name string, requests []mesh.HTTPMatch, sources ...mesh.Identity) mesh.Permission {
	return mesh.Permission{Origin: drivertest.Origin("TrafficTarget", name), Sources: sources, Requests: requests}
}

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		out[i] = netip.MustParsePrefix(text)
	}
	return out
}

// The ports of the application behind a sidecar.
const (
	httpPort, limitedPort, ingressPort, tcpPort, helloPort, otherPort, grpcPort, nobodyPort = 8080, 8081, 8082, 9000, 9001, 9002, 9003, 9999
)

// workload is a pod with a sidecar and an application.
type workload struct {
	*pipyPod
	connections atomic.Int32
}

// seen is a request as the application received it.
type seen struct {
	Proto, Path, Host, From, Body string
	ContentLength                 int64
	Header                        http.Header
}

// startWorkload runs a sidecar and an application: its HTTP ports answer with the request
// that they received, its TCP port echoes, and its other ports greet every client.
func startWorkload(t *testing.T, view *mesh.View) *workload {
	t.Helper()
	w := &workload{pipyPod: startPod(t, view)}
	for _, port := range []int{httpPort, limitedPort, ingressPort, grpcPort} {
		w.serve(t, port)
	}
	w.greet(t, tcpPort, false)
	w.greet(t, helloPort, true)
	w.greet(t, otherPort, true)
	return w
}

func (w *workload) serve(t *testing.T, port int) {
	t.Helper()
	server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(answerSeen)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go server.Serve(w.listen(t, port))
	t.Cleanup(func() { server.Close() })
}

func (w *workload) listen(t *testing.T, port int) net.Listener {
	t.Helper()
	l, err := w.Listen(t.Context(), "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func answerSeen(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "websocket" {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err == nil {
			defer conn.Close()
			io.Copy(conn, buffered)
		}
		return
	}
	if r.Header.Get("X-Fail") != "" {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "5")
		w.Header().Set("Grpc-Message", "not found")
		return
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Trailer", "x-trailer")
	json.NewEncoder(w).Encode(seen{Proto: r.Proto, Path: r.RequestURI, Host: r.Host, From: host, Body: string(body), ContentLength: r.ContentLength, Header: r.Header})
	w.Header().Set("X-Trailer", "at the end")
}

func (w *workload) greet(t *testing.T, port int, first bool) {
	t.Helper()
	listener := w.listen(t, port)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			w.connections.Add(1)
			go func() {
				defer conn.Close()
				if first {
					fmt.Fprintln(conn, "hello")
				}
				io.Copy(conn, conn)
			}()
		}
	}()
}

// call connects to the pod from outside.
func (w *workload) call(ctx context.Context, port int) (net.Conn, error) {
	conn, err := w.lab.Node().Dial(ctx, "tcp", netip.AddrPortFrom(storeAddress, uint16(port)).String())
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(20 * time.Second))
}

// as returns the TLS configuration of a peer.
func (w *workload) as(t *testing.T, id mesh.Identity, alpn ...string) *tls.Config {
	t.Helper()
	return &tls.Config{
		Certificates: []tls.Certificate{w.root.issue(t, id.DNSName(), id.String())}, RootCAs: w.root.Pool(), ServerName: store.DNSName(), NextProtos: alpn,
	}
}

// ask sends a request for the target, with TLS if there is a configuration for it.
func (w *workload) ask(port int, config *tls.Config, target string, header ...string) (*http.Response, seen, error) {
	return w.do(port, config, http.MethodGet, target, nil, header...)
}

func (w *workload) do(port int, config *tls.Config, method, target string, body io.Reader, header ...string) (*http.Response, seen, error) {
	transport := &http.Transport{
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.call(ctx, port) },
		TLSClientConfig: config, DisableKeepAlives: true, Protocols: new(http.Protocols),
	}
	scheme := "http"
	if config != nil {
		scheme = "https"
		transport.Protocols.SetHTTP2(len(config.NextProtos) > 0 && config.NextProtos[0] == "h2")
	}
	transport.Protocols.SetHTTP1(!transport.Protocols.HTTP2())
	defer transport.CloseIdleConnections()
	path, query, _ := strings.Cut(target, "?")
	request, err := http.NewRequest(method, scheme+"://books.example.com/", body)
	if err != nil {
		return nil, seen{}, err
	}
	request.URL = &url.URL{Scheme: scheme, Host: "books.example.com", Opaque: path, RawQuery: query}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(request)
	if err != nil {
		return nil, seen{}, err
	}
	defer response.Body.Close()
	var s seen
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode == http.StatusOK && len(content) > 0 && content[0] == '{' {
		err = json.Unmarshal(content, &s)
	}
	return response, s, err
}

// hello connects and returns the application's greeting.
func (w *workload) hello(port int, config *tls.Config) (string, error) {
	conn, err := w.call(context.Background(), port)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if config != nil {
		conn = tls.Client(conn, config)
	} else if _, err := conn.Write([]byte("x")); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}
