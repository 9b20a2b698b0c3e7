package envoy

import (
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	directv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/direct_response/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const inboundListener = "inbound"

// The clusters of the application. They connect to the original destination address
// and port. This reaches applications that listen on all addresses or only on the
// pod's, and ports on loopback stay private.
const (
	appHTTPCluster  = "inbound"
	appHTTP2Cluster = "inbound-http2"
	appTCPCluster   = "inbound-tcp"
	// proxied ends the names of the clusters whose connections begin with a header of the PROXY
	// protocol.
	proxied = "-proxied"
	// once ends the names of those that use each connection for one request, which has its body in
	// chunks: after an answer of HTTP/1.0 Envoy would forward such a body over the connection without
	// them, and the application would read it as another request.
	once = "-once"
)

// helloTimeout is how long to wait for a ClientHello where plaintext TCP is accepted too: after
// that the client is assumed to wait for the server to send first. With HTTP the client sends
// first.
const helloTimeout = time.Second

// handshakeTimeout limits the wait for a ClientHello, and separately the handshake. The
// client is unauthenticated until then.
const handshakeTimeout = 10 * time.Second

// inbound returns the listener for the proxy's own application and all that it needs.
// It depends on the proxy's Plaintext, the families of its Addresses and, for OTLP
// tracing, its Identity.
func (t *Translator) inbound(proxy *mesh.Proxy, settings *mesh.Settings, inbound *mesh.Inbound) []*Resource {
	b := &inboundBuilder{
		proxy: proxy, settings: settings, issuers: inbound.Issuers,
		takesPlaintext: proxy.Plaintext || inbound.TLS == mesh.Permissive,
	}
	for i := range inbound.Ports {
		// Envoy takes a filter chain for port 0 for one for all ports.
		if inbound.Ports[i].Port != 0 {
			b.port(&inbound.Ports[i])
		}
	}
	b.others(inbound.Others)
	clusters := appClusters
	if slices.ContainsFunc(inbound.Ports, func(p mesh.InboundPort) bool { return p.ProxyProtocol }) {
		clusters = slices.Concat(appClusters, proxiedClusters)
	}
	return slices.Concat(b.resources, clusters, []*Resource{b.listener(inbound)})
}

func (b *inboundBuilder) listener(inbound *mesh.Inbound) *Resource {
	inspector := listenerFilter("tls_inspector", &tlsinspectorv3.TlsInspector{})
	l := &listenerv3.Listener{
		Name:                          inboundListener,
		TrafficDirection:              corev3.TrafficDirection_INBOUND,
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		ListenerFiltersTimeout:        durationpb.New(handshakeTimeout),
		// A change would replace the listener and end its connections. Without a filter chain for
		// plaintext the connection ends, too.
		ContinueOnListenerFiltersTimeout: true,
		ListenerFilters: []*listenerv3.ListenerFilter{
			listenerFilter("original_dst", &originaldstv3.OriginalDst{}),
			inspector,
		},
		FilterChains: b.chains,
		AccessLog:    accessLogs(b.settings, unmatchedConnections),
		// There is no idle timeout, so keepalives must detect vanished peers.
		TcpKeepalive:  &corev3.TcpKeepalive{KeepaliveTime: wrapperspb.UInt32(keepaliveSeconds)},
		SocketOptions: userTimeout(clientTimeout),
	}
	listenOn(l, b.proxy.Addresses, driver.InboundPort)
	if len(b.chains) == 0 {
		l.FilterChains = closed
	}
	if b.plaintextTCP {
		l.ListenerFiltersTimeout = durationpb.New(helloTimeout)
	}
	if b.proxy.Plaintext {
		// No peer uses mesh TLS with it, so there is no ClientHello to wait for.
		inspector.FilterDisabled = toPorts(serverFirstPorts(inbound.Ports))
	}
	return newResource(listenerType, l.Name, l)
}

// closed is for a proxy that accepts nothing: Envoy requires at least one filter chain.
var closed = []*listenerv3.FilterChain{{
	Name:    "closed",
	Filters: []*listenerv3.Filter{filter("envoy.filters.network.direct_response", &directv3.Config{})},
}}

// serverFirstPorts returns the ports where the server sends first, except for those
// that callers from outside the mesh use with TLS.
func serverFirstPorts(ports []mesh.InboundPort) []uint16 {
	var out []uint16
	for _, p := range ports {
		if p.Protocol == mesh.TCPServerFirst && !slices.ContainsFunc(p.Ingress, func(r mesh.Ingress) bool { return r.TLS }) {
			out = append(out, p.Port)
		}
	}
	return out
}

// appClusters connect from source addresses that are exempt from redirection.
var appClusters = []*Resource{
	appCluster(appHTTPCluster, mesh.HTTP, kept, nil),
	appCluster(appHTTPCluster+once, mesh.HTTP, usedOnce, nil),
	appCluster(appHTTP2Cluster, mesh.HTTP2, kept, nil),
	appCluster(appTCPCluster, mesh.TCP, kept, nil),
}

// proxiedClusters are for applications that get a header of the PROXY protocol. Envoy shares
// none of their connections between callers.
var proxiedClusters = []*Resource{
	appCluster(appHTTPCluster+proxied, mesh.HTTP, kept, proxyProtocol),
	appCluster(appHTTPCluster+once+proxied, mesh.HTTP, usedOnce, proxyProtocol),
	appCluster(appHTTP2Cluster+proxied, mesh.HTTP2, kept, proxyProtocol),
	appCluster(appTCPCluster+proxied, mesh.TCP, kept, proxyProtocol),
}

// appClusterOf returns the name of the application's cluster for a port, given the cluster for ports
// without the PROXY protocol.
func appClusterOf(p *mesh.InboundPort, cluster string) string {
	if p.ProxyProtocol {
		return cluster + proxied
	}
	return cluster
}

var proxyProtocol = &corev3.TransportSocket{
	Name: "envoy.transport_sockets.upstream_proxy_protocol",
	ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(&proxyprotocolv3.ProxyProtocolUpstreamTransport{
		Config: &corev3.ProxyProtocolConfig{Version: corev3.ProxyProtocolConfig_V2},
		TransportSocket: &corev3.TransportSocket{
			Name:       "envoy.transport_sockets.raw_buffer",
			ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(&rawbufferv3.RawBuffer{})},
		},
	})},
}

// The policies of connections to the application.
var kept, usedOnce = mesh.UpstreamPolicy{}, mesh.UpstreamPolicy{RequestsPerConnection: 1}

func appCluster(name string, protocol mesh.Protocol, policy mesh.UpstreamPolicy, socket *corev3.TransportSocket) *Resource {
	return newResource(clusterType, name, clusterDefaults, protocolOptions(protocol, policy, nil), policyCluster(name, protocol, policy), &clusterv3.Cluster{
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
		TransportSocket:      socket,
		UpstreamBindConfig: &corev3.BindConfig{
			SourceAddress: socketAddress("127.0.0.6", 0).GetSocketAddress(),
			ExtraSourceAddresses: []*corev3.ExtraSourceAddress{
				{Address: socketAddress("::6", 0).GetSocketAddress()},
			},
		},
	})
}
