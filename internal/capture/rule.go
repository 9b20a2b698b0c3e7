package capture

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// writer adds the rules of a plan to the batch of a connection.
type writer struct {
	conn  *nftables.Conn
	table *nftables.Table
	err   error
}

// match is a part of a rule: conditions or a verdict.
type match []expr.Any

// write adds the chains and the rules. The order of the rules matters.
func (w *writer) write(p *plan) {
	s := w.sets(p)
	w.output(p, s)
	if !p.disableInbound {
		w.prerouting(p, s.inbound)
	}
	if p.translate6 && !p.disableOutbound {
		w.postrouting()
	}
	w.guard(p)
	w.escape(p, s)
}

// sets are the sets that several chains look into. Each may be nil.
type sets struct {
	inbound, outbound     *portFilter
	dns, exclude, include rangeSets
}

func (w *writer) sets(p *plan) *sets {
	return &sets{
		inbound:  w.ports("inbound", p.inbound),
		outbound: w.ports("outbound", p.outbound),
		dns:      w.ranges("dns", p.dns),
		exclude:  w.ranges("exclude", p.exclude),
		include:  w.ranges("include", p.include),
	}
}

// output is for connections from the pod, including those to itself.
func (w *writer) output(p *plan, s *sets) {
	c := w.natChain("output", nftables.ChainHookOutput)
	w.rule(c, notTCP(), leave())
	w.captured(c, p, s, func(to uint16) (to4, to6 match) { return redirect(to), p.redirect6(to) })
}

// captured adds the rules that select the connections of the pod that pass a port of the
// proxy. The function returns what happens to those of both families.
func (w *writer) captured(c *nftables.Chain, p *plan, s *sets, then func(port uint16) (to4, to6 match)) {
	in4, in6 := then(InboundPort)
	out4, out6 := then(OutboundPort)
	// The inbound side dials the app from these addresses.
	w.rule(c, outOf("lo"), family4(), source(inboundSource4), leave())
	w.rule(c, outOf("lo"), family6(), source(inboundSource6), leave())
	if !p.disableInbound {
		// The pod called its own Service and the outbound side chose this pod: the
		// connection must pass the inbound side, unless the port is not redirected.
		w.rule(c, owner(p.uid), outOf("lo"), family4(), outsideOf(netip.MustParsePrefix("127.0.0.0/8")), s.inbound.takes(), in4)
		w.rule(c, owner(p.uid), outOf("lo"), family6(), outsideOf(netip.MustParsePrefix("::1/128")), s.inbound.takes(), in6)
	}
	if p.disableOutbound {
		return
	}
	w.rule(c, owner(p.uid), leave())
	w.rule(c, outOf("lo"), leave())
	for _, name := range p.interfaces {
		w.rule(c, outOf(name), leave())
	}
	direct := slices.Concat(port(53), leave())
	w.rangeRules(c, s.dns, direct, direct)
	w.portRule(c, s.outbound.exclude, expr.CmpOpEq, leave())
	w.rangeRules(c, s.exclude, leave(), leave())
	if !p.includesSome {
		w.familyRules(c, p, out4, out6)
		return
	}
	if set := s.outbound.include; set != nil {
		w.familyRules(c, p, out4, out6, destinationPort(), lookup(set, expr.CmpOpEq))
	}
	w.rangeRules(c, s.include, out4, out6)
}

// familyRules adds the rules for the matching connections of both families.
func (w *writer) familyRules(c *nftables.Chain, p *plan, to4, to6 match, matches ...match) {
	if p.translate6 {
		w.rule(c, slices.Concat(matches...), family6(), to6)
	}
	w.rule(c, slices.Concat(matches...), to4)
}

// prerouting is for connections to the pod. Those from itself have passed output, and NAT
// rules apply only once.
func (w *writer) prerouting(p *plan, inbound *portFilter) {
	c := w.natChain("prerouting", nftables.ChainHookPrerouting)
	w.rule(c, notTCP(), leave())
	for _, name := range p.interfaces {
		w.rule(c, inFrom(name), leave())
	}
	w.portRule(c, inbound.exclude, expr.CmpOpEq, leave())
	w.portRule(c, inbound.include, expr.CmpOpNeq, leave())
	if p.translate6 {
		// The guard refuses connections to the proxy's port only as long as they are not
		// changed.
		w.rule(c, port(InboundPort), leave())
	}
	w.familyRules(c, p, redirect(InboundPort), p.redirect6(InboundPort))
}

// guard refuses direct connections to the proxy's ports, for which the proxy would be its
// own destination and connect to itself endlessly. It also enforces the limits of
// connections of one address.
func (w *writer) guard(p *plan) {
	c := w.conn.AddChain(&nftables.Chain{
		Name: "guard", Table: w.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	})
	proxy := w.set("proxy", nftables.TypeInetService, portSpans("", []int{OutboundPort, InboundPort}, func(error) {}))
	w.rule(c, notTCP(), leave())
	for _, each := range p.each {
		first := slices.Concat(notFrom("lo"), port(each.port), firstPacket())
		w.rule(c, family4(), first, sender4(), w.exceeds(fmt.Sprintf("senders4_%d", each.port), nftables.TypeIPAddr, each.limit), refuse())
		w.rule(c, family6(), first, sender6(), w.exceeds(fmt.Sprintf("senders6_%d", each.port), nftables.TypeIP6Addr, each.limit), refuse())
	}
	w.rule(c, destinationPort(), lookup(proxy, expr.CmpOpNeq), leave())
	w.rule(c, redirected(), leave())
	w.rule(c, refuse())
}

// maxSenders is how many addresses are counted at a time. Addresses without a connection
// are evicted.
const maxSenders = 65535

// exceeds matches if the address in the register has more open connections than the
// limit. The kernel counts them.
func (w *writer) exceeds(name string, datatype nftables.SetDatatype, limit uint32) match {
	set := &nftables.Set{Table: w.table, Name: name, KeyType: datatype, Dynamic: true, Size: maxSenders}
	w.note(w.conn.AddSet(set, nil))
	return match{&expr.Dynset{
		SrcRegKey: register, SetName: set.Name, SetID: set.ID, Operation: unix.NFT_DYNSET_OP_ADD,
		Exprs: []expr.Any{&expr.Connlimit{Count: limit, Flags: expr.NFT_CONNLIMIT_F_INV}},
	}}
}

// natChain adds a chain that runs just before chains of the usual priority, such as
// kube-proxy's.
func (w *writer) natChain(name string, hook *nftables.ChainHook) *nftables.Chain {
	usual := nftables.ChainPriorityNATDest
	if hook == nftables.ChainHookPostrouting {
		usual = nftables.ChainPriorityNATSource
	}
	return w.conn.AddChain(&nftables.Chain{
		Name: name, Table: w.table, Type: nftables.ChainTypeNAT,
		Hooknum: hook, Priority: nftables.ChainPriorityRef(*usual - 1),
	})
}

func (w *writer) rule(c *nftables.Chain, parts ...match) {
	w.conn.AddRule(&nftables.Rule{Table: w.table, Chain: c, Exprs: slices.Concat(parts...)})
}

// rangeSets are sets of addresses of both families. Each may be nil.
type rangeSets struct{ v4, v6 *nftables.Set }

func (w *writer) ranges(name string, r ranges) rangeSets {
	return rangeSets{w.set(name+"4", nftables.TypeIPAddr, r.v4), w.set(name+"6", nftables.TypeIP6Addr, r.v6)}
}

// rangeRules adds a rule for the destinations in the ranges of each address family that has
// some.
func (w *writer) rangeRules(c *nftables.Chain, sets rangeSets, then4, then6 match) {
	if sets.v4 != nil {
		w.rule(c, family4(), destination4(), lookup(sets.v4, expr.CmpOpEq), then4)
	}
	if sets.v6 != nil {
		w.rule(c, family6(), destination6(), lookup(sets.v6, expr.CmpOpEq), then6)
	}
}

// portRule adds a rule for the destination ports that are in the set, or not in it,
// depending on op. Without a set it adds none.
func (w *writer) portRule(c *nftables.Chain, set *nftables.Set, op expr.CmpOp, verdict match) {
	if set != nil {
		w.rule(c, destinationPort(), lookup(set, op), verdict)
	}
}

// chunkSize is the number of set elements per netlink message, whose length is limited.
const chunkSize = 500

// set adds a set of ranges. It returns nil if there are none.
func (w *writer) set(name string, datatype nftables.SetDatatype, spans []span) *nftables.Set {
	if len(spans) == 0 {
		return nil
	}
	set := &nftables.Set{Table: w.table, Name: name, KeyType: datatype, Interval: true}
	elements := make([]nftables.SetElement, 0, 2*len(spans))
	for _, s := range spans {
		elements = append(elements, nftables.SetElement{Key: s.first})
		if end, more := after(s.last); more {
			elements = append(elements, nftables.SetElement{Key: end, IntervalEnd: true})
		}
	}
	w.note(w.conn.AddSet(set, nil))
	for chunk := range slices.Chunk(elements, chunkSize) {
		w.note(w.conn.SetAddElements(set, chunk))
	}
	return set
}

func (w *writer) note(err error) {
	if w.err == nil {
		w.err = err
	}
}

// portFilter selects the redirected ports of a direction. Its sets may be nil.
type portFilter struct{ exclude, include *nftables.Set }

func (w *writer) ports(direction string, p ports) *portFilter {
	return &portFilter{
		exclude: w.set(direction+"_exclude", nftables.TypeInetService, p.exclude),
		include: w.set(direction+"_include", nftables.TypeInetService, p.include),
	}
}

// takes matches redirected ports.
func (f *portFilter) takes() match {
	var m match
	if f.exclude != nil {
		m = slices.Concat(m, destinationPort(), lookup(f.exclude, expr.CmpOpNeq))
	}
	if f.include != nil {
		m = slices.Concat(m, destinationPort(), lookup(f.include, expr.CmpOpEq))
	}
	return m
}

// register is used by all conditions.
const register = 1

func compare(op expr.CmpOp, value []byte) expr.Any {
	return &expr.Cmp{Op: op, Register: register, Data: value}
}

func lookup(set *nftables.Set, op expr.CmpOp) match {
	return match{&expr.Lookup{SourceRegister: register, SetName: set.Name, SetID: set.ID, Invert: op == expr.CmpOpNeq}}
}

func notTCP() match {
	return match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, compare(expr.CmpOpNeq, []byte{unix.IPPROTO_TCP})}
}

func family4() match { return family(unix.NFPROTO_IPV4) }
func family6() match { return family(unix.NFPROTO_IPV6) }

// family must precede conditions on addresses: their offsets depend on the family.
func family(number byte) match {
	return match{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register}, compare(expr.CmpOpEq, []byte{number})}
}

func owner(uid uint32) match      { return user(expr.CmpOpEq, uid) }
func otherOwner(uid uint32) match { return user(expr.CmpOpNeq, uid) }

func user(op expr.CmpOp, uid uint32) match {
	return match{&expr.Meta{Key: expr.MetaKeySKUID, Register: register}, compare(op, binaryutil.NativeEndian.PutUint32(uid))}
}

func outOf(name string) match  { return device(expr.MetaKeyOIFNAME, expr.CmpOpEq, name) }
func inFrom(name string) match { return device(expr.MetaKeyIIFNAME, expr.CmpOpEq, name) }

func notFrom(name string) match { return device(expr.MetaKeyIIFNAME, expr.CmpOpNeq, name) }

func device(key expr.MetaKey, op expr.CmpOp, name string) match {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return match{&expr.Meta{Key: key, Register: register}, compare(op, padded)}
}

// source matches packets from the address; a condition on the family must precede it.
func source(addr netip.Addr) match {
	offset := uint32(12)
	if addr.Is6() {
		offset = 8
	}
	return match{network(offset, addr.BitLen()), compare(expr.CmpOpEq, addr.AsSlice())}
}

func sender4() match { return match{network(12, 32)} }
func sender6() match { return match{network(8, 128)} }

func destination4() match { return match{network(16, 32)} }
func destination6() match { return match{network(24, 128)} }

// outsideOf matches packets to addresses outside the prefix; a condition on the family
// must precede it.
func outsideOf(prefix netip.Prefix) match {
	s := spanOf(prefix)
	to := destination4()
	if prefix.Addr().Is6() {
		to = destination6()
	}
	return append(to, &expr.Range{Op: expr.CmpOpNeq, Register: register, FromData: s.first, ToData: s.last})
}

func network(offset uint32, bits int) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(bits / 8)}
}

func destinationPort() match {
	return match{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

func port(number uint16) match {
	return append(destinationPort(), compare(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(number)))
}

// newBit is the conntrack state of a connection's first packet.
const newBit = 1 << 3

func firstPacket() match { return connection(expr.CtKeySTATE, newBit) }

// dnatBit is IPS_DST_NAT of the kernel's connection tracking.
const dnatBit = 1 << 5

func redirected() match { return connection(expr.CtKeySTATUS, dnatBit) }

// connection matches packets whose connection has one of the bits.
func connection(key expr.CtKey, bits uint32) match {
	return match{
		&expr.Ct{Key: key, Register: register},
		&expr.Bitwise{
			SourceRegister: register, DestRegister: register, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4),
		},
		compare(expr.CmpOpNeq, make([]byte, 4)),
	}
}

func refuse() match { return match{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}} }

func leave() match { return match{&expr.Verdict{Kind: expr.VerdictReturn}} }

func redirect(port uint16) match {
	return match{
		&expr.Immediate{Register: register, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Redir{RegisterProtoMin: register},
	}
}
