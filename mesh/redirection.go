package mesh

import (
	"net/netip"
	"slices"
)

// Redirection says which TCP connections of a workload go through its proxy. The zero
// Redirection has all do so.
type Redirection struct {
	// DisableInbound and DisableOutbound leave a whole direction alone.
	DisableInbound  bool `json:"disableInbound,omitempty"`
	DisableOutbound bool `json:"disableOutbound,omitempty"`
	// ExcludeInbound are ports of the workload that are left alone. IncludeInbound, where
	// not empty, are the only ones that are not.
	ExcludeInbound []uint16 `json:"excludeInbound,omitempty"`
	IncludeInbound []uint16 `json:"includeInbound,omitempty"`
	// ExcludeOutbound are ports, and ExcludeRanges addresses, to which connections are
	// left alone. IncludeOutbound and IncludeRanges, where not both are empty, are the
	// only ones to which they are not: a port at any address, and an address at any port.
	ExcludeOutbound []uint16       `json:"excludeOutbound,omitempty"`
	IncludeOutbound []uint16       `json:"includeOutbound,omitempty"`
	ExcludeRanges   []netip.Prefix `json:"excludeRanges,omitempty"`
	IncludeRanges   []netip.Prefix `json:"includeRanges,omitempty"`
}

// IsZero reports whether every connection goes through the proxy.
func (r Redirection) IsZero() bool {
	return !r.DisableInbound && !r.DisableOutbound && !r.HasRanges() &&
		len(r.ExcludeInbound)+len(r.IncludeInbound)+len(r.ExcludeOutbound)+len(r.IncludeOutbound) == 0
}

// HasRanges reports whether it depends on the address that is called.
func (r Redirection) HasRanges() bool { return len(r.ExcludeRanges)+len(r.IncludeRanges) > 0 }

// TakesInbound reports whether connections to a port of the workload go through its
// proxy.
func (r Redirection) TakesInbound(port uint16) bool {
	return !r.DisableInbound && !slices.Contains(r.ExcludeInbound, port) &&
		(len(r.IncludeInbound) == 0 || slices.Contains(r.IncludeInbound, port))
}

// TakesOutboundPort reports whether connections of the workload to a port go through
// its proxy, whatever their address or at some addresses.
func (r Redirection) TakesOutboundPort(port uint16) bool {
	return !r.DisableOutbound && !slices.Contains(r.ExcludeOutbound, port) &&
		(len(r.IncludeOutbound) == 0 || slices.Contains(r.IncludeOutbound, port) || len(r.IncludeRanges) > 0)
}

// TakesOutbound reports whether the workload's connections to an address and port go
// through its proxy.
func (r Redirection) TakesOutbound(to netip.AddrPort) bool {
	in := func(ranges []netip.Prefix) bool {
		return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return contains(p, to.Addr()) })
	}
	if !r.TakesOutboundPort(to.Port()) || in(r.ExcludeRanges) {
		return false
	}
	return len(r.IncludeOutbound)+len(r.IncludeRanges) == 0 || slices.Contains(r.IncludeOutbound, to.Port()) || in(r.IncludeRanges)
}
