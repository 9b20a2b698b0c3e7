package telemetry

import "slices"

// The reasons why a sidecar refuses a request or connection, the same for every proxy.
const (
	ReasonAccess         = "access"
	ReasonPlaintext      = "plaintext"
	ReasonCertificate    = "certificate"
	ReasonRateLimit      = "rate_limit"
	ReasonAuthorization  = "authorization"
	ReasonEgress         = "egress"
	ReasonInvalidRequest = "invalid_request"
	ReasonNotHTTP        = "not_http"
	ReasonNoRoute        = "no_route"
	ReasonNoEndpoint     = "no_endpoint"
)

// Reason is a reason with its meaning.
type Reason struct{ Name, Meaning string }

var reasons = []Reason{
	{ReasonAccess, "no policy lets the caller send this request or connection"},
	{ReasonPlaintext, "the caller used no TLS of the mesh at a port that requires it"},
	{ReasonCertificate, "the TLS handshake failed, for example because a certificate is not trusted or has expired"},
	{ReasonRateLimit, "a rate limit of the server is exceeded"},
	{ReasonAuthorization, "the mesh's external authorization service has refused the request, or did not answer"},
	{ReasonEgress, "the destination is outside of the mesh, and no Egress allows it"},
	{ReasonInvalidRequest, "the request is malformed or ambiguous"},
	{ReasonNotHTTP, "the port is an HTTP port, and what was sent to it is not HTTP; set the appProtocol of the Service's port, for example to tcp"},
	{ReasonNoRoute, "no route of the service matches the request"},
	{ReasonNoEndpoint, "no endpoint of the service can be called"},
}

// Reasons returns all reasons.
func Reasons() []Reason { return slices.Clone(reasons) }

// IsReason reports whether the name is that of a reason.
func IsReason(name string) bool {
	return slices.ContainsFunc(reasons, func(r Reason) bool { return r.Name == name })
}
