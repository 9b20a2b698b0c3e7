package pipy

// schema is the version of the documents. The scripts refuse another one, and a change
// that they could not read needs a higher number.
const schema = 2

// The names of the documents in the repository. All of them begin with liveDir: the
// scripts take up changes of them by themselves.
const (
	liveDir          = "config/"
	settingsFile     = liveDir + "settings.json"
	inboundFile      = liveDir + "inbound.json"
	egressFile       = liveDir + "egress.json"
	destinationsDir  = liveDir + "destinations/"
	backendsDir      = liveDir + "backends/"
	documentFileType = ".json"
)

// What follows are the documents: one JSON object a file, with Go's names of fields
// beginning in lower case. Durations are in seconds, addresses are text, and identities
// are SPIFFE IDs. Absent fields are zero.

// header begins every document.
type header struct {
	Schema int `json:"schema"`
}

// settingsDocument is what the proxy is and what holds for the whole mesh.
type settingsDocument struct {
	header
	// Pod is namespace/name, and Namespace, Name and ServiceAccount are the pod's.
	Pod            string   `json:"pod"`
	Namespace      string   `json:"namespace"`
	Name           string   `json:"name"`
	ServiceAccount string   `json:"serviceAccount"`
	UID            string   `json:"uid"`
	Zone           string   `json:"zone,omitempty"`
	Addresses      []string `json:"addresses,omitempty"`
	// ServerName is the DNS name of the pod's own identity.
	ServerName string `json:"serverName"`
	// TrustDomain ends mesh server names: ".sa.<trust domain>" is what an SNI of the
	// mesh ends in.
	TrustDomain string `json:"trustDomain"`
	// Plaintext says that the pod speaks no mesh TLS.
	Plaintext bool             `json:"plaintext,omitempty"`
	TLS       tlsDocument      `json:"tls"`
	AccessLog bool             `json:"accessLog,omitempty"`
	Tracing   *tracingDocument `json:"tracing,omitempty"`
	// Authorization is set where a service must be asked about each inbound request,
	// which Pipy can't: every inbound HTTP request is then answered with 403, or passes
	// if AllowOnFailure says so.
	Authorization *authorizationDocument `json:"authorization,omitempty"`
}

type tlsDocument struct {
	// Min and Max are "TLS1.2" or "TLS1.3", Pipy's names.
	Min string `json:"min"`
	Max string `json:"max"`
	// Ciphers are those of TLS 1.2 as in OpenSSL's list, joined by colons.
	Ciphers string `json:"ciphers,omitempty"`
}

type tracingDocument struct {
	// Address is host:port, and Path the URL's.
	Address string `json:"address"`
	Path    string `json:"path"`
	// Sampled is the share of requests that begin a trace, from 0 to 1.
	Sampled float64 `json:"sampled"`
}

type authorizationDocument struct {
	AllowOnFailure bool `json:"allowOnFailure,omitempty"`
}

// inboundDocument is what is taken for the application.
type inboundDocument struct {
	header
	Permissive bool `json:"permissive,omitempty"`
	// Ports are by number, as text.
	Ports map[string]*portDocument `json:"ports"`
	// Others is who may connect to other ports, by TCP.
	Others accessDocument `json:"others"`
}

type portDocument struct {
	// Protocol is "http" (HTTP/1.1 and HTTP/2), "tcp" or "server-first".
	Protocol string `json:"protocol"`
	// HTTP2 says of http that the application understands HTTP/2 and nothing else.
	HTTP2   bool              `json:"http2,omitempty"`
	Access  accessDocument    `json:"access"`
	Ingress []ingressDocument `json:"ingress,omitempty"`
	// Headers are those whose values rules compare: the application gets one spelling of
	// their names.
	Headers []string `json:"headers,omitempty"`
	// ConnectionLimit, RequestLimit and RouteLimits are of RateLimits. The first route
	// whose path matches is the only limit that counts.
	ConnectionLimit *bucketDocument     `json:"connectionLimit,omitempty"`
	RequestLimit    *requestLimit       `json:"requestLimit,omitempty"`
	RouteLimits     []routeLimitElement `json:"routeLimits,omitempty"`
}

// bucketDocument is a token bucket of Size tokens, which gets Tokens more every
// Interval.
type bucketDocument struct {
	Size     uint32  `json:"size"`
	Tokens   uint32  `json:"tokens"`
	Interval float64 `json:"interval"`
}

type requestLimit struct {
	bucketDocument
	// Status is that of the answer, at least 400.
	Status  uint32            `json:"status"`
	Headers map[string]string `json:"headers,omitempty"`
}

type routeLimitElement struct {
	Path  matchDocument `json:"path"`
	Limit requestLimit  `json:"limit"`
}

// accessDocument lets Anyone of the mesh call, or who a rule names.
type accessDocument struct {
	Anyone bool           `json:"anyone,omitempty"`
	Rules  []ruleDocument `json:"rules,omitempty"`
}

type ruleDocument struct {
	Name string `json:"name"`
	// Sources are identities, and Requests what they may ask for; an
	// empty object holds for everything, and no Requests for nothing.
	Sources  []string          `json:"sources"`
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

// requestDocument is an HTTPMatch.
type requestDocument struct {
	Path    *matchDocument     `json:"path,omitempty"`
	Methods []string           `json:"methods,omitempty"`
	Headers []keyMatchDocument `json:"headers,omitempty"`
	Query   []keyMatchDocument `json:"query,omitempty"`
}

// matchDocument is a StringMatch: one of the fields is set.
type matchDocument struct {
	Exact string `json:"exact,omitempty"`
	// Prefix is whole elements of a path, without a slash at its end.
	Prefix string `json:"prefix,omitempty"`
	// StringPrefix is the beginning of another string than a path.
	StringPrefix string `json:"stringPrefix,omitempty"`
	Present      bool   `json:"present,omitempty"`
	// Any holds for every string, and Never for none.
	Any   bool `json:"any,omitempty"`
	Never bool `json:"never,omitempty"`
	// Regex is an expression that the whole string must match.
	Regex *automaton `json:"regex,omitempty"`
}

type keyMatchDocument struct {
	Name string `json:"name"`
	matchDocument
}

// destinationDocument is what an application can connect to.
type destinationDocument struct {
	header
	Name      string   `json:"name"`
	Service   string   `json:"service"`
	Addresses []string `json:"addresses"`
	Port      uint16   `json:"port"`
	Protocol  string   `json:"protocol"`
	HTTP2     bool     `json:"http2,omitempty"`
	// Routes are for protocol http, Backends for the others.
	Routes   []routeDocument  `json:"routes,omitempty"`
	Backends []weightDocument `json:"backends,omitempty"`
	HashOn   []hashDocument   `json:"hashOn,omitempty"`
}

type routeDocument struct {
	Name     string           `json:"name,omitempty"`
	Match    requestDocument  `json:"match"`
	Backends []weightDocument `json:"backends,omitempty"`
	Timeout  float64          `json:"timeout,omitempty"`
	Retry    *retryDocument   `json:"retry,omitempty"`
}

type weightDocument struct {
	Backend string `json:"backend"`
	Weight  uint32 `json:"weight"`
}

type retryDocument struct {
	On       []string `json:"on"`
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

// backendDocument is endpoints that are called in one way.
type backendDocument struct {
	header
	Name         string             `json:"name"`
	Service      string             `json:"service"`
	Port         uint16             `json:"port"`
	Protocol     string             `json:"protocol"`
	HTTP2        bool               `json:"http2,omitempty"`
	Endpoints    []endpointDocument `json:"endpoints,omitempty"`
	ExternalName string             `json:"externalName,omitempty"`
	Policy       policyDocument     `json:"policy"`
}

type endpointDocument struct {
	// Address is host:port, of IPv4 where the endpoint has one.
	Address string `json:"address"`
	// ServerName is what is sent as SNI and verified; empty means plaintext.
	ServerName string `json:"serverName,omitempty"`
	Workload   string `json:"workload,omitempty"`
	Zone       string `json:"zone,omitempty"`
	Draining   bool   `json:"draining,omitempty"`
}

type policyDocument struct {
	// Absent means no limit, and 0 is one.
	MaxConnections        *uint32           `json:"maxConnections,omitempty"`
	MaxRequests           *uint32           `json:"maxRequests,omitempty"`
	MaxPendingRequests    *uint32           `json:"maxPendingRequests,omitempty"`
	MaxRetries            *uint32           `json:"maxRetries,omitempty"`
	RequestsPerConnection uint32            `json:"requestsPerConnection,omitempty"`
	ConnectTimeout        float64           `json:"connectTimeout,omitempty"`
	RequestTimeout        float64           `json:"requestTimeout,omitempty"`
	IdleTimeout           float64           `json:"idleTimeout,omitempty"`
	Ejection              *ejectionDocument `json:"ejection,omitempty"`
	// LoadBalancing is a name of package mesh, and PreferZone goes with any.
	LoadBalancing string `json:"loadBalancing,omitempty"`
	PreferZone    bool   `json:"preferZone,omitempty"`
}

type ejectionDocument struct {
	ConsecutiveErrors uint32  `json:"consecutiveErrors"`
	Interval          float64 `json:"interval,omitempty"`
	BaseTime          float64 `json:"baseTime,omitempty"`
	MaxPercent        uint32  `json:"maxPercent,omitempty"`
}

// egressDocument is what may be called outside the mesh.
type egressDocument struct {
	header
	AllowAll bool `json:"allowAll,omitempty"`
	// Ports are by number, as text.
	Ports map[string]*egressPortDocument `json:"ports,omitempty"`
}

type egressPortDocument struct {
	// Protocol is "http", "tls" or "tcp".
	Protocol string               `json:"protocol"`
	Hosts    []egressHostDocument `json:"hosts,omitempty"`
	Ranges   []string             `json:"ranges,omitempty"`
}

type egressHostDocument struct {
	Host string `json:"host"`
	// Within goes before Matches.
	Within  []egressWithin    `json:"within,omitempty"`
	Matches []requestDocument `json:"matches"`
	Policy  policyDocument    `json:"policy"`
}

// egressWithin are requests to addresses in the ranges.
type egressWithin struct {
	Ranges  []string          `json:"ranges"`
	Matches []requestDocument `json:"matches"`
}
