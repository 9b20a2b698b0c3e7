package envoy

import (
	"encoding/hex"
	"math"
	"reflect"
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

// backend returns the cluster of a Backend and, unless it is only another name, its
// endpoints as proxies in the zone see them.
func (o *outboundStyle) backend(b *mesh.Backend, zone string) []*Resource {
	if b.ExternalName != "" {
		return []*Resource{newResource(clusterType, b.Name, clusterDefaults, protocolOptions(b.Protocol, b.Policy),
			policyCluster(b.Name, b.Protocol, b.Policy), dnsCluster(b.ExternalName, b.Service.Port))}
	}
	base := o.base(b)
	e := newEncoder(len(base.encoding) + clusterSize)
	e.constant(base)
	e.text(clusterName, b.Name)
	e.text(clusterAltStatName, altStatName(b.Name))
	// Envoy waits for endpoints whenever a cluster is new or changed, so it must ask
	// for them by a name that it has not asked for yet.
	hash := e.digest(clusterType, b.Name)
	endpoints := b.Name + "@" + hex.EncodeToString(hash[:8])
	e.message(clusterEdsClusterConfig, func() { e.text(edsServiceName, endpoints) })
	cluster := e.resource(clusterType, b.Name)
	cluster.Asks = endpoints
	return []*Resource{cluster, o.endpoints(endpoints, b, zone)}
}

// clusterSize is how many bytes most clusters take besides what they have in common.
const clusterSize = 160

// base returns all of the Backend's cluster but its names.
func (o *outboundStyle) base(b *mesh.Backend) constant {
	base, ok := o.bases[b.Protocol]
	if !ok || b.HealthChecks || !reflect.ValueOf(&b.Policy).Elem().IsZero() {
		return o.newBase(b)
	}
	return base
}

func (o *outboundStyle) newBase(b *mesh.Backend) constant {
	policy := policyCluster("", b.Protocol, b.Policy)
	if b.HealthChecks {
		policy.HealthChecks = connectChecks
	}
	return constantOf(o.cluster, protocolOptions(b.Protocol, b.Policy), policy)
}

// altStatName is the cluster's name in metrics if that is another: a dot would end
// it.
func altStatName(name string) string {
	if !strings.Contains(name, ".") {
		return ""
	}
	return strings.ReplaceAll(name, ".", "_")
}

// clusterDefaults is what all clusters have in common.
var clusterDefaults = frozen(&clusterv3.Cluster{
	PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
	CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{
		// By default Envoy sends to all endpoints again once most are ejected or
		// draining. How many may be ejected is the policy's to say, and one that
		// drains is not to be called because others drain too.
		HealthyPanicThreshold: &typev3.Percent{Value: 0},
	},
	// An endpoint that is gone is gone, whatever its health.
	IgnoreHealthOnHostRemoval: true,
	// Connections may be silent for as long as they like, so this is what finds out
	// that a peer has vanished.
	UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{
		TcpKeepalive: &corev3.TcpKeepalive{KeepaliveTime: wrapperspb.UInt32(keepaliveSeconds)},
	},
})

const keepaliveSeconds = 300

// meshCluster is what clusters with endpoints have in common.
func meshCluster(settings *mesh.Settings, plaintext bool) *clusterv3.Cluster {
	cluster := &clusterv3.Cluster{
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource()},
	}
	if !plaintext {
		// Mesh TLS is what an endpoint gets that nothing is known of.
		cluster.TransportSocket = upstreamTLS(settings)
		cluster.TransportSocketMatches = plaintextMatches
	}
	return cluster
}

// An endpoint that is called in plaintext says so in its metadata.
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

// protocolOptions says how a cluster's protocol is spoken: HTTP as the client speaks
// it, so that the server's application is asked in a way that it is used to.
func protocolOptions(protocol mesh.Protocol, p mesh.UpstreamPolicy) *clusterv3.Cluster {
	options := new(httpv3.HttpProtocolOptions)
	switch protocol {
	case mesh.HTTP:
		options.UpstreamProtocolOptions = downstreamHTTP()
	case mesh.HTTP2, mesh.GRPC:
		options.UpstreamProtocolOptions = explicitHTTP2(&corev3.Http2ProtocolOptions{AllowConnect: true})
	default:
		return new(clusterv3.Cluster)
	}
	if p.IdleTimeout > 0 || p.RequestsPerConnection > 0 {
		options.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{MaxRequestsPerConnection: limit(p.RequestsPerConnection)}
		if p.IdleTimeout > 0 {
			options.CommonHttpProtocolOptions.IdleTimeout = duration(p.IdleTimeout)
		}
	}
	return &clusterv3.Cluster{TypedExtensionProtocolOptions: upstreamHTTP(options)}
}

// limit returns nil, which is no limit, for 0.
func limit(n uint32) *wrapperspb.UInt32Value {
	if n == 0 {
		return nil
	}
	return wrapperspb.UInt32(n)
}

// policyCluster is what the name and the policy make of a cluster.
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

// allIfNone sends to all endpoints when all are ejected, as when the only one is.
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

// circuitBreakers lifts Envoy's own limits, of 1024 and of 3 retries at a time,
// where the policy has none.
func circuitBreakers(protocol mesh.Protocol, p mesh.UpstreamPolicy) *clusterv3.CircuitBreakers {
	if !protocol.IsHTTP() {
		// Envoy counts a connection that is being made as a request that waits.
		p.MaxPendingRequests, p.MaxRequests, p.MaxRetries = nil, nil, nil
	}
	if p.MaxConnections == nil && p.MaxPendingRequests == nil && p.MaxRequests == nil && p.MaxRetries == nil {
		return noThresholds
	}
	if p.Refuses(protocol) {
		// Of no connections Envoy would make one for each endpoint.
		p.MaxPendingRequests = new(uint32)
	}
	return thresholds(p)
}

var noThresholds = frozen(thresholds(mesh.UpstreamPolicy{}))

func thresholds(p mesh.UpstreamPolicy) *clusterv3.CircuitBreakers {
	orMost := func(limit *uint32) *wrapperspb.UInt32Value {
		if limit == nil {
			return wrapperspb.UInt32(math.MaxUint32)
		}
		return wrapperspb.UInt32(*limit)
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     orMost(p.MaxConnections),
		MaxPendingRequests: orMost(p.MaxPendingRequests),
		MaxRequests:        orMost(p.MaxRequests),
		MaxRetries:         orMost(p.MaxRetries),
	}}}
}

func ejection(e *mesh.Ejection) *clusterv3.OutlierDetection {
	if e == nil {
		return nil
	}
	detection := &clusterv3.OutlierDetection{
		Consecutive_5Xx:    limit(e.ConsecutiveErrors),
		MaxEjectionPercent: limit(e.MaxPercent),
		// A share of few endpoints is none, and then there would be no ejection.
		AlwaysEjectOneHost: wrapperspb.Bool(true),
		// Envoy would also eject endpoints that do worse than others.
		EnforcingSuccessRate: wrapperspb.UInt32(0),
	}
	if e.Interval > 0 {
		detection.Interval = duration(e.Interval)
	}
	if e.BaseTime > 0 {
		detection.BaseEjectionTime = duration(e.BaseTime)
	}
	return detection
}

// connectChecks connects, which includes the TLS handshake.
var connectChecks = []*corev3.HealthCheck{frozen(&corev3.HealthCheck{
	Timeout:            durationpb.New(connectTimeout),
	Interval:           durationpb.New(10 * time.Second),
	HealthyThreshold:   wrapperspb.UInt32(1),
	UnhealthyThreshold: wrapperspb.UInt32(3),
	HealthChecker:      &corev3.HealthCheck_TcpHealthCheck_{TcpHealthCheck: &corev3.HealthCheck_TcpHealthCheck{}},
})}

// dnsCluster is a host by its DNS name or address. All its addresses are one
// endpoint, which Envoy connects to by whichever address answers first, of either
// family.
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
