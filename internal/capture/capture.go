// Package capture redirects a pod's TCP connections to its proxy. It writes one nftables
// table of family inet over netlink, so that images need no nft program. The table is
// replaced atomically, in one batch.
//
// It works on a network namespace and knows neither pods nor the agent, so that the CNI
// plug-in and the init container can share it.
//
// UDP is not captured. It needs Linux 5.2 or newer with nftables NAT for inet. If IPv6 is
// disabled, its rules are written nevertheless; only its address and route of lo are left
// out.
package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/google/nftables"
	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

const (
	// TableName is the name of the table, whose family is inet.
	TableName = "outrigger"

	// OutboundPort and InboundPort are the proxy's ports for redirected connections.
	OutboundPort = 15001
	InboundPort  = 15003
	metricsPort  = 15010
	// DefaultUID is the user that the proxy runs as.
	DefaultUID = 1500
)

// openPorts are ports of the proxy and the agent that are never redirected.
var openPorts = []int{metricsPort, 15901}

// The proxy dials the app from these addresses, which distinguish its own connections
// from those to redirect.
var (
	inboundSource4 = netip.MustParseAddr("127.0.0.6")
	inboundSource6 = netip.MustParseAddr("::6")
)

// ErrUnsupported means that the kernel lacks required features.
var ErrUnsupported = errors.New("the kernel has no nftables NAT for inet; Linux 5.2 or newer with CONFIG_NFT_NAT, CONFIG_NFT_REDIR, CONFIG_NFT_REJECT and CONFIG_NF_TABLES_INET is needed")

// Options select the network namespace and the exceptions from redirection. The zero
// value is right for the init container of a pod.
type Options struct {
	// NetNS is the path of a network namespace, such as /var/run/netns/NAME or, for an
	// open descriptor, /proc/self/fd/N. Empty means that of the calling thread.
	NetNS string
	// UID is the user that the proxy runs as; 0 means DefaultUID.
	UID uint32
	// DNS are the cluster's name servers, to which TCP connections on port 53 are not
	// redirected. Nil means those of /etc/resolv.conf; empty means none.
	DNS []netip.Addr
	// Warn, if set, gets an error for each missing kernel feature that traffic does not
	// need.
	Warn func(error)
}

// Apply writes the rules and replaces those of an earlier call. An invalid redirection is
// an error that lists every bad entry; nothing is written. Other errors wrap
// ErrUnsupported, or os.ErrPermission if NET_ADMIN is missing.
func Apply(redirection agentspec.Redirection, options Options) error {
	p, err := newPlan(redirection, options)
	if err != nil {
		return err
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); errors.Is(err, os.ErrNotExist) {
		// A kernel without IPv6 rejects rules that translate its addresses.
		p.translate6 = false
	}
	return in(options.NetNS, func() error {
		if err := errors.Join(addSource6(), setTranslated6(p.translate6)); err != nil {
			return err
		}
		p.timeouts = readTimeouts()
		return replaceWith(p, options.Warn)
	})
}

// replaceWith writes the table without the kernel features that traffic does not need and
// that are missing, and passes a warning about each.
func replaceWith(p *plan, warn func(error)) error {
	each, timeouts := p.each, p.timeouts
	var first error
	for _, lacks := range []struct{ limits, timeouts bool }{{}, {limits: true}, {timeouts: true}, {limits: true, timeouts: true}} {
		p.each, p.timeouts = each, timeouts
		if lacks.limits {
			p.each = nil
		}
		if lacks.timeouts {
			p.timeouts = nil
		}
		err := replace(p)
		if first == nil {
			first = err
		}
		if errors.Is(err, ErrUnsupported) {
			continue
		}
		if err != nil || warn == nil {
			return err
		}
		if lacks.limits {
			warn(fmt.Errorf("one address may open any number of connections, since the kernel lacks CONFIG_NFT_CONNLIMIT: %w", first))
		}
		if lacks.timeouts {
			warn(fmt.Errorf("after a server has reset a connection, new ones from the same port are refused for as long as the kernel remembers it, "+
				"since it lacks CONFIG_NF_CONNTRACK_TIMEOUT: %w", first))
		}
		return nil
	}
	return first
}

// replace writes the table and replaces an existing one.
func replace(p *plan) error {
	conn, err := connect()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
	// Adding it first makes the deletion succeed if there is none.
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	w := writer{conn: conn, table: table}
	w.write(p)
	if w.err != nil {
		return fmt.Errorf("encoding the rules of table %s: %w", TableName, w.err)
	}
	return explain("writing table inet "+TableName, conn.Flush())
}

// answerTime bounds the wait for the kernel, which normally answers at once. Without
// nftables it answers only the first of several messages.
const answerTime = 10 * time.Second

// sendBuffer is large enough for as many ranges as an environment variable can hold.
const sendBuffer = 4 << 20

// connect returns a connection to nftables, or an error if the kernel does not support it.
func connect() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *mdlayher.Conn) error {
		return errors.Join(c.SetWriteBuffer(sendBuffer), c.SetDeadline(time.Now().Add(answerTime)))
	}))
	if err != nil {
		return nil, explain("connecting to nftables", err)
	}
	if _, err := conn.ListTablesOfFamily(nftables.TableFamilyINet); err != nil {
		return nil, explain("listing the tables of nftables", err)
	}
	return conn, nil
}

// explain adds the cause to an error of nftables.
func explain(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s: %w; the capability NET_ADMIN is needed", doing, err)
	case isAny(err, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.ENOENT, unix.EINVAL):
		return fmt.Errorf("%s: %w: %w", doing, ErrUnsupported, err)
	default:
		return fmt.Errorf("%s: %w", doing, err)
	}
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// in calls do on a thread in the network namespace.
func in(netns string, do func() error) error {
	if netns == "" {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return do()
	}
	file, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("opening the network namespace: %w", err)
	}
	defer file.Close()
	done := make(chan error, 1)
	go func() {
		// The thread is never unlocked, so that it ends with the goroutine and no
		// other goroutine runs in the namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("entering the network namespace %s: %w", netns, err)
			return
		}
		done <- do()
	}()
	return <-done
}

// disabled6 are the kernel's answers to changes of addresses and routes if IPv6 is disabled.
var disabled6 = []error{unix.EACCES, unix.EAFNOSUPPORT, unix.EOPNOTSUPP}

// addSource6 adds to lo the source address of inbound IPv6 connections. 127.0.0.6 needs
// no entry.
func addSource6() error {
	addr, _ := netlink.ParseAddr(inboundSource6.String() + "/128")
	addr.Flags = unix.IFA_F_NODAD
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.AddrReplace(lo, addr)
	}
	switch {
	case err == nil || isAny(err, disabled6...):
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("adding address %s of lo: %w; the capability NET_ADMIN is needed", inboundSource6, err)
	default:
		return fmt.Errorf("adding address %s of lo: %w", inboundSource6, err)
	}
}
