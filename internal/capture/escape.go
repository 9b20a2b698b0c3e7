package capture

import (
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// escape refuses the connections that output should have redirected and did not, and those
// that it redirected for another user. The kernel remembers the decision about a connection
// for some time after its end. A new connection of another user from the same port to the
// same destination gets that decision: the app's would leave in plaintext, and the proxy's
// would reach the proxy itself.
//
// Only the first packet of a connection is judged. It always has a user, unlike packets
// that the kernel sends after a socket was closed.
func (w *writer) escape(p *plan, s *sets) {
	c := w.conn.AddChain(&nftables.Chain{
		Name: "escape", Table: w.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter,
	})
	w.rule(c, notTCP(), leave())
	if len(p.timeouts) > 0 {
		w.rule(c, w.endTimeouts(p.timeouts))
	}
	w.rule(c, notFirst(), leave())
	w.rule(c, owner(p.uid), redirected(), port(OutboundPort), refuse())
	w.rule(c, otherOwner(p.uid), redirected(), port(InboundPort), refuse())
	w.rule(c, redirected(), leave())
	w.captured(c, p, s, func(uint16) (to4, to6 match) { return refuse(), refuse() })
}

// afterReset is for how many seconds the kernel remembers a connection that one of its ends
// has reset; its own default is 10. Until then a connection of another user from the same
// port is refused.
const afterReset = 1

// timeoutStates are the states of the kernel's connection tracking, as indices of a policy,
// with the settings that hold their timeouts and the kernel's defaults in seconds. There is
// no setting for a simultaneous open.
var timeoutStates = map[uint16]struct {
	setting string
	seconds uint32
}{
	expr.CtStateTCPSYNSENT:     {"syn_sent", 120},
	expr.CtStateTCPSYNRECV:     {"syn_recv", 60},
	expr.CtStateTCPESTABLISHED: {"established", 432000},
	expr.CtStateTCPFINWAIT:     {"fin_wait", 120},
	expr.CtStateTCPCLOSEWAIT:   {"close_wait", 60},
	expr.CtStateTCPLASTACK:     {"last_ack", 30},
	expr.CtStateTCPTIMEWAIT:    {"time_wait", 120},
	expr.CtStateTCPSYNSENT2:    {"", 120},
	expr.CtStateTCPRETRANS:     {"max_retrans", 300},
	expr.CtStateTCPUNACK:       {"unacknowledged", 300},
}

// readTimeouts returns the timeouts of the thread's network namespace, with that of closed
// connections replaced.
func readTimeouts() expr.CtStatePolicyTimeout {
	timeouts := expr.CtStatePolicyTimeout{expr.CtStateTCPCLOSE: afterReset}
	for state, s := range timeoutStates {
		timeouts[state] = s.seconds
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_" + s.setting)
		if err != nil {
			continue
		}
		if seconds, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
			timeouts[state] = uint32(seconds)
		}
	}
	return timeouts
}

// timeoutsLock guards the library's table of defaults, which it changes while it encodes an
// object.
var timeoutsLock sync.Mutex

// endTimeouts gives the packet's connection the timeouts. They belong to the table and not
// to the namespace's settings, since those are read-only in an init container.
func (w *writer) endTimeouts(timeouts expr.CtStatePolicyTimeout) match {
	timeoutsLock.Lock()
	defer timeoutsLock.Unlock()
	const name = "timeouts"
	w.conn.AddObj(&nftables.NamedObj{
		Table: w.table, Name: name, Type: nftables.ObjTypeCtTimeout,
		Obj: &expr.CtTimeout{L4Proto: unix.IPPROTO_TCP, Policy: maps.Clone(timeouts)},
	})
	return match{&expr.Objref{Type: int(nftables.ObjTypeCtTimeout), Name: name}}
}

// The flags of a TCP header, in its byte 13.
const (
	synFlag = 1 << 1
	ackFlag = 1 << 4
)

// notFirst matches all but the first packet of the connection's opener.
func notFirst() match {
	return match{
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1, Mask: []byte{synFlag | ackFlag}, Xor: []byte{0}},
		compare(expr.CmpOpNeq, []byte{synFlag}),
	}
}
