package envoy

import (
	"cmp"
	"net"
	"strconv"

	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tagv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// The clusters for the Settings.
const (
	tracingCluster       = "tracing"
	authorizationCluster = "authorization"
)

// otlp is one of the protocols of mesh.Tracing; the other is Zipkin's.
const otlp = "otlp"

// settingsClusters returns the clusters of hosts outside the mesh that the Settings
// name: the trace collector and the external authorization service.
func settingsClusters(s *mesh.Settings) []*Resource {
	var clusters []*Resource
	if t := s.Tracing; t != nil {
		protocol := mesh.HTTP2
		if t.Protocol != otlp {
			// Without options Envoy speaks HTTP/1.1.
			protocol = mesh.TCP
		}
		clusters = append(clusters, namedCluster(tracingCluster, t.Host, t.Port, protocol))
	}
	if a := s.Authorization; a != nil {
		clusters = append(clusters, namedCluster(authorizationCluster, a.Host, a.Port, mesh.HTTP2))
	}
	return clusters
}

// namedCluster connects to a host by DNS name or address, in plaintext.
func namedCluster(name, host string, port uint16, protocol mesh.Protocol) *Resource {
	policy := mesh.UpstreamPolicy{}
	return newResource(clusterType, name, clusterDefaults, dnsCluster(host, port), protocolOptions(protocol, policy, nil), policyCluster(name, protocol, policy))
}

// tracing returns the tracing configuration, or nil. Every proxy on a request's path
// adds a span to its trace.
func tracing(o httpOptions) *hcmv3.HttpConnectionManager_Tracing {
	t := o.Settings.Tracing
	if t == nil {
		return nil
	}
	provider := &tracev3.Tracing_Http{Name: "envoy.tracers.zipkin"}
	var config proto.Message = &tracev3.ZipkinConfig{
		CollectorCluster:         tracingCluster,
		CollectorEndpoint:        cmp.Or(t.Path, "/api/v2/spans"),
		CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON,
		CollectorHostname:        net.JoinHostPort(t.Host, strconv.Itoa(int(t.Port))),
		TraceId_128Bit:           true,
	}
	if t.Protocol == otlp {
		provider.Name = "envoy.tracers.opentelemetry"
		config = &tracev3.OpenTelemetryConfig{
			GrpcService: grpcService(tracingCluster),
			ServiceName: o.ServiceName,
		}
	}
	provider.ConfigType = &tracev3.Tracing_Http_TypedConfig{TypedConfig: pack(config)}
	return &hcmv3.HttpConnectionManager_Tracing{
		RandomSampling: &typev3.Percent{Value: min(float64(t.Sampled)/10_000, 100)},
		Provider:       provider,
		CustomTags:     podTags,
	}
}

// podTags identify the pod of a span. Envoy reads them from its environment, so that
// proxies can share one configuration.
var podTags = []*tagv3.CustomTag{
	environmentTag("k8s.namespace.name", "POD_NAMESPACE"),
	environmentTag("k8s.pod.name", "POD_NAME"),
	environmentTag("service_account", "SERVICE_ACCOUNT"),
}

func environmentTag(tag, variable string) *tagv3.CustomTag {
	return &tagv3.CustomTag{Tag: tag, Type: &tagv3.CustomTag_Environment_{
		Environment: &tagv3.CustomTag_Environment{Name: variable, DefaultValue: "unknown"},
	}}
}
