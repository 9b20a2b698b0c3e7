package envoy

import (
	"slices"
	"time"

	mutationrulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Bounds for clients of a gateway, who are not authenticated.
const (
	// edgeHeadTime is how long the head of a request may take, and edgeIdleTime how long nothing
	// may arrive or leave on a connection without requests, or in a request.
	edgeHeadTime = 30 * time.Second
	edgeIdleTime = time.Hour
	// edgeStreams is the number of requests at once on a connection of HTTP/2, and edgeWindow how
	// many bytes of a body a client may send before the backend reads them.
	edgeStreams = 100
	edgeWindow  = 64 << 10
)

// oddHost refuses requests whose host is neither a name nor an address. Envoy joins the hosts of a request
// with several, and a wildcard would include what begins with anything.
var oddHost = constantOf(&routev3.Route{
	Match: &routev3.RouteMatch{PathSpecifier: anyPath, Headers: []*routev3.HeaderMatcher{{
		Name: ":authority", InvertMatch: true, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: regex(mesh.PlainHost)},
	}}},
	Action: respond(400),
})

// obeyNobody removes the headers by which Envoy would take timeouts and retries from clients that it
// takes for internal, and stripEdge the one that says so to applications, and those in which a client
// claims an identity.
var (
	obeyNobody = earlyMutations(removePrefix("x-envoy-"))
	stripEdge  = httpFilterOf(mutationFilter, &mutationv3.HeaderMutation{Mutations: &mutationv3.Mutations{
		RequestMutations:         append(identityMutations(), removeName("x-envoy-internal")),
		RequestTrailersMutations: slices.Concat(identityMutations(), removeOwn, []*mutationrulesv3.HeaderMutation{remove(clientCertHeader)}),
		ResponseMutations:        sanitizeAnswers,
	}})
)

// gatewayDefaults are those of the listener of a gateway's port.
var gatewayDefaults = constantOf(&listenerv3.Listener{
	StatPrefix:                    "gateway",
	TrafficDirection:              corev3.TrafficDirection_OUTBOUND,
	PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
	TcpKeepalive:                  &corev3.TcpKeepalive{KeepaliveTime: wrapperspb.UInt32(keepaliveSeconds)},
	SocketOptions:                 userTimeout(clientTimeout),
})

// edge changes an HTTP connection manager for clients from outside the mesh: applications get
// their address, and what they send is bounded in time and size.
func edge(manager *hcmv3.HttpConnectionManager) {
	manager.UseRemoteAddress = wrapperspb.Bool(true)
	manager.EarlyHeaderMutationExtensions = append(manager.EarlyHeaderMutationExtensions, obeyNobody)
	manager.HttpFilters[0] = stripEdge
	manager.RequestHeadersTimeout = durationpb.New(edgeHeadTime)
	manager.StreamIdleTimeout = durationpb.New(edgeIdleTime)
	manager.CommonHttpProtocolOptions.IdleTimeout = durationpb.New(edgeIdleTime)
	manager.CommonHttpProtocolOptions.HeadersWithUnderscoresAction = corev3.HttpProtocolOptions_REJECT_REQUEST
	manager.Http2ProtocolOptions.MaxConcurrentStreams = wrapperspb.UInt32(edgeStreams)
	manager.Http2ProtocolOptions.InitialStreamWindowSize = wrapperspb.UInt32(edgeWindow)
	manager.Http2ProtocolOptions.InitialConnectionWindowSize = wrapperspb.UInt32(16 * edgeWindow)
	manager.Http2ProtocolOptions.ConnectionKeepalive = pings
}

// hostDefaults are those of the routes of a gateway's port.
var hostDefaults = constantOf(&routev3.RouteConfiguration{IgnorePortInHostMatching: true})

// domainsOf returns the domains of a virtual host for one of a Destination's Hosts, and nothing for
// one that Envoy would reject.
func domainsOf(host string) []string {
	switch {
	case host == mesh.AnyHost:
		return anyHost
	case !isHost(host):
		return nil
	}
	return namesOfTLS(host)
}
