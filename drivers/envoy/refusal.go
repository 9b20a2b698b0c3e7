package envoy

import (
	"fmt"
	"slices"
	"strconv"
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

// The directions in which a proxy is the server's, in which it is the server of TLS, and in which
// it is the client's, also that of TLS.
var (
	atServer    = []direction{atInbound, atPlaintext}
	atTLSServer = []direction{atInbound}
	atClient    = []direction{atOutbound, atEgress}
)

// refusal is something that Envoy says about a request or connection that it has refused.
type refusal struct {
	reason string
	// texts are parts of a record's WHY, each of which says it.
	texts []string
	// expression is the same in CEL, for access logs. Envoy compiles it for each listener, into
	// some KiB.
	expression string
	// of are the directions in which it can happen; nil means all. In others Envoy may say the
	// same for another reason: its TLS inspector leaves a failure in connections without TLS,
	// since it has found no ClientHello.
	of []direction
}

// applies reports whether the refusal can happen to what comes from there.
func (r refusal) applies(side direction) bool {
	return len(r.of) == 0 || slices.Contains(r.of, side)
}

// refusals are in order: the first one that applies counts.
var refusals = []refusal{
	{telemetry.ReasonPlaintext, says("unmatched "), "true", []direction{atUnmatched}},
	{telemetry.ReasonAccess, says("rbac_access_denied"), joinOr(begins("response.code_details", "rbac_access_denied"), begins("connection.termination_details", "rbac_access_denied")), atServer},
	{telemetry.ReasonAccess, says("_SAN_"), contains("connection.transport_failure_reason", "SAN"), atTLSServer},
	{telemetry.ReasonAccess, says("_SAN_"), contains("upstream.transport_failure_reason", "SAN"), atClient},
	{telemetry.ReasonAuthorization, says(" UAEX "), flags(0x1000), atServer},
	// A client's proxy says it, too, if the server's has answered.
	{telemetry.ReasonRateLimit, says(" RL "), flags(0x800), nil},
	// Envoy's parser says the same of an HTTP request whose first line or header is malformed.
	{telemetry.ReasonNotHTTP, says(" DPE http1.codec_error "), joinAnd(flags(0x40000), begins("response.code_details", "http1.codec_error")), nil},
	{telemetry.ReasonInvalidRequest, says(" DPE "), flags(0x40000), nil},
	{telemetry.ReasonCertificate, says("TLS_error"), begins("connection.transport_failure_reason", "TLS_error"), atTLSServer},
	{telemetry.ReasonCertificate, says("TLS_error"), begins("upstream.transport_failure_reason", "TLS_error"), atClient},
	{telemetry.ReasonEgress, says("egress 403 - direct_response"), direct(403), []direction{atEgress}},
	{telemetry.ReasonEgress, says("egress 0 UH"), joinAnd(flags(0x2), "!has(response.code_details)"), []direction{atEgress}},
	{telemetry.ReasonNoRoute, says(" route_not_found"), begins("response.code_details", "route_not_found"), nil},
	{telemetry.ReasonNoEndpoint, says("outbound 503 - direct_response"), direct(503), []direction{atOutbound}},
	// The last one is after the last attempt.
	{telemetry.ReasonNoEndpoint, says(" UH ", " UF ", " UF,URX "), flags(0x2, 0x20, 0x8020), nil},
}

// reasons translate the WHY of records.
var reasons = reasonsOf(refusals)

func reasonsOf(refusals []refusal) []agentspec.Reason {
	var out []agentspec.Reason
	for _, r := range refusals {
		for _, text := range r.texts {
			if reason := (agentspec.Reason{Text: text, Reason: r.reason}); !slices.Contains(out, reason) {
				out = append(out, reason)
			}
		}
	}
	return out
}

// isRefused is a CEL expression that is true for refusals.
func isRefused(side direction) string {
	var all []string
	for _, r := range refusals {
		if r.applies(side) {
			all = append(all, r.expression)
		}
	}
	return joinOr(all...)
}

// reasonOf is a CEL expression whose value is the reason of a refusal, or "".
func reasonOf(side direction) string {
	out := &strings.Builder{}
	for _, r := range refusals {
		if r.applies(side) {
			fmt.Fprintf(out, "%s ? '%s' : ", r.expression, r.reason)
		}
	}
	return out.String() + "''"
}

func says(texts ...string) []string { return texts }

// flags holds if the response flags are only those of one of the numbers, as a WHY has them
// between spaces.
func flags(bits ...int) string {
	if len(bits) == 1 {
		return fmt.Sprintf("response.flags == %d", bits[0])
	}
	return fmt.Sprintf("response.flags in [%s]", strings.Join(each(bits, strconv.Itoa), ", "))
}

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
