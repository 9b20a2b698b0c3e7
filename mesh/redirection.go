package mesh

import (
	"net/netip"
	"slices"
)

// Redirection says which TCP connections of a workload go through its proxy. The zero
// Redirection redirects all of them.
type Redirection struct {
	// DisableInbound and DisableOutbound disable redirection for a whole direction.
	DisableInbound  bool `json:"disableInbound,omitempty"`
	DisableOutbound bool `json:"disableOutbound,omitempty"`
	// ExcludeInbound lists ports of the workload that are not redirected. If
	// IncludeInbound is not empty, only its ports are.
	ExcludeInbound []uint16 `json:"excludeInbound,omitempty"`
	IncludeInbound []uint16 `json:"includeInbound,omitempty"`
	// ExcludeOutbound lists destination ports, and ExcludeRanges destination addresses,
	// that are not redirected. If IncludeOutbound or IncludeRanges is not empty, only
	// connections to those ports (at any address) or addresses (at any port) are.
	ExcludeOutbound []uint16       `json:"excludeOutbound,omitempty"`
	IncludeOutbound []uint16       `json:"includeOutbound,omitempty"`
	ExcludeRanges   []netip.Prefix `json:"excludeRanges,omitempty"`
	IncludeRanges   []netip.Prefix `json:"includeRanges,omitempty"`
}

// IsZero reports whether all connections are redirected.
func (r Redirection) IsZero() bool {
	return !r.DisableInbound && !r.DisableOutbound && !r.HasRanges() &&
		len(r.ExcludeInbound)+len(r.IncludeInbound)+len(r.ExcludeOutbound)+len(r.IncludeOutbound) == 0
}

// HasRanges reports whether redirection depends on the destination address.
func (r Redirection) HasRanges() bool { return len(r.ExcludeRanges)+len(r.IncludeRanges) > 0 }

// TakesInbound reports whether connections to the workload's port are redirected to its
// proxy.
func (r Redirection) TakesInbound(port uint16) bool {
	return !r.DisableInbound && !slices.Contains(r.ExcludeInbound, port) &&
		(len(r.IncludeInbound) == 0 || slices.Contains(r.IncludeInbound, port))
}

// TakesOutboundPort reports whether the workload's connections to a port are redirected
// to its proxy, for all addresses or for some.
func (r Redirection) TakesOutboundPort(port uint16) bool {
	return !r.DisableOutbound && !slices.Contains(r.ExcludeOutbound, port) &&
		(len(r.IncludeOutbound) == 0 || slices.Contains(r.IncludeOutbound, port) || len(r.IncludeRanges) > 0)
}

// TakesOutbound reports whether the workload's connections to the address and port are
// redirected to its proxy.
func (r Redirection) TakesOutbound(destination netip.AddrPort) bool {
	in := func(ranges []netip.Prefix) bool {
		return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return contains(p, destination.Addr()) })
	}
	if !r.TakesOutboundPort(destination.Port()) || in(r.ExcludeRanges) {
		return false
	}
	return len(r.IncludeOutbound)+len(r.IncludeRanges) == 0 || slices.Contains(r.IncludeOutbound, destination.Port()) || in(r.IncludeRanges)
}
