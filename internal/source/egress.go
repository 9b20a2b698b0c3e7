package source

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// egressRule returns nil for a rule that allows nothing.
func egressRule(obj *policy.Egress, n *notes) mesh.Digester {
	spec := &obj.Spec
	refs := n.references("spec.matches", spec.Matches, kindHTTPRouteGroup, kindUpstreamTrafficSetting)
	if len(refs.settings) > 1 {
		n.add(ReasonDuplicate, "spec.matches", "there are %d UpstreamTrafficSettings, but only %q is used; remove the others", len(refs.settings), refs.settings[0])
		refs.settings = refs.settings[:1]
	}
	rule := &fact.EgressRule{
		Name:     nameOf(&obj.ObjectMeta),
		Age:      ageOf(&obj.ObjectMeta),
		Sources:  n.egressSources(spec.Sources),
		Hosts:    n.hosts("spec.hosts", spec.Hosts),
		Ranges:   n.ranges("spec.ipAddresses", spec.IPAddresses),
		Groups:   refs.groups,
		Settings: refs.settings,
	}
	rule.Ports = n.egressPorts(spec, rule)
	if refs.lost {
		n.add(ReasonMissing, "spec.matches", "an invalid reference may have been meant to restrict or limit the traffic, so nothing is allowed; correct it, or remove it")
		return nil
	}
	if len(rule.Sources) == 0 || len(rule.Ports) == 0 {
		return nil
	}
	if destinations := len(rule.Hosts) + len(rule.Ranges); destinations*len(rule.Ports) > maxDestinations {
		n.add(ReasonInvalid, "spec.ports", "its %d hosts and address ranges at %d ports are more than %d destinations, each of which is a part of the proxies' configuration, so it allows nothing; remove some", destinations, len(rule.Ports), maxDestinations)
		return nil
	}
	return mesh.Seal(rule)
}

// maxDestinations is how many hosts and address ranges, each at each port, an Egress may allow.
const maxDestinations = 50_000

func (n *notes) egressSources(declared []policy.EgressSource) []fact.ServiceAccount {
	n.needed("spec.sources", len(declared), "source, so it allows nothing")
	var sources []fact.ServiceAccount
	for i, s := range declared {
		path := index("spec.sources", i)
		source, ok := n.serviceAccount(path, string(s.Kind), s.Namespace, s.Name)
		if s.MTLS != nil {
			n.add(ReasonNotSupported, path+".mtls",
				"sidecars present no certificate to hosts outside the mesh and would send plaintext instead of TLS, so the source is ignored; remove the field, and let the application use TLS")
			ok = false
		}
		if ok {
			sources = append(sources, source)
		}
	}
	return unique(sources)
}

// ranges parses address ranges and drops duplicates.
func (n *notes) ranges(path string, values []string) []netip.Prefix {
	var ranges []netip.Prefix
	for i, value := range values {
		if r, ok := n.addressRange(index(path, i), value); ok {
			ranges = append(ranges, r)
		}
	}
	return unique(ranges)
}

func (n *notes) addressRange(path, value string) (netip.Prefix, bool) {
	r, err := netip.ParsePrefix(value)
	if err != nil || r.Addr().Is4In6() {
		n.add(ReasonInvalid, path, "%q is not a range in CIDR notation and is ignored; write one such as 10.0.0.0/8, 192.0.2.1/32 or 2001:db8::/32", value)
		return netip.Prefix{}, false
	}
	return r.Masked(), true
}

// egressPorts returns the ports for which valid conditions remain.
func (n *notes) egressPorts(spec *policy.EgressSpec, rule *fact.EgressRule) []fact.EgressPort {
	n.needed("spec.ports", len(spec.Ports), "port, so it allows nothing")
	noHosts := len(spec.Hosts) > 0 && len(rule.Hosts) == 0
	if noHosts {
		n.add(ReasonMissing, "spec.hosts", "none of the hosts is valid, so the ports that are matched by host allow nothing; correct them, or remove them all")
	}
	if len(spec.IPAddresses) > 0 && len(rule.Ranges) == 0 {
		n.add(ReasonMissing, "spec.ipAddresses", "none of the ranges is valid, so nothing is allowed; correct them, or remove them all for any address")
		return nil
	}
	protocols := make(map[uint16]mesh.EgressProtocol)
	for i, p := range spec.Ports {
		path := index("spec.ports", i)
		number, ok := n.port(path+".number", int64(p.Number))
		if !ok {
			continue
		}
		protocol, ok := n.egressProtocol(path+".protocol", p.Protocol)
		if !ok {
			continue
		}
		if protocol == mesh.EgressTLS && len(spec.Hosts) == 0 {
			// Without hosts there is no server name to match, as for TCP.
			protocol = mesh.EgressTCP
		}
		if first, taken := protocols[number]; taken {
			if first != protocol {
				n.add(ReasonConflict, path, "%q is not used, because an earlier entry gives port %d another protocol; remove one of the two", p.Protocol, number)
			}
			continue
		}
		switch {
		case protocol != mesh.EgressTCP && noHosts:
			continue
		case protocol == mesh.EgressHTTP && len(rule.Hosts) == 0 && len(rule.Ranges) == 0:
			n.add(ReasonMissing, "spec.hosts", "HTTP is matched by host, but there are no hosts, so port %d allows nothing; add hosts or ipAddresses", number)
			continue
		}
		protocols[number] = protocol
	}
	var ports []fact.EgressPort
	for _, number := range slices.Sorted(maps.Keys(protocols)) {
		ports = append(ports, fact.EgressPort{Number: number, Protocol: protocols[number]})
	}
	return ports
}

func (n *notes) egressProtocol(path, name string) (mesh.EgressProtocol, bool) {
	switch strings.ToLower(name) {
	case "http":
		return mesh.EgressHTTP, true
	case "https":
		return mesh.EgressTLS, true
	case "tcp", "tcp-server-first":
		return mesh.EgressTCP, true
	}
	n.add(ReasonUnknownProtocol, path, "%q is not an egress protocol, so the port allows nothing; use http, https, tcp or tcp-server-first", name)
	return "", false
}
