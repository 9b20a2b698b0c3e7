package mesh

// Feature is something that a View may ask for and that not every kind of proxy can
// do. What is not a feature every driver must do: mTLS between pods, access by the
// identity of the caller, HTTP/1.1 and TCP, routes and weights, and to deny what it
// can't express. View.Needs says what a View asks for.
type Feature string

// The features.
const (
	// FeatureHTTP2 is HTTP/2 from the client to the server's application, gRPC with its
	// streams and trailers among it.
	FeatureHTTP2 Feature = "HTTP2"
	// FeatureWebSocket is the upgrade of HTTP/1.1 connections. No View asks for it: every
	// HTTP port may.
	FeatureWebSocket Feature = "WebSocket"
	// FeatureServerFirst is TCP where the server speaks first.
	FeatureServerFirst Feature = "ServerFirst"
	// FeatureIPv6 is destinations and peers with IPv6 addresses.
	FeatureIPv6 Feature = "IPv6"
	// FeatureExternalNames are backends that are DNS names (services of type ExternalName).
	FeatureExternalNames Feature = "ExternalNames"
	// FeaturePermissiveTLS takes plaintext, and an application's own TLS, beside mesh TLS on
	// one port (inboundTLSMode Permissive).
	FeaturePermissiveTLS Feature = "PermissiveTLS"
	// FeatureTLSSettings are the TLS versions, ciphers and curves of the MeshConfig. A proxy
	// without it speaks TLS 1.3 alone.
	FeatureTLSSettings Feature = "TLSSettings"
	// FeatureHeaderMatches and FeatureQueryMatches are conditions on headers and query parameters.
	FeatureHeaderMatches Feature = "HeaderMatches"
	FeatureQueryMatches  Feature = "QueryMatches"

	// FeatureRetries repeat requests, and FeatureTimeouts limit them, with their retries and each
	// try.
	FeatureRetries  Feature = "Retries"
	FeatureTimeouts Feature = "Timeouts"
	// FeatureConnectTimeouts and FeatureIdleTimeouts are those of connections to endpoints.
	FeatureConnectTimeouts Feature = "ConnectTimeouts"
	FeatureIdleTimeouts    Feature = "IdleTimeouts"
	// FeatureConnectionLimits and FeatureRequestLimits break the circuit: UpstreamPolicy's
	// MaxConnections, and its MaxRequests, MaxPendingRequests and MaxRetries.
	FeatureConnectionLimits Feature = "ConnectionLimits"
	FeatureRequestLimits    Feature = "RequestLimits"
	// FeatureRequestsPerConnection is UpstreamPolicy's field of that name.
	FeatureRequestsPerConnection Feature = "RequestsPerConnection"
	// FeatureOutlierEjection is UpstreamPolicy's Ejection.
	FeatureOutlierEjection Feature = "OutlierEjection"
	// FeatureHealthChecks are probes of endpoints by the client's proxy.
	FeatureHealthChecks Feature = "HealthChecks"
	// FeatureLeastRequest, FeatureRandomEndpoint and FeatureConsistentHash (RingHash and Maglev) are ways to
	// choose an endpoint beside RoundRobin, and FeatureZonePreference goes with any.
	FeatureLeastRequest   Feature = "LeastRequest"
	FeatureRandomEndpoint Feature = "RandomEndpoint"
	FeatureConsistentHash Feature = "ConsistentHash"
	FeatureZonePreference Feature = "ZonePreference"

	// FeatureConnectionRateLimits and FeatureRequestRateLimits are those of RateLimits; the latter
	// with limits by path.
	FeatureConnectionRateLimits Feature = "ConnectionRateLimits"
	FeatureRequestRateLimits    Feature = "RequestRateLimits"
	// FeatureExternalAuthorization asks a service of the user's about each inbound request.
	FeatureExternalAuthorization Feature = "ExternalAuthorization"
	// FeatureIngress takes plaintext from outside the mesh by address, and FeatureIngressTLS takes
	// TLS, with and without certificates of the mesh.
	FeatureIngress    Feature = "Ingress"
	FeatureIngressTLS Feature = "IngressTLS"
	// FeatureEgressHTTP, FeatureEgressTLS and FeatureEgressTCP are calls out of the mesh by host, by server
	// name and by address.
	FeatureEgressHTTP Feature = "EgressHTTP"
	FeatureEgressTLS  Feature = "EgressTLS"
	FeatureEgressTCP  Feature = "EgressTCP"

	// FeatureAccessLogs are one JSON object for each request and connection.
	FeatureAccessLogs Feature = "AccessLogs"
	// FeatureZipkinTracing and FeatureOTLPTracing send spans by one protocol or the other.
	FeatureZipkinTracing Feature = "ZipkinTracing"
	FeatureOTLPTracing   Feature = "OTLPTracing"
	// FeaturePlaintextMesh is a class whose pods speak no mesh TLS (Proxy.Plaintext).
	FeaturePlaintextMesh Feature = "PlaintextMesh"
)

// Features returns all features, in the order of the documentation.
func Features() []Feature {
	return []Feature{
		FeatureHTTP2, FeatureWebSocket, FeatureServerFirst, FeatureIPv6, FeatureExternalNames, FeaturePermissiveTLS, FeatureTLSSettings, FeatureHeaderMatches, FeatureQueryMatches,
		FeatureRetries, FeatureTimeouts, FeatureConnectTimeouts, FeatureIdleTimeouts, FeatureConnectionLimits, FeatureRequestLimits, FeatureRequestsPerConnection,
		FeatureOutlierEjection, FeatureHealthChecks, FeatureLeastRequest, FeatureRandomEndpoint, FeatureConsistentHash, FeatureZonePreference,
		FeatureConnectionRateLimits, FeatureRequestRateLimits, FeatureExternalAuthorization, FeatureIngress, FeatureIngressTLS, FeatureEgressHTTP, FeatureEgressTLS, FeatureEgressTCP,
		FeatureAccessLogs, FeatureZipkinTracing, FeatureOTLPTracing, FeaturePlaintextMesh,
	}
}
