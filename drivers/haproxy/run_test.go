package haproxy

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

// authority signs certificates for a test.
type authority struct{ drivertest.TestAuthority }

func newAuthority(t testing.TB) *authority { return &authority{drivertest.NewTestAuthority(t)} }

// issue returns a workload's certificate, with further names.
func (a *authority) issue(id mesh.Identity, names ...string) tls.Certificate {
	a.T.Helper()
	uri, err := url.Parse(id.String())
	if err != nil {
		a.T.Fatal(err)
	}
	subject := pkix.Name{CommonName: id.CommonName(), OrganizationalUnit: []string{"uid"}}
	if len(names) > 0 {
		// Extra names of a kind replace the workload's own.
		names = append([]string{id.CommonName()}, names...)
	}
	for _, name := range names {
		subject.ExtraNames = append(subject.ExtraNames, pkix.AttributeTypeAndValue{Type: []int{2, 5, 4, 3}, Value: name})
	}
	return a.Sign(&x509.Certificate{
		Subject: subject, KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: []string{id.DNSName()}, URIs: []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, time.Hour)
}

// as returns the TLS configuration of a peer that calls a workload.
func (a *authority) as(id, server mesh.Identity, alpn ...string) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{a.issue(id)}, RootCAs: a.Pool(), ServerName: server.DNSName(), NextProtos: alpn}
}

// writeTo writes the identity's files like the agent.
func (a *authority) writeTo(dir string, id mesh.Identity) {
	a.T.Helper()
	pair := a.issue(id)
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		a.T.Fatal(err)
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "identity.pem"), append(block("PRIVATE KEY", key), block("CERTIFICATE", pair.Certificate[0])...), 0o600),
		os.WriteFile(filepath.Join(dir, "bundle.pem"), block("CERTIFICATE", a.Leaf.Raw), 0o600),
	); err != nil {
		a.T.Fatal(err)
	}
}

// app is an application: it answers with the request that it received, and greets TCP
// clients.
type app struct {
	http, other, tcp, greeter uint16
	connections               atomic.Int32
	// answer, if set, answers a request instead.
	answer func(http.ResponseWriter, *http.Request) bool
}

// seen is a request as the application received it.
type seen struct {
	Proto, Path, Host, From, Port string
	Header                        http.Header
}

func newApp(t *testing.T) *app {
	t.Helper()
	a := new(app)
	a.http, a.other = a.serve(t), a.serve(t)
	a.tcp, a.greeter = drivertest.StartGreeter(t, &a.connections), drivertest.StartGreeter(t, &a.connections)
	return a
}

func (a *app) serve(t *testing.T) uint16 {
	t.Helper()
	var port uint16
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.answer != nil && a.answer(w, r) {
			return
		}
		if r.Header.Get("Upgrade") == "websocket" {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "websocket")
			accept := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
			w.Header().Set("Sec-WebSocket-Accept", base64.StdEncoding.EncodeToString(accept[:]))
			w.WriteHeader(http.StatusSwitchingProtocols)
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err == nil {
				defer conn.Close()
				io.Copy(conn, buffered)
			}
			return
		}
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		json.NewEncoder(w).Encode(seen{Proto: r.Proto, Path: r.RequestURI, Host: r.Host, From: host, Port: fmt.Sprint(port), Header: r.Header})
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	port = portOf(server.Listener)
	return port
}

func portOf(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }

// output is the output of a process.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// running is a running HAProxy. Its listeners accept the PROXY protocol for the original
// destination, in place of the redirection of a pod.
type running struct {
	t                                 testing.TB
	dir                               string
	master                            *os.Process
	inbound, outbound, ready, metrics uint16
	// spans are what it writes for the agent.
	log, spans *output
	// feed stands for the agent, which serves live files.
	feed     mirror.Feed
	agent    uint16
	rejected chan mirror.Status
	// nameserver is the address of the DNS server, if it is not the machine's.
	nameserver string
	// directives are further ones for all proxies.
	directives string
	// patience limits how long HAProxy may take to load a configuration.
	patience time.Duration
}

// start runs an HAProxy until the test ends, with the identity in the folder.
func start(t testing.TB, dir string, view *mesh.View, options ...func(*running)) *running {
	t.Helper()
	path, err := Driver{}.FindProxy()
	if errors.Is(err, driver.ErrNoProxy) {
		t.Skip("SKIPPED: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, dir: dir, log: new(output), spans: new(output), rejected: make(chan mirror.Status, 100), patience: 20 * time.Second}
	for _, option := range options {
		option(r)
	}
	if _, large := t.(*testing.B); large {
		r.patience = 4 * time.Minute
	}
	r.feed.Rejected = func(s mirror.Status) { r.rejected <- s }
	agent := httptest.NewServer(&r.feed)
	t.Cleanup(func() {
		agent.CloseClientConnections()
		agent.Close()
	})
	r.agent = portOf(agent.Listener)
	for _, port := range []*uint16{&r.inbound, &r.outbound, &r.ready, &r.metrics} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		*port = portOf(listener)
		defer listener.Close()
	}
	r.configure(view)
	threadsIn := filepath.Join(dir, "threads.cfg")
	count := cmp.Or(os.Getenv(agentspec.EnvConcurrency), "2")
	if err := os.WriteFile(threadsIn, []byte(strings.ReplaceAll(threads, "${"+agentspec.EnvConcurrency+"}", count)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "-W", "-db", "-S", filepath.Join(dir, "master.sock")+",mode,600", "-p", filepath.Join(dir, "haproxy.pid"), "-f", threadsIn, "-f", filepath.Join(dir, configFile))
	cmd.Stdout, cmd.Stderr = r.log, r.log
	lines, into, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer into.Close()
	// As large as the agent's.
	if _, err := unix.FcntlInt(into.Fd(), unix.F_SETPIPE_SZ, 1<<20); err != nil {
		t.Fatal(err)
	}
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), agentspec.EnvSpans+"=3"), []*os.File{into}
	go func() {
		defer lines.Close()
		_, _ = io.Copy(r.spans, lines)
	}()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// Release the reserved ports.
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.master = cmd.Process
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("HAProxy in %s:\n%s", dir, r.log)
		}
	})
	return r
}

// listenSix matches the IPv6 part of an address to listen on.
var listenSix = regexp.MustCompile(`,\[::\]:[0-9]+ v6only`)

// metricsSix matches that of the metrics' address.
var metricsSix = regexp.MustCompile(`,\[::\]:15010 v6only`)

// configure writes the configuration of a View.
func (r *running) configure(view *mesh.View) {
	r.t.Helper()
	files, err := Driver{}.Translate(view)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := program.WriteFiles(r.dir, files); err != nil {
		r.t.Fatal(err)
	}
	r.replace("live.lua", map[string]string{"15901": fmt.Sprint(r.agent)})
	file := filepath.Join(r.dir, configFile)
	config, err := os.ReadFile(file)
	if err != nil {
		r.t.Fatal(err)
	}
	// The addresses of the PROXY protocol are not known to the rules of connections yet.
	text := string(config)
	if !view.Proxy.Gateway {
		text = listenSix.ReplaceAllString(text, "")
	}
	text = strings.ReplaceAll(text, "tcp-request connection", "tcp-request session")
	if r.directives != "" {
		text = strings.Replace(text, "\ndefaults\n", "\ndefaults\n"+r.directives+"\n", 1)
	}
	if r.nameserver != "" {
		text = strings.ReplaceAll(text, "parse-resolv-conf", "nameserver test "+r.nameserver)
	}
	for from, to := range map[string]string{
		"bind 0.0.0.0:15003": fmt.Sprintf("bind 127.0.0.1:%d accept-proxy", r.inbound), "bind 0.0.0.0:15001": fmt.Sprintf("bind 127.0.0.1:%d accept-proxy", r.outbound),
		"bind 127.0.0.1:15000": fmt.Sprintf("bind 127.0.0.1:%d", r.ready), "bind 0.0.0.0:15010": fmt.Sprintf("bind 127.0.0.1:%d", r.metrics),
	} {
		if !strings.Contains(text, from) && !(view.Proxy.Gateway && strings.HasPrefix(from, "bind 0.0.0.0:1500")) {
			r.t.Fatalf("the configuration has no %q", from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	text = metricsSix.ReplaceAllString(text, "")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// replace replaces texts in a file of the configuration.
func (r *running) replace(name string, texts map[string]string) {
	r.t.Helper()
	file := filepath.Join(r.dir, name)
	text, err := os.ReadFile(file)
	if err != nil {
		r.t.Fatal(err)
	}
	for from, to := range texts {
		text = bytes.ReplaceAll(text, []byte(from), []byte(to))
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// awaitReady waits until the proxy is ready.
func (r *running) awaitReady() *running {
	r.t.Helper()
	for deadline := time.Now().Add(r.patience); ; time.Sleep(10 * time.Millisecond) {
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/ready", r.ready))
		if err == nil {
			response.Body.Close()
			if response.StatusCode == 200 {
				return r
			}
		}
		if time.Now().After(deadline) {
			r.t.Fatal("HAProxy is not ready: ", err, "\n", r.log)
		}
	}
}

// awaitLog waits until the proxy has logged the text.
func (r *running) awaitLog(text string) {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(r.log.String(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("the log does not contain %q", text)
		}
	}
}

// dial connects to a listener like a client that has called the address.
func dial(listener uint16, to string) (net.Conn, error) {
	address, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", listener))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(conn, "PROXY TCP4 127.0.0.1 %s 4321 %d\r\n", address.Addr(), address.Port())
	return conn, conn.SetDeadline(time.Now().Add(20 * time.Second))
}

// client returns a client whose connections to the address go to the listener.
func client(listener uint16, to string, config *tls.Config, h2 bool) *http.Client {
	transport := &http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return dial(listener, to) },
		TLSClientConfig: config, Protocols: new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(!h2)
	transport.Protocols.SetHTTP2(h2 && config != nil)
	transport.Protocols.SetUnencryptedHTTP2(h2 && config == nil)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// ask requests a target over a new connection.
func ask(c *http.Client, target string, header ...string) (*http.Response, seen, error) {
	defer c.CloseIdleConnections()
	return keepAsking(c, http.MethodGet, target, header...)
}

// keepAsking is like ask with a persistent connection.
func keepAsking(c *http.Client, method, target string, header ...string) (*http.Response, seen, error) {
	scheme := "http"
	if t := c.Transport.(*http.Transport); t.TLSClientConfig != nil && !t.Protocols.UnencryptedHTTP2() {
		scheme = "https"
	}
	path, query, _ := strings.Cut(target, "?")
	request := &http.Request{
		Method: method, Host: "books.example.com", Header: http.Header{},
		URL: &url.URL{Scheme: scheme, Host: "proxy", Opaque: path, RawQuery: query},
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			request.Host = header[i+1]
		}
		request.Header.Add(header[i], header[i+1])
	}
	response, err := c.Do(request)
	if err != nil {
		return nil, seen{}, err
	}
	defer response.Body.Close()
	var s seen
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode == http.StatusOK {
		err = json.Unmarshal(body, &s)
	}
	return response, s, err
}

// hello connects and returns the application's greeting.
func hello(listener uint16, to string, config *tls.Config) (string, error) {
	conn, err := dial(listener, to)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if config != nil {
		conn = tls.Client(conn, config)
	}
	return bufio.NewReader(conn).ReadString('\n')
}

func local(port uint16) string { return fmt.Sprintf("127.0.0.1:%d", port) }
