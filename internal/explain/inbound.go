package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// arrival is a request on its way to one endpoint.
type arrival struct {
	caller     caller
	security   mesh.Security
	serverName string
	// peer is who the certificate names that the caller shows.
	peer mesh.Identity
	// view is that of the endpoint's proxy, nil if it has none.
	view      *mesh.View
	workload  string
	port      uint16
	addresses []netip.Addr
	// direct says that the endpoint's sidecar does not take connections to the port.
	direct bool
}

func arrivalOf(c caller, view *mesh.View, port uint16, r *mesh.Request) mesh.Arrival {
	a := mesh.Arrival{Port: port, Security: mesh.MeshTLS, Peer: c.identity(), Request: r}
	if a.Peer == (mesh.Identity{}) {
		a.Security = mesh.Plaintext
	}
	if len(view.Proxy.Addresses) > 0 {
		a.Source = c.address(view.Proxy.Addresses[0])
	}
	return a
}

// alike reports whether what holds for one arrival holds for the other.
func (a arrival) alike(b arrival) bool {
	switch {
	case a.security != b.security, a.serverName != b.serverName, a.port != b.port, (a.view == nil) != (b.view == nil):
		return false
	}
	return a.direct == b.direct && (a.view == nil || a.view.Inbound.Digest() == b.view.Inbound.Digest())
}

// arrive has the endpoints decide, sorted by name, and those that are alike at once.
func (x *inquiry) arrive(calls []arrival) {
	for i := range calls {
		calls[i].direct = x.meetsApplication(calls[i])
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
		x.involve(call.workload)
	}
	how := "in plaintext"
	if a.security == mesh.MeshTLS {
		how = "by mesh TLS to server name " + a.serverName
	}
	x.say("connection", how+" to "+list(who, mostShown))
	if a.view == nil {
		x.end(Allowed, "access", "there is no sidecar in front of the endpoint, so nobody decides")
		return
	}
	if a.direct {
		x.meetApplication(a)
		return
	}
	arrived := mesh.Arrival{Port: a.port, Security: a.security, ServerName: a.serverName, Peer: a.peer, Request: x.asked()}
	if len(a.addresses) > 0 {
		arrived.Source = a.caller.address(a.addresses[0])
	}
	x.decide(a.view, arrived)
}

// decide asks the endpoint's proxy.
func (x *inquiry) decide(view *mesh.View, a mesh.Arrival) {
	decision := view.Inbound.Decide(a)
	port, named := view.Inbound.PortOf(a.Port)
	at := fmt.Sprintf("port %d (%s)", a.Port, port.Protocol)
	if !named {
		at = fmt.Sprintf("port %d (%s, of no service)", a.Port, port.Protocol)
	}
	if decision.Allowed {
		x.involve(decision.Rule)
		x.tellLimits(port)
		x.end(Allowed, "access", "allowed on "+at+": "+x.whyAllowed(view, port, a, decision))
		return
	}
	if x.asked() == nil && port.Protocol.IsHTTP() {
		if some := someRequests(port, a); len(some) > 0 {
			x.end(Mixed, "access", "on "+at+" it depends on the request; give its METHOD and PATH", some...)
			return
		}
	}
	refusal := ""
	switch {
	case port.Protocol.IsHTTP() && a.Security == mesh.MeshTLS:
		refusal = "; the answer is 403"
	case a.Security == mesh.MeshTLS:
		refusal = "; the connection is closed"
	}
	x.end(Denied, "access", fmt.Sprintf("denied on %s: %s%s", at, x.whyDenied(view, a, decision), refusal), x.whyNot(view, a.Port, a)...)
}

// someRequests says which requests are let in where not all are.
func someRequests(port mesh.InboundPort, a mesh.Arrival) []string {
	var some []string
	for _, rule := range port.Access.Rules {
		if a.Security == mesh.MeshTLS && rule.Names(a.Peer) && len(rule.Requests) > 0 {
			some = append(some, fmt.Sprintf("TrafficTarget %s lets %s ask for %s", rule.Name, account(a.Peer), describeMatches(rule.Requests)))
		}
	}
	for _, rule := range port.Ingress {
		if rule.Admits(a) && len(rule.Requests) > 0 {
			some = append(some, fmt.Sprintf("IngressBackend %s lets the caller ask for %s", rule.Name, describeMatches(rule.Requests)))
		}
	}
	return some
}

func (x *inquiry) whyAllowed(view *mesh.View, port mesh.InboundPort, a mesh.Arrival, d mesh.Decision) string {
	switch {
	case d.Reason == mesh.AllowedToAnyone && view.Settings.PermissivePolicy:
		return "permissive traffic policy mode lets every identity of the mesh call"
	case d.Reason == mesh.AllowedToAnyone:
		return "every identity of the mesh may call"
	case d.Reason == mesh.AllowedByMode:
		return "the inbound TLS mode is Permissive, and anyone may call"
	case d.Reason == mesh.AllowedByIngress:
		return fmt.Sprintf("IngressBackend %s lets %s in", d.Rule, a.Source)
	}
	if !port.Protocol.IsHTTP() {
		return fmt.Sprintf("TrafficTarget %s lets %s connect", d.Rule, account(a.Peer))
	}
	what := "it"
	for _, rule := range port.Access.Rules {
		for _, m := range rule.Requests {
			if what == "it" && rule.Name == d.Rule && m.Permits(a.Request) {
				what = describeMatch(m)
			}
		}
	}
	return fmt.Sprintf("TrafficTarget %s lets %s ask for %s", d.Rule, account(a.Peer), what)
}

func (x *inquiry) whyDenied(view *mesh.View, a mesh.Arrival, d mesh.Decision) string {
	switch d.Reason {
	case mesh.MeshTLSOnly:
		return fmt.Sprintf("%s takes mesh TLS only, and this is %s", view.Proxy.Name, a.Security)
	case mesh.IdentityNeeded:
		return "TrafficTargets say who may call, and nobody knows the caller"
	}
	return "no TrafficTarget allows it"
}

// whyNot names the rules that come nearest to letting the request in, and what each
// lacks, those first that lack least.
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
		x.involve(rule.Name)
		reason := "does not let " + a.Source.String() + " in by " + string(a.Security)
		if rule.Admits(a) {
			reason = "lets the caller ask only for " + lack(rule.Requests, a.Request, mesh.HTTPMatch.Refusal)
		}
		reasons = append(reasons, "IngressBackend "+rule.Name+" "+reason)
	}
	if a.Peer.Validate() != nil {
		return reasons
	}
	var wrongRequest, wrongSource, wrongBoth []string
	for _, rule := range port.Access.Rules {
		x.involve(rule.Name)
		sources := make([]string, len(rule.Sources))
		for i, source := range rule.Sources {
			sources[i] = account(source)
		}
		name, lacks := "TrafficTarget "+rule.Name, lack(rule.Requests, a.Request, mesh.HTTPMatch.Refusal)
		switch {
		case rule.Names(a.Peer) && lacks != "":
			wrongRequest = append(wrongRequest, fmt.Sprintf("%s lets %s ask only for %s", name, account(a.Peer), lacks))
		case rule.Names(a.Peer):
		case lacks == "":
			wrongSource = append(wrongSource, fmt.Sprintf("%s allows such a request, but to %s only", name, list(sources, mostShown)))
		default:
			wrongBoth = append(wrongBoth, fmt.Sprintf("%s is for other sources, %s, which may ask only for %s", name, list(sources, mostShown), lacks))
		}
	}
	var otherPorts []string
	if port.Protocol.IsHTTP() {
		otherPorts = x.surroundings.narrowed(view.Proxy.Identity, a.Peer, number)
	}
	reasons = slices.Concat(reasons, wrongRequest, otherPorts, wrongSource, wrongBoth)
	if len(port.Access.Rules)+len(otherPorts) == 0 && !port.Access.Anyone {
		what := "an HTTPRouteGroup"
		if !port.Protocol.IsHTTP() {
			what = "a TCPRoute"
		}
		reasons = append(reasons, fmt.Sprintf("no TrafficTarget with %s for the port has the destination %s", what, account(view.Proxy.Identity)))
	}
	if len(reasons) > mostShown {
		reasons = append(reasons[:mostShown], "and "+count(len(reasons)-mostShown, "rule")+" more that do not hold")
	}
	return reasons
}

// account returns the service account of an identity.
func account(id mesh.Identity) string { return id.Namespace + "/" + id.ServiceAccount }

func (x *inquiry) tellLimits(port mesh.InboundPort) {
	var details []string
	if b := port.Limits.Connections; b != nil {
		details = append(details, "connections: "+describeBucket(*b))
	}
	if limit := port.Limits.LimitOf(&x.request); limit != nil && port.Protocol.IsHTTP() {
		status := limit.Status
		if status == 0 {
			status = 429
		}
		details = append(details, fmt.Sprintf("requests: %s, else the answer is %d", describeBucket(limit.TokenBucket), status))
	}
	if len(details) > 0 {
		x.say("limits", "each endpoint limits how often", details...)
	}
}

func describeBucket(b mesh.TokenBucket) string {
	text := fmt.Sprintf("%d in %s", b.Tokens, b.Interval)
	if b.Burst > 0 {
		text += fmt.Sprintf(", and %d more at once", b.Burst)
	}
	return text
}

// lack names the matches, and what the request has otherwise than the one that comes
// nearest. It is empty if one holds, of which obstacle returns nothing.
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
		return fmt.Sprintf("%d things, of which %s comes nearest, but %s", len(matches), describeMatch(nearest), text)
	}
	return describeMatches(matches) + ": " + text
}

// mismatch says of the first part of a match that does not hold what the request has not.
func mismatch(part string, r *mesh.Request) string {
	switch {
	case r == nil:
		return "it takes some requests only"
	case part == "path spelling":
		return "some applications read the path as another one"
	case part == "query spelling":
		return "a parameter is there twice or escaped, or the query has a semicolon"
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

// rankOf orders parts of a match by how much holds that comes before them.
func rankOf(part string) int {
	word, _, _ := strings.Cut(part, " ")
	return slices.Index([]string{"requests", "path", "method", "header", "query"}, word)
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
