package mesh

import "time"

// Settings are mesh-wide, except for AccessLog, which a namespace or a pod may set. Proxies
// with the same access log share one instance.
type Settings struct {
	Sealed
	// TrustDomain is the SPIFFE trust domain of all identities.
	TrustDomain string `json:"trustDomain"`
	// Roots are the mesh's trusted root certificates, as PEM. Pods also get them with
	// their identity; they are here for proxies that need roots and configuration in one
	// document. Empty where no certificates are issued, as in a dry run.
	Roots string `json:"roots,omitempty"`
	// PermissivePolicy lets every mesh identity call every mesh service.
	PermissivePolicy bool `json:"permissivePolicy"`
	// InboundTLS is the mode of namespaces and workloads that don't set their own.
	InboundTLS TLSMode `json:"inboundTLS"`
	// Egress allows all traffic out of the mesh. EgressPolicy, IngressPolicy and
	// RetryPolicy enable EgressRules, IngressRules and RetryRules.
	Egress        bool `json:"egress,omitempty"`
	EgressPolicy  bool `json:"egressPolicy,omitempty"`
	IngressPolicy bool `json:"ingressPolicy,omitempty"`
	RetryPolicy   bool `json:"retryPolicy,omitempty"`
	// ConnectTimeout applies to the Backends whose policy has none; 0 means that none has.
	// Each Backend's Policy contains it.
	ConnectTimeout time.Duration `json:"connectTimeout,omitempty"`
	// PlaintextClasses are the sidecar classes whose pods don't use mesh TLS, sorted.
	PlaintextClasses []string `json:"plaintextClasses,omitempty"`
	// ForwardedFor adds the address of the caller to the header x-forwarded-for of the requests
	// that a proxy forwards to its application.
	ForwardedFor bool `json:"forwardedFor,omitempty"`
	// HealthChecks makes a proxy probe its endpoints.
	HealthChecks bool `json:"healthChecks,omitempty"`

	TLS           TLS            `json:"tls"`
	AccessLog     AccessLog      `json:"accessLog"`
	Tracing       *Tracing       `json:"tracing,omitempty"`
	Authorization *Authorization `json:"authorization,omitempty"`
}

// TLSMode says which traffic a workload accepts besides mesh TLS.
type TLSMode string

const (
	// Strict accepts only mesh TLS.
	Strict TLSMode = "Strict"
	// Permissive also accepts plaintext and the application's own TLS.
	Permissive TLSMode = "Permissive"
)

// TLS configures TLS between proxies.
type TLS struct {
	// Min and Max are "1.2" or "1.3".
	Min string `json:"min"`
	Max string `json:"max"`
	// Ciphers are OpenSSL names of TLS 1.2 ciphers, and Curves names such as X25519 and
	// P-256. Empty means the proxy's default.
	Ciphers []string `json:"ciphers,omitempty"`
	Curves  []string `json:"curves,omitempty"`
}

// AccessLog configures access logs: one JSON object per line on the proxy's output for
// each request and connection.
type AccessLog struct {
	Enabled bool `json:"enabled"`
	// Sampled is the share of requests and connections that get a line, in millionths. Errors
	// always get one: requests without an answer or with a status code of 500 or more, those
	// that the proxy has refused, and connections that have failed.
	Sampled uint32 `json:"sampled"`
}

// EverythingSampled is the Sampled of an access log with a line for each request and connection.
const EverythingSampled uint32 = 1_000_000

// FullAccessLog returns the access log of everything.
func FullAccessLog() AccessLog { return AccessLog{Enabled: true, Sampled: EverythingSampled} }

// IsSampled reports whether there are lines for some requests and connections only.
func (a AccessLog) IsSampled() bool { return a.Enabled && a.Sampled < EverythingSampled }

// Tracing is the destination of the proxies' spans.
type Tracing struct {
	// Protocol is "zipkin" or "otlp" (gRPC).
	Protocol string `json:"protocol"`
	// Host is a name or an address.
	Host string `json:"host"`
	Port uint16 `json:"port"`
	// Path is the HTTP path for Zipkin.
	Path string `json:"path,omitempty"`
	// Sampled is the share of requests for which a trace is started, in millionths.
	Sampled uint32 `json:"sampled"`
}

// Authorization is an external authorization service of the user's that checks each
// inbound HTTP request, with Envoy's gRPC API envoy.service.auth.v3.
type Authorization struct {
	Host    string        `json:"host"`
	Port    uint16        `json:"port"`
	Timeout time.Duration `json:"timeout"`
	// StatPrefix is the prefix of its metrics' names.
	StatPrefix string `json:"statPrefix,omitempty"`
	// AllowOnFailure lets requests pass while the service does not answer.
	AllowOnFailure bool `json:"allowOnFailure,omitempty"`
}
