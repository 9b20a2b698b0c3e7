package capture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// translated6 is the prefix of translated addresses. It fills one word.
var translated6 = netip.MustParsePrefix(agentspec.TranslatedIPv6)

// The registers of one word each in which a translated address is put together, and that of
// the proxy's port.
const (
	word0 = unix.NFT_REG32_00 + iota
	word1
	word2
	word3
	portWord
)

// redirect6 redirects an IPv6 connection, translated if the plan says so.
func (p *plan) redirect6(port uint16) match {
	if !p.translate6 {
		return redirect(port)
	}
	const lastBytes = 24 + 8
	return match{
		prefixWord(),
		&expr.Payload{DestRegister: word1, Base: expr.PayloadBaseNetworkHeader, Offset: lastBytes, Len: 8},
		// The kernel fills the rest of the word with zeros.
		&expr.Payload{DestRegister: word3, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Immediate{Register: portWord, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: word0, RegProtoMin: portWord},
	}
}

// postrouting translates the source of outbound connections. Their destination has been
// replaced by now, but connection tracking still knows the original one.
func (w *writer) postrouting() {
	c := w.natChain("postrouting", nftables.ChainHookPostrouting)
	w.rule(c, notTCP(), leave())
	w.rule(c, outOf("lo"), family6(), port(OutboundPort), redirected(), match{
		&expr.Ct{Register: word1, Key: expr.CtKeyDSTIP6},
		prefixWord(),
		&expr.Immediate{Register: word3, Data: make([]byte, 4)},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: word0},
	})
}

func prefixWord() expr.Any {
	return &expr.Immediate{Register: word0, Data: translated6.Addr().AsSlice()[:4]}
}

// setTranslated6 makes the translated addresses local to the pod, or removes them.
func setTranslated6(wanted bool) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding lo: %w", err)
	}
	route := &netlink.Route{
		LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL,
		Dst: &net.IPNet{IP: translated6.Addr().AsSlice(), Mask: net.CIDRMask(translated6.Bits(), 128)},
	}
	doing, change := "removing", netlink.RouteDel
	if wanted {
		doing, change = "adding", netlink.RouteReplace
		// There are no routes by an interface that is down, and a container runtime may
		// set it up only after its plug-ins have run.
		err = netlink.LinkSetUp(lo)
	}
	if err == nil {
		err = change(route)
	}
	switch {
	case err == nil || isAny(err, disabled6...) || !wanted && errors.Is(err, unix.ESRCH):
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s the local route %s: %w; the capability NET_ADMIN is needed", doing, translated6, err)
	default:
		return fmt.Errorf("%s the local route %s: %w", doing, translated6, err)
	}
}
