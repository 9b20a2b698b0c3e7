package envoy

import (
	"net/netip"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// scope is addresses outside the mesh to which the same rules apply: those of a range
// but for its smaller scopes, or all that are in no range. Envoy takes the filter chains of
// the smallest range that an address is in, and looks at no others: so each scope has
// all that holds for its addresses.
type scope struct{ prefix netip.Prefix }

// scopesOf returns the scopes of a port. Addresses that are let out whatever their host
// are in none.
func scopesOf(port mesh.EgressRoutes) []scope {
	var ranges []netip.Prefix
	for _, host := range port.Hosts {
		for _, within := range host.Within {
			ranges = append(ranges, within.Ranges...)
		}
	}
	open := mesh.EgressWithin{Ranges: port.Ranges}
	scopes := []scope{{}}
	for _, prefix := range halved(ranges) {
		if at := (scope{prefix}); !at.within(open) {
			scopes = append(scopes, at)
		}
	}
	return scopes
}

// within reports whether the addresses are in one of the ranges.
func (s scope) within(w mesh.EgressWithin) bool {
	return s.prefix.IsValid() && slices.ContainsFunc(w.Ranges, func(r netip.Prefix) bool {
		return r.Bits() <= s.prefix.Bits() && r.Contains(s.prefix.Addr())
	})
}

func (s scope) name(of string) string {
	if !s.prefix.IsValid() {
		return of
	}
	return of + "/at/" + s.prefix.String()
}

func (s scope) match() *listenerv3.FilterChainMatch {
	match := new(listenerv3.FilterChainMatch)
	if s.prefix.IsValid() {
		match.PrefixRanges = cidrs([]netip.Prefix{s.prefix})
	}
	return match
}
