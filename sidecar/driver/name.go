package driver

import "github.com/outrigger-mesh/outrigger/sidecar/agentspec"

// Names and numbers of the injected parts, equal for all drivers. The ports are the
// same as in Open Service Mesh, for its users' sake.
const (
	// InitContainer redirects the pod's traffic and installs the agent.
	InitContainer = "outrigger-init"
	// ProxyContainer runs the agent, which runs the proxy.
	ProxyContainer = "outrigger-proxy"
	// ProxyUID is the user ID of the proxy. Connections of this user are not redirected,
	// so no other container of the pod may use it.
	ProxyUID = 1500

	// AdminPort serves the proxy's admin page, on loopback only.
	AdminPort = 15000
	// OutboundPort and InboundPort accept redirected connections.
	OutboundPort = 15001
	InboundPort  = 15003
	// MetricsPort serves the proxy's metrics for Prometheus.
	MetricsPort = 15010
	// MetricsPath is the path of the metrics on that port.
	MetricsPath = "/stats/prometheus"
	// AgentPort answers probes and hooks.
	AgentPort = 15901

	// ADSPort, RepoPort and IdentityPort are the controller's ports for Envoy's discovery
	// service, Pipy's repository and the signing service.
	ADSPort      = 15128
	RepoPort     = 6060
	IdentityPort = 15129
)

// Paths in the sidecar container.
const (
	// BinDir holds the agent.
	BinDir = agentspec.BinDir
	// RunDir is the writable directory for the proxy's files.
	RunDir = agentspec.RunDir
	// KnownSocket and OutsideSocket are sockets of the proxy that take connections back from
	// the agent (agentspec.OnDemand).
	KnownSocket   = RunDir + "/known.sock"
	OutsideSocket = RunDir + "/outside.sock"
	// IdentityDir holds key.pem, chain.pem, bundle.pem, and identity.pem, which combines
	// key and chain. All files are replaced together.
	IdentityDir = agentspec.IdentityDir
)
