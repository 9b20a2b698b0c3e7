package envoy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// authority signs certificates for a test.
type authority struct{ drivertest.TestAuthority }

func newAuthority(t *testing.T) *authority {
	t.Helper()
	return &authority{drivertest.NewTestAuthority(t)}
}

// issue issues a certificate that has only the names of the identity.
func (a *authority) issue(id mesh.Identity) tls.Certificate {
	a.T.Helper()
	return a.named("", []string{id.DNSName()}, []string{id.String()})
}

// writeTo writes the agent's files.
func (a *authority) writeTo(dir string, id mesh.Identity) {
	a.T.Helper()
	a.writePair(dir, a.issue(id))
}

// writePair writes the agent's files for a certificate.
func (a *authority) writePair(dir string, pair tls.Certificate) {
	a.T.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		a.T.Fatal(err)
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	if err := writeIdentity(dir, block("CERTIFICATE", pair.Certificate[0]), block("PRIVATE KEY", key), block("CERTIFICATE", a.Leaf.Raw)); err != nil {
		a.T.Fatal(err)
	}
}

// app is an application on four loopback ports: it answers HTTP requests with their
// description, and greets TCP connections with "hello".
type app struct {
	http, limited, tcp, other uint16
	connections               atomic.Int32
}

func newApp(t *testing.T) *app {
	t.Helper()
	a := new(app)
	a.http, a.limited = a.serve(t), a.serve(t)
	a.tcp, a.other = drivertest.StartGreeter(t, &a.connections), drivertest.StartGreeter(t, &a.connections)
	return a
}

func (a *app) serve(t *testing.T) uint16 {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		json.NewEncoder(w).Encode(seen{Proto: r.Proto, Path: r.RequestURI, Host: r.Host, From: host, Header: r.Header})
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return portOf(server.Listener)
}

func portOf(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }

// seen is a request as the application received it.
type seen struct {
	Proto, Path, Host, From string
	Header                  http.Header
}

// inboundEnvoy is a running Envoy with an application behind it.
type inboundEnvoy struct {
	*app
	runningEnvoy
	ca *authority
	id mesh.Identity
}

// runInbound runs an Envoy for a workload until the test ends.
func runInbound(t *testing.T, c func(*app) inboundCase) *inboundEnvoy {
	t.Helper()
	e := &inboundEnvoy{app: newApp(t), ca: newAuthority(t), id: identity("bookstore", "bookstore")}
	dir := t.TempDir()
	e.ca.writeTo(dir, e.id)
	e.runningEnvoy = startEnvoy(t, c(e.app).view(), dir, inboundListener)
	// Envoy reports ready before its workers listen.
	for deadline := time.Now().Add(20 * time.Second); ; {
		conn, err := net.Dial("tcp", e.address)
		if err == nil {
			conn.Close()
			return e
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// call connects like a client of the application's port.
func (e *inboundEnvoy) call(port uint16) (net.Conn, error) {
	conn, err := e.dial(context.Background(), fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(20 * time.Second))
}

// as returns the mesh TLS configuration of a peer.
func (e *inboundEnvoy) as(id mesh.Identity, alpn ...string) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{e.ca.issue(id)}, RootCAs: e.ca.Pool(), ServerName: e.id.DNSName(), NextProtos: alpn,
	}
}

// ask requests the target, over TLS if there is a configuration.
func (e *inboundEnvoy) ask(port uint16, config *tls.Config, target string, header ...string) (*http.Response, seen, error) {
	transport := &http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return e.call(port) },
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
	request := &http.Request{
		Method: http.MethodGet, Host: "books.example.com", Header: http.Header{},
		URL: &url.URL{Scheme: scheme, Host: "envoy", Opaque: path, RawQuery: query},
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	response, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(request)
	if err != nil {
		return nil, seen{}, err
	}
	defer response.Body.Close()
	var s seen
	if response.StatusCode == http.StatusOK {
		err = json.NewDecoder(response.Body).Decode(&s)
	}
	return response, s, err
}

// hello connects and returns the application's greeting.
func (e *inboundEnvoy) hello(port uint16, config *tls.Config) (string, error) {
	conn, err := e.call(port)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if config != nil {
		conn = tls.Client(conn, config)
	}
	return bufio.NewReader(conn).ReadString('\n')
}
