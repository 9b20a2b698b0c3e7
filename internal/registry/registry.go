// Package registry knows the proxies that are connected to this controller: who they
// are, what they were sent, and what they refuse. Drivers report to it, and it makes metrics,
// lists and Problems of that.
//
// A Problem is the user's object that a refused configuration came of. However many
// proxies refuse the same, it is one.
package registry

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Options say how a Registry works.
type Options struct {
	// Limit returns how many proxies may be connected, 0 for any number. It is asked
	// for each that connects; nil means any number. Proxies that are connected stay if
	// it shrinks.
	Limit func() int
	// Report receives the problems of an object whose translation proxies refuse. They
	// replace those of an earlier call for the object; none clears them. It is called
	// from the goroutine of Run, and may be nil.
	Report func(object mesh.ObjectRef, problems []mesh.Problem)
	// Settle is how long refusals gather before they are reported; 0 means a second.
	Settle time.Duration
	// Registerer takes the metrics.
	Registerer prometheus.Registerer
}

// Registry implements driver.ProxyRegistry. All methods are safe for use by many
// goroutines.
type Registry struct {
	options Options
	metrics *metrics
	// wake has room for one token: refusals have changed.
	wake chan struct{}

	mu sync.Mutex
	// proxies are those that are connected, by their UIDs.
	proxies map[string]*proxy
	// refusing are those among them that refuse something.
	refusing map[*proxy]struct{}
	// failing are proxies that do not stay up, by their UIDs.
	failing map[string]Failure
}

var _ driver.ProxyRegistry = (*Registry)(nil)

// New returns a Registry without proxies.
func New(options Options) *Registry {
	if options.Limit == nil {
		options.Limit = func() int { return 0 }
	}
	if options.Settle == 0 {
		options.Settle = time.Second
	}
	return &Registry{
		options: options, metrics: newMetrics(options.Registerer), wake: make(chan struct{}, 1),
		proxies: make(map[string]*proxy), refusing: make(map[*proxy]struct{}),
		failing: make(map[string]Failure),
	}
}

// proxy is what is known of a connected proxy. It is of its newest connection.
type proxy struct {
	// connections are those that are open, the newest last. The others are about to end.
	connections []*connection
	driver.ConnectedProxy
	since       time.Time
	sent, acked Configuration
	resources   int
	bytes       int64
	rejections  []Rejection
}

// Proxy is a connected proxy as people see it.
type Proxy struct {
	// Name is that of its pod, and UID the pod's.
	Name mesh.Name `json:"name"`
	UID  string    `json:"uid"`
	// Identity is what its certificate says, and CertificateEnds when that ends.
	Identity        string    `json:"identity"`
	CertificateEnds time.Time `json:"certificateEnds"`
	Class           string    `json:"class"`
	// Version is the proxy's own; it may be empty.
	Version   string    `json:"version,omitempty"`
	Address   string    `json:"address"`
	Connected time.Time `json:"connected"`
	// State is "Failing" if it does not stay up, "Current" if it runs the last configuration that it was sent, "Waiting"
	// if it has not acknowledged it yet, "Rejected" if it refuses a part of it, and "Empty" if it
	// was sent none yet.
	State string `json:"state"`
	// Sent and Acked are the last configurations that it was sent and that it runs.
	Sent  Configuration `json:"sent,omitzero"`
	Acked Configuration `json:"acked,omitzero"`
	// Resources and Bytes are how much it was sent on this connection.
	Resources int   `json:"resources"`
	Bytes     int64 `json:"bytes"`
	// Failure says how it fails, nil if it does not. One that is not connected has little
	// beside it.
	Failure *Failure `json:"failure,omitempty"`
	// Rejections are what it refuses now.
	Rejections []Rejection `json:"rejections,omitempty"`
}

// Configuration is a version that a proxy was sent or runs.
type Configuration struct {
	Version string    `json:"version"`
	Time    time.Time `json:"time"`
}

// Rejection is a configuration that a proxy refuses.
type Rejection struct {
	Time      time.Time        `json:"time"`
	Version   string           `json:"version"`
	Message   string           `json:"message"`
	Resources []string         `json:"resources,omitempty"`
	Objects   []mesh.ObjectRef `json:"objects,omitempty"`
}

// Connect notes that a proxy has connected. A proxy that is connected already always may
// connect again, and is still one.
func (r *Registry) Connect(connected driver.ConnectedProxy) (driver.ProxyConnection, error) {
	limit := r.options.Limit()
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.proxies[connected.ProxyUID]
	if p == nil && limit > 0 && len(r.proxies) >= limit {
		r.metrics.refused.WithLabelValues(connected.Class).Inc()
		return nil, fmt.Errorf("%w: %d are connected to this controller, and spec.sidecar.maxDataPlaneConnections of the MeshConfig allows %d; raise it or run more replicas of the controller",
			driver.ErrTooManyProxies, len(r.proxies), limit)
	}
	c := &connection{registry: r, uid: connected.ProxyUID}
	if p == nil {
		p = &proxy{}
		r.proxies[connected.ProxyUID] = p
	} else {
		r.metrics.connected.WithLabelValues(p.Class).Dec()
		// The new connection begins with what the proxy runs, and it says again what it
		// refuses.
		r.accept(p)
	}
	r.metrics.connected.WithLabelValues(connected.Class).Inc()
	*p = proxy{connections: append(p.connections, c), ConnectedProxy: connected, since: time.Now()}
	return c, nil
}

// Proxies returns the connected proxies and those that do not stay up, sorted by name.
func (r *Registry) Proxies() []Proxy {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]Proxy, 0, len(r.proxies))
	for _, p := range r.proxies {
		list = append(list, p.show())
	}
	list = r.addFailing(list)
	slices.SortFunc(list, func(a, b Proxy) int { return cmp.Or(a.Name.Compare(b.Name), cmp.Compare(a.UID, b.UID)) })
	return list
}

func (p *proxy) show() Proxy {
	shown := Proxy{
		Name: p.Name, UID: p.ProxyUID, Identity: p.Identity.String(), CertificateEnds: p.NotAfter,
		Class: p.Class, Version: p.Version, Address: p.Address.String(), Connected: p.since,
		Sent: p.sent, Acked: p.acked, Resources: p.resources, Bytes: p.bytes, Rejections: slices.Clone(p.rejections),
	}
	switch {
	case len(p.rejections) > 0:
		shown.State = "Rejected"
	case p.sent.Version == "" && p.acked.Version == "":
		shown.State = "Empty"
	case p.sent.Version != "" && p.acked.Version != p.sent.Version:
		shown.State = "Waiting"
	default:
		shown.State = "Current"
	}
	return shown
}

// connection is one connection of a proxy.
type connection struct {
	registry *Registry
	uid      string
}

// with calls f with the proxy if the connection is its newest one, while the registry
// is locked.
func (c *connection) with(f func(*proxy)) {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	p := c.registry.proxies[c.uid]
	if p != nil && p.connections[len(p.connections)-1] == c {
		f(p)
	}
}

// Sent notes that the proxy was sent a configuration.
func (c *connection) Sent(version string, resources, bytes int) {
	c.with(func(p *proxy) {
		p.sent = Configuration{version, time.Now()}
		p.resources += resources
		p.bytes += int64(bytes)
		c.registry.metrics.count(p.Class, resources, bytes)
	})
}

// Acked notes that the proxy runs a configuration.
func (c *connection) Acked(version string, since time.Time) {
	c.with(func(p *proxy) {
		now := time.Now()
		p.acked = Configuration{version, now}
		c.registry.metrics.acked.WithLabelValues(p.Class).Inc()
		if !since.IsZero() {
			c.registry.metrics.seconds.WithLabelValues(p.Class).Observe(now.Sub(since).Seconds())
		}
		c.registry.accept(p)
	})
}

// Rejected notes that the proxy has refused a configuration.
func (c *connection) Rejected(rejection driver.Rejection) {
	c.with(func(p *proxy) {
		c.registry.metrics.rejected.WithLabelValues(p.Class).Inc()
		c.registry.refuse(p, Rejection{
			Time: time.Now(), Version: rejection.Version, Message: rejection.Message,
			Resources: slices.Clone(rejection.Resources), Objects: slices.Clone(rejection.Objects),
		})
	})
}

// Close notes that the connection has ended.
func (c *connection) Close() {
	r := c.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.proxies[c.uid]
	if p == nil {
		return
	}
	at := slices.Index(p.connections, c)
	if at < 0 {
		return
	}
	p.connections = slices.Delete(p.connections, at, at+1)
	if len(p.connections) > 0 {
		return
	}
	r.accept(p)
	delete(r.proxies, c.uid)
	r.metrics.connected.WithLabelValues(p.Class).Dec()
}
