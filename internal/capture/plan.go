package capture

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// plan is a validated redirection.
type plan struct {
	uid                             uint32
	disableInbound, disableOutbound bool
	inbound, outbound               ports
	exclude, include                ranges
	// includesSome says that only the included outbound ports and ranges are
	// redirected. An address family may have none.
	includesSome bool
	interfaces   []string
	dns          ranges
	// translate6 is as Redirection.TranslateIPv6.
	translate6 bool
	// each limits the connections of one address, by destination port.
	each []portLimit
	// timeouts are those of connections from the pod, or nil for the kernel's.
	timeouts expr.CtStatePolicyTimeout
}

// portLimit limits the connections of one address to a port.
type portLimit struct {
	port  uint16
	limit uint32
}

// metricsEach is how many connections one address may have to the metrics port.
const metricsEach = 32

// ports are the ports of one direction. Inbound, an empty include means all ports;
// outbound it depends on the ranges too.
type ports struct{ exclude, include []span }

// ranges are addresses of both families.
type ranges struct{ v4, v6 []span }

// span is a range of ports or addresses, big-endian, both ends included.
type span struct{ first, last []byte }

// resolvConf lists a pod's name servers.
const resolvConf = "/etc/resolv.conf"

func newPlan(r agentspec.Redirection, options Options) (*plan, error) {
	p := &plan{
		uid:            cmp.Or(options.UID, DefaultUID),
		disableInbound: r.DisableInbound, disableOutbound: r.DisableOutbound,
		translate6:   r.TranslateIPv6,
		includesSome: len(r.IncludeOutboundRanges) > 0 || len(r.IncludeOutboundPorts) > 0,
		each:         []portLimit{{metricsPort, metricsEach}},
	}
	if limit := cmp.Or(r.InboundConnectionsEach, agentspec.DefaultInboundConnectionsEach); limit > 0 {
		p.each = append(p.each, portLimit{InboundPort, uint32(min(limit, math.MaxInt32))})
	}
	var problems []error
	note := func(err error) { problems = append(problems, err) }
	p.inbound.exclude = portSpans("excludeInboundPorts", slices.Concat(r.ExcludeInboundPorts, openPorts), note)
	p.inbound.include = portSpans("includeInboundPorts", r.IncludeInboundPorts, note)
	p.outbound.exclude = portSpans("excludeOutboundPorts", r.ExcludeOutboundPorts, note)
	p.outbound.include = portSpans("includeOutboundPorts", r.IncludeOutboundPorts, note)
	p.exclude = rangeSpans("excludeOutboundRanges", r.ExcludeOutboundRanges, note)
	p.include = rangeSpans("includeOutboundRanges", r.IncludeOutboundRanges, note)
	for _, name := range r.ExcludeInterfaces {
		if err := checkInterface(name); err != nil {
			note(err)
		}
	}
	p.interfaces = slices.Compact(slices.Sorted(slices.Values(r.ExcludeInterfaces)))
	dns := options.DNS
	if dns == nil {
		var err error
		if dns, err = nameservers(resolvConf); err != nil {
			note(fmt.Errorf("finding the cluster's name servers: %w", err))
		}
	}
	for _, addr := range dns {
		if !addr.IsValid() {
			note(errors.New("DNS: an address is empty"))
			continue
		}
		p.dns.add(netip.PrefixFrom(addr.WithZone(""), addr.BitLen()))
	}
	p.dns.merge()
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("redirection: %w", err)
	}
	return p, nil
}

// portSpans returns the ports as ranges.
func portSpans(field string, numbers []int, note func(error)) []span {
	var spans []span
	for _, number := range numbers {
		if number < 1 || number > 65535 {
			note(fmt.Errorf("%s: %d is not a port; write a number from 1 to 65535", field, number))
			continue
		}
		port := binary.BigEndian.AppendUint16(nil, uint16(number))
		spans = append(spans, span{port, port})
	}
	return merge(spans)
}

func rangeSpans(field string, texts []string, note func(error)) ranges {
	var r ranges
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			note(fmt.Errorf("%s: %q is not a range of addresses; write it as 10.0.0.0/8 or 2001:db8::/32", field, text))
		case prefix.Addr().Is4In6():
			note(fmt.Errorf("%s: %q is never seen on the wire; write it as an IPv4 range", field, text))
		default:
			r.add(prefix)
		}
	}
	r.merge()
	return r
}

func (r *ranges) add(prefix netip.Prefix) {
	addr := prefix.Addr().Unmap()
	if addr.Is4() {
		r.v4 = append(r.v4, spanOf(netip.PrefixFrom(addr, min(prefix.Bits(), 32))))
		return
	}
	r.v6 = append(r.v6, spanOf(prefix))
}

func (r *ranges) merge() { r.v4, r.v6 = merge(r.v4), merge(r.v6) }

// spanOf returns the first and the last address of a prefix.
func spanOf(prefix netip.Prefix) span {
	first := prefix.Masked().Addr().AsSlice()
	last := bytes.Clone(first)
	for bit := prefix.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 1 << (7 - bit%8)
	}
	return span{first, last}
}

// merge sorts spans and joins those that overlap or touch: nftables sets reject
// overlapping intervals.
func merge(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return bytes.Compare(a.first, b.first) })
	var merged []span
	for _, s := range spans {
		if len(merged) > 0 {
			before := &merged[len(merged)-1]
			next, more := after(before.last)
			if !more || bytes.Compare(s.first, next) <= 0 {
				if bytes.Compare(s.last, before.last) > 0 {
					before.last = s.last
				}
				continue
			}
		}
		merged = append(merged, s)
	}
	return merged
}

// after returns the next number, or false if it needs more bytes.
func after(number []byte) ([]byte, bool) {
	next := bytes.Clone(number)
	for i := len(next) - 1; i >= 0; i-- {
		next[i]++
		if next[i] != 0 {
			return next, true
		}
	}
	return nil, false
}

func checkInterface(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ || strings.ContainsAny(name, "/ \t\n\x00") || name == "." || name == ".." {
		return fmt.Errorf("excludeInterfaces: %q is not the name of a network interface; names have 1 to %d bytes, without spaces and slashes", name, unix.IFNAMSIZ-1)
	}
	return nil
}

// nameservers returns the name servers in a file of the format of resolv.conf(5); none if
// the file does not exist. It ignores invalid lines.
func nameservers(file string) ([]netip.Addr, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var servers []netip.Addr
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil {
			servers = append(servers, addr)
		}
	}
	return servers, nil
}
