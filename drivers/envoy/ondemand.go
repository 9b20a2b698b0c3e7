package envoy

import (
	"net/netip"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	proxylistenerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Names of the resources of proxies that get services on demand.
const (
	// unknownCluster is the agent, which takes connections to unknown destinations.
	unknownCluster = "unknown"
	// knownListener and outsideListener take them back from the agent.
	knownListener   = "known"
	outsideListener = "outside"
)

// onDemand are the sockets of these listeners. With an address and port Envoy would take
// these for the original destination: use_original_dst asks the kernel after the listener's
// own filters, and the kernel has no answer for a Unix socket.
var onDemand = agentspec.OnDemand{Known: driver.KnownSocket, Outside: driver.OutsideSocket}

// onDemand adds the listeners of a proxy that does not know all services in the ranges. A
// connection to an unknown destination there goes to the agent, whatever egress says about
// the address, unless the agent has found out that it leaves the mesh.
func (b *egress) onDemand(unknown []netip.Prefix, addresses []netip.Addr) {
	agent := netip.MustParseAddrPort(agentspec.UnknownAddress)
	b.cluster(unknownCluster, mesh.TCP, mesh.UpstreamPolicy{}, &clusterv3.Cluster{
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: unknownCluster, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
				Endpoint: &endpointv3.Endpoint{Address: socketAddress(agent.Addr().String(), agent.Port())},
			}}},
		}}},
		TransportSocket: &corev3.TransportSocket{
			Name: "envoy.transport_sockets.upstream_proxy_protocol",
			ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(&proxyprotocolv3.ProxyProtocolUpstreamTransport{
				Config: &corev3.ProxyProtocolConfig{Version: corev3.ProxyProtocolConfig_V2},
				TransportSocket: &corev3.TransportSocket{
					Name:       "envoy.transport_sockets.raw_buffer",
					ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(&rawbufferv3.RawBuffer{})},
				},
			})},
		},
	})
	add := func(listener *listenerv3.Listener) {
		b.resources = append(b.resources, newResource(listenerType, listener.GetName(), listener))
	}
	back := func(name, socket string) *listenerv3.Listener {
		listener := b.listener(name, "proxy_protocol", &proxylistenerv3.ProxyProtocol{})
		listener.Address = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket, Mode: 0o600}}}
		return listener
	}
	add(back(outsideListener, onDemand.Outside))
	b.chains = b.withUnknown(unknown)
	add(back(knownListener, onDemand.Known))
	listener := b.listener(outboundListener, "original_dst", &originaldstv3.OriginalDst{})
	listenOn(listener, addresses, driver.OutboundPort)
	add(listener)
}

// withUnknown returns the filter chains with those of the ranges, which take precedence. Of
// the chains for a connection Envoy considers those for its port, if there are any, and of
// these those with the smallest range.
func (b *egress) withUnknown(unknown []netip.Prefix) []*listenerv3.FilterChain {
	var chains []*listenerv3.FilterChain
	var ports []uint32
	for _, chain := range b.chains {
		match := chain.GetFilterChainMatch()
		if port := match.GetDestinationPort().GetValue(); !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
		if len(match.GetPrefixRanges()) == 0 {
			chains = append(chains, chain)
			continue
		}
		others := slices.DeleteFunc(slices.Clone(match.GetPrefixRanges()), func(r *corev3.CidrRange) bool {
			return slices.ContainsFunc(unknown, func(u netip.Prefix) bool { return isWithin(r, u) })
		})
		if len(others) == 0 {
			continue
		}
		chains = append(chains, &listenerv3.FilterChain{Name: chain.GetName(), Filters: chain.GetFilters(), FilterChainMatch: &listenerv3.FilterChainMatch{
			DestinationPort: match.GetDestinationPort(), PrefixRanges: others,
			TransportProtocol: match.GetTransportProtocol(), ServerNames: match.GetServerNames(),
		}})
	}
	// These connections are logged and counted when the agent has handed them back.
	proxy := tcpDefaults(nil)
	proxy.StatPrefix, proxy.ClusterSpecifier = unknownCluster, &tcpv3.TcpProxy_Cluster{Cluster: unknownCluster}
	filters := []*listenerv3.Filter{filter(tcpProxyName, proxy)}
	for _, port := range ports {
		chains = append(chains, &listenerv3.FilterChain{
			Name: unknownCluster + "/" + egressName(uint16(port)), Filters: filters,
			FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(port), PrefixRanges: cidrs(unknown)},
		})
	}
	return append(chains, &listenerv3.FilterChain{
		Name: unknownCluster, Filters: filters, FilterChainMatch: &listenerv3.FilterChainMatch{PrefixRanges: cidrs(unknown)},
	})
}

func isWithin(r *corev3.CidrRange, prefix netip.Prefix) bool {
	address, err := netip.ParseAddr(r.GetAddressPrefix())
	return err == nil && prefix.Bits() <= int(r.GetPrefixLen().GetValue()) && prefix.Contains(address)
}
