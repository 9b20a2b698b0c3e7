package mesh

import (
	"net/netip"
	"time"
)

// ServiceAccount is the source or the destination of a rule, without the trust
// domain, which all have in common.
type ServiceAccount = Name

// AccessRule lets the sources call the workloads of a service account
// (TrafficTarget).
type AccessRule struct {
	Sealed
	Name
	Age
	Destination ServiceAccount   `json:"destination"`
	Sources     []ServiceAccount `json:"sources"`
	// Rules are what the sources may do. HTTPRouteGroups are what they may ask for at
	// ports that speak HTTP; any of them is enough. TCPRoutes are the ports that they may
	// connect to. If there are TCPRoutes, requests are allowed at their ports only, and at
	// none if there are no such routes.
	Rules []AccessRoutes `json:"rules"`
}

// AccessRoutes are the routes of a RouteGroup that an AccessRule allows.
type AccessRoutes struct {
	// Kind is HTTPRouteGroup or TCPRoute, and Group the name in the rule's namespace.
	Kind  string `json:"kind"`
	Group string `json:"group"`
	// Matches are the names of the matches, none means all.
	Matches []string `json:"matches,omitempty"`
}

// RouteGroup names matches of traffic, for rules to refer to (HTTPRouteGroup,
// TCPRoute).
type RouteGroup struct {
	Sealed
	Name
	// HTTP are the matches of an HTTPRouteGroup. TCP is that of a TCPRoute, else nil.
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
	// Ports are the destination workload's, sorted; none means any.
	Ports []uint16 `json:"ports,omitempty"`
}

// Split sends the traffic of a service to several (TrafficSplit).
type Split struct {
	Sealed
	Name
	Age
	// Root and the backends are services of the split's namespace.
	Root     string         `json:"root"`
	Backends []SplitBackend `json:"backends"`
	// Matches are HTTPRouteGroups of the namespace; with them only requests that
	// match one are split.
	Matches []string `json:"matches,omitempty"`
}

// SplitBackend is a service's share.
type SplitBackend struct {
	Service string `json:"service"`
	Weight  uint32 `json:"weight"`
}

// EgressRule lets sources out of the mesh (Egress). A port of HTTP or TLS is matched by
// Hosts if there are any, and by Ranges too if there are any: both must hold. A port of
// TCP is matched by Ranges, of which none means any address.
type EgressRule struct {
	Sealed
	Name
	Age
	Sources []ServiceAccount `json:"sources"`
	// Hosts are DNS names, exact or beginning with "*.".
	Hosts  []string       `json:"hosts,omitempty"`
	Ranges []netip.Prefix `json:"ranges,omitempty"`
	Ports  []EgressPort   `json:"ports"`
	// Groups are HTTPRouteGroups, and Settings UpstreamSettings, both of the rule's
	// namespace.
	Groups   []string `json:"groups,omitempty"`
	Settings []string `json:"settings,omitempty"`
}

// EgressPort is a port outside the mesh.
type EgressPort struct {
	Number uint16 `json:"number"`
	// Protocol is HTTP, TCP, or TLS for an application's own TLS, whose server name
	// is matched with the hosts.
	Protocol EgressProtocol `json:"protocol"`
}

// EgressProtocol is what is spoken on a port outside the mesh.
type EgressProtocol string

const (
	// EgressHTTP is matched by host, EgressTLS by server name and EgressTCP by address.
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
	// Groups are HTTPRouteGroups of the rule's namespace; none means every request.
	Groups []string `json:"groups,omitempty"`
}

// IngressBackend is a port that is opened.
type IngressBackend struct {
	// Service is of the rule's namespace.
	Service string `json:"service"`
	// Port is that of the workloads.
	Port uint16 `json:"port"`
	// TLS says that the client speaks TLS to the sidecar, which shows the mesh's
	// certificate, to server names among SNIHosts if there are any. SkipClientCert
	// takes clients without a certificate of the mesh.
	TLS            bool     `json:"tls,omitempty"`
	SNIHosts       []string `json:"sniHosts,omitempty"`
	SkipClientCert bool     `json:"skipClientCert,omitempty"`
}

// IngressSource is one of a service whose endpoints may call, a range of addresses,
// and a principal. A rule with principals asks for one of them besides an address.
type IngressSource struct {
	Service Name         `json:"service,omitzero"`
	Range   netip.Prefix `json:"range,omitzero"`
	// Principal is a name of an identity of the mesh, <sa>.<ns>.<trust domain>, or
	// "*" for any.
	Principal string `json:"principal,omitempty"`
}

// RetryRule has requests of a source to services tried again (Retry).
type RetryRule struct {
	Sealed
	Name
	Age
	Source       ServiceAccount `json:"source"`
	Destinations []Name         `json:"destinations"`
	Retry        Retry          `json:"retry"`
}

// Retry says when and how often a request is tried again.
type Retry struct {
	// On are Envoy's names of conditions, such as 5xx and connect-failure, sorted.
	On []string `json:"on"`
	// Attempts is how often it is tried again.
	Attempts uint32 `json:"attempts"`
	// PerTry limits one attempt; 0 means no limit.
	PerTry time.Duration `json:"perTry,omitempty"`
	// Backoff is the time before the first retry, which grows for further ones; 0
	// means the proxy's own choice.
	Backoff time.Duration `json:"backoff,omitempty"`
}

// UpstreamSetting is how a service, or a host outside the mesh, is called
// (UpstreamTrafficSetting).
type UpstreamSetting struct {
	Sealed
	Name
	Age
	// Host is the service's DNS name or that of an egress host.
	Host   string         `json:"host"`
	Policy UpstreamPolicy `json:"policy"`
	Limits RateLimits     `json:"limits,omitzero"`
}

// UpstreamPolicy is how endpoints are called. A field that is zero or nil means that
// there is no limit, or the proxy's own choice.
type UpstreamPolicy struct {
	// How many there may be at a time. A limit of 0 is one: Refuses says what it does.
	// Those of requests and retries hold for protocols with requests only.
	MaxConnections     *uint32 `json:"maxConnections,omitempty"`
	MaxRequests        *uint32 `json:"maxRequests,omitempty"`
	MaxPendingRequests *uint32 `json:"maxPendingRequests,omitempty"`
	// MaxRetries of 0 tries nothing again, whatever a Retry says.
	MaxRetries            *uint32       `json:"maxRetries,omitempty"`
	RequestsPerConnection uint32        `json:"requestsPerConnection,omitempty"`
	ConnectTimeout        time.Duration `json:"connectTimeout,omitempty"`
	// RequestTimeout limits a whole request with its retries.
	RequestTimeout time.Duration `json:"requestTimeout,omitempty"`
	IdleTimeout    time.Duration `json:"idleTimeout,omitempty"`
	Ejection       *Ejection     `json:"ejection,omitempty"`
	LoadBalancing  LoadBalancing `json:"loadBalancing,omitzero"`
}

// Refuses reports whether a limit of 0 lets nothing through for a protocol: no connection,
// no request, or none that waits until its connection is there, as every first one does.
// Requests are answered with 503 then, and connections are closed.
func (p UpstreamPolicy) Refuses(protocol Protocol) bool {
	zero := func(limit *uint32) bool { return limit != nil && *limit == 0 }
	return zero(p.MaxConnections) || protocol.IsHTTP() && (zero(p.MaxRequests) || zero(p.MaxPendingRequests))
}

// Ejection takes endpoints that fail out of use for a while.
type Ejection struct {
	// ConsecutiveErrors is how many 5xx answers or failed connections in a row it takes.
	ConsecutiveErrors uint32        `json:"consecutiveErrors"`
	Interval          time.Duration `json:"interval,omitempty"`
	BaseTime          time.Duration `json:"baseTime,omitempty"`
	// MaxPercent is how many of the endpoints may be out at a time.
	MaxPercent uint32 `json:"maxPercent,omitempty"`
}

// LoadBalancing is how an endpoint is chosen.
type LoadBalancing struct {
	Policy LoadBalancingPolicy `json:"policy,omitempty"`
	// HashOn is what RingHash and Maglev tell clients apart by, in this order.
	HashOn []HashOn `json:"hashOn,omitempty"`
	// PreferZone prefers endpoints in the client's zone as long as there are any that
	// work.
	PreferZone bool `json:"preferZone,omitempty"`
}

// LoadBalancingPolicy is the name of a way to choose.
type LoadBalancingPolicy string

// The ways to choose an endpoint. Empty means RoundRobin.
const (
	RoundRobin   LoadBalancingPolicy = "RoundRobin"
	LeastRequest LoadBalancingPolicy = "LeastRequest"
	Random       LoadBalancingPolicy = "Random"
	RingHash     LoadBalancingPolicy = "RingHash"
	Maglev       LoadBalancingPolicy = "Maglev"
)

// HashOn is one thing that tells clients apart: a header, a cookie that the proxy
// sets if it is missing, or the client's address.
type HashOn struct {
	Header string `json:"header,omitempty"`
	Cookie string `json:"cookie,omitempty"`
	// CookieTTL is how long the cookie lives; 0 means for the session.
	CookieTTL time.Duration `json:"cookieTTL,omitempty"`
	SourceIP  bool          `json:"sourceIP,omitempty"`
}

// RateLimits are limits that each server-side proxy keeps for itself.
type RateLimits struct {
	// Connections limits new connections to a workload's port.
	Connections *TokenBucket `json:"connections,omitempty"`
	// Requests limits requests to the service, and Routes those that match a path,
	// instead of Requests.
	Requests *RequestLimit `json:"requests,omitempty"`
	Routes   []RouteLimit  `json:"routes,omitempty"`
}

// TokenBucket lets Tokens pass in each Interval and Burst more at once.
type TokenBucket struct {
	Tokens   uint32        `json:"tokens"`
	Burst    uint32        `json:"burst,omitempty"`
	Interval time.Duration `json:"interval"`
}

// RequestLimit is a limit of requests and the answer to one too many.
type RequestLimit struct {
	TokenBucket
	// Status is the answer's status; 0 means 429.
	Status uint32 `json:"status,omitempty"`
	// AddHeaders are added to that answer, sorted by name.
	AddHeaders []Header `json:"addHeaders,omitempty"`
}

// Header is a header with its value.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// RouteLimit is a limit of the requests whose path matches an RE2 expression.
type RouteLimit struct {
	Path  string       `json:"path"`
	Limit RequestLimit `json:"limit"`
}
