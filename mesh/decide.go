package mesh

import (
	"net/netip"
	"slices"
	"strings"
)

// Decision is whether something may pass, and why. The zero Decision lets nothing
// pass.
type Decision struct {
	Allowed bool   `json:"allowed"`
	Reason  Reason `json:"reason"`
	// Rule is the object that allows it, namespace/name, or the host of an Egress;
	// empty if it takes none or none does.
	Rule string `json:"rule,omitempty"`
}

// Reason is why something may pass or not.
type Reason string

const (
	// AllowedToAnyone is what every identity of the mesh may do.
	AllowedToAnyone Reason = "AllowedToAnyone"
	// AllowedByRule is what a rule allows, AllowedByIngress what one for callers from
	// outside the mesh does, and NoRule what none does.
	AllowedByRule    Reason = "AllowedByRule"
	AllowedByIngress Reason = "AllowedByIngress"
	NoRule           Reason = "NoRule"
	// AllowedByMode is a call without an identity that the mode Permissive takes.
	AllowedByMode Reason = "AllowedByMode"
	// MeshTLSOnly is a call without mesh TLS that the mode Strict does not take, nor
	// an ingress rule. IdentityNeeded is one where rules say who may call.
	MeshTLSOnly    Reason = "MeshTLSOnly"
	IdentityNeeded Reason = "IdentityNeeded"
	// EgressOpen is a call out of the mesh that nothing names, while everything may
	// leave, and EgressClosed one while nothing may.
	EgressOpen   Reason = "EgressOpen"
	EgressClosed Reason = "EgressClosed"
	// RequestRefused is a request to a host outside the mesh that none of the host's
	// matches holds for.
	RequestRefused Reason = "RequestRefused"
)

// Decide says whether the peer may send the request, or open a connection if r is
// nil. The peer is who the certificate of mesh TLS names; one that lacks a part is
// nobody.
func (a Access) Decide(peer Identity, r *Request) Decision {
	if peer.Validate() != nil {
		return Decision{Reason: IdentityNeeded}
	}
	if a.Anyone {
		return Decision{Allowed: true, Reason: AllowedToAnyone}
	}
	for _, rule := range a.Rules {
		if rule.Names(peer) && permitsAny(rule.Requests, r) {
			return Decision{Allowed: true, Reason: AllowedByRule, Rule: rule.Name}
		}
	}
	return Decision{Reason: NoRule}
}

// Names reports whether the peer is one of the sources.
func (p Permission) Names(peer Identity) bool { return slices.Contains(p.Sources, peer) }

func permitsAny(matches []HTTPMatch, r *Request) bool {
	return slices.ContainsFunc(matches, func(m HTTPMatch) bool { return m.Permits(r) })
}

func matchesAny(matches []HTTPMatch, r *Request) bool {
	return slices.ContainsFunc(matches, func(m HTTPMatch) bool { return m.Matches(r) })
}

// Security is in what a connection arrives.
type Security string

const (
	// Plaintext is no TLS at all.
	Plaintext Security = "plaintext"
	// MeshTLS is TLS to a server name that ends in ".sa." and the trust domain.
	MeshTLS Security = "mesh TLS"
	// OtherTLS is any other TLS.
	OtherTLS Security = "other TLS"
)

// Arrival is a connection, or a request of one, that arrives at a proxy for its
// application.
type Arrival struct {
	// Port is the port that the client connected to.
	Port uint16
	// Source is the address that the connection comes from.
	Source     netip.Addr
	Security   Security
	ServerName string
	// Peer is who the client's certificate names. It is zero if there is none or if
	// it does not lead to the mesh's root.
	Peer Identity
	// Request is nil for a connection. It is not looked at on ports whose protocol
	// has none.
	Request *Request
}

// PortOf returns the port of that number, and false if it is among the others.
func (in *Inbound) PortOf(number uint16) (InboundPort, bool) {
	for _, port := range in.Ports {
		if port.Port == number {
			return port, true
		}
	}
	return InboundPort{Port: number, Protocol: TCP, Access: in.Others}, false
}

// Decide says whether what arrives may reach the application.
func (in *Inbound) Decide(a Arrival) Decision {
	port, _ := in.PortOf(a.Port)
	if !port.Protocol.IsHTTP() {
		a.Request = nil
	}
	refused := Decision{Reason: NoRule}
	if a.Security == MeshTLS {
		if refused = port.Access.Decide(a.Peer, a.Request); refused.Allowed {
			return refused
		}
	}
	for _, rule := range port.Ingress {
		if rule.Admits(a) && permitsAny(rule.Requests, a.Request) {
			return Decision{Allowed: true, Reason: AllowedByIngress, Rule: rule.Name}
		}
	}
	switch {
	case a.Security == MeshTLS:
		return refused
	case in.TLS != Permissive:
		return Decision{Reason: MeshTLSOnly}
	case !port.Access.Anyone:
		return Decision{Reason: IdentityNeeded}
	}
	return Decision{Allowed: true, Reason: AllowedByMode}
}

// Admits reports whether the rule takes the caller, whatever the requests. A caller
// from outside may have a certificate of the mesh and call by mesh TLS, as peers do:
// a rule for TLS takes it if it asks for a certificate and names no server names.
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

// DestinationAt returns the Destination that takes connections to the address and
// port, and false if there is none: the connection leaves the mesh.
func (o *Outbound) DestinationAt(to netip.AddrPort) (*Destination, bool) {
	for _, d := range o.Destinations.All() {
		if d.Port == to.Port() && slices.Contains(d.Addresses, to.Addr().Unmap()) {
			return d, true
		}
	}
	return nil, false
}

// RouteOf returns the route that takes the request. A protocol without requests has
// one route, with the Destination's Backends. It returns false if no route takes
// it, and then the answer is 404.
func (d *Destination) RouteOf(r *Request) (Route, bool) {
	if !d.Protocol.IsHTTP() {
		return Route{Backends: d.Backends}, true
	}
	for _, route := range d.Routes {
		if route.Match.Matches(r) {
			return route, true
		}
	}
	return Route{}, false
}

// LimitOf returns the limit that counts the request: of the Routes the first whose
// Path the request's path matches, else that of all requests, which is nil if there
// is none.
func (l RateLimits) LimitOf(r *Request) *RequestLimit {
	for i := range l.Routes {
		if r != nil && (HTTPMatch{Path: StringMatch{Regex: l.Routes[i].Path}}).Matches(r) {
			return &l.Routes[i].Limit
		}
	}
	return l.Requests
}

// Departure is a connection, or a request of one, to outside the mesh.
type Departure struct {
	// To is what the application connected to.
	To netip.AddrPort
	// ServerName is that of the application's own TLS; empty if it speaks none.
	ServerName string
	// Request is nil for a connection.
	Request *Request
}

// Decide says whether the departure may leave the mesh.
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
				return Decision{Allowed: true, Reason: AllowedByRule, Rule: allowed.String()}
			}
		}
		host, found := port.HostOf(d)
		switch {
		case !found:
		case host.Allows(port.RequestOf(d), d.To.Addr()):
			return Decision{Allowed: true, Reason: AllowedByRule, Rule: host.Host}
		default:
			return Decision{Reason: RequestRefused, Rule: host.Host}
		}
	}
	if e.AllowAll {
		return Decision{Allowed: true, Reason: EgressOpen}
	}
	return Decision{Reason: EgressClosed}
}

// HostOf returns the host that the departure is to, by its request's host or its
// server name.
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
		if MatchesHost(host.Host, name) && (best < 0 || moreExact(host.Host, p.Hosts[best].Host)) {
			best = i
		}
	}
	if best < 0 {
		return EgressHost{}, false
	}
	return p.Hosts[best], true
}

// Allows reports whether a request, or a connection if r is nil, to the host may pass that
// the application made to the address.
func (h EgressHost) Allows(r *Request, address netip.Addr) bool {
	return matchesAny(h.Matches, r) || slices.ContainsFunc(h.Within, func(w EgressWithin) bool {
		return w.Contains(address) && matchesAny(w.Matches, r)
	})
}

// RequestOf is what the matches of a host are asked about, nil for a connection.
func (p EgressRoutes) RequestOf(d Departure) *Request {
	if p.Protocol == EgressHTTP {
		return d.Request
	}
	return nil
}

// MatchesHost reports whether a host without a port is meant by a pattern, which is
// exact or begins with "*." for one or more labels. Upper and lower case are the
// same. An empty host is never meant.
func MatchesHost(pattern, host string) bool {
	pattern, host = strings.ToLower(pattern), strings.ToLower(host)
	if suffix, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasPrefix(suffix, ".") && len(host) > len(suffix) && strings.HasSuffix(host, suffix)
	}
	return host != "" && host == pattern
}

// moreExact orders patterns that both mean a host.
func moreExact(a, b string) bool {
	aWild, bWild := strings.HasPrefix(a, "*"), strings.HasPrefix(b, "*")
	if aWild != bWild {
		return bWild
	}
	return len(a) > len(b)
}

// hostOnly returns an authority without its port.
func hostOnly(authority string) string {
	if addr, err := netip.ParseAddrPort(authority); err == nil {
		return addr.Addr().String()
	}
	if i := strings.LastIndexByte(authority, ':'); i >= 0 && strings.IndexByte(authority, ':') == i {
		return authority[:i]
	}
	return authority
}

// contains is that of the prefix, for IPv4 addresses written as IPv6 too.
func contains(p netip.Prefix, addr netip.Addr) bool { return p.Contains(addr.Unmap()) }
