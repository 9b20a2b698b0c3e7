package pipy

import (
	"encoding/json"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// schema is the version of the documents' format. The scripts refuse all others, so an
// incompatible change needs a higher number.
const schema = 3

// Names of the documents in the repository. All begin with liveDir: Pipy applies changes
// of them without a reload.
const (
	liveDir          = "config/"
	settingsFile     = liveDir + "settings.json"
	inboundFile      = liveDir + "inbound.json"
	egressFile       = liveDir + "egress.json"
	destinationsDir  = liveDir + "destinations/"
	backendsDir      = liveDir + "backends/"
	documentFileType = ".json"
)

// The types below are the documents: one JSON object a file, whose keys are the names of
// the Go fields with a lower-case initial. Durations are in seconds, addresses are text,
// and identities are SPIFFE IDs. Absent fields are zero.

// header is part of every document.
type header struct {
	Schema int `json:"schema"`
}

// settingsDocument describes the proxy and the settings of the whole mesh.
type settingsDocument struct {
	header
	// Pod is namespace/name; Namespace, Name and ServiceAccount are the pod's.
	Pod            string   `json:"pod"`
	Namespace      string   `json:"namespace"`
	Name           string   `json:"name"`
	ServiceAccount string   `json:"serviceAccount"`
	UID            string   `json:"uid"`
	Zone           string   `json:"zone,omitempty"`
	Addresses      []string `json:"addresses,omitempty"`
	// ServerName is the DNS name of the pod's own identity.
	ServerName string `json:"serverName"`
	// TrustDomain is the mesh's: the SNI of mesh TLS ends in ".sa.<trust domain>".
	TrustDomain string `json:"trustDomain"`
	// Gateway says that the pod is one of a gateway: the proxy accepts connections at the ports of
	// its destinations, and no redirected ones.
	Gateway bool `json:"gateway,omitempty"`
	// Plaintext says that the pod does not use mesh TLS.
	Plaintext bool        `json:"plaintext,omitempty"`
	TLS       tlsDocument `json:"tls"`
	AccessLog bool        `json:"accessLog,omitempty"`
	// Logged is the share of successful requests and connections that AccessLog is about, if
	// it is not all of them.
	Logged  *float64         `json:"logged,omitempty"`
	Tracing *tracingDocument `json:"tracing,omitempty"`
	// ForwardedFor says that applications get the caller's address in a header.
	ForwardedFor bool `json:"forwardedFor,omitempty"`
	// Authorization is the external authorization service that is asked about inbound HTTP
	// requests.
	Authorization *authorizationDocument `json:"authorization,omitempty"`
}

type tlsDocument struct {
	// Min and Max are "TLS1.2" or "TLS1.3", as Pipy names them.
	Min string `json:"min"`
	Max string `json:"max"`
	// Ciphers is an OpenSSL cipher list for TLS 1.2: names joined by colons.
	Ciphers string `json:"ciphers,omitempty"`
}

type tracingDocument struct {
	// OTLP says that spans are sent with OTLP over gRPC, not with Zipkin's protocol.
	OTLP bool `json:"otlp,omitempty"`
	// Address is host:port, and Path is the path of Zipkin's URL.
	Address string `json:"address"`
	Path    string `json:"path,omitempty"`
	// Sampled is the fraction of requests that start a trace, from 0 to 1.
	Sampled float64 `json:"sampled"`
}

type authorizationDocument struct {
	// Address is host:port.
	Address string  `json:"address"`
	Timeout float64 `json:"timeout"`
	// AllowOnFailure lets requests pass if the service does not answer.
	AllowOnFailure bool `json:"allowOnFailure,omitempty"`
	// Metrics begins the names of the metrics.
	Metrics string `json:"metrics"`
}

// inboundDocument is the policy for connections to the application.
type inboundDocument struct {
	header
	Permissive bool `json:"permissive,omitempty"`
	// Ports are keyed by their decimal number.
	Ports map[string]*portDocument `json:"ports"`
	// Others says who may open TCP connections to all other ports.
	Others accessDocument `json:"others"`
}

type portDocument struct {
	// Protocol is "http" (HTTP/1.1 and HTTP/2), "tcp" or "server-first".
	Protocol string `json:"protocol"`
	// HTTP2 says that the application behind an "http" port speaks only HTTP/2.
	HTTP2   bool              `json:"http2,omitempty"`
	Access  accessDocument    `json:"access"`
	Ingress []ingressDocument `json:"ingress,omitempty"`
	// Headers are the headers that rules compare. Other spellings of their names are
	// removed from requests.
	Headers []string `json:"headers,omitempty"`
	// ConnectionLimit, RequestLimit and RouteLimits are mesh.RateLimits: only the first
	// route whose path matches is applied.
	ConnectionLimit *bucketDocument     `json:"connectionLimit,omitempty"`
	RequestLimit    *requestLimit       `json:"requestLimit,omitempty"`
	RouteLimits     []routeLimitElement `json:"routeLimits,omitempty"`
}

// bucketDocument is a token bucket that holds up to Size tokens and gains Tokens every
// Interval.
type bucketDocument struct {
	Size     uint32  `json:"size"`
	Tokens   uint32  `json:"tokens"`
	Interval float64 `json:"interval"`
}

type requestLimit struct {
	bucketDocument
	// Status is the status of the response, at least 400.
	Status  uint32            `json:"status"`
	Headers map[string]string `json:"headers,omitempty"`
}

type routeLimitElement struct {
	Path  matchDocument `json:"path"`
	Limit requestLimit  `json:"limit"`
}

// accessDocument admits either every workload of the mesh or the sources of its rules.
type accessDocument struct {
	Anyone bool           `json:"anyone,omitempty"`
	Rules  []ruleDocument `json:"rules,omitempty"`
	// Denials refuse what the rules and the ingress admit.
	Denials []denialDocument `json:"denials,omitempty"`
	// Audit says to count what the rules would refuse, while anyone is admitted.
	Audit bool `json:"audit,omitempty"`
}

type ruleDocument struct {
	Name string `json:"name"`
	// Sources are the identities that the rule admits but for Except, and Requests the requests
	// that they may send: an empty object matches every request, an empty list none.
	Sources  callersDocument   `json:"sources"`
	Except   callersDocument   `json:"except"`
	Requests []requestDocument `json:"requests"`
}

// callersDocument is a set of identities: SPIFFE IDs, and beginnings of SPIFFE IDs.
type callersDocument struct {
	IDs    []string `json:"ids,omitempty"`
	Groups []string `json:"groups,omitempty"`
}

// denialDocument is a rule that refuses its sources the requests, and everyone if that is set.
type denialDocument struct {
	Name     string            `json:"name"`
	Everyone bool              `json:"everyone,omitempty"`
	Sources  callersDocument   `json:"sources"`
	Except   callersDocument   `json:"except"`
	Requests []requestDocument `json:"requests"`
}

type ingressDocument struct {
	Name           string            `json:"name"`
	TLS            bool              `json:"tls,omitempty"`
	SNIHosts       []string          `json:"sniHosts,omitempty"`
	SkipClientCert bool              `json:"skipClientCert,omitempty"`
	Ranges         []string          `json:"ranges,omitempty"`
	AnyPrincipal   bool              `json:"anyPrincipal,omitempty"`
	Principals     []string          `json:"principals,omitempty"`
	Requests       []requestDocument `json:"requests"`
}

// requestDocument is a mesh.HTTPMatch.
type requestDocument struct {
	Path    *matchDocument     `json:"path,omitempty"`
	Methods []string           `json:"methods,omitempty"`
	Headers []keyMatchDocument `json:"headers,omitempty"`
	Query   []keyMatchDocument `json:"query,omitempty"`
}

// matchDocument is a mesh.StringMatch: exactly one of its fields is set.
type matchDocument struct {
	Exact string `json:"exact,omitempty"`
	// Prefix is a prefix of complete path elements, without a trailing slash.
	Prefix string `json:"prefix,omitempty"`
	// StringPrefix is a prefix that may end within a path element.
	StringPrefix string `json:"stringPrefix,omitempty"`
	Present      bool   `json:"present,omitempty"`
	// Any matches every string, and Never matches none.
	Any   bool `json:"any,omitempty"`
	Never bool `json:"never,omitempty"`
	// Regex must match the whole string.
	Regex json.RawMessage `json:"regex,omitempty"`
}

type keyMatchDocument struct {
	Name string `json:"name"`
	matchDocument
}

// destinationDocument is a service port that the application may call.
type destinationDocument struct {
	header
	Name      string   `json:"name"`
	Service   string   `json:"service"`
	Addresses []string `json:"addresses"`
	Port      uint16   `json:"port"`
	Protocol  string   `json:"protocol"`
	HTTP2     bool     `json:"http2,omitempty"`
	// Listens says that the proxy itself listens at the port, and Hosts are mesh.Destination's.
	Listens bool     `json:"listens,omitempty"`
	Hosts   []string `json:"hosts,omitempty"`
	// Certificates are for clients whose TLS ends at the proxy: the first whose host matches the server
	// name. Listeners are the hosts of their listeners, the closest first.
	Certificates []certificateDocument `json:"certificates,omitempty"`
	Listeners    []string              `json:"listeners,omitempty"`
	// Routes are used with protocol "http", Backends with the others.
	Routes   []routeDocument        `json:"routes,omitempty"`
	Backends []mesh.WeightedBackend `json:"backends,omitempty"`
	// Servers are used instead of Backends: the first whose host matches the server name.
	Servers []serverDocument `json:"servers,omitempty"`
	HashOn  []hashDocument   `json:"hashOn,omitempty"`
}

type certificateDocument struct {
	Host     string `json:"host"`
	Listener string `json:"listener"`
	// Name is that of its file, without the folder and ".pem".
	Name string `json:"name"`
}

type serverDocument struct {
	Host     string                 `json:"host"`
	Backends []mesh.WeightedBackend `json:"backends"`
}

type routeDocument struct {
	Name     string                 `json:"name,omitempty"`
	Host     string                 `json:"host,omitempty"`
	Match    requestDocument        `json:"match"`
	Backends []mesh.WeightedBackend `json:"backends,omitempty"`
	Timeout  float64                `json:"timeout,omitempty"`
	Retry    *retryDocument         `json:"retry,omitempty"`
	Rewrite  *rewriteDocument       `json:"rewrite,omitempty"`
	Redirect *redirectDocument      `json:"redirect,omitempty"`
	CORS     *corsDocument          `json:"cors,omitempty"`
	Mirrors  []mesh.Mirror          `json:"mirrors,omitempty"`
	Session  *sessionDocument       `json:"session,omitempty"`
}

// sessionDocument is a mesh.Session. Attributes follow the value of the cookie, Lifetime is 0
// for no limit, and Shares has the backends by what names them in tokens.
type sessionDocument struct {
	Cookie     string            `json:"cookie,omitempty"`
	Attributes string            `json:"attributes,omitempty"`
	Header     string            `json:"header,omitempty"`
	Lifetime   int64             `json:"lifetime,omitempty"`
	Shares     map[string]string `json:"shares"`
}

// rewriteDocument is a mesh.Rewrite.
type rewriteDocument struct {
	Host string        `json:"host,omitempty"`
	Path *pathDocument `json:"path,omitempty"`
}

// redirectDocument is a mesh.Redirect. Port is the port in the URL, 0 for none.
type redirectDocument struct {
	Scheme string        `json:"scheme"`
	Host   string        `json:"host,omitempty"`
	Port   uint16        `json:"port,omitempty"`
	Path   *pathDocument `json:"path,omitempty"`
	Status uint16        `json:"status"`
	// Response changes the headers of the redirect.
	Response mesh.HeaderChanges `json:"response,omitzero"`
}

// corsDocument is a mesh.CORS.
type corsDocument struct {
	Origin      keyMatchDocument `json:"origin"`
	Methods     string           `json:"methods,omitempty"`
	Headers     string           `json:"headers,omitempty"`
	Expose      string           `json:"expose,omitempty"`
	Credentials bool             `json:"credentials,omitempty"`
	MaxAge      uint32           `json:"maxAge"`
}

// pathDocument replaces the whole path with Full or, if that is empty, the matched prefix
// with Prefix, which does not end with a slash and may be empty.
type pathDocument struct {
	Full   string `json:"full,omitempty"`
	Prefix string `json:"prefix"`
}

type retryDocument struct {
	On       []string `json:"on"`
	Codes    []uint16 `json:"codes,omitempty"`
	Attempts uint32   `json:"attempts"`
	PerTry   float64  `json:"perTry,omitempty"`
	Backoff  float64  `json:"backoff,omitempty"`
}

type hashDocument struct {
	Header    string  `json:"header,omitempty"`
	Cookie    string  `json:"cookie,omitempty"`
	CookieTTL float64 `json:"cookieTTL,omitempty"`
	SourceIP  bool    `json:"sourceIP,omitempty"`
}

// backendDocument is a set of endpoints with one policy.
type backendDocument struct {
	header
	Name     string `json:"name"`
	Service  string `json:"service"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
	// HTTP1 says that requests go on by HTTP/1.1, whatever they came by.
	HTTP1        bool               `json:"http1,omitempty"`
	HTTP2        bool               `json:"http2,omitempty"`
	Endpoints    []endpointDocument `json:"endpoints,omitempty"`
	ExternalName string             `json:"externalName,omitempty"`
	// HealthChecks says that the proxy checks whether the endpoints can be connected to.
	HealthChecks bool           `json:"healthChecks,omitempty"`
	Policy       policyDocument `json:"policy"`
}

type endpointDocument struct {
	// Address is host:port, the IPv4 address if the endpoint has one.
	Address string `json:"address"`
	// ServerName is sent as SNI and verified; empty means plaintext.
	ServerName string `json:"serverName,omitempty"`
	Workload   string `json:"workload,omitempty"`
	Zone       string `json:"zone,omitempty"`
	Draining   bool   `json:"draining,omitempty"`
}

type policyDocument struct {
	// An absent limit means no limit; 0 is a limit.
	MaxConnections        *uint32           `json:"maxConnections,omitempty"`
	MaxRequests           *uint32           `json:"maxRequests,omitempty"`
	MaxPendingRequests    *uint32           `json:"maxPendingRequests,omitempty"`
	MaxRetries            *uint32           `json:"maxRetries,omitempty"`
	RequestsPerConnection uint32            `json:"requestsPerConnection,omitempty"`
	ConnectTimeout        float64           `json:"connectTimeout,omitempty"`
	RequestTimeout        float64           `json:"requestTimeout,omitempty"`
	IdleTimeout           float64           `json:"idleTimeout,omitempty"`
	Ejection              *ejectionDocument `json:"ejection,omitempty"`
	// LoadBalancing is a policy of package mesh; PreferZone can be combined with each.
	LoadBalancing string `json:"loadBalancing,omitempty"`
	PreferZone    bool   `json:"preferZone,omitempty"`
}

type ejectionDocument struct {
	ConsecutiveErrors uint32  `json:"consecutiveErrors"`
	Interval          float64 `json:"interval,omitempty"`
	BaseTime          float64 `json:"baseTime,omitempty"`
	MaxPercent        uint32  `json:"maxPercent,omitempty"`
}

// egressDocument lists the hosts and addresses outside the mesh that may be called.
type egressDocument struct {
	header
	AllowAll bool `json:"allowAll,omitempty"`
	// Ports are keyed by their decimal number.
	Ports map[string]*egressPortDocument `json:"ports,omitempty"`
	// Unknown are address ranges with destinations of the mesh that the proxy may not know.
	Unknown []string `json:"unknown,omitempty"`
}

type egressPortDocument struct {
	// Protocol is "http", "tls" or "tcp".
	Protocol string               `json:"protocol"`
	Hosts    []egressHostDocument `json:"hosts,omitempty"`
	Ranges   []string             `json:"ranges,omitempty"`
}

type egressHostDocument struct {
	Host string `json:"host"`
	// Within takes precedence over Matches.
	Within  []egressWithin    `json:"within,omitempty"`
	Matches []requestDocument `json:"matches"`
	Policy  policyDocument    `json:"policy"`
}

// egressWithin allows requests to addresses in the ranges.
type egressWithin struct {
	Ranges  []string          `json:"ranges"`
	Matches []requestDocument `json:"matches"`
}
