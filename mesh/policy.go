package mesh

import (
	"net/netip"
	"time"
)

// ServiceAccount is a source or destination of a rule. The trust domain is omitted, since
// all service accounts share it.
type ServiceAccount = Name

// AccessRule lets the sources call the workloads of the destination's service account
// (TrafficTarget).
type AccessRule struct {
	Sealed
	Name
	Age
	Destination ServiceAccount   `json:"destination"`
	Sources     []ServiceAccount `json:"sources"`
	// Rules say what is allowed. At HTTP ports a request must match one of the
	// HTTPRouteGroups. TCPRoutes list the ports that sources may connect to; if there are
	// any, requests are allowed only at these ports. If there are only TCPRoutes, no
	// requests are allowed.
	Rules []AccessRoutes `json:"rules"`
}

// AccessRoutes refers to the routes of a RouteGroup that an AccessRule allows.
type AccessRoutes struct {
	// Kind is HTTPRouteGroup or TCPRoute, and Group the object's name in the rule's
	// namespace.
	Kind  string `json:"kind"`
	Group string `json:"group"`
	// Matches are names of the group's matches. Empty means all.
	Matches []string `json:"matches,omitempty"`
}

// RouteGroup has traffic matches that rules refer to by name (HTTPRouteGroup, TCPRoute).
type RouteGroup struct {
	Sealed
	Name
	// HTTP has the matches of an HTTPRouteGroup, and TCP that of a TCPRoute.
	HTTP []NamedMatch `json:"http,omitempty"`
	TCP  *TCPMatch    `json:"tcp,omitempty"`
}

// NamedMatch is a match of a RouteGroup.
type NamedMatch struct {
	Name string `json:"name"`
	HTTPMatch
}

// TCPMatch is a condition on a connection.
type TCPMatch struct {
	// Ports are the destination workload's ports, sorted. Empty means any.
	Ports []uint16 `json:"ports,omitempty"`
}

// Split distributes the traffic of a service over several services (TrafficSplit).
type Split struct {
	Sealed
	Name
	Age
	// Root and the backends are names of services in the split's namespace.
	Root     string         `json:"root"`
	Backends []SplitBackend `json:"backends"`
	// Matches are HTTPRouteGroups of the namespace; with them only requests that
	// match one are split.
	Matches []string `json:"matches,omitempty"`
}

// SplitBackend is the share of one service.
type SplitBackend struct {
	Service string `json:"service"`
	Weight  uint32 `json:"weight"`
}

// EgressRule lets sources call outside the mesh (Egress). HTTP and TLS ports match by
// Hosts and by Ranges: each that is not empty must match. TCP ports match only by Ranges;
// if empty, any address is allowed.
type EgressRule struct {
	Sealed
	Name
	Age
	Sources []ServiceAccount `json:"sources"`
	// Hosts are DNS names, either exact or starting with "*.".
	Hosts  []string       `json:"hosts,omitempty"`
	Ranges []netip.Prefix `json:"ranges,omitempty"`
	Ports  []EgressPort   `json:"ports"`
	// Groups name HTTPRouteGroups and Settings UpstreamSettings in the rule's namespace.
	Groups   []string `json:"groups,omitempty"`
	Settings []string `json:"settings,omitempty"`
}

// EgressPort is a port outside the mesh.
type EgressPort struct {
	Number uint16 `json:"number"`
	// Protocol is HTTP, TCP, or TLS. With TLS, the server name of the application's own
	// TLS is matched with the hosts.
	Protocol EgressProtocol `json:"protocol"`
}

// EgressProtocol is the protocol spoken on a port outside the mesh.
type EgressProtocol string

const (
	// EgressHTTP matches by host, EgressTLS by server name and EgressTCP by address.
	EgressHTTP EgressProtocol = "http"
	EgressTLS  EgressProtocol = "tls"
	EgressTCP  EgressProtocol = "tcp"
)

// IngressRule lets traffic from outside the mesh into services (IngressBackend).
type IngressRule struct {
	Sealed
	Name
	Age
	Backends []IngressBackend `json:"backends"`
	Sources  []IngressSource  `json:"sources"`
	// Groups name HTTPRouteGroups in the rule's namespace. Empty allows every request.
	Groups []string `json:"groups,omitempty"`
}

// IngressBackend is a port that accepts traffic from outside the mesh.
type IngressBackend struct {
	// Service is a service in the rule's namespace.
	Service string `json:"service"`
	// Port is the workloads' port.
	Port uint16 `json:"port"`
	// TLS requires clients to use TLS to the sidecar, which presents its mesh certificate.
	// If SNIHosts are set, the client must name one of them. With SkipClientCert, clients
	// need no mesh certificate.
	TLS            bool     `json:"tls,omitempty"`
	SNIHosts       []string `json:"sniHosts,omitempty"`
	SkipClientCert bool     `json:"skipClientCert,omitempty"`
}

// IngressSource is one of: a service whose endpoints may call, an address range, or a
// principal. If a rule has principals, callers must have one of them in addition to an
// allowed address.
type IngressSource struct {
	Service Name         `json:"service,omitzero"`
	Range   netip.Prefix `json:"range,omitzero"`
	// Principal is the name of a mesh identity, <sa>.<ns>.<trust domain>, or "*" for any.
	Principal string `json:"principal,omitempty"`
}

// RetryRule retries the source's requests to the destinations (Retry).
type RetryRule struct {
	Sealed
	Name
	Age
	Source       ServiceAccount `json:"source"`
	Destinations []Name         `json:"destinations"`
	Retry        Retry          `json:"retry"`
}

// Retry says when and how often a request is retried.
type Retry struct {
	// On has retry conditions under Envoy's names, such as 5xx and connect-failure,
	// sorted.
	On []string `json:"on"`
	// Attempts is the number of retries.
	Attempts uint32 `json:"attempts"`
	// PerTry limits one attempt. 0 means no limit.
	PerTry time.Duration `json:"perTry,omitempty"`
	// Backoff is the delay before the first retry; later delays are longer. 0 means the
	// proxy's default.
	Backoff time.Duration `json:"backoff,omitempty"`
}

// UpstreamSetting configures calls to a service or to a host outside the mesh
// (UpstreamTrafficSetting).
type UpstreamSetting struct {
	Sealed
	Name
	Age
	// Host is the DNS name of the service or the egress host.
	Host   string         `json:"host"`
	Policy UpstreamPolicy `json:"policy"`
	Limits RateLimits     `json:"limits,omitzero"`
}

// UpstreamPolicy configures calls to endpoints. Zero and nil fields mean no limit, or the
// proxy's default.
type UpstreamPolicy struct {
	// The limits on concurrency. A limit of 0 is valid, see Refuses. Those for requests
	// and retries apply only to HTTP protocols.
	MaxConnections     *uint32 `json:"maxConnections,omitempty"`
	MaxRequests        *uint32 `json:"maxRequests,omitempty"`
	MaxPendingRequests *uint32 `json:"maxPendingRequests,omitempty"`
	// MaxRetries of 0 disables retries, regardless of any Retry.
	MaxRetries            *uint32       `json:"maxRetries,omitempty"`
	RequestsPerConnection uint32        `json:"requestsPerConnection,omitempty"`
	ConnectTimeout        time.Duration `json:"connectTimeout,omitempty"`
	// RequestTimeout limits a whole request including retries.
	RequestTimeout time.Duration `json:"requestTimeout,omitempty"`
	IdleTimeout    time.Duration `json:"idleTimeout,omitempty"`
	Ejection       *Ejection     `json:"ejection,omitempty"`
	LoadBalancing  LoadBalancing `json:"loadBalancing,omitzero"`
}

// Refuses reports whether a limit of 0 blocks all traffic of the protocol: no
// connections, no requests, or no pending requests, since every first request waits for a
// connection. Requests are then answered with 503, and connections are closed.
func (p UpstreamPolicy) Refuses(protocol Protocol) bool {
	zero := func(limit *uint32) bool { return limit != nil && *limit == 0 }
	return zero(p.MaxConnections) || protocol.IsHTTP() && (zero(p.MaxRequests) || zero(p.MaxPendingRequests))
}

// Ejection temporarily removes failing endpoints from load balancing.
type Ejection struct {
	// ConsecutiveErrors is the number of consecutive 5xx responses or failed connections
	// after which an endpoint is ejected.
	ConsecutiveErrors uint32        `json:"consecutiveErrors"`
	Interval          time.Duration `json:"interval,omitempty"`
	BaseTime          time.Duration `json:"baseTime,omitempty"`
	// MaxPercent limits the share of endpoints that are ejected at the same time.
	MaxPercent uint32 `json:"maxPercent,omitempty"`
}

// LoadBalancing says how an endpoint is chosen.
type LoadBalancing struct {
	Policy LoadBalancingPolicy `json:"policy,omitempty"`
	// HashOn lists the hash inputs of RingHash and Maglev, in order.
	HashOn []HashOn `json:"hashOn,omitempty"`
	// PreferZone prefers healthy endpoints in the client's zone.
	PreferZone bool `json:"preferZone,omitempty"`
}

// LoadBalancingPolicy names a load balancing algorithm.
type LoadBalancingPolicy string

// The load balancing algorithms. Empty means RoundRobin.
const (
	RoundRobin   LoadBalancingPolicy = "RoundRobin"
	LeastRequest LoadBalancingPolicy = "LeastRequest"
	Random       LoadBalancingPolicy = "Random"
	RingHash     LoadBalancingPolicy = "RingHash"
	Maglev       LoadBalancingPolicy = "Maglev"
)

// HashOn is one hash input: a header, a cookie that the proxy sets if it is missing, or
// the client's address.
type HashOn struct {
	Header string `json:"header,omitempty"`
	Cookie string `json:"cookie,omitempty"`
	// CookieTTL is the lifetime of the cookie. 0 makes it a session cookie.
	CookieTTL time.Duration `json:"cookieTTL,omitempty"`
	SourceIP  bool          `json:"sourceIP,omitempty"`
}

// RateLimits are local limits: each server-side proxy counts on its own.
type RateLimits struct {
	// Connections limits new connections to the workload's port.
	Connections *TokenBucket `json:"connections,omitempty"`
	// Requests limits requests to the service. For requests that match the path of one of
	// Routes, that limit applies instead.
	Requests *RequestLimit `json:"requests,omitempty"`
	Routes   []RouteLimit  `json:"routes,omitempty"`
}

// TokenBucket allows Tokens per Interval, and Burst more at once.
type TokenBucket struct {
	Tokens   uint32        `json:"tokens"`
	Burst    uint32        `json:"burst,omitempty"`
	Interval time.Duration `json:"interval"`
}

// RequestLimit limits requests and defines the response to rejected ones.
type RequestLimit struct {
	TokenBucket
	// Status is the response's status. 0 means 429.
	Status uint32 `json:"status,omitempty"`
	// AddHeaders are added to the response, sorted by name.
	AddHeaders []Header `json:"addHeaders,omitempty"`
}

// Header is a header name with its value.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// RouteLimit limits the requests whose path matches an RE2 expression.
type RouteLimit struct {
	Path  string       `json:"path"`
	Limit RequestLimit `json:"limit"`
}
