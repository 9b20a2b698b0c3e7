package mesh

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Decision says whether traffic is allowed, and why. The zero Decision denies it.
type Decision struct {
	Allowed bool   `json:"allowed"`
	Reason  Reason `json:"reason"`
	// Origin is that of the rule that allows or denies it. It is zero if no rule was needed or
	// none matched, and for traffic that leaves the mesh.
	Origin Origin `json:"origin,omitzero"`
	// Outside is, for traffic that leaves the mesh, the EgressHost's name or the range of the
	// EgressRoutes that decides. It is empty if none does.
	Outside string `json:"outside,omitempty"`
}

// Reason says why traffic is allowed or denied.
type Reason string

const (
	// AllowedToAnyone: every mesh identity is allowed.
	AllowedToAnyone Reason = "AllowedToAnyone"
	// AllowedByRule: an access rule matches. AllowedByIngress: an ingress rule matches.
	// NoRule: no rule matches.
	AllowedByRule    Reason = "AllowedByRule"
	AllowedByIngress Reason = "AllowedByIngress"
	NoRule           Reason = "NoRule"
	// DeniedByRule: a denial matches, whatever allows the traffic.
	DeniedByRule Reason = "DeniedByRule"
	// AllowedByMode: the caller has no identity, and the mode Permissive accepts it.
	AllowedByMode Reason = "AllowedByMode"
	// MeshTLSOnly: the call does not use mesh TLS, and neither the mode Strict nor an
	// ingress rule accepts it. IdentityNeeded: the caller has no identity, and the port
	// has access rules.
	MeshTLSOnly    Reason = "MeshTLSOnly"
	IdentityNeeded Reason = "IdentityNeeded"
	// EgressOpen and EgressClosed: no egress rule matches, and all other egress is
	// allowed, or denied.
	EgressOpen   Reason = "EgressOpen"
	EgressClosed Reason = "EgressClosed"
	// RequestRefused: the request is to a listed egress host, but none of the host's
	// matches holds.
	RequestRefused Reason = "RequestRefused"
)

// Decide decides whether the peer may send the request, or open a connection if r is nil.
// The peer is the identity in the client certificate of mesh TLS. An incomplete identity
// is always denied.
func (a Access) Decide(peer Identity, r *Request) Decision {
	if peer.Validate() != nil {
		return Decision{Reason: IdentityNeeded}
	}
	if denied, ok := a.denies(peer, r); ok {
		return denied
	}
	if a.Anyone {
		return Decision{Allowed: true, Reason: AllowedToAnyone}
	}
	for _, rule := range a.Rules {
		if rule.Names(peer) && permitsAny(rule.Requests, r) {
			return Decision{Allowed: true, Reason: AllowedByRule, Origin: rule.Origin}
		}
	}
	return Decision{Reason: NoRule}
}

// Names reports whether the peer is one of the sources, and not one of the exceptions.
func (p Permission) Names(peer Identity) bool {
	return covers(p.Sources, peer) && !covers(p.Except, peer)
}

// Names reports whether the rule denies the caller something. The peer is zero for a caller without
// an identity.
func (d Denial) Names(peer Identity) bool {
	return (d.Everyone || covers(d.Sources, peer)) && !covers(d.Except, peer)
}

// covers reports whether one of the identities stands for the peer.
func covers(all []Identity, peer Identity) bool {
	return slices.ContainsFunc(all, func(id Identity) bool { return id.Covers(peer) })
}

// denies returns the decision of the first denial that matches, or false.
func (a Access) denies(peer Identity, r *Request) (Decision, bool) {
	for _, d := range a.Denials {
		if d.Names(peer) && slices.ContainsFunc(d.Requests, func(m HTTPMatch) bool { return m.Denies(r) }) {
			return Decision{Reason: DeniedByRule, Origin: d.Origin}, true
		}
	}
	return Decision{}, false
}

func permitsAny(matches []HTTPMatch, r *Request) bool {
	return slices.ContainsFunc(matches, func(m HTTPMatch) bool { return m.Permits(r) })
}

func matchesAny(matches []HTTPMatch, r *Request) bool {
	return slices.ContainsFunc(matches, func(m HTTPMatch) bool { return m.Matches(r) })
}

// Security is the transport security of a connection.
type Security string

const (
	// Plaintext is no TLS.
	Plaintext Security = "plaintext"
	// MeshTLS is TLS to a server name that ends in ".sa." and the trust domain.
	MeshTLS Security = "mesh TLS"
	// OtherTLS is any other TLS.
	OtherTLS Security = "other TLS"
)

// Arrival is a connection, or a request on one, that reaches a proxy for its application.
type Arrival struct {
	// Port is the port that the client connected to.
	Port uint16
	// Source is the client's address.
	Source     netip.Addr
	Security   Security
	ServerName string
	// Peer is the identity in the client certificate. It is zero without a certificate, or
	// if the certificate does not chain to the mesh's root.
	Peer Identity
	// Request is nil for a connection. It is ignored on ports with a non-HTTP protocol.
	Request *Request
}

// PortOf returns the port with the number. If it is not listed, PortOf returns a TCP port
// with the access of Others, and false.
func (in *Inbound) PortOf(number uint16) (InboundPort, bool) {
	for _, port := range in.Ports {
		if port.Port == number {
			return port, true
		}
	}
	return InboundPort{Port: number, Protocol: TCP, Access: in.Others}, false
}

// Decide decides whether the arrival may reach the application.
func (in *Inbound) Decide(a Arrival) Decision {
	port, _ := in.PortOf(a.Port)
	if !port.Protocol.IsHTTP() {
		a.Request = nil
	}
	if denied, ok := port.Access.denies(a.Peer, a.Request); ok {
		return denied
	}
	refused := Decision{Reason: NoRule}
	if a.Security == MeshTLS {
		if refused = port.Access.Decide(a.Peer, a.Request); refused.Allowed {
			return refused
		}
	}
	for _, rule := range port.Ingress {
		if rule.Admits(a) && permitsAny(rule.Requests, a.Request) {
			return Decision{Allowed: true, Reason: AllowedByIngress, Origin: rule.Origin}
		}
	}
	switch {
	case a.Security == MeshTLS:
		return refused
	case in.TLS != Permissive:
		return Decision{Reason: MeshTLSOnly}
	case !port.Access.Anyone:
		return Decision{Reason: IdentityNeeded}
	case a.Security == OtherTLS:
		// The requests within the application's own TLS are not visible.
		if denied, ok := port.Access.denies(a.Peer, nil); ok {
			return denied
		}
	}
	return Decision{Allowed: true, Reason: AllowedByMode}
}

// Audit decides what Decide would decide if the port's rules were enforced. It returns
// false if the port is not audited.
func (in *Inbound) Audit(a Arrival) (Decision, bool) {
	port, _ := in.PortOf(a.Port)
	if !port.Access.Audit {
		return Decision{}, false
	}
	port.Access = port.Access.Enforced()
	enforced := &Inbound{TLS: in.TLS, Ports: []InboundPort{port}}
	return enforced.Decide(a), true
}

// Evaluated returns the Rules unless nobody needs to know what they allow.
func (a Access) Evaluated() []Permission {
	if a.Anyone && !a.Audit {
		return nil
	}
	return a.Rules
}

// Enforced returns the access in which an audit's Rules are enforced.
func (a Access) Enforced() Access { return Access{Rules: a.Rules} }

// Admits reports whether the rule accepts the caller, regardless of the request. Callers
// from outside may have a mesh certificate and use mesh TLS like peers: a TLS rule
// accepts them if it requires a certificate and has no SNIHosts.
func (i Ingress) Admits(a Arrival) bool {
	principals := i.AnyPrincipal || len(i.Principals) > 0
	inRange := slices.ContainsFunc(i.Ranges, func(p netip.Prefix) bool { return contains(p, a.Source) })
	if !inRange && (len(i.Ranges) > 0 || !principals) {
		return false
	}
	if !i.TLS {
		return a.Security == Plaintext && !principals
	}
	asked := principals || !i.SkipClientCert
	named := slices.ContainsFunc(i.SNIHosts, func(host string) bool { return MatchesHost(host, a.ServerName) })
	switch {
	case a.Security == Plaintext,
		a.Security == MeshTLS && (!asked || len(i.SNIHosts) > 0),
		len(i.SNIHosts) > 0 && !named,
		asked && a.Peer.Validate() != nil:
		return false
	}
	return i.AnyPrincipal || len(i.Principals) == 0 || slices.Contains(i.Principals, a.Peer)
}

// DestinationAt returns the Destination for connections to the address and port, and
// false if there is none and the connection leaves the mesh.
func (o *Outbound) DestinationAt(address netip.AddrPort) (*Destination, bool) {
	for _, d := range o.Destinations.All() {
		if d.Port == address.Port() && slices.Contains(d.Addresses, address.Addr().Unmap()) {
			return d, true
		}
	}
	return nil, false
}

// ListenerAt returns the Destination of a gateway that listens at the port, and false if there is
// none.
func (o *Outbound) ListenerAt(port uint16) (*Destination, bool) {
	for _, d := range o.Destinations.All() {
		if d.Listens && d.Port == port {
			return d, true
		}
	}
	return nil, false
}

// ServerOf returns the first of the Servers that matches the server name of a TLS
// connection, or false: the connection is then closed.
func (d *Destination) ServerOf(name string) (ServerRoute, bool) {
	for _, server := range d.Servers {
		if MatchesName(server.Host, name) {
			return server, true
		}
	}
	return ServerRoute{}, false
}

// RouteOf returns the route for the request. A non-HTTP protocol has a single route to
// the Destination's Backends, unless it has Servers: see ServerOf. RouteOf returns false if
// no route matches; the response is then 404.
func (d *Destination) RouteOf(r *Request) (Route, bool) {
	if !d.Protocol.IsHTTP() {
		return Route{Backends: d.Backends}, true
	}
	host, ok := d.HostOf(r)
	if !ok {
		return Route{}, false
	}
	for _, route := range d.Routes {
		if route.Host == host && route.Match.Matches(r) {
			return route, true
		}
	}
	return Route{}, false
}

// RoutesByHost returns the Routes of each host, in their order. A port of a gateway may have thousands
// of both.
func (d *Destination) RoutesByHost() map[string][]*Route {
	byHost := make(map[string][]*Route, len(d.Hosts))
	for i := range d.Routes {
		r := &d.Routes[i]
		byHost[r.Host] = append(byHost[r.Host], r)
	}
	return byHost
}

// AnyHost is a host of a Destination that matches the hosts of all requests.
const AnyHost = "*"

// PlainHost is an expression of the hosts of requests that are names or addresses, with or without a port. A
// gateway refuses all others, of which a wildcard would include some.
const PlainHost = `[A-Za-z0-9._-]*(?::[0-9]*)?|\[[0-9A-Fa-f:.]+\](?::[0-9]*)?`

// HostOf returns which of the Hosts the request is for: none if there are no Hosts. It returns
// false if none matches.
func (d *Destination) HostOf(r *Request) (string, bool) {
	if len(d.Hosts) == 0 {
		return "", true
	}
	for _, host := range d.Hosts {
		if host == AnyHost || r != nil && MatchesName(host, hostOnly(r.Host)) {
			return host, true
		}
	}
	return "", false
}

// LimitOf returns the limit that counts the request: the first of Routes whose Path
// matches, otherwise Requests, which may be nil.
func (l RateLimits) LimitOf(r *Request) *RequestLimit {
	for i := range l.Routes {
		if r != nil && (HTTPMatch{Path: StringMatch{Regex: l.Routes[i].Path}}).Matches(r) {
			return &l.Routes[i].Limit
		}
	}
	return l.Requests
}

// Departure is a connection, or a request on one, to a destination outside the mesh.
type Departure struct {
	// To is the address that the application connected to.
	To netip.AddrPort
	// ServerName is the SNI of the application's own TLS, empty without TLS.
	ServerName string
	// Request is nil for a connection.
	Request *Request
}

// Decide decides whether the departure may leave the mesh.
func (e *Egress) Decide(d Departure) Decision {
	for _, port := range e.Ports {
		if port.Port != d.To.Port() {
			continue
		}
		if port.Protocol == EgressTCP && len(port.Ranges) == 0 {
			return Decision{Allowed: true, Reason: AllowedByRule}
		}
		for _, allowed := range port.Ranges {
			if contains(allowed, d.To.Addr()) {
				return Decision{Allowed: true, Reason: AllowedByRule, Outside: allowed.String()}
			}
		}
		host, found := port.HostOf(d)
		request, ok := port.RequestOf(d)
		switch {
		case !found:
		case ok && host.Allows(request, d.To.Addr()):
			return Decision{Allowed: true, Reason: AllowedByRule, Outside: host.Host}
		default:
			return Decision{Reason: RequestRefused, Outside: host.Host}
		}
	}
	if e.AllowAll {
		return Decision{Allowed: true, Reason: EgressOpen}
	}
	return Decision{Reason: EgressClosed}
}

// HostOf returns the entry for the departure's host, found by the request's host or the
// TLS server name.
func (p EgressRoutes) HostOf(d Departure) (EgressHost, bool) {
	var name string
	switch {
	case p.Protocol == EgressTLS:
		name = d.ServerName
	case p.Protocol == EgressHTTP && d.Request != nil:
		name = hostOnly(d.Request.Host)
	}
	best := -1
	for i, host := range p.Hosts {
		if MatchesName(host.Host, name) && (best < 0 || CompareHosts(host.Host, p.Hosts[best].Host) < 0) {
			best = i
		}
	}
	if best < 0 {
		return EgressHost{}, false
	}
	return p.Hosts[best], true
}

// Allows reports whether the request, or a connection if r is nil, may pass to the host.
// The address is the one that the application connected to.
func (h EgressHost) Allows(r *Request, address netip.Addr) bool {
	return matchesAny(h.Matches, r) || slices.ContainsFunc(h.Within, func(w EgressWithin) bool {
		return w.Contains(address) && matchesAny(w.Matches, r)
	})
}

// RequestOf returns the request to compare with the host's matches, see Normalize. It is nil
// for a connection.
func (p EgressRoutes) RequestOf(d Departure) (*Request, bool) {
	if p.Protocol == EgressHTTP {
		return p.Normalize(d.Request)
	}
	return nil, true
}

// MatchesHost reports whether the pattern matches the host, which has no port. Patterns
// are exact or start with "*." for one or more labels. Case is ignored. An empty host
// never matches.
func MatchesHost(pattern, host string) bool {
	pattern, host = strings.ToLower(pattern), strings.ToLower(host)
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasPrefix(suffix, ".") && len(host) > len(suffix) && strings.HasSuffix(host, suffix)
	}
	return host != "" && host == pattern
}

// MatchesName is MatchesHost for names in DNS, which mean the same with a final dot: the hosts of
// requests and the server names of TLS with which an application calls.
func MatchesName(pattern, name string) bool {
	return MatchesHost(strings.TrimSuffix(pattern, "."), strings.TrimSuffix(name, "."))
}

// CompareHosts compares patterns of hosts by precedence: exact ones come before wildcards,
// and longer ones before shorter ones.
func CompareHosts(a, b string) int {
	rank := func(pattern string) int { return len(pattern) - len(strings.TrimPrefix(pattern, "*")) }
	return cmp.Or(rank(a)-rank(b), len(b)-len(a), strings.Compare(a, b))
}

// hostOnly strips the port from an authority.
func hostOnly(authority string) string {
	if addr, err := netip.ParseAddrPort(authority); err == nil {
		return addr.Addr().String()
	}
	if i := strings.LastIndexByte(authority, ':'); i >= 0 && strings.IndexByte(authority, ':') == i {
		return authority[:i]
	}
	return authority
}

// contains is p.Contains, but also accepts IPv4 addresses in IPv6 form.
func contains(p netip.Prefix, addr netip.Addr) bool { return p.Contains(addr.Unmap()) }
