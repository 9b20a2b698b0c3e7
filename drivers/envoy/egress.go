package envoy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Names of the resources that every proxy has for egress.
const (
	// outboundListener accepts all connections of the application.
	outboundListener = "outbound"
	// passthroughCluster connects to the address that the application chose.
	// blockedCluster has no endpoints: connections to it are counted, logged and closed.
	passthroughCluster = "passthrough"
	blockedCluster     = "blocked"
)

// egress builds the listener "outbound" and the resources that it needs from an Egress.
type egress struct {
	builder   *outboundBuilder
	allowAll  bool
	chains    []*listenerv3.FilterChain
	tlsPorts  []uint16
	clusters  map[string]bool
	resources []*Resource
}

// egress returns the listener "outbound" with its routes and clusters, for proxies with
// addresses of the given families that do not know all services in the Unknown ranges. Connections to hosts go to the addresses to which
// the proxy resolves the host's name, not to the address that the application chose:
// otherwise an allowed name would open a way to any address.
func (o *outboundBuilder) egress(e *mesh.Egress, unknown []netip.Prefix, addresses []netip.Addr) []*Resource {
	b := &egress{builder: o, allowAll: e.AllowAll, clusters: map[string]bool{}}
	passthrough := e.AllowAll
	for _, port := range e.Ports {
		if port.Port == 0 {
			continue
		}
		port.Hosts = hostsOf(port)
		ranges := len(port.Ranges) > 0 || port.Protocol == mesh.EgressTCP
		passthrough = passthrough || ranges
		if ranges {
			b.ranges(port)
		}
		if len(port.Hosts) == 0 {
			continue
		}
		switch port.Protocol {
		case mesh.EgressHTTP:
			for _, at := range scopesOf(port) {
				b.http(port, at)
			}
		case mesh.EgressTLS:
			b.tlsPorts = append(b.tlsPorts, port.Port)
			for _, at := range scopesOf(port) {
				b.tls(port, at)
			}
		}
	}
	b.resources = append(b.resources, newResource(clusterType, blockedCluster, clusterDefaults, &clusterv3.Cluster{
		Name:                 blockedCluster,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       defaultConnectTimeout,
	}))
	if passthrough {
		b.cluster(passthroughCluster, mesh.HTTP, mesh.UpstreamPolicy{}, originalCluster)
	}
	if len(unknown) > 0 {
		b.onDemand(splitDefaultRoutes(unknown), addresses)
		return b.resources
	}
	listener := b.listener(outboundListener, "original_dst", &originaldstv3.OriginalDst{})
	listenOn(listener, addresses, driver.OutboundPort)
	b.resources = append(b.resources, newResource(listenerType, outboundListener, listener))
	return b.resources
}

// cluster adds a cluster unless it exists; kind sets its type and overrides the policy.
func (b *egress) cluster(name string, protocol mesh.Protocol, policy mesh.UpstreamPolicy, kind *clusterv3.Cluster) {
	if b.clusters[name] {
		return
	}
	b.clusters[name] = true
	b.resources = append(b.resources,
		newResource(clusterType, name, clusterDefaults, protocolOptions(protocol, policy, nil), policyCluster(name, protocol, policy), kind))
}

// chain adds a filter chain for the port.
func (b *egress) chain(name string, port uint16, match *listenerv3.FilterChainMatch, filters ...*listenerv3.Filter) {
	match.DestinationPort = wrapperspb.UInt32(uint32(port))
	b.chains = append(b.chains, &listenerv3.FilterChain{Name: name, FilterChainMatch: match, Filters: filters})
}

// originalCluster connects to the address that the application chose.
var originalCluster = frozen(&clusterv3.Cluster{
	ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
	LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
})

// ranges allows connections to address ranges.
func (b *egress) ranges(port mesh.EgressRoutes) {
	match := &listenerv3.FilterChainMatch{PrefixRanges: cidrs(splitDefaultRoutes(port.Ranges))}
	name := egressName(port.Port) + "/ranges"
	b.chain(name, port.Port, match, b.builder.tcpTo(name, passthroughCluster))
}

// http allows requests to hosts at the addresses of the scope.
func (b *egress) http(port mesh.EgressRoutes, where scope) {
	name := where.name(egressName(port.Port))
	hosts := make([]*routev3.VirtualHost, 0, len(port.Hosts)+1)
	var filters []*hcmv3.HttpFilter
	for _, host := range port.Hosts {
		if isWildcard(host.Host) && len(host.Matches) > 0 {
			filters = dynamicForward
		}
		hosts = append(hosts, &routev3.VirtualHost{
			Name: host.Host, Domains: domains(host.Host, port.Port), Routes: b.routes(host, port.Port, where),
		})
	}
	others := &routev3.Route{Match: match(mesh.HTTPMatch{}), Action: respond(403)}
	if b.allowAll {
		action := forward(0)
		action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: passthroughCluster}
		others.Action = &routev3.Route_Route{Route: action}
	}
	hosts = append(hosts, &routev3.VirtualHost{Name: "*", Domains: anyHost, Routes: []*routev3.Route{others}})
	b.resources = append(b.resources, newResource(routeType, name, &routev3.RouteConfiguration{
		Name: name, VirtualHosts: hosts, ValidateClusters: wrapperspb.Bool(false),
	}))
	b.chain(name, port.Port, where.match(), httpFilter(httpOptions{
		StatPrefix: name, RouteName: name, Settings: b.builder.settings, Logs: egressRequests, Filters: filters, Compared: port.ComparedHeaders(), ComparesPath: port.ComparesPath(),
	}))
}

// domains returns the Host headers for the host and port. For a wildcard host the Host
// header determines the destination, and its default port is 80.
func domains(host string, port uint16) []string {
	number := ":" + strconv.Itoa(int(port))
	// A final dot means the same name.
	withPort := []string{host + number, host + "." + number}
	if isWildcard(host) && port != 80 {
		return withPort
	}
	return append(withPort, host, host+".")
}

// routes returns the routes of a host at the addresses of the scope.
func (b *egress) routes(host mesh.EgressHost, port uint16, where scope) []*routev3.Route {
	var routes []*routev3.Route
	add := func(matches []mesh.HTTPMatch, cluster string) {
		for _, m := range matches {
			action := forward(host.Policy.RequestTimeout)
			action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: cluster}
			routes = append(routes, &routev3.Route{Match: match(m), Action: &routev3.Route_Route{Route: action}})
		}
	}
	for _, within := range host.Within {
		if where.within(within) {
			add(within.Matches, b.addressCluster(host, port, mesh.HTTP))
		}
	}
	if len(host.Matches) > 0 {
		add(host.Matches, b.hostCluster(host, port, mesh.HTTP))
	}
	return append(routes, &routev3.Route{Match: match(mesh.HTTPMatch{}), Action: respond(403)})
}

// tls allows TLS connections to server names at the addresses of the scope.
func (b *egress) tls(port mesh.EgressRoutes, where scope) {
	for _, host := range port.Hosts {
		name, cluster := egressName(port.Port)+"/"+host.Host, blockedCluster
		var filters []*listenerv3.Filter
		switch {
		case slices.ContainsFunc(host.Within, func(w mesh.EgressWithin) bool { return where.within(w) && len(w.Matches) > 0 }):
			cluster = b.addressCluster(host, port.Port, mesh.TCP)
		case len(host.Matches) > 0:
			cluster = b.hostCluster(host, port.Port, mesh.TCP)
			if isWildcard(host.Host) {
				filters = append(filters, dynamicForwardSNI(port.Port))
			}
		}
		match := where.match()
		match.TransportProtocol, match.ServerNames = "tls", namesOfTLS(host.Host)
		b.chain(where.name(name), port.Port, match, append(filters, b.builder.tcpTo(cluster, cluster))...)
	}
}

// hostCluster adds the cluster that connects to a host by name, and returns its name.
func (b *egress) hostCluster(host mesh.EgressHost, port uint16, protocol mesh.Protocol) string {
	name := egressName(port) + "/" + host.Host
	kind := dynamicForwardCluster
	if !isWildcard(host.Host) {
		kind = dnsCluster(host.Host, port)
	}
	b.cluster(name, protocol, host.Policy, kind)
	return name
}

// addressCluster adds the cluster that connects to a host at the address that the
// application chose, and returns its name.
func (b *egress) addressCluster(host mesh.EgressHost, port uint16, protocol mesh.Protocol) string {
	name := egressName(port) + "/" + host.Host + "@address"
	b.cluster(name, protocol, host.Policy, originalCluster)
	return name
}

// hostsOf returns the hosts of the port that Envoy can match. Of names that mean the same it
// takes one.
func hostsOf(port mesh.EgressRoutes) []mesh.EgressHost {
	seen := make(map[string]bool)
	return slices.DeleteFunc(slices.Clone(port.Hosts), func(h mesh.EgressHost) bool {
		name := plainName(h.Host)
		if seen[name] || !isHost(name) {
			return true
		}
		seen[name] = true
		return false
	})
}

// plainName returns a host or a wildcard in lower case and without a final dot.
func plainName(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

// namesOfTLS are the server names that mean a host or a wildcard: with and without the final dot.
// Envoy compares them in lower case.
func namesOfTLS(host string) []string {
	name := plainName(host)
	return []string{name, name + "."}
}

func isWildcard(host string) bool { return strings.HasPrefix(host, "*.") }

// egressPrefix begins the names of all resources of egress but those of every proxy.
const egressPrefix = "egress/"

func egressName(port uint16) string { return egressPrefix + strconv.Itoa(int(port)) }

// tcpTo returns a filter that forwards to a cluster.
func (o *outboundBuilder) tcpTo(stats, cluster string) *listenerv3.Filter {
	proxy := tcpDefaults(accessLogs(o.settings, egressConnections))
	proxy.StatPrefix, proxy.ClusterSpecifier = stats, &tcpv3.TcpProxy_Cluster{Cluster: cluster}
	return filter(tcpProxyName, proxy)
}

// listener returns a listener without an address. The named listener filter finds out the
// original destination.
func (b *egress) listener(name, filter string, config proto.Message) *listenerv3.Listener {
	others := blockedCluster
	if b.allowAll {
		others = passthroughCluster
	}
	listener := &listenerv3.Listener{
		Name:                          name,
		StatPrefix:                    outboundListener,
		TrafficDirection:              corev3.TrafficDirection_OUTBOUND,
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		// A connection is handed to the listener of its destination, if there is one.
		UseOriginalDst:     wrapperspb.Bool(true),
		ListenerFilters:    []*listenerv3.ListenerFilter{listenerFilter(filter, config)},
		FilterChains:       b.chains,
		DefaultFilterChain: &listenerv3.FilterChain{Name: others, Filters: []*listenerv3.Filter{b.builder.tcpTo(others, others)}},
	}
	if len(b.tlsPorts) > 0 {
		// Only TLS ports wait for the client's first bytes. A connection without any
		// continues as one without a server name.
		inspector := listenerFilter("tls_inspector", &tlsinspectorv3.TlsInspector{})
		inspector.FilterDisabled = &listenerv3.ListenerFilterChainMatchPredicate{
			Rule: &listenerv3.ListenerFilterChainMatchPredicate_NotMatch{NotMatch: toPorts(b.tlsPorts)},
		}
		listener.ListenerFilters = append(listener.ListenerFilters, inspector)
		listener.ListenerFiltersTimeout = durationpb.New(inspectTimeout)
		listener.ContinueOnListenerFiltersTimeout = true
	}
	return listener
}

const inspectTimeout = 5 * time.Second

func listenerFilter(name string, config proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{
		Name:       "envoy.filters.listener." + name,
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: pack(config)},
	}
}
