package envoy

import (
	"math"
	"net/netip"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// secretType is the type of resources with the validation contexts of peers.
const secretType = resource.SecretType

// connectTimeout is the default connect timeout.
const connectTimeout = 5 * time.Second

// each returns f of every element.
func each[A, B any](list []A, f func(A) B) []B {
	out := make([]B, len(list))
	for i, a := range list {
		out[i] = f(a)
	}
	return out
}

// adsSource refers to the ADS stream, which delivers all configuration of a proxy.
func adsSource() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

// filter returns a network filter with its configuration.
func filter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(config)}}
}

// httpFilterOf returns an HTTP filter with its configuration.
func httpFilterOf(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(config)}}
}

// accessLog returns an access log with its configuration.
func accessLog(name string, config proto.Message) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{Name: name, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(config)}}
}

// pack returns the message in an Any, with equal bytes for equal messages. A message
// that cannot be encoded, because a string is not valid UTF-8, becomes an Any that
// Envoy rejects, so that it keeps its current configuration.
func pack(m proto.Message) *anypb.Any {
	packed := new(anypb.Any)
	if err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		return &anypb.Any{TypeUrl: "type.googleapis.com/unencodable"}
	}
	return packed
}

// apart refers to a filter's configuration of this type that is a resource of the filter's name.
// Another one is for new connections only.
func apart(config proto.Message) *listenerv3.Filter_ConfigDiscovery {
	return &listenerv3.Filter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
		ConfigSource: adsSource(), TypeUrls: []string{pack(config).GetTypeUrl()},
	}}
}

func grpcService(cluster string) *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster},
	}}
}

// upstreamHTTP returns a cluster's extension options for HTTP.
func upstreamHTTP(options *httpv3.HttpProtocolOptions) map[string]*anypb.Any {
	return map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": pack(options)}
}

// http1Options and http2Options are those of connections to servers. The ping settings may be
// nil.
func http1Options() *corev3.Http1ProtocolOptions {
	return &corev3.Http1ProtocolOptions{EnableTrailers: true}
}

func http2Options(ping *corev3.KeepaliveSettings) *corev3.Http2ProtocolOptions {
	return &corev3.Http2ProtocolOptions{AllowConnect: true, ConnectionKeepalive: ping}
}

// explicitHTTP1 allows only HTTP/1.1.
func explicitHTTP1() *httpv3.HttpProtocolOptions_ExplicitHttpConfig_ {
	return &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: http1Options()},
	}}
}

// explicitHTTP2 allows only HTTP/2.
func explicitHTTP2(o *corev3.Http2ProtocolOptions) *httpv3.HttpProtocolOptions_ExplicitHttpConfig_ {
	return &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: o},
	}}
}

// downstreamHTTP uses the client's protocol upstream, HTTP/1.1 or HTTP/2.
func downstreamHTTP(ping *corev3.KeepaliveSettings) *httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig {
	return &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
		HttpProtocolOptions: http1Options(), Http2ProtocolOptions: http2Options(ping),
	}}
}

// duration returns the duration, limited to what Envoy can represent, and 0 for 0.
// Envoy counts in milliseconds, where 0 means no limit or an endless loop, and its
// timers are limited to 68 years.
func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return noTimeout
	}
	return durationpb.New(min(max(d, time.Millisecond), math.MaxInt32*time.Second))
}

// optionalDuration is duration, but returns nil for 0.
func optionalDuration(d time.Duration) *durationpb.Duration {
	if d <= 0 {
		return nil
	}
	return duration(d)
}

func socketAddress(host string, port uint16) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
	}}}
}

// listenOn sets the listener to the port on all addresses of the families that the
// pod's addresses have; IPv4 if they are unknown. A kernel without IPv6 would reject
// the whole listener for an IPv6 address.
func listenOn(l *listenerv3.Listener, addresses []netip.Addr, port uint16) {
	v4, v6 := families(addresses)
	switch any4, any6 := socketAddress("0.0.0.0", port), socketAddress("::", port); {
	case v4 && v6:
		l.Address, l.AdditionalAddresses = any4, []*listenerv3.AdditionalAddress{{Address: any6}}
	case v6:
		l.Address = any6
	default:
		l.Address = any4
	}
}

// families reports the address families of the addresses.
func families(addresses []netip.Addr) (v4, v6 bool) {
	for _, a := range addresses {
		if a.Unmap().Is4() {
			v4 = true
		} else {
			v6 = true
		}
	}
	return v4, v6
}

// toPorts matches connections to one of the ports. It returns nil without ports.
func toPorts(ports []uint16) *listenerv3.ListenerFilterChainMatchPredicate {
	rules := each(ports, func(port uint16) *listenerv3.ListenerFilterChainMatchPredicate {
		return &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange{
			DestinationPortRange: &typev3.Int32Range{Start: int32(port), End: int32(port) + 1},
		}}
	})
	switch len(rules) {
	case 0:
		return nil
	case 1:
		return rules[0]
	}
	return &listenerv3.ListenerFilterChainMatchPredicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_OrMatch{
		OrMatch: &listenerv3.ListenerFilterChainMatchPredicate_MatchSet{Rules: rules},
	}}
}
