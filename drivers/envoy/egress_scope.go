package envoy

import (
	"net/netip"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// scope is a set of addresses outside the mesh to which the same rules apply: a range
// without the smaller scopes in it, or all addresses that are in no range. Envoy
// considers only the filter chains with the smallest range that has an address, so each
// scope must include all rules that apply to its addresses.
type scope struct{ prefix netip.Prefix }

// scopesOf returns the scopes of a port, without addresses that are allowed for any
// host.
func scopesOf(port mesh.EgressRoutes) []scope {
	var ranges []netip.Prefix
	for _, host := range port.Hosts {
		for _, within := range host.Within {
			ranges = append(ranges, within.Ranges...)
		}
	}
	open := mesh.EgressWithin{Ranges: splitDefaultRoutes(port.Ranges)}
	scopes := []scope{{}}
	for _, prefix := range splitDefaultRoutes(ranges) {
		if at := (scope{prefix}); !at.within(open) {
			scopes = append(scopes, at)
		}
	}
	return scopes
}

// within reports whether all addresses of the scope are in one of the ranges.
func (s scope) within(w mesh.EgressWithin) bool {
	return s.prefix.IsValid() && slices.ContainsFunc(w.Ranges, func(r netip.Prefix) bool {
		return r.Bits() <= s.prefix.Bits() && r.Contains(s.prefix.Addr())
	})
}

func (s scope) name(kind string) string {
	if !s.prefix.IsValid() {
		return kind
	}
	return kind + "/at/" + s.prefix.String()
}

func (s scope) match() *listenerv3.FilterChainMatch {
	match := new(listenerv3.FilterChainMatch)
	if s.prefix.IsValid() {
		match.PrefixRanges = cidrs([]netip.Prefix{s.prefix})
	}
	return match
}
