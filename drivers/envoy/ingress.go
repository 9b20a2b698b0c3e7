package envoy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// requiresIdentity reports whether a caller must have a certificate of the mesh. Rules
// with principals always require one, since principals cannot be verified otherwise.
func requiresIdentity(r mesh.Ingress) bool {
	return r.AnyPrincipal || len(r.Principals) > 0 || r.TLS && !r.SkipClientCert
}

// isSatisfiable reports whether any connection can satisfy the rule. None can if the
// rule has neither addresses nor principals, or has principals without TLS.
func isSatisfiable(r mesh.Ingress) bool {
	switch hasPrincipals := r.AnyPrincipal || len(r.Principals) > 0; {
	case len(r.Requests) == 0:
		return false
	case len(r.Ranges) == 0:
		return hasPrincipals && r.TLS
	default:
		return r.TLS || !hasPrincipals
	}
}

// addIngress adds the permissions of a rule for callers from outside the mesh.
func (p policies) addIngress(r mesh.Ingress, trustDomain string) {
	if !isSatisfiable(r) {
		return
	}
	var all []*rbacv3.Principal
	if len(r.Ranges) > 0 {
		all = append(all, within(r.Ranges))
	}
	switch {
	case !requiresIdentity(r):
	case r.AnyPrincipal || len(r.Principals) == 0:
		all = append(all, member(trustDomain))
	default:
		all = append(all, peers(r.Principals, trustDomain))
	}
	p.add("ingress "+r.Origin.Name(), []*rbacv3.Principal{allOf(all)}, permissions(r.Requests))
}

// ingressGroup is the set of rules for TLS connections with certain server names.
type ingressGroup struct {
	// hosts are the server names; empty means any name without a group of its own.
	hosts []string
	rules []mesh.Ingress
}

// byHost groups the rules for TLS. Envoy uses only the filter chain with the most
// specific server name, so each group has all rules that apply to its names: that of
// "www.example.com" includes the rules for "*.example.com".
func byHost(rules []mesh.Ingress, trustDomain string) []ingressGroup {
	const anyHost = ""
	rulesOf := make(map[string][]mesh.Ingress)
	var tls []mesh.Ingress
	for _, r := range rules {
		if !r.TLS || !isSatisfiable(r) {
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

// name returns the name of the group's filter chain for the port.
func (g ingressGroup) name(port string) string {
	name := port + "/ingress"
	for _, host := range g.hosts {
		name += "/" + host
	}
	return name
}

// clientCert requires a certificate of the mesh if every rule does. If only some do,
// those rules apply only to callers that have one.
func (g ingressGroup) clientCert() clientCert {
	switch {
	case !slices.ContainsFunc(g.rules, requiresIdentity):
		return clientCert{}
	case slices.ContainsFunc(g.rules, func(r mesh.Ingress) bool { return !requiresIdentity(r) }):
		return optionalCert
	}
	return memberCert
}

// covers reports whether rules for the server name apply to the other name too. The
// empty name means any.
func covers(name, other string) bool {
	suffix, wild := strings.CutPrefix(name, "*")
	return name == "" || name == other || wild && strings.HasSuffix(other, suffix)
}

// serverNames returns the names that Envoy can match, in lower case, without names of
// the mesh: a client that uses one of those is treated as a peer.
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

// meshNames is the pattern of the server names of all workloads of the mesh.
func meshNames(trustDomain string) string { return "*.sa." + strings.ToLower(trustDomain) }

// rangeGroup is the set of rules for connections from an address range.
type rangeGroup struct {
	// source is the range; nil means any address without a group of its own.
	source *netip.Prefix
	rules  []mesh.Ingress
}

// byRange groups rules by source address. Envoy uses only the filter chain with the
// narrowest range, so each group includes the rules of all wider ranges.
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

// rangesOf returns the distinct ranges of all rules, for filter chains.
func rangesOf(rules []mesh.Ingress) []netip.Prefix {
	var ranges []netip.Prefix
	for _, r := range rules {
		ranges = append(ranges, r.Ranges...)
	}
	return splitDefaultRoutes(ranges)
}

// splitDefaultRoutes returns the distinct ranges, with 0.0.0.0/0 and ::/0 split into
// halves: Envoy treats them like a missing range, and would pick arbitrarily between a
// filter chain with one of them and a chain without ranges.
func splitDefaultRoutes(ranges []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range ranges {
		switch {
		case !r.IsValid():
			// No connection has this address, but without any range it would be every one.
			out = append(out, netip.PrefixFrom(netip.IPv4Unspecified(), 32))
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

// callers returns the callers of the mesh who may connect, and false if a rule requires none.
func (g rangeGroup) callers(trustDomain string) (callers, bool) {
	var ids []mesh.Identity
	for _, r := range g.rules {
		if !requiresIdentity(r) {
			return nil, false
		}
		if r.AnyPrincipal || len(r.Principals) == 0 {
			ids = append(ids, mesh.Identity{TrustDomain: trustDomain})
		}
		ids = append(ids, r.Principals...)
	}
	return callersNamed(ids, nil, trustDomain), true
}
