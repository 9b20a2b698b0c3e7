package drivertest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/outrigger-mesh/outrigger/certificate"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// authority is a root and what it has signed.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority returns a root of its own.
func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "conformance"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert, key}, err
}

// sign returns a certificate with its key.
func (a *authority) sign(template *x509.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	return tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key}, err
}

// workload returns the certificate of a pod.
func (a *authority) workload(proxy *mesh.Proxy) (tls.Certificate, error) {
	uri, err := url.Parse(proxy.Identity.String())
	if err != nil {
		return tls.Certificate{}, err
	}
	return a.sign(&x509.Certificate{
		Subject:  pkix.Name{CommonName: proxy.Identity.CommonName(), OrganizationalUnit: []string{proxy.UID}},
		DNSNames: []string{proxy.Identity.DNSName()}, URIs: []*url.URL{uri},
	})
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a *authority) serverTLS(server tls.Certificate, clients *authority) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(clients.cert)
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots}
}

// controller is a control plane with one proxy, as a driver sees it.
type controller struct {
	view             *mesh.View
	root             *authority
	server, workload tls.Certificate
}

var (
	_ driver.MeshCataloger   = (*controller)(nil)
	_ driver.Broker          = (*controller)(nil)
	_ driver.ProxyRegistry   = (*controller)(nil)
	_ driver.ProxyConnection = connection{}
	_ certificate.Manager    = (*controller)(nil)
)

func newController() (*controller, error) {
	c := &controller{view: plain().view()}
	var err error
	if c.root, err = newAuthority(); err != nil {
		return nil, err
	}
	name := []string{"outrigger-controller.osm-system.svc"}
	if c.server, err = c.root.sign(&x509.Certificate{DNSNames: name}); err != nil {
		return nil, err
	}
	c.workload, err = c.root.workload(c.view.Proxy)
	return c, err
}

// context returns the arguments of a Start that serves on a port of loopback.
func (c *controller) context(ctx context.Context, port uint16) *driver.ControllerContext {
	return &driver.ControllerContext{
		Context: ctx, ProxyServerPort: uint32(port), BindAddress: "127.0.0.1", OsmNamespace: "osm-system",
		ProxyServiceCert: &certificate.Certificate{CommonName: "outrigger-controller"},
		Configurator:     configuration{}, MeshCatalog: c, CertManager: c, MsgBroker: c, Proxies: c,
		DebugHandlers: map[string]http.Handler{}, CancelFunc: func() {}, Stop: make(chan struct{}),
		SidecarClass: c.view.Proxy.Class, Log: slog.New(slog.DiscardHandler),
	}
}

// Snapshot returns a mesh of one proxy.
func (c *controller) Snapshot() *mesh.Snapshot {
	return &mesh.Snapshot{Settings: c.view.Settings, Views: mesh.TableOf(map[string]*mesh.View{c.view.Proxy.UID: c.view})}
}

// View returns that of the one proxy.
func (c *controller) View(uid string) (*mesh.View, bool) { return c.view, uid == c.view.Proxy.UID }

// AwaitView does not wait.
func (c *controller) AwaitView(_ context.Context, peer driver.Peer) (*mesh.View, error) {
	if view, ok := c.View(peer.ProxyUID); ok {
		return view, nil
	}
	return nil, fmt.Errorf("%w: %s", driver.ErrUnknownProxy, peer.ProxyUID)
}

// Subscribe tells of nothing.
func (c *controller) Subscribe(stop <-chan struct{}) <-chan string {
	out := make(chan string)
	go func() {
		<-stop
		close(out)
	}()
	return out
}

// Connect takes everybody.
func (c *controller) Connect(driver.ConnectedProxy) (driver.ProxyConnection, error) {
	return connection{}, nil
}

// connection hears nothing.
type connection struct{}

func (connection) Sent(string, int, int)     {}
func (connection) Acked(string, time.Time)   {}
func (connection) Rejected(driver.Rejection) {}
func (connection) Close()                    {}

func (c *controller) TrustBundle() []byte { return c.root.pem() }

// TrustBundleChanged tells of no change.
func (c *controller) TrustBundleChanged(<-chan struct{}) <-chan struct{} { return nil }

func (c *controller) ServerTLS() *tls.Config {
	config := c.root.serverTLS(c.server, c.root)
	config.MinVersion = tls.VersionTLS13
	return config
}

// dial shows a certificate, or none, to who serves on the port. It returns an error if
// the handshake fails or has not ended within its time, or if the connection ends within
// quiet after it, and nil if it is still open then.
func (c *controller) dial(port uint16, show *tls.Certificate, handshake, quiet time.Duration) error {
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
	shown := conn.ConnectionState().PeerCertificates[0].Raw
	if !bytes.Equal(shown, c.server.Certificate[0]) {
		return fmt.Errorf("%w", errOtherCertificate)
	}
	// In TLS 1.3 a client hears only after the handshake what the server makes of its
	// certificate.
	if err := conn.SetReadDeadline(time.Now().Add(quiet)); err != nil {
		return err
	}
	for buffer := make([]byte, 512); ; {
		if _, err := conn.Read(buffer); err != nil {
			if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
				return nil
			}
			return err
		}
	}
}

func address(port uint16) string { return fmt.Sprintf("127.0.0.1:%d", port) }
