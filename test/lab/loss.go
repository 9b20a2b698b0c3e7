package lab

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// lossTable is the table of a pod's network that drops packets.
const lossTable = "loss"

// Lose drops that percentage of the packets that reach the pod and of those that leave it. With
// 100 the pod is gone without a word to its peers, as if its node had lost power. 0 ends the
// loss. The pod's own loopback is not affected.
func (p *Pod) Lose(percent int) error {
	err := p.Do(func() error {
		nft, err := nftables.New()
		if err != nil {
			return err
		}
		table := &nftables.Table{Family: nftables.TableFamilyINet, Name: lossTable}
		// Adding it first lets the deletion succeed if there is none.
		nft.AddTable(table)
		nft.DelTable(table)
		if percent > 0 {
			nft.AddTable(table)
			drop(nft, table, "in", nftables.ChainHookPrerouting, expr.MetaKeyIIFNAME, percent)
			drop(nft, table, "out", nftables.ChainHookPostrouting, expr.MetaKeyOIFNAME, percent)
		}
		return nft.Flush()
	})
	if err != nil {
		return fmt.Errorf("dropping %d percent of the packets of %s: %w", percent, p.name, err)
	}
	return nil
}

// drop adds a chain that drops a percentage of the packets on the pod's link.
func drop(nft *nftables.Conn, table *nftables.Table, name string, hook *nftables.ChainHook, device expr.MetaKey, percent int) {
	chain := nft.AddChain(&nftables.Chain{
		Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityRaw,
	})
	link := make([]byte, unix.IFNAMSIZ)
	copy(link, podEnd)
	nft.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: device, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: link},
		&expr.Numgen{Register: 1, Modulus: 100, Type: unix.NFT_NG_RANDOM},
		// Comparisons are bytewise.
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binaryutil.BigEndian.PutUint32(uint32(percent))},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
}
