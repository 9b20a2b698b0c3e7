package mesh

import "slices"

// Feature is a capability that a View may require and that some proxies lack. Everything
// else is mandatory for drivers: mTLS between pods, access control by the caller's
// identity, HTTP/1.1 and TCP, routes and weights, and denying what the proxy can't
// express. Only drivers without a proxy may deny HTTP/1.1 and TCP altogether. View.Needs
// returns the features that a View requires.
type Feature string

// The features.
const (
	// FeatureHTTP2 is HTTP/2 from the client to the server's application, including gRPC
	// streams and trailers.
	FeatureHTTP2 Feature = "HTTP2"
	// FeatureHTTP2Resets resets a stream of HTTP/2 whose message was broken off, in both
	// directions, so that no receiver takes a part of it for the whole.
	FeatureHTTP2Resets Feature = "HTTP2Resets"
	// FeatureWebSocket is the upgrade of HTTP/1.1 connections. No View requires it, since
	// any HTTP port may use it.
	FeatureWebSocket Feature = "WebSocket"
	// FeatureServerFirst is TCP in which the server speaks first.
	FeatureServerFirst Feature = "ServerFirst"
	// FeatureIPv6 is destinations and peers with IPv6 addresses.
	FeatureIPv6 Feature = "IPv6"
	// FeatureExternalNames are backends that are DNS names (services of type ExternalName).
	FeatureExternalNames Feature = "ExternalNames"
	// FeaturePermissiveTLS accepts plaintext, the application's own TLS and mesh TLS on
	// one port (inboundTLSMode Permissive).
	FeaturePermissiveTLS Feature = "PermissiveTLS"
	// FeatureTLSSettings are the MeshConfig's TLS versions and ciphers, and FeatureTLSCurves
	// its curves. A proxy without the first uses only TLS 1.3, and one without the second its
	// own curves.
	FeatureTLSSettings Feature = "TLSSettings"
	FeatureTLSCurves   Feature = "TLSCurves"
	// FeatureHeaderMatches and FeatureQueryMatches are conditions on headers and query parameters.
	FeatureHeaderMatches Feature = "HeaderMatches"
	FeatureQueryMatches  Feature = "QueryMatches"
	// FeatureHeaderChanges are the HeaderChanges of requests and responses,
	// FeatureRewrites changes the host or path of requests, and FeatureRedirects answers
	// requests with another URL.
	FeatureHeaderChanges Feature = "HeaderChanges"
	FeatureRewrites      Feature = "Rewrites"
	FeatureRedirects     Feature = "Redirects"
	// FeatureCORS answers requests of other origins (Route's CORS).
	FeatureCORS Feature = "CORS"
	// FeatureMirrors sends copies of requests to other Backends.
	FeatureMirrors Feature = "Mirrors"
	// FeatureSessionPersistence keeps a client's requests at one endpoint (Route's Session).
	FeatureSessionPersistence Feature = "SessionPersistence"
	// FeatureGateways is the part of a gateway's proxy: it listens at ports of its pod and routes
	// by host (Destination's Listens and Hosts, and Proxy's Gateway).
	FeatureGateways Feature = "Gateways"
	// FeatureTermination makes a gateway's proxy the end of TLS (Destination's Certificates).
	FeatureTermination Feature = "Termination"
	// FeatureServerNames routes TLS connections by server name (Destination's Servers).
	FeatureServerNames Feature = "ServerNames"

	// FeatureRetries retries requests. FeatureRetryCodes are Retry's Codes other than 500
	// to 504, and FeatureRetryBackoff is its Backoff.
	FeatureRetries      Feature = "Retries"
	FeatureRetryCodes   Feature = "RetryCodes"
	FeatureRetryBackoff Feature = "RetryBackoff"
	// FeatureTimeouts limits requests including retries, and single attempts.
	FeatureTimeouts Feature = "Timeouts"
	// FeatureConnectTimeouts and FeatureIdleTimeouts apply to connections to endpoints.
	FeatureConnectTimeouts Feature = "ConnectTimeouts"
	FeatureIdleTimeouts    Feature = "IdleTimeouts"
	// FeatureConnectionLimits and FeatureRequestLimits are circuit breakers:
	// UpstreamPolicy's MaxConnections, and its MaxRequests, MaxPendingRequests and
	// MaxRetries.
	FeatureConnectionLimits Feature = "ConnectionLimits"
	FeatureRequestLimits    Feature = "RequestLimits"
	// FeatureRequestsPerConnection is UpstreamPolicy's field of that name.
	FeatureRequestsPerConnection Feature = "RequestsPerConnection"
	// FeatureOutlierEjection is UpstreamPolicy's Ejection.
	FeatureOutlierEjection Feature = "OutlierEjection"
	// FeatureHealthChecks are probes of the endpoints by the client's proxy.
	FeatureHealthChecks Feature = "HealthChecks"
	// FeatureLeastRequest, FeatureRandomEndpoint and FeatureConsistentHash (RingHash and
	// Maglev) are load balancing algorithms besides RoundRobin. FeatureZonePreference
	// combines with any of them.
	FeatureLeastRequest   Feature = "LeastRequest"
	FeatureRandomEndpoint Feature = "RandomEndpoint"
	FeatureConsistentHash Feature = "ConsistentHash"
	FeatureZonePreference Feature = "ZonePreference"

	// FeatureConnectionRateLimits and FeatureRequestRateLimits implement RateLimits; the
	// latter includes limits by path.
	FeatureConnectionRateLimits Feature = "ConnectionRateLimits"
	FeatureRequestRateLimits    Feature = "RequestRateLimits"
	// FeatureExternalAuthorization checks each inbound request with an external service.
	FeatureExternalAuthorization Feature = "ExternalAuthorization"
	// FeatureForwardedFor tells applications the address of the caller.
	FeatureForwardedFor Feature = "ForwardedFor"
	// FeatureProxyProtocol begins connections to the application with a header of the PROXY
	// protocol (InboundPort's ProxyProtocol).
	FeatureProxyProtocol Feature = "ProxyProtocol"
	// FeatureAudit counts what access rules would refuse, without enforcing them (Access's
	// Audit). A proxy without it ignores the audit.
	FeatureAudit Feature = "Audit"
	// FeatureAccessPolicies refuses what access rules deny and except (Access's Denials and
	// Permission's Except), and lets rules name all identities of a namespace.
	FeatureAccessPolicies Feature = "AccessPolicies"
	// FeatureTokens verifies tokens of end users and compares their claims (HTTPMatch's Token and
	// Inbound's Issuers), with keys for RS256 to RS512 and ES256 to ES512. FeatureTokensPSS and
	// FeatureTokensEdDSA are keys for PS256 to PS512 and for EdDSA with Ed25519. A proxy that lacks
	// one of the last two ignores such keys, so it verifies no token of theirs.
	FeatureTokens      Feature = "Tokens"
	FeatureTokensPSS   Feature = "TokensPSS"
	FeatureTokensEdDSA Feature = "TokensEdDSA"
	// FeatureIngress accepts plaintext from outside the mesh by source address, and
	// FeatureIngressTLS accepts TLS, with and without mesh certificates.
	FeatureIngress    Feature = "Ingress"
	FeatureIngressTLS Feature = "IngressTLS"
	// FeatureEgressHTTP, FeatureEgressTLS and FeatureEgressTCP allow calls out of the mesh
	// by host, by server name and by address.
	FeatureEgressHTTP Feature = "EgressHTTP"
	FeatureEgressTLS  Feature = "EgressTLS"
	FeatureEgressTCP  Feature = "EgressTCP"
	// FeatureOnDemand hands connections to unknown destinations to the agent (Outbound's
	// Unknown).
	FeatureOnDemand Feature = "OnDemand"

	// FeatureOpenConnections counts TCP connections and their bytes while they are open, at most
	// ten seconds late, and not only when they end. No View requires it, since it changes no
	// traffic.
	FeatureOpenConnections Feature = "OpenConnections"
	// FeatureAccessLogs writes one JSON object per request and connection.
	FeatureAccessLogs Feature = "AccessLogs"
	// FeatureAccessLogSampling limits them to errors and a share of the others (AccessLog's
	// Sampled).
	FeatureAccessLogSampling Feature = "AccessLogSampling"
	// FeatureZipkinTracing and FeatureOTLPTracing send spans in the Zipkin or OTLP format.
	FeatureZipkinTracing Feature = "ZipkinTracing"
	FeatureOTLPTracing   Feature = "OTLPTracing"
	// FeaturePlaintextMesh is a class whose pods don't use mesh TLS (Proxy.Plaintext).
	FeaturePlaintextMesh Feature = "PlaintextMesh"
)

// FeaturesWithout returns all features but those that a driver lacks.
func FeaturesWithout(lacks map[Feature]string) []Feature {
	return slices.DeleteFunc(Features(), func(f Feature) bool {
		_, isLacking := lacks[f]
		return isLacking
	})
}

// Features returns all features in the order used in the documentation.
func Features() []Feature {
	return []Feature{
		FeatureHTTP2, FeatureHTTP2Resets, FeatureWebSocket, FeatureServerFirst, FeatureIPv6, FeatureExternalNames, FeaturePermissiveTLS, FeatureTLSSettings, FeatureTLSCurves, FeatureHeaderMatches, FeatureQueryMatches,
		FeatureHeaderChanges, FeatureRewrites, FeatureRedirects, FeatureCORS, FeatureMirrors, FeatureSessionPersistence, FeatureServerNames, FeatureGateways, FeatureTermination,
		FeatureRetries, FeatureRetryCodes, FeatureRetryBackoff, FeatureTimeouts, FeatureConnectTimeouts, FeatureIdleTimeouts, FeatureConnectionLimits, FeatureRequestLimits, FeatureRequestsPerConnection,
		FeatureOutlierEjection, FeatureHealthChecks, FeatureLeastRequest, FeatureRandomEndpoint, FeatureConsistentHash, FeatureZonePreference,
		FeatureConnectionRateLimits, FeatureRequestRateLimits, FeatureExternalAuthorization, FeatureForwardedFor, FeatureProxyProtocol, FeatureAudit, FeatureAccessPolicies, FeatureTokens, FeatureTokensPSS, FeatureTokensEdDSA, FeatureIngress, FeatureIngressTLS, FeatureEgressHTTP, FeatureEgressTLS, FeatureEgressTCP, FeatureOnDemand,
		FeatureOpenConnections, FeatureAccessLogs, FeatureAccessLogSampling, FeatureZipkinTracing, FeatureOTLPTracing, FeaturePlaintextMesh,
	}
}
