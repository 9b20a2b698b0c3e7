package mesh

import (
	"time"
)

// EgressProtocol is the protocol spoken on a port outside the mesh.
type EgressProtocol string

const (
	// EgressHTTP matches by host, EgressTLS by server name and EgressTCP by address.
	EgressHTTP EgressProtocol = "http"
	EgressTLS  EgressProtocol = "tls"
	EgressTCP  EgressProtocol = "tcp"
)

// Retry says when and how often a request is retried.
type Retry struct {
	// Origin is the object that asks for the retries.
	Origin Origin `json:"origin,omitzero"`
	// On has retry conditions under Envoy's names, such as 5xx and connect-failure,
	// sorted.
	On []string `json:"on"`
	// Codes has the status codes that are retried in addition to those of On, sorted.
	Codes []uint16 `json:"codes,omitempty"`
	// Attempts is the number of retries. 0 means none.
	Attempts uint32 `json:"attempts"`
	// PerTry limits one attempt. 0 means no limit.
	PerTry time.Duration `json:"perTry,omitempty"`
	// Backoff is the delay before the first retry; later delays are longer. 0 means the
	// proxy's default.
	Backoff time.Duration `json:"backoff,omitempty"`
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
