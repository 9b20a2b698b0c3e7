package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// arrival is a request to one endpoint.
type arrival struct {
	caller     caller
	security   mesh.Security
	serverName string
	// peer is the identity in the caller's certificate.
	peer mesh.Identity
	// view is the View of the endpoint's proxy, nil if it has none.
	view      *mesh.View
	workload  string
	port      uint16
	addresses []netip.Addr
	// direct reports that connections to the port bypass the endpoint's sidecar.
	direct bool
}

func arrivalOf(c caller, view *mesh.View, port uint16, r *mesh.Request) mesh.Arrival {
	a := mesh.Arrival{Port: port, Security: mesh.MeshTLS, Peer: c.identity(), Request: withToken(view.Inbound, r)}
	if a.Peer == (mesh.Identity{}) {
		a.Security = mesh.Plaintext
	}
	if len(view.Proxy.Addresses) > 0 {
		a.Source = c.address(view.Proxy.Addresses[0])
	}
	return a
}

// alike reports whether two arrivals have the same outcome.
func (a arrival) alike(b arrival) bool {
	switch {
	case a.security != b.security, a.serverName != b.serverName, a.port != b.port, (a.view == nil) != (b.view == nil):
		return false
	}
	return a.direct == b.direct && (a.view == nil || a.view.Inbound.Digest() == b.view.Inbound.Digest())
}

// arrive decides the outcome at the endpoints, sorted by name. Arrivals that are alike
// are handled together.
func (x *inquiry) arrive(calls []arrival) {
	for i := range calls {
		calls[i].direct = x.bypassesInbound(calls[i])
	}
	slices.SortStableFunc(calls, func(a, b arrival) int { return strings.Compare(a.workload, b.workload) })
	for len(calls) > 0 {
		var alike, others []arrival
		for _, a := range calls {
			if a.alike(calls[0]) {
				alike = append(alike, a)
			} else {
				others = append(others, a)
			}
		}
		x.connect(alike)
		calls = others
	}
}

func (x *inquiry) connect(calls []arrival) {
	a := calls[0]
	var who []string
	for _, call := range calls {
		at := netip.AddrPort{}
		if len(call.addresses) > 0 {
			at = netip.AddrPortFrom(call.addresses[0], call.port)
		}
		switch {
		case call.workload == "":
			who = append(who, at.String())
		case at.IsValid():
			who = append(who, fmt.Sprintf("%s (%s)", call.workload, at))
		default:
			who = append(who, fmt.Sprintf("%s (port %d)", call.workload, call.port))
		}
		if namespace, name, isPod := strings.Cut(call.workload, "/"); isPod {
			x.involveName("Pod", mesh.Name{Namespace: namespace, Name: name})
		}
	}
	how := "in plaintext"
	if a.security == mesh.MeshTLS {
		how = "with mesh TLS to server name " + a.serverName
	}
	x.say("connection", how+" to "+list(who, mostShown))
	if a.view == nil {
		x.end(Allowed, "access", "the endpoint has no sidecar, so there is no access control")
		return
	}
	if a.view.Proxy.Gateway {
		x.passGateway(a)
		return
	}
	if a.direct {
		x.endAtApplication(a)
		return
	}
	arrived := mesh.Arrival{Port: a.port, Security: a.security, ServerName: a.serverName, Peer: a.peer, Request: x.asked()}
	if len(a.addresses) > 0 {
		arrived.Source = a.caller.address(a.addresses[0])
	}
	x.decide(a.view, arrived)
}

// decide applies the decision of the endpoint's proxy.
func (x *inquiry) decide(view *mesh.View, a mesh.Arrival) {
	port, named := view.Inbound.PortOf(a.Port)
	if normal, ok := port.Normalize(a.Request); !ok {
		x.refuse(Denied, telemetry.ReasonAccess, "access", "no rule allows a path that proxies read in different ways; the response is 403 or 400")
		return
	} else if normal != nil && x.asked() != nil {
		x.normalized(normal)
		a.Request = normal
	}
	a.Request = withToken(view.Inbound, a.Request)
	decision := view.Inbound.Decide(a)
	at := fmt.Sprintf("port %d (%s)", a.Port, port.Protocol)
	if !named {
		at = fmt.Sprintf("port %d (%s, not in any service)", a.Port, port.Protocol)
	}
	if decision.Allowed {
		x.involve(decision.Origin.Object)
		x.describeLimits(port)
		x.describeAudit(view, a)
		x.end(Allowed, "access", "allowed on "+at+": "+x.whyAllowed(view, port, a, decision))
		return
	}
	x.involve(decision.Origin.Object)
	if x.asked() == nil && port.Protocol.IsHTTP() {
		some := someRequests(port, a)
		if decision.Reason == mesh.DeniedByRule {
			some = deniedRequests(port, a)
		}
		if len(some) > 0 {
			x.end(Mixed, "access", "on "+at+" it depends on the request; add its METHOD and PATH", some...)
			return
		}
	}
	refusal := ""
	switch {
	case port.Protocol.IsHTTP() && a.Security == mesh.MeshTLS, answersPlaintext(port, a):
		refusal = "; the response is 403"
	case a.Security == mesh.MeshTLS:
		refusal = "; the connection is closed"
	}
	x.refuse(Denied, reasonOf(port, a, decision), "access", fmt.Sprintf("denied on %s: %s%s", at, x.whyDenied(view, port, a, decision), refusal), x.whyNot(view, a.Port, a)...)
}

// describeAudit says what policies would decide that are only audited.
func (x *inquiry) describeAudit(view *mesh.View, a mesh.Arrival) {
	decision, ok := view.Inbound.Audit(a)
	if !ok {
		return
	}
	port, _ := view.Inbound.PortOf(a.Port)
	if decision.Allowed {
		x.involve(decision.Origin.Object)
		x.say("audit", "policies are only audited here; enforced, they would allow it: "+x.whyAllowed(view, port, a, decision))
		return
	}
	if x.asked() == nil && port.Protocol.IsHTTP() {
		if some := someRequests(port, a); len(some) > 0 {
			x.say("audit", "policies are only audited here; enforced, it would depend on the request; add its METHOD and PATH", some...)
			return
		}
	}
	x.say("audit", "policies are only audited here; enforced, they would refuse it: "+x.whyDenied(view, port, a, decision), x.whyNot(view, a.Port, a)...)
}

// someRequests lists the allowed requests if not all are.
func someRequests(port mesh.InboundPort, a mesh.Arrival) []string {
	var some []string
	for _, rule := range port.Access.Rules {
		if a.Security == mesh.MeshTLS && rule.Names(a.Peer) && len(rule.Requests) > 0 {
			some = append(some, fmt.Sprintf("%s allows %s to send %s", rule.Origin.Object, account(a.Peer), describeMatches(rule.Requests)))
		}
	}
	for _, rule := range port.Ingress {
		if rule.Admits(a) && len(rule.Requests) > 0 {
			some = append(some, fmt.Sprintf("%s allows the caller to send %s", rule.Origin.Object, describeMatches(rule.Requests)))
		}
	}
	return some
}

// deniedRequests lists the requests that denials refuse to the caller, or nothing if one refuses
// all of them.
func deniedRequests(port mesh.InboundPort, a mesh.Arrival) []string {
	var some []string
	for _, denial := range port.Access.Denials {
		if !denial.Names(a.Peer) || len(denial.Requests) == 0 {
			continue
		}
		if slices.ContainsFunc(denial.Requests, func(m mesh.HTTPMatch) bool { return m.Matches(nil) }) {
			return nil
		}
		some = append(some, fmt.Sprintf("%s denies the caller %s", denial.Origin.Object, describeMatches(denial.Requests)))
	}
	return some
}

func (x *inquiry) whyAllowed(view *mesh.View, port mesh.InboundPort, a mesh.Arrival, d mesh.Decision) string {
	switch own := x.surroundings.defaults[view.Proxy.Namespace]; {
	case d.Reason == mesh.AllowedToAnyone && own != "":
		return fmt.Sprintf("the default of namespace %s allows every mesh identity", view.Proxy.Namespace)
	case d.Reason == mesh.AllowedToAnyone && view.Settings.PermissivePolicy:
		return "permissive traffic policy mode allows every mesh identity"
	case d.Reason == mesh.AllowedToAnyone:
		return "every mesh identity is allowed"
	case d.Reason == mesh.AllowedByMode:
		return "the inbound TLS mode is Permissive, and everyone is allowed"
	case d.Reason == mesh.AllowedByIngress:
		return fmt.Sprintf("%s allows %s", d.Origin.Object, a.Source)
	}
	if !port.Protocol.IsHTTP() {
		return fmt.Sprintf("%s allows %s to connect", d.Origin.Object, account(a.Peer))
	}
	what := "it"
	for _, rule := range port.Access.Rules {
		for _, m := range rule.Requests {
			if what == "it" && rule.Origin == d.Origin && m.Permits(a.Request) {
				what = describeMatch(m)
			}
		}
	}
	return fmt.Sprintf("%s allows %s to send %s", d.Origin.Object, account(a.Peer), what)
}

// reasonOf returns the reason of a denial in access logs and metrics.
func reasonOf(port mesh.InboundPort, a mesh.Arrival, d mesh.Decision) string {
	switch {
	case answersPlaintext(port, a):
		return telemetry.ReasonAccess
	case d.Reason == mesh.MeshTLSOnly, a.Security != mesh.MeshTLS && !port.Protocol.IsHTTP():
		return telemetry.ReasonPlaintext
	}
	return telemetry.ReasonAccess
}

// answersPlaintext reports whether the arrival is in plaintext and the port answers with 403 what
// it refuses: some IngressBackend allows plaintext there, and proxies decide by the request.
func answersPlaintext(port mesh.InboundPort, a mesh.Arrival) bool {
	return a.Security == mesh.Plaintext && port.Protocol.IsHTTP() && slices.ContainsFunc(port.Ingress, func(rule mesh.Ingress) bool {
		return !rule.TLS && !rule.AnyPrincipal && len(rule.Principals) == 0 && len(rule.Ranges) > 0 && len(rule.Requests) > 0
	})
}

func (x *inquiry) whyDenied(view *mesh.View, port mesh.InboundPort, a mesh.Arrival, d mesh.Decision) string {
	switch {
	case d.Reason == mesh.MeshTLSOnly && answersPlaintext(port, a):
		return "plaintext needs an IngressBackend, and none allows this"
	case d.Reason == mesh.MeshTLSOnly:
		return fmt.Sprintf("%s accepts only mesh TLS, and this is %s", view.Proxy.Name, a.Security)
	case d.Reason == mesh.DeniedByRule:
		return fmt.Sprintf("%s denies it (%s)", d.Origin.Object, d.Origin.Field)
	case d.Reason == mesh.IdentityNeeded && x.surroundings.opens(view):
		return "an AccessPolicy is for the port, and the caller has no identity"
	case d.Reason == mesh.IdentityNeeded:
		return "TrafficTargets apply, and the caller has no identity"
	case x.surroundings.opens(view) && !port.Access.Anyone:
		return "an AccessPolicy is for the port, and nothing allows this"
	case x.surroundings.defaults[view.Proxy.Namespace] == fact.Deny:
		return fmt.Sprintf("the default of namespace %s denies it, and no policy allows it", view.Proxy.Namespace)
	}
	return "no TrafficTarget allows it"
}

// whyNot lists the rules that come closest to allowing the request, closest first, and
// what is missing for each.
func (x *inquiry) whyNot(view *mesh.View, number uint16, a mesh.Arrival) []string {
	port, _ := view.Inbound.PortOf(number)
	x.namespaces = append(x.namespaces, view.Proxy.Namespace)
	if !port.Protocol.IsHTTP() {
		a.Request = nil
	}
	var reasons []string
	for _, rule := range port.Ingress {
		if a.Security == mesh.MeshTLS && !rule.Admits(a) {
			continue
		}
		x.involve(rule.Origin.Object)
		reason := "does not allow " + a.Source.String() + " with " + string(a.Security)
		if rule.Admits(a) {
			reason = "allows the caller only " + lack(rule.Requests, a.Request, mesh.HTTPMatch.Refusal)
		}
		reasons = append(reasons, rule.Origin.Object.String()+" "+reason)
	}
	if a.Peer.Validate() != nil {
		return reasons
	}
	var wrongRequest, wrongSource, wrongBoth []string
	for _, rule := range port.Access.Rules {
		x.involve(rule.Origin.Object)
		sources := make([]string, len(rule.Sources))
		for i, source := range rule.Sources {
			sources[i] = account(source)
		}
		name, lacks := rule.Origin.Object.String(), lack(rule.Requests, a.Request, mesh.HTTPMatch.Refusal)
		switch {
		case rule.Names(a.Peer) && lacks != "":
			wrongRequest = append(wrongRequest, fmt.Sprintf("%s allows %s only %s", name, account(a.Peer), lacks))
		case rule.Names(a.Peer):
		case lacks == "":
			wrongSource = append(wrongSource, fmt.Sprintf("%s allows this request, but only for %s", name, list(sources, mostShown)))
		default:
			wrongBoth = append(wrongBoth, fmt.Sprintf("%s is for other sources (%s) and allows only %s", name, list(sources, mostShown), lacks))
		}
	}
	var otherPorts []string
	if port.Protocol.IsHTTP() {
		otherPorts = x.surroundings.restricted(view.Proxy.Identity, a.Peer, number)
	}
	reasons = slices.Concat(reasons, wrongRequest, otherPorts, wrongSource, wrongBoth)
	if len(port.Access.Rules)+len(otherPorts) == 0 && (!port.Access.Anyone || port.Access.Audit) {
		what := "an HTTPRouteGroup"
		if !port.Protocol.IsHTTP() {
			what = "a TCPRoute"
		}
		reasons = append(reasons, fmt.Sprintf("no TrafficTarget with %s for the port has the destination %s", what, account(view.Proxy.Identity)))
	}
	if len(reasons) > mostShown {
		reasons = append(reasons[:mostShown], "and "+count(len(reasons)-mostShown, "rule")+" more that do not match")
	}
	return reasons
}

// account returns the service account of an identity, or which ones it stands for.
func account(id mesh.Identity) string {
	switch {
	case id.Namespace == "":
		return "all of the mesh"
	case id.ServiceAccount == "":
		return "all of namespace " + id.Namespace
	}
	return id.Namespace + "/" + id.ServiceAccount
}

func (x *inquiry) describeLimits(port mesh.InboundPort) {
	var details []string
	if b := port.Limits.Connections; b != nil {
		details = append(details, "connections: "+describeBucket(*b))
	}
	if limit := port.Limits.LimitOf(&x.request); limit != nil && port.Protocol.IsHTTP() {
		status := limit.Status
		if status == 0 {
			status = 429
		}
		details = append(details, fmt.Sprintf("requests: %s, otherwise the response is %d", describeBucket(limit.TokenBucket), status))
	}
	if len(details) > 0 {
		x.say("limits", "rate limits of each endpoint", details...)
	}
}

func describeBucket(b mesh.TokenBucket) string {
	text := fmt.Sprintf("%d per %s", b.Tokens, b.Interval)
	if b.Burst > 0 {
		text += fmt.Sprintf(", with a burst of %d", b.Burst)
	}
	return text
}

// lack describes the matches and why the closest one does not hold. Obstacle returns the
// part of a match that does not hold. The result is empty if a match holds.
func lack(matches []mesh.HTTPMatch, r *mesh.Request, obstacle func(mesh.HTTPMatch, *mesh.Request) string) string {
	nearest, obstructed, rank := mesh.HTTPMatch{}, "", -1
	for _, m := range matches {
		part := obstacle(m, r)
		if part == "" {
			return ""
		}
		if rankOf(part) > rank {
			nearest, obstructed, rank = m, part, rankOf(part)
		}
	}
	if rank < 0 || r == nil {
		return describeMatches(matches)
	}
	text := mismatch(obstructed, r)
	if len(matches) > 1 && rank > rankOf("path") {
		return fmt.Sprintf("%d matches, of which %s is the closest, but %s", len(matches), describeMatch(nearest), text)
	}
	return describeMatches(matches) + ": " + text
}

// mismatch explains why the part of a match does not hold.
func mismatch(part string, r *mesh.Request) string {
	switch {
	case r == nil:
		return "it matches only some requests"
	case part == "path spelling":
		return "some applications would read the path differently"
	case part == "query spelling":
		return "a query parameter is repeated or escaped, or the query has a semicolon"
	case part == "token" && len(r.Headers[mesh.AuthorizationHeader]) == 0:
		return "the request has no token: give it one with the header " + mesh.AuthorizationHeader
	case part == "token" && r.Token == nil:
		return "no token is verified in the request's header " + mesh.AuthorizationHeader + ": it is malformed, expired, not yet valid, or signed by no key of a TokenPolicy of the namespace"
	}
	if name, ok := strings.CutPrefix(part, "header "); ok {
		name, err := strconv.Unquote(name)
		switch {
		case err != nil || name == "host":
		case len(r.Headers[name]) == 0:
			return "the request has no " + part
		case len(r.Headers[name]) > 1:
			return "the request has several lines of the " + part
		}
	}
	return "the " + part + " does not match"
}

// rankOf orders parts of a match by how many parts before them hold.
func rankOf(part string) int {
	word, _, _ := strings.Cut(part, " ")
	return slices.Index([]string{"requests", "path", "method", "header", "query", "token"}, word)
}

func describeMatches(matches []mesh.HTTPMatch) string {
	if len(matches) == 0 {
		return "nothing"
	}
	words := make([]string, len(matches))
	for i, m := range matches {
		words[i] = describeMatch(m)
	}
	if len(words) > mostShown {
		return strings.Join(words[:mostShown], ", or ") + ", or " + count(len(words)-mostShown, "other match")
	}
	return strings.Join(words, ", or ")
}

func describeMatch(m mesh.HTTPMatch) string {
	var parts []string
	if len(m.Methods) > 0 {
		parts = append(parts, strings.Join(m.Methods, "|"))
	}
	if text := describeString(m.Path); text != "" {
		parts = append(parts, "path "+text)
	}
	for _, key := range m.Headers {
		parts = append(parts, "header "+key.Name+" "+describeString(key.StringMatch))
	}
	for _, key := range m.Query {
		parts = append(parts, "query parameter "+key.Name+" "+describeString(key.StringMatch))
	}
	if m.Token != nil {
		parts = append(parts, describeToken(m.Token))
	}
	if len(parts) == 0 {
		return "any request"
	}
	return strings.Join(parts, " ")
}

func describeString(m mesh.StringMatch) string {
	switch {
	case m.Exact != "":
		return m.Exact
	case m.Prefix != "":
		return "under " + m.Prefix
	case m.Regex != "":
		return "~ " + m.Regex
	case m.Present:
		return "present"
	}
	return ""
}
