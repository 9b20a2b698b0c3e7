package drivertest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// ControllerName is the DNS name in the certificate of a Controller, which is valid for
// 127.0.0.1 too.
const ControllerName = "outrigger-controller.osm-system.svc"

// Controller is the control plane for tests of a driver's Start or of a delivery kit:
// the test sets the Views and gets the reports about proxies. It runs in memory, and
// its own CA signs its certificate and those of proxies. It is safe for concurrent use.
type Controller struct {
	configuration
	class  string
	report func(Report)

	mu          sync.Mutex
	views       map[string]*mesh.View
	subscribers []chan string
	ready       chan struct{}
	refusal     error
	resync      time.Duration
	signer      *Authority
	trusted     []*Authority
	server      tls.Certificate
}

var (
	_ driver.MeshCataloger = (*Controller)(nil)
	_ driver.Broker        = (*Controller)(nil)
	_ driver.ProxyRegistry = (*Controller)(nil)
	_ driver.Configurator  = (*Controller)(nil)
	_ certificate.Manager  = (*Controller)(nil)
)

// Report is one call of a driver.ProxyRegistry or a driver.ProxyConnection.
type Report struct {
	Kind ReportKind
	// Proxy is the argument of Connect.
	Proxy driver.ConnectedProxy
	// Version is set by Sent, Acked and Rejected, and is the proxy's own in VersionSet.
	// Resources and Bytes are set by Sent, and Since by Acked.
	Version          string
	Resources, Bytes int
	Since            time.Time
	// Rejection is set by Rejected.
	Rejection driver.Rejection
}

// ReportKind is the called method.
type ReportKind string

// The kinds of Reports.
const (
	Connected  ReportKind = "connected"
	Sent       ReportKind = "sent"
	Acked      ReportKind = "acked"
	Rejected   ReportKind = "rejected"
	VersionSet ReportKind = "version set"
	Closed     ReportKind = "closed"
)

// NewController returns a Controller for a sidecar class, without Views. It calls
// report, unless that is nil, with each Report, from the reporting goroutine.
func NewController(class string, report func(Report)) (*Controller, error) {
	authority, err := NewAuthority()
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	close(ready)
	c := &Controller{class: class, report: report, views: make(map[string]*mesh.View), ready: ready}
	return c, c.Trust(authority)
}

// Context returns arguments for a Start that serves on a port of 127.0.0.1.
func (c *Controller) Context(ctx context.Context, port uint16) *driver.ControllerContext {
	return &driver.ControllerContext{
		Context: ctx, ProxyServerPort: uint32(port), BindAddress: "127.0.0.1", OsmNamespace: "osm-system",
		ProxyServiceCert: &certificate.Certificate{CommonName: "outrigger-controller"},
		Configurator:     c, MeshCatalog: c, CertManager: c, MsgBroker: c, Proxies: c,
		DebugHandlers: map[string]http.Handler{}, CancelFunc: func() {}, Stop: make(chan struct{}),
		SidecarClass: c.class, Log: slog.New(slog.DiscardHandler),
	}
}

// SetView sets the View of the pod with the UID, or removes the pod if the View is nil,
// and notifies subscribers.
func (c *Controller) SetView(uid string, view *mesh.View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if view == nil {
		delete(c.views, uid)
	} else {
		c.views[uid] = view
	}
	for _, subscriber := range c.subscribers {
		subscriber <- uid
	}
}

// Silence drops all subscribers, as if notifications were lost.
func (c *Controller) Silence() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = nil
}

// NotReady makes Ready block until the returned function is called.
func (c *Controller) NotReady() (ready func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting := make(chan struct{})
	c.ready = waiting
	return func() { close(waiting) }
}

// Refuse makes Connect return the error; nil admits proxies again.
func (c *Controller) Refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal = err
}

// SetResyncInterval changes GetConfigResyncInterval, which is 0 at first.
func (c *Controller) SetResyncInterval(interval time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resync = interval
}

// Trust replaces the signing CA, and trusts it and the others as roots of clients.
func (c *Controller) Trust(signer *Authority, others ...*Authority) error {
	server, err := signer.Issue(&x509.Certificate{
		KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: []string{ControllerName, "controller"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, time.Hour)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signer, c.trusted, c.server = signer, append([]*Authority{signer}, others...), server
	return nil
}

// Authority returns the signing CA.
func (c *Controller) Authority() *Authority {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.signer
}

// Ready returns a closed channel, except after NotReady.
func (c *Controller) Ready() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready
}

// View returns the View that was set for the pod.
func (c *Controller) View(uid string) (*mesh.View, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	view, ok := c.views[uid]
	return view, ok
}

// AwaitView is View, without waiting.
func (c *Controller) AwaitView(_ context.Context, peer driver.Peer) (*mesh.View, error) {
	if view, ok := c.View(peer.ProxyUID); ok {
		return view, nil
	}
	return nil, fmt.Errorf("pod UID %q: %w", peer.ProxyUID, driver.ErrUnknownProxy)
}

// Subscribe returns a channel of the UIDs passed to SetView.
func (c *Controller) Subscribe(<-chan struct{}) <-chan string {
	const many = 1 << 16 // more than any test sets before they are received
	c.mu.Lock()
	defer c.mu.Unlock()
	subscriber := make(chan string, many)
	c.subscribers = append(c.subscribers, subscriber)
	return subscriber
}

// TrustBundle returns the roots of clients in PEM.
func (c *Controller) TrustBundle() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	var bundle []byte
	for _, authority := range c.trusted {
		bundle = append(bundle, authority.PEM()...)
	}
	return bundle
}

// TrustBundleChanged returns nil: changes are not announced.
func (c *Controller) TrustBundleChanged(<-chan struct{}) <-chan struct{} { return nil }

// ServerTLS returns a configuration that follows Trust at each handshake.
func (c *Controller) ServerTLS() *tls.Config {
	config := c.tlsConfig()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.tlsConfig(), nil }
	return config
}

func (c *Controller) tlsConfig() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	roots := x509.NewCertPool()
	for _, authority := range c.trusted {
		roots.AddCert(authority.Leaf)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{c.server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots,
	}
}

// GetSidecarClass returns the served class.
func (c *Controller) GetSidecarClass() string { return c.class }

// GetConfigResyncInterval returns the value of SetResyncInterval.
func (c *Controller) GetConfigResyncInterval() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resync
}

// Connect reports the proxy, or returns the error that Refuse has set.
func (c *Controller) Connect(proxy driver.ConnectedProxy) (driver.ProxyConnection, error) {
	c.mu.Lock()
	refusal := c.refusal
	c.mu.Unlock()
	if refusal != nil {
		return nil, refusal
	}
	connection := &connection{report: c.report, proxy: proxy}
	connection.send(Report{Kind: Connected})
	return connection, nil
}

// connection ignores all reports.
type connection struct {
	report func(Report)
	proxy  driver.ConnectedProxy
	closed sync.Once
}

func (c *connection) send(r Report) {
	if c.report != nil {
		r.Proxy = c.proxy
		c.report(r)
	}
}

func (c *connection) Sent(version string, resources, bytes int) {
	c.send(Report{Kind: Sent, Version: version, Resources: resources, Bytes: bytes})
}

func (c *connection) Acked(version string, since time.Time) {
	c.send(Report{Kind: Acked, Version: version, Since: since})
}

func (c *connection) Rejected(r driver.Rejection) {
	c.send(Report{Kind: Rejected, Version: r.Version, Rejection: r})
}

func (c *connection) SetVersion(version string) {
	c.send(Report{Kind: VersionSet, Version: version})
}

func (c *connection) Close() { c.closed.Do(func() { c.send(Report{Kind: Closed}) }) }

// meshOfOne is a Controller with one proxy, for the suite.
type meshOfOne struct {
	*Controller
	view             *mesh.View
	server, workload tls.Certificate
}

func newMeshOfOne() (*meshOfOne, error) {
	m := &meshOfOne{view: plain().view()}
	var err error
	if m.Controller, err = NewController(m.view.Proxy.Class, nil); err != nil {
		return nil, err
	}
	m.SetView(m.view.Proxy.UID, m.view)
	m.server = m.Controller.server
	m.workload, err = m.Authority().IssueTo(m.view.Proxy, time.Hour)
	return m, err
}

// dial connects to the port with a certificate, or with none. It returns an error if
// the handshake fails or times out, or if the connection is closed within quiet after
// it, and nil if it is still open then.
func (m *meshOfOne) dial(port uint16, show *tls.Certificate, handshake, quiet time.Duration) error {
	config := &tls.Config{
		// The certificate is compared below.
		InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"},
	}
	if show != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return show, nil }
	}
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: handshake}, "tcp", address(port), config)
	if err != nil {
		return err
	}
	defer conn.Close()
	if !conn.ConnectionState().PeerCertificates[0].Equal(m.server.Leaf) {
		return fmt.Errorf("%w", errOtherCertificate)
	}
	// In TLS 1.3 the server rejects the client's certificate only after the client's
	// handshake.
	if err := conn.SetReadDeadline(time.Now().Add(quiet)); err != nil {
		return err
	}
	for buffer := make([]byte, 512); ; {
		if _, err := conn.Read(buffer); err != nil {
			if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
				return nil
			}
			return err
		}
	}
}

func address(port uint16) string { return fmt.Sprintf("127.0.0.1:%d", port) }
