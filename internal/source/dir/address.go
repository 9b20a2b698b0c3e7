package dir

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pool allocates addresses of a range with 16 variable bits.
type pool struct {
	first netip.Addr
	taken map[netip.Addr]bool
}

// pools has the pools for pods or for services, by family. The ranges are reserved for
// benchmarks (RFC 2544) and documentation (RFC 3849).
type pools map[corev1.IPFamily]*pool

func newPools(v4, v6 string, taken map[netip.Addr]bool) pools {
	return pools{
		corev1.IPv4Protocol: {netip.MustParseAddr(v4), taken},
		corev1.IPv6Protocol: {netip.MustParseAddr(v6), taken},
	}
}

// take allocates an address for a name. It depends only on the name unless that address
// is taken; then it is the next free one. It returns false if there is none.
func (p *pool) take(name types.NamespacedName) (string, bool) {
	sum := sha256.Sum256([]byte(name.String()))
	at := binary.BigEndian.Uint16(sum[:])
	for range 1 << 16 {
		// The first and the last address of an IPv4 network are reserved, and the
		// second is usually the router's: a lab's node has it.
		if at > 1 && at != 1<<16-1 {
			bytes := p.first.AsSlice()
			binary.BigEndian.PutUint16(bytes[len(bytes)-2:], at)
			if addr, _ := netip.AddrFromSlice(bytes); !p.taken[addr] {
				p.taken[addr] = true
				return addr.String(), true
			}
		}
		at++
	}
	return "", false
}

// addAddresses allocates addresses for services and pods that have none. Services get one
// of each of their families, and pods those of the services that select them.
func (c *cluster) addAddresses(selected map[types.NamespacedName][]*corev1.Pod) {
	taken := c.takenAddresses()
	ofServices := newPools("198.19.0.0", "2001:db8:1::", taken)
	ofPods := newPools("198.18.0.0", "2001:db8::", taken)

	wanted := make(map[*corev1.Pod][]corev1.IPFamily)
	for _, name := range byName(c.services) {
		service := c.services[name]
		for _, pod := range selected[name] {
			wanted[pod] = append(wanted[pod], familiesOf(service)...)
		}
		if service.Spec.Type != corev1.ServiceTypeExternalName && service.Spec.ClusterIP == "" {
			service.Spec.ClusterIPs = c.addresses(ofServices, "Service", name, familiesOf(service))
			if len(service.Spec.ClusterIPs) > 0 {
				service.Spec.ClusterIP = service.Spec.ClusterIPs[0]
			}
		}
	}
	for _, name := range byName(c.pods) {
		pod := c.pods[name]
		if pod.Status.PodIP != "" || len(pod.Status.PodIPs) > 0 || hasFinished(pod) {
			continue
		}
		families := wanted[pod]
		if len(families) == 0 {
			families = []corev1.IPFamily{corev1.IPv4Protocol}
		}
		pod.Status.PodIPs = nil
		for _, address := range c.addresses(ofPods, "Pod", name, families) {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: address})
		}
		if len(pod.Status.PodIPs) > 0 {
			pod.Status.PodIP = pod.Status.PodIPs[0].IP
		}
	}
}

// addresses allocates an address of each of the families, IPv4 first.
func (c *cluster) addresses(free pools, kind string, name types.NamespacedName, families []corev1.IPFamily) []string {
	var addresses []string
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		if !slices.Contains(families, family) {
			continue
		}
		address, ok := free[family].take(name)
		if !ok {
			c.add(objectRef("v1", kind, name), ReasonTooMany, "no %s address is left for it, because there are too many objects; set one in the manifest", family)
			continue
		}
		addresses = append(addresses, address)
	}
	return addresses
}

// takenAddresses returns the addresses in the manifests.
func (c *cluster) takenAddresses() map[netip.Addr]bool {
	taken := make(map[netip.Addr]bool)
	take := func(address string) {
		if addr, err := netip.ParseAddr(address); err == nil {
			taken[addr] = true
		}
	}
	for _, pod := range c.pods {
		take(pod.Status.PodIP)
		for _, ip := range pod.Status.PodIPs {
			take(ip.IP)
		}
	}
	for _, service := range c.services {
		take(service.Spec.ClusterIP)
		for _, ip := range service.Spec.ClusterIPs {
			take(ip)
		}
	}
	for _, slice := range c.slices {
		for i := range slice.Endpoints {
			for _, address := range slice.Endpoints[i].Addresses {
				take(address)
			}
		}
	}
	return taken
}

// familiesOf returns the families of a service, with the defaults of an IPv4 cluster.
func familiesOf(service *corev1.Service) []corev1.IPFamily {
	spec := &service.Spec
	if len(spec.IPFamilies) > 0 {
		return spec.IPFamilies
	}
	if spec.IPFamilyPolicy != nil && *spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack {
		return []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
	var families []corev1.IPFamily
	for _, address := range append([]string{spec.ClusterIP}, spec.ClusterIPs...) {
		if addr, err := netip.ParseAddr(address); err == nil && !slices.Contains(families, familyOf(addr)) {
			families = append(families, familyOf(addr))
		}
	}
	if len(families) == 0 {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	return families
}

func familyOf(addr netip.Addr) corev1.IPFamily {
	if addr.Unmap().Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}
