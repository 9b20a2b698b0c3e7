package envoy

import (
	"cmp"
	"encoding/hex"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	commondnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// backend returns the cluster of a Backend and, unless it is an external name, its
// endpoints as seen by proxies in the zone.
func (o *outboundBuilder) backend(b *mesh.Backend, zone string) []*Resource {
	if b.ExternalName != "" {
		return []*Resource{newResource(clusterType, b.Name, clusterDefaults, protocolOptions(b.Protocol, b.Policy, nil),
			policyCluster(b.Name, b.Protocol, b.Policy), dnsCluster(b.ExternalName, b.Service.Port))}
	}
	base := o.base(b)
	e := newEncoder(clusterSize)
	e.constant(base)
	e.text(clusterName, b.Name)
	e.text(clusterAltStatName, altStatName(b.Name))
	// Envoy waits for endpoints whenever a cluster is new or changed, so it must
	// subscribe to a name to which it has not subscribed yet.
	hash := e.digest(clusterType, b.Name)
	endpoints := b.Name + "@" + hex.EncodeToString(hash[:8])
	e.message(clusterEdsClusterConfig, func() { e.text(edsServiceName, endpoints) })
	cluster := e.resource(clusterType, b.Name)
	cluster.Asks = endpoints
	return []*Resource{cluster, o.endpoints(endpoints, b, zone)}
}

// clusterSize is the typical size of a cluster in bytes, without the shared part.
const clusterSize = 160

// base returns the Backend's cluster without its names.
func (o *outboundBuilder) base(b *mesh.Backend) constant {
	base, ok := o.bases[b.Protocol]
	if !ok || b.HealthChecks || !o.onlyPeers(b) || !reflect.ValueOf(&b.Policy).Elem().IsZero() {
		return o.newBase(b)
	}
	return base
}

func (o *outboundBuilder) newBase(b *mesh.Backend) constant {
	policy := policyCluster("", b.Protocol, b.Policy)
	if b.HealthChecks {
		policy.HealthChecks = connectChecks
	}
	ping := pings
	if !o.onlyPeers(b) {
		// A gRPC server closes connections with more pings than it expects.
		ping = nil
	}
	return constantOf(o.cluster, protocolOptions(b.Protocol, b.Policy, ping), policy)
}

// onlyPeers reports whether all endpoints have a proxy.
func (o *outboundBuilder) onlyPeers(b *mesh.Backend) bool {
	return !o.plaintext && !slices.ContainsFunc(b.Endpoints, func(e mesh.Endpoint) bool { return e.ServerName == "" })
}

// altStatName returns the cluster's name for metrics, or "" if it is the same: a dot
// would end it.
func altStatName(name string) string {
	if !strings.Contains(name, ".") {
		return ""
	}
	return strings.ReplaceAll(name, ".", "_")
}

// clusterDefaults is the part that all clusters share.
var clusterDefaults = frozen(&clusterv3.Cluster{
	PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
	CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{
		// By default Envoy uses all endpoints again once most are ejected or draining.
		// The policy limits ejection, and draining endpoints must stay unused.
		HealthyPanicThreshold: &typev3.Percent{Value: 0},
	},
	// Removed endpoints must not be used even if they are still healthy.
	IgnoreHealthOnHostRemoval: true,
	// There is no idle timeout, so keepalives must detect vanished peers.
	UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{
		TcpKeepalive: &corev3.TcpKeepalive{KeepaliveTime: wrapperspb.UInt32(keepaliveSeconds)},
	},
})

const keepaliveSeconds = 300

// serverTimeout is how long a server may leave what it was sent without an acknowledgement, and
// clientTimeout how long a client may. The kernel also counts the time in which the peer takes
// nothing because its application does not read, and clients pause long answers.
const serverTimeout, clientTimeout = 25 * time.Second, 5 * time.Minute

// userTimeout is the socket option TCP_USER_TIMEOUT of Linux, which counts in milliseconds.
func userTimeout(d time.Duration) []*corev3.SocketOption {
	const protocolTCP, option = 6, 18
	return []*corev3.SocketOption{{
		Level: protocolTCP, Name: option, Value: &corev3.SocketOption_IntValue{IntValue: d.Milliseconds()}, State: corev3.SocketOption_STATE_PREBIND,
	}}
}

// meshCluster returns the part that clusters with endpoints share.
func meshCluster(settings *mesh.Settings, plaintext bool) *clusterv3.Cluster {
	cluster := &clusterv3.Cluster{
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource()},
		UpstreamBindConfig:   &corev3.BindConfig{SocketOptions: userTimeout(serverTimeout)},
	}
	if !plaintext {
		// Mesh TLS is the default for endpoints without metadata.
		cluster.TransportSocket = upstreamTLS(settings)
		cluster.TransportSocketMatches = plaintextMatches
	}
	return cluster
}

// Metadata marks the endpoints that are called in plaintext.
var (
	plaintextMark = &structpb.Struct{Fields: map[string]*structpb.Value{"plaintext": structpb.NewBoolValue(true)}}

	plaintextMatches = []*clusterv3.Cluster_TransportSocketMatch{{
		Name:  "plaintext",
		Match: plaintextMark,
		TransportSocket: &corev3.TransportSocket{
			Name:       "envoy.transport_sockets.raw_buffer",
			ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(&rawbufferv3.RawBuffer{})},
		},
	}}

	plaintextMetadata = constantOf(&endpointv3.LbEndpoint{Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"envoy.transport_socket_match": plaintextMark,
	}}})
)

// idleTimeout is after how long a connection without requests is closed, so that a client of many
// services does not keep connections to all of them. Servers keep theirs for longer.
const idleTimeout = 5 * time.Minute

// protocolOptions sets a cluster's protocol. For mesh.HTTP it is the version that the client
// uses, since the server's application expects that. The ping settings are nil for servers that
// may not answer pings.
func protocolOptions(protocol mesh.Protocol, p mesh.UpstreamPolicy, ping *corev3.KeepaliveSettings) *clusterv3.Cluster {
	options := &httpv3.HttpProtocolOptions{CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{
		MaxHeadersCount: wrapperspb.UInt32(maxHeaders), MaxResponseHeadersKb: wrapperspb.UInt32(maxHeadersKiB),
		MaxRequestsPerConnection: nonZero(p.RequestsPerConnection), IdleTimeout: cmp.Or(optionalDuration(p.IdleTimeout), durationpb.New(idleTimeout)),
	}}
	switch protocol {
	case mesh.HTTP:
		options.UpstreamProtocolOptions = downstreamHTTP(ping)
	case mesh.HTTP1:
		options.UpstreamProtocolOptions = explicitHTTP1()
	case mesh.HTTP2, mesh.GRPC:
		options.UpstreamProtocolOptions = explicitHTTP2(http2Options(ping))
	default:
		return new(clusterv3.Cluster)
	}
	return &clusterv3.Cluster{TypedExtensionProtocolOptions: upstreamHTTP(options)}
}

// nonZero returns nil, which means no value or no limit, for 0.
func nonZero(n uint32) *wrapperspb.UInt32Value {
	if n == 0 {
		return nil
	}
	return wrapperspb.UInt32(n)
}

// policyCluster returns the part of a cluster that depends on the name and the policy.
func policyCluster(name string, protocol mesh.Protocol, p mesh.UpstreamPolicy) *clusterv3.Cluster {
	cluster := &clusterv3.Cluster{
		Name:             name,
		AltStatName:      altStatName(name),
		ConnectTimeout:   defaultConnectTimeout,
		CircuitBreakers:  circuitBreakers(protocol, p),
		LbPolicy:         balancing[p.LoadBalancing.Policy],
		OutlierDetection: ejection(p.Ejection),
	}
	if p.Ejection != nil {
		cluster.CommonLbConfig = allIfNone
	}
	if p.ConnectTimeout > 0 {
		cluster.ConnectTimeout = duration(p.ConnectTimeout)
	}
	return cluster
}

// allIfNone uses all endpoints when all are ejected, for example the only one.
var allIfNone = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 1}}

var (
	defaultConnectTimeout = durationpb.New(connectTimeout)

	balancing = map[mesh.LoadBalancingPolicy]clusterv3.Cluster_LbPolicy{
		mesh.RoundRobin:   clusterv3.Cluster_ROUND_ROBIN,
		mesh.LeastRequest: clusterv3.Cluster_LEAST_REQUEST,
		mesh.Random:       clusterv3.Cluster_RANDOM,
		mesh.RingHash:     clusterv3.Cluster_RING_HASH,
		mesh.Maglev:       clusterv3.Cluster_MAGLEV,
	}
)

// circuitBreakers disables Envoy's default limits (1024, and 3 concurrent retries)
// where the policy sets none.
func circuitBreakers(protocol mesh.Protocol, p mesh.UpstreamPolicy) *clusterv3.CircuitBreakers {
	if !protocol.IsHTTP() {
		// Envoy counts a connection in progress as a pending request.
		p.MaxPendingRequests, p.MaxRequests, p.MaxRetries = nil, nil, nil
	}
	if p.MaxConnections == nil && p.MaxPendingRequests == nil && p.MaxRequests == nil && p.MaxRetries == nil {
		return noThresholds
	}
	if p.Refuses(protocol) {
		// With a limit of 0 connections Envoy would still open one for each endpoint.
		p.MaxPendingRequests = new(uint32)
	}
	return thresholds(p)
}

var noThresholds = frozen(thresholds(mesh.UpstreamPolicy{}))

func thresholds(p mesh.UpstreamPolicy) *clusterv3.CircuitBreakers {
	orUnlimited := func(limit *uint32) *wrapperspb.UInt32Value {
		if limit == nil {
			return wrapperspb.UInt32(math.MaxUint32)
		}
		return wrapperspb.UInt32(*limit)
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     orUnlimited(p.MaxConnections),
		MaxPendingRequests: orUnlimited(p.MaxPendingRequests),
		MaxRequests:        orUnlimited(p.MaxRequests),
		MaxRetries:         orUnlimited(p.MaxRetries),
	}}}
}

func ejection(e *mesh.Ejection) *clusterv3.OutlierDetection {
	if e == nil {
		return nil
	}
	return &clusterv3.OutlierDetection{
		Consecutive_5Xx:    nonZero(e.ConsecutiveErrors),
		Interval:           optionalDuration(e.Interval),
		BaseEjectionTime:   optionalDuration(e.BaseTime),
		MaxEjectionPercent: nonZero(min(e.MaxPercent, 100)),
		// The percentage of few endpoints rounds down to none.
		AlwaysEjectOneHost: wrapperspb.Bool(true),
		// By default Envoy also ejects endpoints with a low success rate.
		EnforcingSuccessRate: wrapperspb.UInt32(0),
	}
}

// connectChecks check that a connection, including the TLS handshake, succeeds.
var connectChecks = []*corev3.HealthCheck{frozen(&corev3.HealthCheck{
	Timeout:            durationpb.New(connectTimeout),
	Interval:           durationpb.New(10 * time.Second),
	HealthyThreshold:   wrapperspb.UInt32(1),
	UnhealthyThreshold: wrapperspb.UInt32(3),
	HealthChecker:      &corev3.HealthCheck_TcpHealthCheck_{TcpHealthCheck: &corev3.HealthCheck_TcpHealthCheck{}},
})}

// dnsCluster returns the cluster of a host, given by DNS name or address. All its
// addresses, of both families, are one endpoint; Envoy uses whichever answers first.
func dnsCluster(host string, port uint16) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		ClusterDiscoveryType: dnsType,
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: host,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: socketAddress(host, port)}},
			}}}},
		},
	}
}

var dnsType = &clusterv3.Cluster_ClusterType{ClusterType: frozen(&clusterv3.Cluster_CustomClusterType{
	Name: "envoy.clusters.dns",
	TypedConfig: pack(&dnsv3.DnsCluster{
		DnsLookupFamily:              commondnsv3.DnsLookupFamily_ALL,
		AllAddressesInSingleEndpoint: true,
		RespectDnsTtl:                true,
	}),
})}
