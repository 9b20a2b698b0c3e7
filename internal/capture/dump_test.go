package capture

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// dump returns the kernel's table as text, or "".
func (s *space) dump() string {
	s.t.Helper()
	var out strings.Builder
	s.do(func() error {
		conn, err := connect()
		if err != nil {
			return err
		}
		tables, err := conn.ListTables()
		if err != nil {
			return err
		}
		for _, table := range tables {
			fmt.Fprintf(&out, "table %s (family %d)\n", table.Name, table.Family)
			if err := dumpTable(&out, conn, table); err != nil {
				return err
			}
		}
		return nil
	})
	return out.String()
}

func dumpTable(out *strings.Builder, conn *nftables.Conn, table *nftables.Table) error {
	sets, err := conn.GetSets(table)
	if err != nil {
		return err
	}
	slices.SortFunc(sets, func(a, b *nftables.Set) int { return cmp.Compare(a.Name, b.Name) })
	for _, set := range sets {
		elements, err := conn.GetSetElements(set)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "set %s: %s\n", set.Name, dumpElements(elements))
	}
	chains, err := conn.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return err
	}
	slices.SortFunc(chains, func(a, b *nftables.Chain) int { return cmp.Compare(a.Name, b.Name) })
	for _, chain := range chains {
		fmt.Fprintf(out, "chain %s: type %s hook %d priority %d\n", chain.Name, chain.Type, *chain.Hooknum, *chain.Priority)
		rules, err := conn.GetRules(table, chain)
		if err != nil {
			return err
		}
		for _, rule := range rules {
			var parts []string
			for _, e := range rule.Exprs {
				parts = append(parts, dumpExpr(e))
			}
			fmt.Fprintf(out, "  %s\n", strings.Join(parts, " "))
		}
	}
	return nil
}

// dumpElements writes intervals as "first..before", without an end for open ones.
func dumpElements(elements []nftables.SetElement) string {
	slices.SortFunc(elements, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	var text strings.Builder
	for _, e := range elements {
		if e.IntervalEnd {
			fmt.Fprintf(&text, "..%s", dumpBytes(e.Key))
		} else {
			fmt.Fprintf(&text, " %s", dumpBytes(e.Key))
		}
	}
	return strings.TrimSpace(text.String())
}

// interfaceName distinguishes names from IPv6 addresses, which have the same length.
var interfaceName = regexp.MustCompile(`^[a-z]+[0-9]*$`)

func dumpBytes(b []byte) string {
	switch len(b) {
	case 1:
		return fmt.Sprint(b[0])
	case 2:
		return fmt.Sprint(binary.BigEndian.Uint16(b))
	case unix.IFNAMSIZ:
		if name := string(bytes.TrimRight(b, "\x00")); interfaceName.MatchString(name) {
			return name
		}
		fallthrough
	default:
		addr, _ := netip.AddrFromSlice(b)
		return addr.String()
	}
}

func dumpExpr(e expr.Any) string {
	switch e := e.(type) {
	case *expr.Meta:
		return map[expr.MetaKey]string{
			expr.MetaKeyL4PROTO: "l4proto", expr.MetaKeyNFPROTO: "nfproto", expr.MetaKeySKUID: "skuid",
			expr.MetaKeyOIFNAME: "oifname", expr.MetaKeyIIFNAME: "iifname",
		}[e.Key]
	case *expr.Cmp:
		return operator(e.Op) + dumpCompared(e.Data)
	case *expr.Range:
		return fmt.Sprintf("%s%s-%s", operator(e.Op), dumpBytes(e.FromData), dumpBytes(e.ToData))
	case *expr.Payload:
		base := map[expr.PayloadBase]string{expr.PayloadBaseNetworkHeader: "network", expr.PayloadBaseTransportHeader: "transport"}[e.Base]
		return fmt.Sprintf("%s[%d:%d]", base, e.Offset, e.Offset+e.Len)
	case *expr.Lookup:
		if e.Invert {
			return "not in @" + e.SetName
		}
		return "in @" + e.SetName
	case *expr.Ct:
		return map[expr.CtKey]string{expr.CtKeySTATUS: "ct status", expr.CtKeySTATE: "ct state", expr.CtKeyDSTIP6: "ct original address"}[e.Key]
	case *expr.Objref:
		return "object " + e.Name
	case *expr.Dynset:
		return fmt.Sprintf("added to @%s", e.SetName)
	case *expr.Bitwise:
		if len(e.Mask) == 1 {
			return fmt.Sprintf("& %#x", e.Mask[0])
		}
		return fmt.Sprintf("& %#x", binary.NativeEndian.Uint32(e.Mask))
	case *expr.Immediate:
		return dumpBytes(e.Data)
	case *expr.NAT:
		return map[expr.NATType]string{expr.NATTypeSourceNAT: "translate source", expr.NATTypeDestNAT: "translate destination"}[e.Type]
	case *expr.Redir:
		return "redirect"
	case *expr.Verdict:
		return map[expr.VerdictKind]string{expr.VerdictReturn: "return"}[e.Kind]
	case *expr.Reject:
		return fmt.Sprintf("reject type %d", e.Type)
	default:
		return fmt.Sprintf("%T", e)
	}
}

// dumpCompared distinguishes users, in this machine's byte order, from IPv4 addresses,
// which have the same length.
func dumpCompared(b []byte) string {
	if len(b) == 4 && b[0] != 127 {
		return fmt.Sprint(binary.NativeEndian.Uint32(b))
	}
	return dumpBytes(b)
}

func operator(op expr.CmpOp) string {
	if op == expr.CmpOpNeq {
		return "!= "
	}
	return ""
}
