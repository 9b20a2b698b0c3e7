// Package registry records the proxies that are connected to this controller, what they
// were sent, and what they rejected. Drivers report to it. It provides metrics, the list
// of 'outrigger proxy list', and Problems.
//
// A rejection becomes a Problem of the object from which the rejected configuration was
// made. If many proxies reject the same, there is still only one Problem.
package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Options configure a Registry.
type Options struct {
	// Limit returns the maximum number of connected proxies; 0 means no limit, as does a
	// nil Limit. It is called for each new proxy. Lowering it disconnects none.
	Limit func() int
	// Report receives the Problems of an object from which rejected configuration was
	// made. They replace those of earlier calls for the object; an empty list removes
	// them. It is called from the goroutine of Run, and may be nil.
	Report func(object mesh.ObjectRef, problems []mesh.Problem)
	// Settle is how long rejections are collected before they are reported; 0 means a
	// second.
	Settle time.Duration
	// KeyExchange returns the strongest key exchange that a proxy of a class and version has by
	// default, or "". If nil, none is known.
	KeyExchange func(class, version string) string
	// Registerer registers the metrics.
	Registerer prometheus.Registerer
}

// Registry implements driver.ProxyRegistry. All methods are safe for concurrent use.
type Registry struct {
	options Options
	metrics *metrics
	// wake has capacity one. A token means that rejections have changed.
	wake chan struct{}

	mu sync.Mutex
	// proxies are the connected proxies, by UID.
	proxies map[string]*proxy
	// refusing are the connected proxies that reject something.
	refusing map[*proxy]struct{}
	// failing are the proxies that keep crashing, by UID. They need not be connected.
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
	r := &Registry{
		options: options, wake: make(chan struct{}, 1),
		proxies: make(map[string]*proxy), refusing: make(map[*proxy]struct{}),
		failing: make(map[string]Failure),
	}
	r.metrics = newMetrics(options.Registerer, r.behind, r.versions, r.keyExchanges)
	return r
}

// proxy is a connected proxy. Everything but connections is from its newest connection.
type proxy struct {
	// connections are the open ones, the newest last. The others are about to end.
	connections []*connection
	driver.ConnectedProxy
	since       time.Time
	sent, acked Configuration
	// behind is when the proxy last caught up or acknowledged something, if it does not run
	// the configuration that it should; otherwise it is zero.
	behind     time.Time
	resources  int
	bytes      int64
	rejections []Rejection
}

// Proxy describes a proxy that is connected or keeps crashing, for people. Its JSON form is
// the output of 'outrigger proxy list -o json'.
type Proxy struct {
	// Name and UID are those of its pod.
	Name mesh.Name `json:"name"`
	UID  string    `json:"uid"`
	// Identity is the identity in its certificate, which expires at CertificateEnds.
	Identity        string    `json:"identity"`
	CertificateEnds time.Time `json:"certificateEnds"`
	Class           string    `json:"class"`
	// Version is the version of the proxy's program, empty if unknown.
	Version   string    `json:"version,omitempty"`
	Address   string    `json:"address"`
	Connected time.Time `json:"connected"`
	State     State     `json:"state"`
	// Sent is the last configuration that it was sent, and Acked the one that it runs.
	Sent  Configuration `json:"sent,omitzero"`
	Acked Configuration `json:"acked,omitzero"`
	// Resources and Bytes count what it was sent on this connection.
	Resources int   `json:"resources"`
	Bytes     int64 `json:"bytes"`
	// Failure describes how it crashes; nil if it does not. A proxy that is not connected
	// has no other fields than this, Name, UID, Identity and State.
	Failure *Failure `json:"failure,omitempty"`
	// Rejections are the current rejections.
	Rejections []Rejection `json:"rejections,omitempty"`
}

// State is the state of a proxy.
type State string

// The states. A proxy is Failing if it keeps crashing, whether it is connected or not.
// Otherwise it is Rejected if it rejected a part of its configuration, Empty if it was sent
// none yet, Waiting if it has not acknowledged the last one yet, and Current if it runs that.
const (
	Failing  State = "Failing"
	Rejected State = "Rejected"
	Empty    State = "Empty"
	Waiting  State = "Waiting"
	Current  State = "Current"
)

// Configuration is a version of a proxy's configuration, and when it was sent or
// acknowledged.
type Configuration struct {
	Version string    `json:"version"`
	Time    time.Time `json:"time"`
}

// Rejection is a part of its configuration that a proxy rejected.
type Rejection struct {
	Time      time.Time        `json:"time"`
	Version   string           `json:"version"`
	Message   string           `json:"message"`
	Resources []string         `json:"resources,omitempty"`
	Objects   []mesh.ObjectRef `json:"objects,omitempty"`
	// LeftOut says that the proxy runs the version without the resources.
	LeftOut bool `json:"leftOut,omitempty"`
}

// Connect records a connection of a proxy. A proxy that is already connected may always
// connect again, and counts once.
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
		// On the new connection the proxy rejects again what it still rejects.
		r.accept(p)
	}
	r.metrics.connected.WithLabelValues(connected.Class).Inc()
	now := time.Now()
	*p = proxy{connections: append(p.connections, c), ConnectedProxy: connected, since: now, behind: now}
	return c, nil
}

// Proxies returns the proxies that are connected or keep crashing, sorted by name.
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

// patience is how long a proxy may take for its next configuration before it is behind. Those
// that work take milliseconds; the slowest start with their first one in some seconds.
const patience = time.Minute

// behind returns how many proxies of each class are behind. Those that reject something are
// counted as such. Classes without any are 0, so that the metric's absence means that no proxy
// is connected.
func (r *Registry) behind() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	numbers := make(map[string]int)
	for _, p := range r.proxies {
		late := 0
		if !p.behind.IsZero() && time.Since(p.behind) > patience && len(p.rejections) == 0 {
			late = 1
		}
		numbers[p.Class] += late
	}
	return numbers
}

func (p *proxy) show() Proxy {
	shown := Proxy{
		Name: p.Name, UID: p.ProxyUID, Identity: p.Identity.String(), CertificateEnds: p.NotAfter,
		Class: p.Class, Version: p.Version, Address: p.Address.String(), Connected: p.since,
		Sent: p.sent, Acked: p.acked, Resources: p.resources, Bytes: p.bytes, Rejections: slices.Clone(p.rejections),
	}
	switch {
	case len(p.rejections) > 0:
		shown.State = Rejected
	case p.sent.Version == "" && p.acked.Version == "":
		shown.State = Empty
	case p.sent.Version != "" && p.acked.Version != p.sent.Version:
		shown.State = Waiting
	default:
		shown.State = Current
	}
	return shown
}

// connection is one connection of a proxy.
type connection struct {
	registry *Registry
	uid      string
}

// with calls f with the proxy if the connection is its newest one. The registry is locked
// during the call.
func (c *connection) with(f func(*proxy)) {
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	p := c.registry.proxies[c.uid]
	if p != nil && p.connections[len(p.connections)-1] == c {
		f(p)
	}
}

// Sent implements driver.ProxyConnection.
func (c *connection) Sent(version string, resources, bytes int) {
	c.with(func(p *proxy) {
		p.sent = Configuration{version, time.Now()}
		switch {
		case version == p.acked.Version:
			p.behind = time.Time{}
		case p.behind.IsZero():
			p.behind = p.sent.Time
		}
		p.resources += resources
		p.bytes += int64(bytes)
		if bytes > 0 {
			c.registry.metrics.count(p.Class, resources, bytes)
		}
	})
}

// Acked implements driver.ProxyConnection.
func (c *connection) Acked(version string, since time.Time) {
	c.with(func(p *proxy) {
		now := time.Now()
		p.acked = Configuration{version, now}
		p.behind = time.Time{}
		if p.sent.Version != "" && p.sent.Version != version {
			// Changes came faster than the proxy takes them, but it makes progress.
			p.behind = now
		}
		c.registry.metrics.acked.WithLabelValues(p.Class).Inc()
		if !since.IsZero() {
			c.registry.metrics.seconds.WithLabelValues(p.Class).Observe(now.Sub(since).Seconds())
		}
		c.registry.accept(p)
	})
}

// Rejected implements driver.ProxyConnection.
func (c *connection) Rejected(rejection driver.Rejection) {
	c.with(func(p *proxy) {
		c.registry.metrics.rejected.WithLabelValues(p.Class).Inc()
		c.registry.refuse(p, Rejection{
			Time: time.Now(), Version: rejection.Version, Message: rejection.Message,
			Resources: slices.Clone(rejection.Resources), Objects: slices.Clone(rejection.Objects), LeftOut: rejection.LeftOut,
		})
	})
}

// SetVersion implements driver.ProxyConnection.
func (c *connection) SetVersion(version string) {
	c.with(func(p *proxy) { p.Version = version })
}

// versions returns how many connected proxies have each class and version. Versions come from
// the proxies, so that only the most frequent ones have a line of their own.
func (r *Registry) versions() map[[2]string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	numbers := make(map[[2]string]int)
	for _, p := range r.proxies {
		numbers[[2]string{p.Class, p.Version}]++
	}
	keys := slices.SortedFunc(maps.Keys(numbers), func(a, b [2]string) int { return cmp.Compare(numbers[b], numbers[a]) })
	for _, rare := range keys[min(len(keys), maxVersions):] {
		numbers[[2]string{rare[0], "other"}] += numbers[rare]
		delete(numbers, rare)
	}
	return numbers
}

// keyExchanges returns how many connected proxies have each class and strongest key exchange.
func (r *Registry) keyExchanges() map[[2]string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	numbers := make(map[[2]string]int)
	for _, p := range r.proxies {
		strongest := ""
		if r.options.KeyExchange != nil {
			strongest = r.options.KeyExchange(p.Class, p.Version)
		}
		numbers[[2]string{p.Class, strongest}]++
	}
	return numbers
}

// maxVersions is how many versions the metrics name.
const maxVersions = 50

// Close implements driver.ProxyConnection.
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
