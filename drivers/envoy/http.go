package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// httpOptions are the settings that differ between a proxy's HTTP connection managers.
type httpOptions struct {
	// StatPrefix is the prefix of its metrics.
	StatPrefix string
	// RouteName is the route configuration, which is fetched by RDS.
	RouteName string
	Settings  *mesh.Settings
	// Logs are the logs of its requests.
	Logs logs
	// Inbound is set if the requests are for the proxy's own application.
	Inbound bool
	// ServiceName is the service name in OTLP spans.
	ServiceName string
	// Filters precede the router.
	Filters []*hcmv3.HttpFilter
	// Compared are headers whose values the routes compare.
	Compared []string
}

// httpFilter returns an HTTP connection manager. It leaves requests unchanged as far as
// possible: the application should see what it would see without a proxy.
func httpFilter(o httpOptions) *listenerv3.Filter {
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix: o.StatPrefix,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			ConfigSource: adsSource(), RouteConfigName: o.RouteName,
		}},
		HttpFilters: append(o.Filters[:len(o.Filters):len(o.Filters)], routerFilter),
		AccessLog:   accessLogs(o.Settings, o.Logs),
		Tracing:     tracing(o),

		// The proxy is not an edge proxy: x-forwarded-for and x-forwarded-proto stay
		// as the client wrote them, and no address counts as internal, since Envoy
		// would obey the x-envoy-* headers of internal clients.
		UseRemoteAddress:      wrapperspb.Bool(false),
		InternalAddressConfig: &hcmv3.HttpConnectionManager_InternalAddressConfig{},
		// Certificate headers from the client are never passed on.
		ForwardClientCertDetails:   hcmv3.HttpConnectionManager_SANITIZE,
		ServerHeaderTransformation: hcmv3.HttpConnectionManager_PASS_THROUGH,
		NormalizePath:              wrapperspb.Bool(true),

		UpgradeConfigs: []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		HttpProtocolOptions: &corev3.Http1ProtocolOptions{
			AcceptHttp_10: true,
			// Envoy rejects requests without a host, which HTTP/1.0 allows.
			DefaultHostForHttp_10: "localhost",
		},
		// WebSockets use extended CONNECT over HTTP/2.
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{AllowConnect: true},
		// Streams have no idle timeout.
		StreamIdleTimeout: durationpb.New(0),
	}
	if len(o.Compared) > 0 {
		proto.Merge(manager, normalizeEarly(o.Compared))
	}
	if o.Inbound {
		// The application gets the caller's identity from the verified certificate.
		manager.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
		manager.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{Uri: true}
		// The application must get exactly the path that the rules compared. Paths with
		// escaped slashes stay unchanged, since ordinary applications use them; no
		// rule that names a path matches them.
		manager.MergeSlashes = true
		manager.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_KEEP_UNCHANGED
	}
	return filter("envoy.filters.network.http_connection_manager", manager)
}

var routerFilter = httpFilterOf("envoy.filters.http.router", &routerv3.Router{})
