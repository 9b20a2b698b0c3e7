package driver

import "github.com/outrigger-mesh/outrigger/sidecar/agentspec"

// Names and numbers of the injected parts, the same for every driver. The ports
// are those of Open Service Mesh, so that its users find them.
const (
	// InitContainer redirects the pod's traffic and brings the agent.
	InitContainer = "outrigger-init"
	// ProxyContainer runs the agent, and the agent the proxy.
	ProxyContainer = "outrigger-proxy"
	// ProxyUID is the user that the proxy runs as. Its own connections are not
	// redirected, so no other container of the pod may run as it.
	ProxyUID = 1500

	// AdminPort is the proxy's own admin page, on loopback only.
	AdminPort = 15000
	// OutboundPort and InboundPort are where redirected connections arrive.
	OutboundPort = 15001
	InboundPort  = 15003
	// MetricsPort serves the proxy's metrics for Prometheus.
	MetricsPort = 15010
	// MetricsPath is the path of the metrics on that port.
	MetricsPath = "/stats/prometheus"
	// AgentPort answers probes and hooks.
	AgentPort = 15901

	// ADSPort, RepoPort and IdentityPort are the controller's: Envoy's
	// discovery service, Pipy's repository, and the signing service.
	ADSPort      = 15128
	RepoPort     = 6060
	IdentityPort = 15129
)

// Paths in the sidecar container.
const (
	// BinDir holds the agent.
	BinDir = agentspec.BinDir
	// RunDir is where the proxy's files belong; it can be written to.
	RunDir = agentspec.RunDir
	// IdentityDir holds key.pem, chain.pem, bundle.pem, and identity.pem, which is key and
	// chain, replaced as one.
	IdentityDir = agentspec.IdentityDir
)
