package driver

import "time"

// HealthProbes are the health probes of one container of the app, as they were
// before injection. A nil probe is one that the container does not have.
type HealthProbes struct {
	Liveness, Readiness, Startup *HealthProbe
}

// HealthProbe is one probe of an app: exactly one of HTTP, TCPSocket and GRPC.
// Probes that run a command in the container are not listed; injection does not
// touch them.
type HealthProbe struct {
	// Path is asked for by HTTP probes.
	Path string
	// Port is the number, also where the container names it.
	Port int32
	// HTTP says that it is an HTTP probe.
	HTTP bool
	// Scheme is "HTTP" or "HTTPS" for HTTP probes.
	Scheme string
	// TCPSocket says that opening a connection is the probe.
	TCPSocket bool
	// GRPC says that it asks the gRPC health service named GRPCService.
	GRPC        bool
	GRPCService string
	// Timeout is how long the app may take to answer.
	Timeout time.Duration
}
