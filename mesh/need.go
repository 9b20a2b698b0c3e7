package mesh

import (
	"net/netip"
	"slices"
)

// Needs returns the features that the View requires, in the order of Features. It defines
// what each Feature means: a proxy with all of them can implement the whole View.
// FeatureWebSocket and FeatureOpenConnections are never returned, since Views do not require
// them. The cost is linear in the size of the View.
func (v *View) Needs() []Feature {
	var n needs
	n.add(v.Settings.Needs(v.Proxy.Plaintext)...)
	if slices.ContainsFunc(v.Proxy.Addresses, isIPv6) {
		n.add(FeatureIPv6)
	}
	if v.Inbound.TLS == Permissive && !v.Proxy.Plaintext {
		n.add(FeaturePermissiveTLS)
	}
	n.add(v.Inbound.Others.Needs()...)
	for i := range v.Inbound.Issuers {
		n.add(v.Inbound.Issuers[i].Needs()...)
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
	n.addIf(map[Feature]bool{FeatureOnDemand: len(v.Outbound.Unknown) > 0})
	n.add(v.Egress.Needs()...)
	return n.inOrder()
}

// needs is a set of features.
type needs map[Feature]bool

func (n *needs) add(features ...Feature) {
	if *n == nil && len(features) > 0 {
		*n = needs{}
	}
	for _, f := range features {
		(*n)[f] = true
	}
}

// addIf adds the features whose condition is true.
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

// isIPv6Range is false for ::/0, which stands for any address.
func isIPv6Range(p netip.Prefix) bool { return isIPv6(p.Addr()) && p.Bits() > 0 }

// Needs returns the features that the settings require of a proxy, including access logs.
func (s *Settings) Needs(plaintext bool) []Feature {
	var n needs
	n.addIf(map[Feature]bool{
		FeatureConnectTimeouts:       s.ConnectTimeout > 0,
		FeatureHealthChecks:          s.HealthChecks,
		FeatureExternalAuthorization: s.Authorization != nil,
		FeatureForwardedFor:          s.ForwardedFor,
		FeatureAccessLogs:            s.AccessLog.Enabled,
		FeatureAccessLogSampling:     s.AccessLog.IsSampled(),
		FeatureZipkinTracing:         s.Tracing != nil && s.Tracing.Protocol == "zipkin",
		FeatureOTLPTracing:           s.Tracing != nil && s.Tracing.Protocol == "otlp",
		FeaturePlaintextMesh:         plaintext,
	})
	if !plaintext {
		n.add(s.TLS.Needs()...)
	}
	return n.inOrder()
}

// Needs returns FeatureTLSSettings, unless the settings are TLS 1.3 only with default
// ciphers, which proxies without that feature use, and FeatureTLSCurves if there are curves.
func (t TLS) Needs() []Feature {
	var n needs
	n.addIf(map[Feature]bool{
		FeatureTLSSettings: t.Min != "1.3" || t.Max != "1.3" || len(t.Ciphers) > 0,
		FeatureTLSCurves:   len(t.Curves) > 0,
	})
	return n.inOrder()
}

// Needs returns the features that a port with this protocol requires, on both sides.
func (p Protocol) Needs() []Feature {
	switch p {
	case HTTP2, GRPC:
		return []Feature{FeatureHTTP2, FeatureHTTP2Resets}
	case TCPServerFirst:
		return []Feature{FeatureServerFirst}
	}
	return nil
}

// Needs returns the features that the match requires, other than paths and methods.
func (m HTTPMatch) Needs() []Feature {
	var n needs
	n.addIf(map[Feature]bool{FeatureHeaderMatches: len(m.Headers) > 0, FeatureQueryMatches: len(m.Query) > 0, FeatureTokens: m.Token != nil})
	return n.inOrder()
}

// Needs returns the features that the retry requires.
func (r Retry) Needs() []Feature {
	n := needs{FeatureRetries: true, FeatureTimeouts: r.PerTry > 0, FeatureRetryBackoff: r.Backoff > 0}
	n[FeatureRetryCodes] = slices.ContainsFunc(r.Codes, func(code uint16) bool { return code < 500 || code > 504 })
	return n.inOrder()
}

// Needs returns the features that the policy requires of a client's proxy.
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

// Needs returns the features that the limits require of a server's proxy.
func (l RateLimits) Needs() []Feature {
	var n needs
	n.addIf(map[Feature]bool{
		FeatureConnectionRateLimits: l.Connections != nil,
		FeatureRequestRateLimits:    l.Requests != nil || len(l.Routes) > 0,
	})
	return n.inOrder()
}

// Needs returns the features that the destination requires of a client's proxy, without
// those of its Backends.
func (d *Destination) Needs() []Feature {
	var n needs
	n.add(d.Protocol.Needs()...)
	n.addIf(map[Feature]bool{FeatureIPv6: slices.ContainsFunc(d.Addresses, isIPv6), FeatureServerNames: len(d.Servers) > 0, FeatureGateways: d.Listens, FeatureTermination: len(d.Certificates) > 0})
	for i := range d.Routes {
		route := &d.Routes[i]
		n.add(route.Match.Needs()...)
		if route.Retry != nil {
			n.add(route.Retry.Needs()...)
		}
		n.addIf(map[Feature]bool{
			FeatureTimeouts:           route.Timeout > 0,
			FeatureRewrites:           route.Rewrite != nil,
			FeatureRedirects:          route.Redirect != nil,
			FeatureCORS:               route.CORS != nil,
			FeatureMirrors:            len(route.Mirrors) > 0,
			FeatureSessionPersistence: route.Session != nil,
			FeatureHeaderChanges:      changesHeaders(route),
		})
	}
	return n.inOrder()
}

// Needs returns the features that the Backend requires of a client's proxy.
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

// Needs returns the features that the port requires of a server's proxy.
func (p *InboundPort) Needs() []Feature {
	var n needs
	n.add(p.Protocol.Needs()...)
	n.add(p.Limits.Needs()...)
	n.addIf(map[Feature]bool{FeatureProxyProtocol: p.ProxyProtocol})
	n.add(p.Access.Needs()...)
	for i := range p.Ingress {
		n.add(p.Ingress[i].Needs()...)
	}
	return n.inOrder()
}

// Needs returns the features that the rules require of a server's proxy.
func (a Access) Needs() []Feature {
	n := needs{FeatureAudit: a.Audit, FeatureAccessPolicies: len(a.Denials) > 0}
	for _, rule := range a.Rules {
		n.addIf(map[Feature]bool{FeatureAccessPolicies: len(rule.Except) > 0 || slices.ContainsFunc(rule.Sources, isGroup)})
		for _, match := range rule.Requests {
			n.add(match.Needs()...)
		}
	}
	for _, rule := range a.Denials {
		for _, match := range rule.Requests {
			n.add(match.Needs()...)
		}
	}
	return n.inOrder()
}

// Needs returns the features that verifying the issuer's tokens requires of a server's proxy.
func (i *TokenIssuer) Needs() []Feature {
	n := needs{FeatureTokens: true}
	for _, key := range i.Keys {
		n.add(key.Algorithm.Needs()...)
	}
	return n.inOrder()
}

func isGroup(id Identity) bool { return id.ServiceAccount == "" }

// Needs returns the features that the ingress rule requires of a server's proxy.
func (i *Ingress) Needs() []Feature {
	n := needs{FeatureIngress: !i.TLS, FeatureIngressTLS: i.TLS, FeatureIPv6: slices.ContainsFunc(i.Ranges, isIPv6Range)}
	for _, match := range i.Requests {
		n.add(match.Needs()...)
	}
	return n.inOrder()
}

// Needs returns the features that egress requires of a client's proxy.
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

// Needs returns the features that the port's routes require of a client's proxy. Routing
// by address is the same feature for all protocols, as it does not inspect the content.
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

// Needs returns the features that the routes by address require of a client's proxy.
func (w EgressWithin) Needs() []Feature {
	n := needs{FeatureEgressTCP: true, FeatureIPv6: slices.ContainsFunc(w.Ranges, isIPv6Range)}
	for _, match := range w.Matches {
		n.add(match.Needs()...)
	}
	return n.inOrder()
}

// Needs returns the feature that matching a port of this protocol requires.
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

// changesHeaders reports whether a route changes headers of requests or responses.
func changesHeaders(route *Route) bool {
	return route.Redirect != nil && !route.Redirect.Response.IsZero() ||
		slices.ContainsFunc(route.Backends, func(b WeightedBackend) bool { return !b.Request.IsZero() || !b.Response.IsZero() })
}
