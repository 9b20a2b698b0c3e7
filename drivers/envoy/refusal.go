package envoy

import (
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// direction is where the requests and connections of a listener come from.
type direction string

const (
	atInbound   direction = "inbound"
	atPlaintext direction = "inbound plaintext"
	atOutbound  direction = "outbound"
	atEgress    direction = "egress"
	atUnmatched direction = "unmatched"
)

// refusal is something that Envoy says about a request or connection that it has refused.
type refusal struct {
	reason string
	// text is a part of a record's WHY.
	text string
	// expression is the same in CEL, for access logs.
	expression string
	// of, if set, is the only direction in which it means that.
	of direction
}

// ofTLS reports whether only a connection with TLS can be refused for this reason. Envoy's TLS
// inspector leaves a failure in connections without it, since it has found no ClientHello.
func (r refusal) ofTLS() bool { return strings.Contains(r.expression, "transport_failure_reason") }

// applies reports whether the refusal can happen to what comes from there.
func (r refusal) applies(from direction) bool {
	return (r.of == "" || r.of == from) && (from != atPlaintext || !r.ofTLS())
}

// refusals are in order: the first one that applies counts.
var refusals = []refusal{
	{telemetry.ReasonPlaintext, "unmatched ", "true", atUnmatched},
	{telemetry.ReasonAccess, "rbac_access_denied", joinOr(begins("response.code_details", "rbac_access_denied"), begins("connection.termination_details", "rbac_access_denied")), ""},
	{telemetry.ReasonAccess, "_SAN_", joinOr(contains("connection.transport_failure_reason", "SAN"), contains("upstream.transport_failure_reason", "SAN")), ""},
	{telemetry.ReasonAuthorization, " UAEX ", flag(0x1000), ""},
	{telemetry.ReasonRateLimit, " RL ", flag(0x800), ""},
	{telemetry.ReasonInvalidRequest, " DPE ", flag(0x40000), ""},
	{telemetry.ReasonCertificate, "TLS_error", joinOr(begins("connection.transport_failure_reason", "TLS_error"), begins("upstream.transport_failure_reason", "TLS_error")), ""},
	{telemetry.ReasonEgress, "egress 403 - direct_response", direct(403), atEgress},
	{telemetry.ReasonEgress, "egress 0 UH", joinAnd(flag(0x2), "!has(response.code_details)"), atEgress},
	{telemetry.ReasonNoRoute, " route_not_found", begins("response.code_details", "route_not_found"), ""},
	{telemetry.ReasonNoEndpoint, "outbound 503 - direct_response", direct(503), atOutbound},
	{telemetry.ReasonNoEndpoint, " UH ", flag(0x2), ""},
	{telemetry.ReasonNoEndpoint, " UF ", flag(0x20), ""},
	// After the last attempt.
	{telemetry.ReasonNoEndpoint, " UF,URX ", flag(0x8020), ""},
}

// reasons translate the WHY of records.
var reasons = each(refusals, func(r refusal) agentspec.Reason { return agentspec.Reason{Text: r.text, Reason: r.reason} })

// isRefused is a CEL expression that is true for refusals.
func isRefused(from direction) string {
	var all []string
	for _, r := range refusals {
		if r.applies(from) {
			all = append(all, r.expression)
		}
	}
	return joinOr(all...)
}

// reasonOf is a CEL expression whose value is the reason of a refusal, or "".
func reasonOf(from direction) string {
	out := &strings.Builder{}
	for _, r := range refusals {
		if r.applies(from) {
			fmt.Fprintf(out, "%s ? '%s' : ", r.expression, r.reason)
		}
	}
	return out.String() + "''"
}

// flag holds if the response flags are these only, as a WHY has them between spaces.
func flag(bits int) string { return fmt.Sprintf("response.flags == %d", bits) }

func direct(status int) string {
	return joinAnd(fmt.Sprintf("response.code == %d", status), begins("response.code_details", "direct_response"))
}

// An attribute that a request or connection lacks is an error in CEL unless "has" comes first.
func begins(attribute, text string) string {
	return fmt.Sprintf("(has(%s) && %[1]s.startsWith('%s'))", attribute, text)
}

func contains(attribute, text string) string {
	return fmt.Sprintf("(has(%s) && %[1]s.contains('%s'))", attribute, text)
}

func joinOr(expressions ...string) string { return "(" + strings.Join(expressions, " || ") + ")" }

func joinAnd(expressions ...string) string { return "(" + strings.Join(expressions, " && ") + ")" }
