package driver

import "time"

// HealthProbes are the health probes of one application container before injection. A
// nil probe means that the container has none.
type HealthProbes struct {
	Liveness, Readiness, Startup *HealthProbe
}

// HealthProbe is one probe of an application: exactly one of HTTP, TCPSocket and GRPC.
// Probes that run a command in the container are not listed; injection does not change
// them.
type HealthProbe struct {
	// Path is the path of an HTTP probe.
	Path string
	// Port is the port number; named ports are resolved.
	Port int32
	// HTTP is set for HTTP probes.
	HTTP bool
	// Scheme is "HTTP" or "HTTPS" for HTTP probes.
	Scheme string
	// TCPSocket is set if the probe opens a TCP connection.
	TCPSocket bool
	// GRPC is set if the probe calls the gRPC health service named GRPCService.
	GRPC        bool
	GRPCService string
	// Timeout is the application's time limit to answer.
	Timeout time.Duration
}
