package lab

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Names of links: the node's bridge, to which all pods are connected, and each pod's end.
const (
	bridge = "pods0"
	podEnd = "eth0"
)

// links creates links and addresses, each with a netlink socket of the current thread's
// namespace. The zero value has no node yet.
type links struct {
	node  *Network
	nodes []netip.Prefix
	// bridge is the bridge's index on the node.
	bridge int
}

// Settings below /proc/sys/net. A new namespace inherits some from the machine, so the
// important ones are written.
var (
	settings = map[string]string{
		"ipv4/conf/all/rp_filter":         "0",
		"ipv4/conf/default/rp_filter":     "0",
		"ipv4/ip_unprivileged_port_start": "0",
	}
	settings6 = map[string]string{
		"ipv6/conf/all/disable_ipv6":     "0",
		"ipv6/conf/default/disable_ipv6": "0",
		"ipv6/conf/lo/disable_ipv6":      "0",
		// Addresses are usable immediately, without duplicate address detection.
		"ipv6/conf/all/accept_dad":     "0",
		"ipv6/conf/default/accept_dad": "0",
		"ipv6/conf/all/accept_ra":      "0",
		"ipv6/conf/default/accept_ra":  "0",
	}
	// With forwarding the node immediately reports addresses that no pod has as
	// unreachable.
	nodeSettings = map[string]string{
		"ipv4/ip_forward":                  "1",
		"ipv4/conf/all/send_redirects":     "0",
		"ipv4/conf/default/send_redirects": "0",
	}
	nodeSettings6 = map[string]string{"ipv6/conf/all/forwarding": "1"}
	podSettings   = map[string]string{"ipv4/ip_forward": "0"}
)

// set writes settings of the current thread's namespace.
func set(all ...map[string]string) error {
	for _, values := range all {
		for name, value := range values {
			file := path.Join("/proc/sys/net", name)
			if is, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(is)) == value {
				continue
			}
			if err := os.WriteFile(file, []byte(value), 0); err != nil {
				return fmt.Errorf("setting %s to %s: %w", file, value, err)
			}
		}
	}
	return nil
}

func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6/conf")
	return !errors.Is(err, fs.ErrNotExist)
}

// makeNode creates the node's bridge.
func (l *links) makeNode(node *Network, addresses []netip.Prefix) error {
	l.node, l.nodes = node, addresses
	return node.Do(func() error {
		all := []map[string]string{settings, nodeSettings}
		if hasIPv6() {
			all = append(all, settings6, nodeSettings6)
		} else if slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
			l.nodes = slices.DeleteFunc(slices.Clone(addresses), func(p netip.Prefix) bool { return p.Addr().Is6() })
		}
		if err := set(all...); err != nil {
			return err
		}
		if err := loopbackUp(); err != nil {
			return err
		}
		attributes := netlink.NewLinkAttrs()
		attributes.Name = bridge
		// Otherwise the bridge's address changes whenever a pod is added.
		attributes.HardwareAddr = hardwareAddr("the node")
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attributes, MulticastSnooping: new(false)}); err != nil {
			return fmt.Errorf("creating the bridge: %w", err)
		}
		link, err := netlink.LinkByName(bridge)
		if err != nil {
			return fmt.Errorf("the bridge: %w", err)
		}
		l.bridge = link.Attrs().Index
		for _, prefix := range l.nodes {
			if err := addAddress(link, prefix); err != nil {
				return fmt.Errorf("the node: %w", err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("the bridge: %w", err)
		}
		return nil
	})
}

// makePod connects a pod's network to the bridge. outside is the name of the link
// on the node.
func (l *links) makePod(pod *Network, outside string, addresses []netip.Addr) error {
	inside, err := pod.open()
	if err != nil {
		return err
	}
	defer func() { _ = inside.Close() }()
	if err := pod.Do(func() error { return l.prepare(addresses) }); err != nil {
		return err
	}
	err = l.node.Do(func() error {
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.MasterIndex, attributes.Flags = outside, l.bridge, net.FlagUp
		veth := &netlink.Veth{
			LinkAttrs: attributes,
			PeerName:  podEnd, PeerNamespace: netlink.NsFd(int(inside.Fd())),
			// Derived from the address, so that neighbours' caches stay valid when a new
			// pod reuses the address.
			PeerHardwareAddr: hardwareAddr(addresses[0].String()),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("creating a link to the bridge: %w", err)
		}
		for _, addr := range addresses {
			if _, near := l.nodeOf(addr); !near {
				route := &netlink.Route{LinkIndex: l.bridge, Dst: ipNet(netip.PrefixFrom(addr, addr.BitLen())), Scope: netlink.SCOPE_LINK}
				if err := netlink.RouteReplace(route); err != nil {
					return fmt.Errorf("the node's route to %s: %w", addr, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := pod.Do(func() error { return l.address(addresses) }); err != nil {
		return err
	}
	err = l.node.Do(func() error {
		var own []netip.Addr
		for _, node := range l.nodes {
			own = append(own, node.Addr())
		}
		return errors.Join(awaitUp(outside), awaitUp(bridge), awaitNeighbours(bridge, own))
	})
	if err != nil {
		return err
	}
	return pod.Do(func() error { return errors.Join(awaitUp(podEnd), awaitNeighbours(podEnd, addresses)) })
}

// awaitUp waits until a link of the thread's namespace carries frames; until then they are
// lost. The kernel activates it within a second, or immediately when the link is queried
// (since Linux 6.8).
func awaitUp(name string) error {
	return poll("the link "+name+" to be up", func() (bool, error) {
		link, err := netlink.LinkByName(name)
		return err == nil && link.Attrs().OperState == netlink.OperUp, err
	})
}

// awaitNeighbours waits until a link of the thread's namespace receives neighbour
// solicitations for its IPv6 addresses. That takes a while after it is up, and neighbours
// repeat a lost solicitation only after a second.
func awaitNeighbours(name string, addresses []netip.Addr) error {
	for _, addr := range addresses {
		if !addr.Is6() {
			continue
		}
		bytes := addr.As16()
		group := fmt.Sprintf("ff0200000000000000000001ff%x", bytes[13:])
		err := poll("the link "+name+" to receive solicitations for "+addr.String(), func() (bool, error) {
			groups, err := os.ReadFile("/proc/thread-self/net/igmp6")
			for line := range strings.Lines(string(groups)) {
				if f := strings.Fields(line); len(f) > 2 && f[1] == name && f[2] == group {
					return true, nil
				}
			}
			return false, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// poll waits until f returns true.
func poll(what string, f func() (bool, error)) error {
	for end := time.Now().Add(linkTimeout); ; time.Sleep(time.Millisecond) {
		ok, err := f()
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("waiting for %s: it took more than %v", what, linkTimeout)
		}
	}
}

// linkTimeout bounds the wait for a link.
const linkTimeout = 5 * time.Second

// prepare prepares the current thread's namespace for a link.
func (l *links) prepare(addresses []netip.Addr) error {
	all := []map[string]string{settings, podSettings}
	if hasIPv6() {
		all = append(all, settings6)
	} else if slices.ContainsFunc(addresses, netip.Addr.Is6) {
		return errors.New("the kernel has no IPv6")
	}
	return set(all...)
}

// address adds addresses and routes to a pod's link, in the current thread's namespace.
func (l *links) address(addresses []netip.Addr) error {
	if err := loopbackUp(); err != nil {
		return err
	}
	link, err := netlink.LinkByName(podEnd)
	if err != nil {
		return fmt.Errorf("the link to the bridge: %w", err)
	}
	for _, addr := range addresses {
		bits := addr.BitLen()
		if node, near := l.nodeOf(addr); near {
			bits = node.Bits()
		}
		if err := addAddress(link, netip.PrefixFrom(addr, bits)); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("the link to the bridge: %w", err)
	}
	for _, node := range l.nodes {
		if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Is4() == node.Addr().Is4() }) {
			continue
		}
		// The node is on the link even for a pod of another network.
		toNode := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(netip.PrefixFrom(node.Addr(), node.Addr().BitLen())), Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteReplace(toNode); err != nil {
			return fmt.Errorf("the route to the node: %w", err)
		}
		viaNode := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: node.Addr().AsSlice()}
		if err := netlink.RouteReplace(viaNode); err != nil {
			return fmt.Errorf("the route over the node: %w", err)
		}
	}
	return nil
}

// nodeOf returns the node's address in the network of addr.
func (l *links) nodeOf(addr netip.Addr) (netip.Prefix, bool) {
	for _, node := range l.nodes {
		if node.Contains(addr) {
			return node, true
		}
	}
	return netip.Prefix{}, false
}

// remove removes a pod's link.
func (l *links) remove(outside string) error {
	return l.node.Do(func() error {
		link, err := netlink.LinkByName(outside)
		if err != nil {
			if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
				return nil
			}
			return fmt.Errorf("the link %s on the node: %w", outside, err)
		}
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("the link %s on the node: %w", outside, err)
		}
		return nil
	})
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("the loopback link: %w", err)
	}
	return nil
}

func addAddress(link netlink.Link, prefix netip.Prefix) error {
	address := &netlink.Addr{IPNet: ipNet(prefix)}
	if prefix.Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(link, address); err != nil {
		return fmt.Errorf("the address %s: %w", prefix, err)
	}
	return nil
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

// hardwareAddr derives a hardware address from a name.
func hardwareAddr(name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(name))
	// Locally administered and unicast.
	return append(net.HardwareAddr{0x0a}, sum[:5]...)
}
