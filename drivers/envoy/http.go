package envoy

import (
	"slices"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
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
	// Filters are between the one that removes headers and the router.
	Filters []*hcmv3.HttpFilter
	// Compared are headers whose values the routes compare.
	Compared []string
	// Edge is set if the requests come from outside the mesh, to a gateway.
	Edge bool
	// ComparesPath is set if the routes or rules compare paths. Otherwise the path is forwarded as
	// it came.
	ComparesPath bool
}

// httpFilter returns an HTTP connection manager. It leaves requests unchanged as far as
// possible: the application should see what it would see without a proxy.
func httpFilter(o httpOptions) *listenerv3.Filter {
	first := stripAnswers
	if o.Inbound {
		first = stripIdentity
	}
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix: o.StatPrefix,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			ConfigSource: adsSource(), RouteConfigName: o.RouteName,
		}},
		HttpFilters:                   slices.Concat([]*hcmv3.HttpFilter{first}, o.Filters, []*hcmv3.HttpFilter{routerFilter}),
		EarlyHeaderMutationExtensions: []*corev3.TypedExtensionConfig{sanitizeEarly},
		AccessLog:                     accessLogs(o.Settings, o.Logs),
		Tracing:                       tracing(o),

		// The proxy is not an edge proxy: x-forwarded-for and x-forwarded-proto stay
		// as the client wrote them, and no address counts as internal, since Envoy
		// would obey the x-envoy-* headers of internal clients.
		UseRemoteAddress:      wrapperspb.Bool(false),
		InternalAddressConfig: &hcmv3.HttpConnectionManager_InternalAddressConfig{},
		// Certificate headers from the client are never passed on.
		ForwardClientCertDetails:   hcmv3.HttpConnectionManager_SANITIZE,
		ServerHeaderTransformation: hcmv3.HttpConnectionManager_PASS_THROUGH,
		NormalizePath:              wrapperspb.Bool(o.ComparesPath),

		UpgradeConfigs: []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		HttpProtocolOptions: &corev3.Http1ProtocolOptions{
			AcceptHttp_10: true,
			// Envoy rejects requests without a host, which HTTP/1.0 allows.
			DefaultHostForHttp_10: "localhost",
			// A server may ignore an upgrade, and Envoy would answer 403.
			IgnoreHttp_11Upgrade: []*matcherv3.StringMatcher{regex(otherUpgrades)},
			EnableTrailers:       true,
		},
		// WebSockets use extended CONNECT over HTTP/2.
		Http2ProtocolOptions:      &corev3.Http2ProtocolOptions{AllowConnect: true},
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{MaxHeadersCount: wrapperspb.UInt32(maxHeaders)},
		MaxRequestHeadersKb:       wrapperspb.UInt32(maxHeadersKiB),
		// The application decides whether a client that asks may send its body.
		Proxy_100Continue: true,
		// Streams have no idle timeout.
		StreamIdleTimeout: durationpb.New(0),
		// Without a delay a client loses an early answer; with Envoy's second, each WebSocket
		// takes a second longer to end.
		DelayedCloseTimeout: durationpb.New(100 * time.Millisecond),
		LocalReplyConfig:    grpcReplies,
	}
	if o.Edge {
		edge(manager)
	}
	if len(o.Compared) > 0 {
		proto.Merge(manager, normalizeEarly(o.Compared))
	}
	if o.Inbound {
		manager.EarlyHeaderMutationExtensions = append(manager.EarlyHeaderMutationExtensions, markChunked)
		manager.Http2ProtocolOptions.ConnectionKeepalive = pings
		// The application gets the caller's identity from the verified certificate.
		manager.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
		manager.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{Uri: true}
		// The application must get exactly the path that the rules compared. Paths with
		// escaped slashes stay unchanged, since ordinary applications use them; no
		// rule that names a path matches them.
		manager.MergeSlashes = o.ComparesPath
		manager.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_KEEP_UNCHANGED
	}
	return filter("envoy.filters.network.http_connection_manager", manager)
}

// maxHeaders is the number of header lines of a message, and maxHeadersKiB their size. They are
// part of what docs/what-a-sidecar-changes.md says.
const maxHeaders, maxHeadersKiB = 256, 96

// pings find out that the peer of an HTTP/2 connection has vanished: TCP keepalives are not sent
// while the kernel waits for an acknowledgement, which takes a quarter of an hour.
var pings = &corev3.KeepaliveSettings{Interval: durationpb.New(10 * time.Second), Timeout: durationpb.New(10 * time.Second)}

// otherUpgrades matches every protocol but WebSocket in any case.
var otherUpgrades = "(?i:" + otherThan("websocket") + ")"

// otherThan matches all texts other than the given one, which consists of letters.
func otherThan(text string) expression {
	if text == "" {
		return ".+"
	}
	first := expression(text[:1])
	return "(?:|[^" + first + "].*|" + first + otherThan(text[1:]) + ")"
}

// grpcReplies give answers of Envoy itself to gRPC calls the status that clients expect: of a
// timeout they repeat no call, and of a route without a backend they may. Without these it would
// be UNAVAILABLE and UNKNOWN.
var grpcReplies = &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{
	grpcReply(504, "4"),  // DEADLINE_EXCEEDED
	grpcReply(500, "14"), // UNAVAILABLE
}}

func grpcReply(status uint32, code format) *hcmv3.ResponseMapper {
	grpc := &routev3.HeaderMatcher{Name: "content-type", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
		StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "application/grpc"}},
	}}
	return &hcmv3.ResponseMapper{
		Filter: allFilters(withStatus(accesslogv3.ComparisonFilter_EQ, status), &accesslogv3.AccessLogFilter{
			FilterSpecifier: &accesslogv3.AccessLogFilter_HeaderFilter{HeaderFilter: &accesslogv3.HeaderFilter{Header: grpc}},
		}),
		HeadersToAdd: []*corev3.HeaderValueOption{setHeader("grpc-status", code)},
	}
}

var routerFilter = httpFilterOf("envoy.filters.http.router", &routerv3.Router{})
