package envoy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// asksIdentity reports whether a caller must show a certificate of the mesh. A rule
// that names principals asks for one whatever else it says, since there is no
// other way to know them.
func asksIdentity(r mesh.Ingress) bool {
	return r.AnyPrincipal || len(r.Principals) > 0 || r.TLS && !r.SkipClientCert
}

// letsSomebody reports whether a connection of some kind can satisfy the rule.
// Nobody can where there are neither addresses nor principals, nor where there are
// principals and no TLS to know them by.
func letsSomebody(r mesh.Ingress) bool {
	switch named := r.AnyPrincipal || len(r.Principals) > 0; {
	case len(r.Requests) == 0:
		return false
	case len(r.Ranges) == 0:
		return named && r.TLS
	default:
		return r.TLS || !named
	}
}

// addIngress adds what a rule lets its callers do.
func (p policies) addIngress(r mesh.Ingress, trustDomain string) {
	if !letsSomebody(r) {
		return
	}
	var all []*rbacv3.Principal
	if len(r.Ranges) > 0 {
		all = append(all, within(r.Ranges))
	}
	switch {
	case !asksIdentity(r):
	case r.AnyPrincipal || len(r.Principals) == 0:
		all = append(all, member(trustDomain))
	default:
		all = append(all, peers(r.Principals, trustDomain))
	}
	p.add("ingress "+r.Name, []*rbacv3.Principal{allOf(all)}, permissions(r.Requests))
}

// ingressGroup is the rules that hold for TLS connections to some server names.
type ingressGroup struct {
	// hosts are the server names; none means any that no other group has.
	hosts []string
	rules []mesh.Ingress
}

// byHost groups the rules for TLS. Envoy takes a connection to the filter chain with
// the most specific server name and to no other, so each group has all the rules
// that hold for its names, those for "*.example.com" among those for
// "www.example.com" too.
func byHost(rules []mesh.Ingress, trustDomain string) []ingressGroup {
	const anyHost = ""
	rulesOf := make(map[string][]mesh.Ingress)
	var tls []mesh.Ingress
	for _, r := range rules {
		if !r.TLS || !letsSomebody(r) {
			continue
		}
		hosts := serverNames(r.SNIHosts, trustDomain)
		if len(r.SNIHosts) == 0 {
			hosts = []string{anyHost}
		}
		r.SNIHosts = hosts
		tls = append(tls, r)
		for _, host := range hosts {
			rulesOf[host] = nil
		}
	}
	for host := range rulesOf {
		for _, r := range tls {
			if slices.ContainsFunc(r.SNIHosts, func(name string) bool { return covers(name, host) }) {
				rulesOf[host] = append(rulesOf[host], r)
			}
		}
	}
	var groups []ingressGroup
	for _, host := range slices.Sorted(maps.Keys(rulesOf)) {
		group := ingressGroup{rules: rulesOf[host]}
		if host != anyHost {
			group.hosts = []string{host}
		}
		groups = append(groups, group)
	}
	return groups
}

// name returns the name of the group's filter chain on the port.
func (g ingressGroup) name(port string) string {
	name := port + "/ingress"
	for _, host := range g.hosts {
		name += "/" + host
	}
	return name
}

// clientCert asks for a certificate of the mesh where every rule does. Where only
// some do, those hold only for callers that show one.
func (g ingressGroup) clientCert() clientCert {
	switch {
	case !slices.ContainsFunc(g.rules, asksIdentity):
		return clientCert{}
	case slices.ContainsFunc(g.rules, func(r mesh.Ingress) bool { return !asksIdentity(r) }):
		return optionalCert
	}
	return memberCert
}

// covers reports whether what holds for the server name holds for the other too.
// The empty name is any.
func covers(name, other string) bool {
	suffix, wild := strings.CutPrefix(name, "*")
	return name == "" || name == other || wild && strings.HasSuffix(other, suffix)
}

// serverNames returns the names that Envoy can tell connections apart by, in lower
// case: a client that names the proxy as peers of the mesh do is one of them.
func serverNames(hosts []string, trustDomain string) []string {
	var names []string
	for _, host := range hosts {
		host = strings.ToLower(host)
		if rest := strings.TrimPrefix(host, "*."); rest == "" || strings.Contains(rest, "*") || covers(meshNames(trustDomain), host) {
			continue
		}
		names = append(names, host)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// meshNames are the server names of all workloads of the mesh.
func meshNames(trustDomain string) string { return "*.sa." + strings.ToLower(trustDomain) }

// rangeGroup is the rules that hold for connections from an address range.
type rangeGroup struct {
	// source is the range; nil means any address that no other group has.
	source *netip.Prefix
	rules  []mesh.Ingress
}

// byRange groups rules by where connections come from. Envoy takes a connection to
// the filter chain with the narrowest range, so each group has the rules of all
// wider ranges too.
func byRange(rules []mesh.Ingress) []rangeGroup {
	var groups []rangeGroup
	for _, source := range rangesOf(rules) {
		group := rangeGroup{source: &source}
		for _, r := range rules {
			if len(r.Ranges) == 0 || slices.ContainsFunc(r.Ranges, func(wide netip.Prefix) bool {
				return wide.Bits() <= source.Bits() && wide.Contains(source.Addr())
			}) {
				group.rules = append(group.rules, r)
			}
		}
		groups = append(groups, group)
	}
	anywhere := slices.DeleteFunc(slices.Clone(rules), func(r mesh.Ingress) bool { return len(r.Ranges) > 0 })
	if len(anywhere) > 0 {
		groups = append(groups, rangeGroup{rules: anywhere})
	}
	return groups
}

// rangesOf returns the ranges of all rules, each once, for filter chains.
func rangesOf(rules []mesh.Ingress) []netip.Prefix {
	var ranges []netip.Prefix
	for _, r := range rules {
		ranges = append(ranges, r.Ranges...)
	}
	return halved(ranges)
}

// halved returns the ranges, each once, with halves for one that is all addresses.
// Envoy takes that for no range, and of two filter chains, one with it and one
// without a range, either.
func halved(ranges []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range ranges {
		switch {
		case r.Bits() != 0:
			out = append(out, r.Masked())
		case r.Addr().Is4():
			out = append(out, netip.MustParsePrefix("0.0.0.0/1"), netip.MustParsePrefix("128.0.0.0/1"))
		default:
			out = append(out, netip.MustParsePrefix("::/1"), netip.MustParsePrefix("8000::/1"))
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// sans returns the names of the callers, or nil if one of the rules asks for none.
func (g rangeGroup) sans(trustDomain string) []*tlsv3.SubjectAltNameMatcher {
	var ids []mesh.Identity
	anyMember := false
	for _, r := range g.rules {
		if !asksIdentity(r) {
			return nil
		}
		anyMember = anyMember || r.AnyPrincipal || len(r.Principals) == 0
		ids = append(ids, r.Principals...)
	}
	if anyMember {
		return memberSAN(trustDomain)
	}
	return identitySANs(ids)
}
