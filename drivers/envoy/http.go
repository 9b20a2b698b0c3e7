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

// httpOptions is what differs between the HTTP connection managers of a proxy.
type httpOptions struct {
	// StatPrefix begins the names of its metrics.
	StatPrefix string
	// RouteName is the route configuration, which is fetched.
	RouteName string
	Settings  *mesh.Settings
	// Inbound says that the requests are for the proxy's own application.
	Inbound bool
	// ServiceName is whose spans they are, which only OTLP needs to be told.
	ServiceName string
	// Filters come before the router.
	Filters []*hcmv3.HttpFilter
	// Compared are headers whose values the routes compare.
	Compared []string
}

// httpFilter returns an HTTP connection manager. It leaves requests as they are as
// far as it can: the application is to see what it would see without a proxy.
func httpFilter(o httpOptions) *listenerv3.Filter {
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix: o.StatPrefix,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			ConfigSource: adsSource(), RouteConfigName: o.RouteName,
		}},
		HttpFilters: append(o.Filters[:len(o.Filters):len(o.Filters)], routerFilter),
		AccessLog:   accessLogs(o.Settings),
		Tracing:     tracing(o),

		// The proxy is not the edge of anything: x-forwarded-for and
		// x-forwarded-proto stay as the client wrote them, and no address makes a
		// client one of ours, whose x-envoy-* headers would be obeyed.
		UseRemoteAddress:      wrapperspb.Bool(false),
		InternalAddressConfig: &hcmv3.HttpConnectionManager_InternalAddressConfig{},
		// What a client says about its own certificate is never passed on.
		ForwardClientCertDetails:   hcmv3.HttpConnectionManager_SANITIZE,
		ServerHeaderTransformation: hcmv3.HttpConnectionManager_PASS_THROUGH,
		NormalizePath:              wrapperspb.Bool(true),

		UpgradeConfigs: []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		HttpProtocolOptions: &corev3.Http1ProtocolOptions{
			AcceptHttp_10: true,
			// Envoy refuses requests without a host, which HTTP/1.0 allows.
			DefaultHostForHttp_10: "localhost",
		},
		// WebSockets go over HTTP/2 as extended CONNECT.
		Http2ProtocolOptions: &corev3.Http2ProtocolOptions{AllowConnect: true},
		// A stream may be silent for as long as both ends like.
		StreamIdleTimeout: durationpb.New(0),
	}
	if len(o.Compared) > 0 {
		proto.Merge(manager, routedOnce(o.Compared))
	}
	if o.Inbound {
		// The application learns who calls from the certificate that was verified.
		manager.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
		manager.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{Uri: true}
		// Rules are about paths, so the application must get the very path that was
		// compared. A path with an escaped slash is left alone, since ordinary
		// applications have them, and no rule that names a path holds for it.
		manager.MergeSlashes = true
		manager.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_KEEP_UNCHANGED
	}
	return filter("envoy.filters.network.http_connection_manager", manager)
}

var routerFilter = httpFilterOf("envoy.filters.http.router", &routerv3.Router{})
