package envoy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	configv1alpha2 "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// controllerName is the name that the tests' controller is reached by.
const controllerName = "outrigger-controller.osm-system.svc"

// core is what a controller gives a driver, for a test that says what each proxy sees.
type core struct {
	t  *testing.T
	ca *authority

	mu       sync.Mutex
	views    map[string]*mesh.View
	watchers []chan string
	trusted  []*authority
	events   []string
	// rejected are the Rejections so far, and acked the versions.
	rejected []driver.Rejection
	acked    []string
}

func newCore(t *testing.T) *core {
	ca := newAuthority(t)
	return &core{t: t, ca: ca, trusted: []*authority{ca}, views: map[string]*mesh.View{}}
}

// set has the proxy see the View.
func (c *core) set(view *mesh.View) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.views[view.Proxy.UID] = view
	for _, watcher := range c.watchers {
		watcher <- view.Proxy.UID
	}
}

// context returns the arguments of Start.
func (c *core) context(ctx context.Context, port uint32) *driver.ControllerContext {
	return &driver.ControllerContext{
		Context: ctx, ProxyServerPort: port, BindAddress: "127.0.0.1", OsmNamespace: "osm-system",
		Configurator: configuration{}, MeshCatalog: c, CertManager: c, MsgBroker: c, Proxies: c,
		DebugHandlers: map[string]http.Handler{}, SidecarClass: "envoy",
		CancelFunc: func() { c.t.Error("the driver ends the controller") },
	}
}

func (c *core) Snapshot() *mesh.Snapshot { return &mesh.Snapshot{Settings: settings()} }

func (c *core) View(uid string) (*mesh.View, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	view, ok := c.views[uid]
	return view, ok
}

func (c *core) AwaitView(_ context.Context, peer driver.Peer) (*mesh.View, error) {
	view, ok := c.View(peer.ProxyUID)
	if !ok {
		return nil, fmt.Errorf("pod UID %q: %w", peer.ProxyUID, driver.ErrUnknownProxy)
	}
	return view, nil
}

func (c *core) Subscribe(<-chan struct{}) <-chan string {
	c.mu.Lock()
	defer c.mu.Unlock()
	watcher := make(chan string, 1024)
	c.watchers = append(c.watchers, watcher)
	return watcher
}

func (c *core) TrustBundle() []byte { return nil }

func (c *core) TrustBundleChanged(<-chan struct{}) <-chan struct{} { return nil }

func (c *core) ServerTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		pool := x509.NewCertPool()
		for _, ca := range c.trusted {
			pool.AddCert(ca.cert)
		}
		return &tls.Config{
			MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
			Certificates: []tls.Certificate{c.ca.sign(&x509.Certificate{
				SerialNumber: big.NewInt(3), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
				KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: []string{controllerName},
			})},
		}, nil
	}}
}

// issue signs a workload's certificate.
func (a *authority) issueTo(id mesh.Identity, uid string) tls.Certificate {
	a.t.Helper()
	uri, err := url.Parse(id.String())
	if err != nil {
		a.t.Fatal(err)
	}
	return a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		Subject:  pkix.Name{CommonName: id.CommonName(), OrganizationalUnit: []string{uid}},
		KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: []string{id.DNSName()}, URIs: []*url.URL{uri},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

func (c *core) Connect(p driver.ConnectedProxy) (driver.ProxyConnection, error) {
	c.note("connect %s %s", p.Name, p.ProxyUID)
	return &connection{core: c}, nil
}

func (c *core) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, fmt.Sprintf(format, args...))
}

// noted returns what the driver told so far.
func (c *core) noted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

// rejections returns what was refused so far.
func (c *core) rejections() []driver.Rejection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.rejected)
}

// runs reports whether the proxy was last known to run the View.
func (c *core) runs(view *mesh.View) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.acked) > 0 && c.acked[len(c.acked)-1] == view.Digest().String()
}

// lastAcked reports whether the last thing told is that a View runs.
func (c *core) lastAcked() bool {
	noted := c.noted()
	return len(noted) > 0 && noted[len(noted)-1] == "acked"
}

type connection struct{ core *core }

func (c *connection) Sent(_ string, resources, bytes int) {
	c.core.note("sent %d resources", resources)
}

func (c *connection) Acked(version string, _ time.Time) {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	c.core.acked = append(c.core.acked, version)
	c.core.events = append(c.core.events, "acked")
}

func (c *connection) Rejected(r driver.Rejection) {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	c.core.rejected = append(c.core.rejected, r)
	c.core.events = append(c.core.events, fmt.Sprintf("rejected %q", r.Resources))
}

func (c *connection) Close() { c.core.note("close") }

// configuration is a MeshConfig's.
type configuration struct{}

func (configuration) GetMeshConfig() *configv1alpha2.MeshConfig {
	return new(configv1alpha2.MeshConfig)
}
func (configuration) GetSidecarClass() string                     { return "envoy" }
func (configuration) GetSidecarImage(string) string               { return "" }
func (configuration) GetSidecarWindowsImage(string) string        { return "" }
func (configuration) GetInitContainerImage(string) string         { return "" }
func (configuration) GetProxyServerPort(string) uint32            { return 0 }
func (configuration) IsMTLSDisabled(string) bool                  { return false }
func (configuration) IsPrivilegedInitContainer() bool             { return false }
func (configuration) GetSidecarLogLevel() string                  { return "info" }
func (configuration) GetMaxDataPlaneConnections() int             { return 0 }
func (configuration) GetConfigResyncInterval() time.Duration      { return 0 }
func (configuration) GetServiceCertValidityPeriod() time.Duration { return 24 * time.Hour }
func (configuration) IsDebugServerEnabled() bool                  { return true }
func (configuration) GetTrustDomain() string                      { return "cluster.local" }
