package mesh

import "time"

// Settings hold for the whole mesh. There is one.
type Settings struct {
	Sealed
	// TrustDomain is the trust domain of every identity.
	TrustDomain string `json:"trustDomain"`
	// Roots verify the certificates of the mesh, as PEM. Each pod has them beside its
	// identity too; they are here for proxies that need them in one piece with what
	// follows the mesh. Empty where no certificates are signed, as in a dry run.
	Roots string `json:"roots,omitempty"`
	// PermissivePolicy lets every identity of the mesh call every service of it.
	PermissivePolicy bool `json:"permissivePolicy"`
	// InboundTLS is the mode of namespaces and workloads that have none of their own.
	InboundTLS TLSMode `json:"inboundTLS"`
	// Egress lets everything out of the mesh. EgressPolicy says whether EgressRules
	// are honoured, IngressPolicy whether IngressRules are, RetryPolicy whether
	// RetryRules are.
	Egress        bool `json:"egress,omitempty"`
	EgressPolicy  bool `json:"egressPolicy,omitempty"`
	IngressPolicy bool `json:"ingressPolicy,omitempty"`
	RetryPolicy   bool `json:"retryPolicy,omitempty"`
	// PlaintextClasses are the sidecar classes whose pods speak no mesh TLS, sorted.
	PlaintextClasses []string `json:"plaintextClasses,omitempty"`
	// HealthChecks makes a proxy probe its endpoints.
	HealthChecks bool `json:"healthChecks,omitempty"`

	TLS           TLS            `json:"tls"`
	AccessLog     AccessLog      `json:"accessLog"`
	Tracing       *Tracing       `json:"tracing,omitempty"`
	Authorization *Authorization `json:"authorization,omitempty"`
}

// TLS is how proxies speak TLS to each other.
type TLS struct {
	// Min and Max are "1.2" or "1.3".
	Min string `json:"min"`
	Max string `json:"max"`
	// Ciphers are OpenSSL's names of ciphers for TLS 1.2; none means the proxy's own
	// choice, and so for Curves, which are named such as X25519 and P-256.
	Ciphers []string `json:"ciphers,omitempty"`
	Curves  []string `json:"curves,omitempty"`
}

// AccessLog says whether and how proxies log requests and connections, as one
// JSON object a line on their output.
type AccessLog struct {
	Enabled bool `json:"enabled"`
}

// Tracing is where proxies send spans.
type Tracing struct {
	// Protocol is "zipkin" or "otlp" (gRPC).
	Protocol string `json:"protocol"`
	// Host is a name or an address.
	Host string `json:"host"`
	Port uint16 `json:"port"`
	// Path is for Zipkin.
	Path string `json:"path,omitempty"`
	// Sampled is the share of requests that begin a trace, in millionths.
	Sampled uint32 `json:"sampled"`
}

// Authorization is a service of the user's that is asked about each inbound HTTP
// request, by Envoy's gRPC protocol envoy.service.auth.v3.
type Authorization struct {
	Host    string        `json:"host"`
	Port    uint16        `json:"port"`
	Timeout time.Duration `json:"timeout"`
	// StatPrefix begins the names of its metrics.
	StatPrefix string `json:"statPrefix,omitempty"`
	// AllowOnFailure lets requests pass while it does not answer.
	AllowOnFailure bool `json:"allowOnFailure,omitempty"`
}
