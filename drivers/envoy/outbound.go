package envoy

import (
	"cmp"
	"slices"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// bufferLimit is how many bytes Envoy buffers for a slow peer of a connection, and of a
// request for a retry.
const bufferLimit = 256 << 10

// outboundBuilder makes outbound resources. It holds what they share among proxies with
// equal Settings and Plaintext. It is immutable.
type outboundBuilder struct {
	settings  *mesh.Settings
	plaintext bool

	// sessions is http for Destinations with sessions, and edge and edgeSessions are both for the
	// ports of gateways.
	http, sessions, edge, edgeSessions, tcp networkFilter
	// waiting is what listeners of HTTP log about connections without a request.
	waiting constant
	// cluster is the shared part of all clusters with endpoints. bases are the clusters
	// without a policy, except for their names, by protocol.
	cluster *clusterv3.Cluster
	bases   map[mesh.Protocol]constant
	// own are the resources for the Settings.
	own []*Resource
}

func newOutboundBuilder(settings *mesh.Settings, plaintext bool) *outboundBuilder {
	builder := &outboundBuilder{
		settings: settings, plaintext: plaintext,
		http:         newNetworkFilter(httpFilter(httpOptions{Settings: settings, Logs: outboundRequests})),
		sessions:     newNetworkFilter(httpFilter(httpOptions{Settings: settings, Logs: outboundRequests, Filters: sessionFilter})),
		edge:         newNetworkFilter(httpFilter(httpOptions{Settings: settings, Logs: outboundRequests, Edge: true})),
		edgeSessions: newNetworkFilter(httpFilter(httpOptions{Settings: settings, Logs: outboundRequests, Edge: true, Filters: sessionFilter})),
		tcp:          newNetworkFilter(filter(tcpProxyName, tcpDefaults(accessLogs(settings, outboundConnections)))),
		waiting:      constantOf(&listenerv3.Listener{AccessLog: silentConnections(settings)}),
		cluster:      frozen(clusterDefaults, meshCluster(settings, plaintext)),
		bases:        make(map[mesh.Protocol]constant),
		own:          settingsClusters(settings),
	}
	for _, protocol := range []mesh.Protocol{mesh.HTTP, mesh.HTTP1, mesh.HTTP2, mesh.GRPC, mesh.TCP, mesh.TCPServerFirst} {
		builder.bases[protocol] = builder.newBase(&mesh.Backend{Protocol: protocol})
	}
	return builder
}

// networkFilter is a filter without its stat prefix and target.
type networkFilter struct{ name, configType, config constant }

func newNetworkFilter(f *listenerv3.Filter) networkFilter {
	return networkFilter{
		name:       constantOf(&listenerv3.Filter{Name: f.GetName()}),
		configType: constantOf(&anypb.Any{TypeUrl: f.GetTypedConfig().GetTypeUrl()}),
		config:     newConstant(f.GetTypedConfig().GetValue()),
	}
}

// tcpDefaults disables the idle timeout, which is an hour by default, and logs open connections.
func tcpDefaults(logs []*accesslogv3.AccessLog) *tcpv3.TcpProxy {
	return &tcpv3.TcpProxy{
		IdleTimeout: noTimeout, AccessLog: logs,
		AccessLogOptions: &tcpv3.TcpProxy_TcpAccessLogOptions{AccessLogFlushInterval: durationpb.New(openInterval)},
	}
}

// destination returns the listener of a Destination and, for HTTP, its routes.
func (o *outboundBuilder) destination(d *mesh.Destination) []*Resource {
	if len(d.Addresses) == 0 || d.Port == 0 {
		return nil
	}
	if len(d.Servers) > 0 {
		seen := make(map[string]bool)
		servers := slices.DeleteFunc(slices.Clone(d.Servers), func(s mesh.ServerRoute) bool {
			name := plainName(s.Host)
			former := seen[name]
			seen[name] = true
			return former || !isHost(name)
		})
		if len(servers) == 0 {
			return o.connections(d, nil)
		}
		chains := each(servers, func(s mesh.ServerRoute) filterChain {
			match := &listenerv3.FilterChainMatch{TransportProtocol: "tls", ServerNames: namesOfTLS(s.Host)}
			return filterChain{match: &listenerv3.FilterChain{FilterChainMatch: match}, filter: o.tcp, own: tcpTarget(d, s.Backends)}
		})
		if len(d.Certificates) > 0 {
			if chains = o.terminatedServers(d, servers); len(chains) == 0 {
				return nil
			}
		}
		return []*Resource{o.listener(d, chains...)}
	}
	if !d.Protocol.IsHTTP() {
		return o.connections(d, d.Backends)
	}
	own := newEncoder(filterSize)
	own.text(httpManagerStatPrefix, d.Service.String())
	own.message(httpManagerRds, func() { own.text(rdsRouteConfigName, d.Name) })
	if names := d.ComparedHeaders(); len(names) > 0 {
		own.part(normalizeEarly(names))
	}
	if d.ComparesPath() {
		own.part(normalPath)
	}
	manager := o.http
	switch sessions := keepsSessions(d); {
	case d.Listens && sessions:
		manager = o.edgeSessions
	case d.Listens:
		manager = o.edge
	case sessions:
		manager = o.sessions
	}
	chains := []filterChain{{filter: manager, own: own}}
	if len(d.Certificates) > 0 {
		several := len(d.Listeners()) > 1
		chains = terminated(d, func(c mesh.ServerCertificate, chain filterChain) filterChain {
			chain.filter, chain.own = manager, newEncoder(filterSize)
			chain.own.fields(own)
			if several {
				chain.own.part(fromListener(c.Listener))
			}
			return chain
		})
		if len(chains) == 0 {
			return nil
		}
	}
	return []*Resource{
		o.listener(d, chains...),
		routes(d),
	}
}

// connections returns the listener of a Destination for TCP, and its filter apart from that, so
// that other backends or weights do not end the connections that there are.
func (o *outboundBuilder) connections(d *mesh.Destination, backends []mesh.WeightedBackend) []*Resource {
	e := newEncoder(filterSize)
	e.text(extensionName, d.Name)
	e.message(extensionTypedConfig, func() { o.tcp.write(&e, tcpTarget(d, backends)) })
	return []*Resource{o.listener(d, filterChain{apart: true}), e.resource(extensionType, d.Name)}
}

// write writes the fields of an Any with the filter's configuration.
func (f networkFilter) write(e *encoder, own encoder) {
	e.constant(f.configType)
	e.message(anyValue, func() {
		e.constant(f.config)
		e.fields(own)
	})
}

// tcpApart refers to a TCP proxy that is a resource of its own.
var tcpApart = constantOf(&listenerv3.Filter{ConfigType: apart(&tcpv3.TcpProxy{})})

// normalPath overrides what the other fields of a filter say.
var normalPath = &hcmv3.HttpConnectionManager{NormalizePath: wrapperspb.Bool(true)}

// Typical sizes of listeners and their filters in bytes, without the shared parts.
const (
	listenerSize = 320
	filterSize   = 96
)

// The listener "outbound" accepts connections and hands each to the listener of its
// exact destination. All listeners share their metrics; those of services come from
// the filters.
var destinationDefaults = constantOf(&listenerv3.Listener{
	StatPrefix:                    outboundListener,
	BindToPort:                    wrapperspb.Bool(false),
	TrafficDirection:              corev3.TrafficDirection_OUTBOUND,
	PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
})

// tlsInspection finds out the server name of TLS connections. A connection that does not
// begin with TLS in time is closed.
var tlsInspection = constantOf(&listenerv3.Listener{
	ListenerFilters:        []*listenerv3.ListenerFilter{listenerFilter("tls_inspector", &tlsinspectorv3.TlsInspector{})},
	ListenerFiltersTimeout: durationpb.New(inspectTimeout),
})

// filterChain is a filter chain of a Destination's listener. The match is nil if it is the
// only one, and own has the encoded fields that only this filter has. If apart is set, the filter
// is the resource of the Destination's name.
type filterChain struct {
	match  *listenerv3.FilterChain
	filter networkFilter
	own    encoder
	apart  bool
}

// listener returns the listener of a Destination with the filter chains.
func (o *outboundBuilder) listener(d *mesh.Destination, chains ...filterChain) *Resource {
	e := newEncoder(len(chains) * listenerSize)
	if d.Listens {
		e.constant(gatewayDefaults)
	} else {
		e.constant(destinationDefaults)
	}
	e.text(listenerName, d.Name)
	e.address(listenerAddress, d.Addresses[0], d.Port)
	for _, address := range d.Addresses[1:] {
		e.message(listenerAdditionalAddresses, func() { e.address(additionalAddressAddress, address, d.Port) })
	}
	if len(d.Servers)+len(d.Certificates) > 0 {
		e.constant(tlsInspection)
	}
	if d.Protocol.IsHTTP() {
		e.constant(o.waiting)
	}
	for _, chain := range chains {
		e.message(listenerFilterChains, func() {
			if chain.match != nil {
				e.part(chain.match)
			}
			e.message(filterChainFilters, func() {
				if chain.apart {
					e.text(filterName, d.Name)
					e.constant(tcpApart)
					return
				}
				e.constant(chain.filter.name)
				e.message(filterTypedConfig, func() { chain.filter.write(&e, chain.own) })
			})
		})
	}
	return e.resource(listenerType, d.Name)
}

// tcpTarget returns the encoded filter fields that set the target of connections. The proxy
// connects as soon as the client has connected, so either side may send first.
func tcpTarget(d *mesh.Destination, backends []mesh.WeightedBackend) encoder {
	proxy := &tcpv3.TcpProxy{StatPrefix: d.Service.String()}
	clusterOf := func(b mesh.WeightedBackend) string { return cmp.Or(b.Backend, blockedCluster) }
	switch backends := weighted(backends); len(backends) {
	case 0:
		proxy.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: blockedCluster}
	case 1:
		proxy.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: clusterOf(backends[0])}
	default:
		clusters := each(backends, func(b mesh.WeightedBackend) *tcpv3.TcpProxy_WeightedCluster_ClusterWeight {
			return &tcpv3.TcpProxy_WeightedCluster_ClusterWeight{Name: clusterOf(b), Weight: b.Weight}
		})
		proxy.ClusterSpecifier = &tcpv3.TcpProxy_WeightedClusters{
			WeightedClusters: &tcpv3.TcpProxy_WeightedCluster{Clusters: clusters},
		}
	}
	for _, on := range d.HashOn {
		// TCP connections have neither headers nor cookies.
		if on.SourceIP {
			proxy.HashPolicy = hashOnSourceIP
		}
	}
	own := newEncoder(filterSize)
	own.part(proxy)
	return own
}

var hashOnSourceIP = []*typev3.HashPolicy{{
	PolicySpecifier: &typev3.HashPolicy_SourceIp_{SourceIp: &typev3.HashPolicy_SourceIp{}},
}}

const tcpProxyName = "envoy.filters.network.tcp_proxy"
