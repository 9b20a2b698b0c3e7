package mesh

import (
	"net/netip"
	"slices"
)

// Needs returns what the View asks for beyond what every proxy can do, in the order of
// Features. It is what a Feature means: a proxy that has all that is returned can do all
// that the View says. FeatureWebSocket is never among it, because applications ask for
// it and no View does. It looks at the whole View.
func (v *View) Needs() []Feature {
	var n needs
	n.add(v.Settings.Needs(v.Proxy.Plaintext)...)
	if slices.ContainsFunc(v.Proxy.Addresses, isIPv6) {
		n.add(FeatureIPv6)
	}
	if v.Inbound.TLS == Permissive && !v.Proxy.Plaintext {
		n.add(FeaturePermissiveTLS)
	}
	for i := range v.Inbound.Ports {
		n.add(v.Inbound.Ports[i].Needs()...)
	}
	for _, d := range v.Outbound.Destinations.All() {
		n.add(d.Needs()...)
	}
	for _, b := range v.Outbound.Backends.All() {
		n.add(b.Needs()...)
	}
	n.add(v.Egress.Needs()...)
	return n.inOrder()
}

// needs are features, each once.
type needs map[Feature]bool

func (n *needs) add(features ...Feature) {
	if *n == nil && len(features) > 0 {
		*n = needs{}
	}
	for _, f := range features {
		(*n)[f] = true
	}
}

// addIf adds those features whose condition holds.
func (n *needs) addIf(conditions map[Feature]bool) {
	for f, holds := range conditions {
		if holds {
			n.add(f)
		}
	}
}

func (n needs) inOrder() []Feature {
	var features []Feature
	for _, f := range Features() {
		if n[f] {
			features = append(features, f)
		}
	}
	return features
}

func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }

// isIPv6Range leaves out the range of all addresses, which stands for any.
func isIPv6Range(p netip.Prefix) bool { return isIPv6(p.Addr()) && p.Bits() > 0 }

// Needs returns what the settings ask of a proxy, or of one that is Plaintext. Access
// logs are among it.
func (s *Settings) Needs(plaintext bool) []Feature {
	var n needs
	n.addIf(map[Feature]bool{
		FeatureHealthChecks:          s.HealthChecks,
		FeatureExternalAuthorization: s.Authorization != nil,
		FeatureAccessLogs:            s.AccessLog.Enabled,
		FeatureZipkinTracing:         s.Tracing != nil && s.Tracing.Protocol == "zipkin",
		FeatureOTLPTracing:           s.Tracing != nil && s.Tracing.Protocol == "otlp",
		FeaturePlaintextMesh:         plaintext,
		FeatureTLSSettings:           !plaintext && s.TLS.Needs() != nil,
	})
	return n.inOrder()
}

// Needs returns FeatureTLSSettings unless it is TLS 1.3 alone with the proxy's own
// choices, which is what a proxy without that feature speaks.
func (t TLS) Needs() []Feature {
	if t.Min == "1.3" && t.Max == "1.3" && len(t.Ciphers)+len(t.Curves) == 0 {
		return nil
	}
	return []Feature{FeatureTLSSettings}
}

// Needs returns what a port of this protocol asks for, on both sides.
func (p Protocol) Needs() []Feature {
	switch p {
	case HTTP2, GRPC:
		return []Feature{FeatureHTTP2}
	case TCPServerFirst:
		return []Feature{FeatureServerFirst}
	}
	return nil
}

// Needs returns what a match asks for beyond paths and methods.
func (m HTTPMatch) Needs() []Feature {
	var n needs
	n.addIf(map[Feature]bool{FeatureHeaderMatches: len(m.Headers) > 0, FeatureQueryMatches: len(m.Query) > 0})
	return n.inOrder()
}

// Needs returns what a retry asks for.
func (r Retry) Needs() []Feature {
	n := needs{FeatureRetries: true, FeatureTimeouts: r.PerTry > 0}
	return n.inOrder()
}

// Needs returns what the policy asks of a client's proxy.
func (p UpstreamPolicy) Needs() []Feature {
	var n needs
	n.addIf(map[Feature]bool{
		FeatureTimeouts:              p.RequestTimeout > 0,
		FeatureConnectTimeouts:       p.ConnectTimeout > 0,
		FeatureIdleTimeouts:          p.IdleTimeout > 0,
		FeatureConnectionLimits:      p.MaxConnections != nil,
		FeatureRequestLimits:         p.MaxRequests != nil || p.MaxPendingRequests != nil || p.MaxRetries != nil,
		FeatureRequestsPerConnection: p.RequestsPerConnection > 0,
		FeatureOutlierEjection:       p.Ejection != nil,
		FeatureLeastRequest:          p.LoadBalancing.Policy == LeastRequest,
		FeatureRandomEndpoint:        p.LoadBalancing.Policy == Random,
		FeatureConsistentHash:        p.LoadBalancing.Policy == RingHash || p.LoadBalancing.Policy == Maglev,
		FeatureZonePreference:        p.LoadBalancing.PreferZone,
	})
	return n.inOrder()
}

// Needs returns what the limits ask of a server's proxy.
func (l RateLimits) Needs() []Feature {
	var n needs
	n.addIf(map[Feature]bool{
		FeatureConnectionRateLimits: l.Connections != nil,
		FeatureRequestRateLimits:    l.Requests != nil || len(l.Routes) > 0,
	})
	return n.inOrder()
}

// Needs returns what the destination asks of a client's proxy, without its Backends.
func (d *Destination) Needs() []Feature {
	var n needs
	n.add(d.Protocol.Needs()...)
	if slices.ContainsFunc(d.Addresses, isIPv6) {
		n.add(FeatureIPv6)
	}
	for i := range d.Routes {
		route := &d.Routes[i]
		n.add(route.Match.Needs()...)
		if route.Retry != nil {
			n.add(route.Retry.Needs()...)
		}
		if route.Timeout > 0 {
			n.add(FeatureTimeouts)
		}
	}
	return n.inOrder()
}

// Needs returns what the Backend asks of a client's proxy.
func (b *Backend) Needs() []Feature {
	var n needs
	n.add(b.Protocol.Needs()...)
	n.add(b.Policy.Needs()...)
	n.addIf(map[Feature]bool{FeatureHealthChecks: b.HealthChecks, FeatureExternalNames: b.ExternalName != ""})
	for i := range b.Endpoints {
		if !slices.ContainsFunc(b.Endpoints[i].Addresses, func(a netip.Addr) bool { return !isIPv6(a) }) {
			n.add(FeatureIPv6)
		}
	}
	return n.inOrder()
}

// Needs returns what the port asks of a server's proxy.
func (p *InboundPort) Needs() []Feature {
	var n needs
	n.add(p.Protocol.Needs()...)
	n.add(p.Limits.Needs()...)
	for _, rule := range p.Access.Rules {
		for _, match := range rule.Requests {
			n.add(match.Needs()...)
		}
	}
	for i := range p.Ingress {
		n.add(p.Ingress[i].Needs()...)
	}
	return n.inOrder()
}

// Needs returns what the way in asks of a server's proxy.
func (i *Ingress) Needs() []Feature {
	n := needs{FeatureIngress: !i.TLS, FeatureIngressTLS: i.TLS, FeatureIPv6: slices.ContainsFunc(i.Ranges, isIPv6Range)}
	for _, match := range i.Requests {
		n.add(match.Needs()...)
	}
	return n.inOrder()
}

// Needs returns what the ways out ask of a client's proxy.
func (e *Egress) Needs() []Feature {
	var n needs
	if e.AllowAll {
		n.add(FeatureEgressTCP)
	}
	for i := range e.Ports {
		n.add(e.Ports[i].Needs()...)
	}
	return n.inOrder()
}

// Needs returns what the ways out by a port ask of a client's proxy. To let by address
// is one feature for all protocols: what such connections carry is not looked at.
func (r *EgressRoutes) Needs() []Feature {
	var n needs
	if r.Protocol == EgressTCP || len(r.Ranges) > 0 {
		n.add(FeatureEgressTCP)
	}
	if slices.ContainsFunc(r.Ranges, isIPv6Range) {
		n.add(FeatureIPv6)
	}
	for i := range r.Hosts {
		n.add(r.Protocol.Needs()...)
		n.add(r.Hosts[i].Policy.Needs()...)
		for _, match := range r.Hosts[i].Matches {
			n.add(match.Needs()...)
		}
		for _, within := range r.Hosts[i].Within {
			n.add(within.Needs()...)
		}
	}
	return n.inOrder()
}

// Needs returns what a way to a host by address asks of a client's proxy.
func (w EgressWithin) Needs() []Feature {
	n := needs{FeatureEgressTCP: true, FeatureIPv6: slices.ContainsFunc(w.Ranges, isIPv6Range)}
	for _, match := range w.Matches {
		n.add(match.Needs()...)
	}
	return n.inOrder()
}

// Needs returns what a port outside the mesh asks for that is matched in the protocol's
// own way.
func (p EgressProtocol) Needs() []Feature {
	switch p {
	case EgressHTTP:
		return []Feature{FeatureEgressHTTP}
	case EgressTLS:
		return []Feature{FeatureEgressTLS}
	default:
		return []Feature{FeatureEgressTCP}
	}
}
