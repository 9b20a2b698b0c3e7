package envoy

import (
	"slices"
	"strings"
	"time"

	mutationrulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
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

// certificatePrefix begins the names of the secrets with certificates for clients outside the mesh.
const certificatePrefix = "certificate/"

// isSecret reports whether the name can be that of a secret.
func isSecret(name mesh.Name) bool { return isHost(name.Namespace) && isHost(name.Name) }

// listenerHeader is the header by which the routes of a port know the listener to which the connection
// of a request belongs.
const listenerHeader = "x-outrigger-listener"

// terminated returns the filter chains of a port at which TLS ends: one for each certificate, which the
// function make completes.
func terminated(d *mesh.Destination, make func(c mesh.ServerCertificate, chain filterChain) filterChain) []filterChain {
	var chains []filterChain
	seen := map[string]bool{}
	for _, c := range d.Certificates {
		if !isSecret(c.Name) {
			continue
		}
		match := &listenerv3.FilterChainMatch{TransportProtocol: "tls"}
		if c.Host != mesh.AnyHost {
			if match.ServerNames = domainsOf(c.Host); len(match.ServerNames) == 0 {
				continue
			}
		}
		// Envoy rejects a listener with two chains for one name.
		if name := strings.Join(match.ServerNames, " "); !seen[name] {
			seen[name] = true
			chains = append(chains, make(c, filterChain{match: endOfTLS(d, c, match)}))
		}
	}
	return chains
}

// endOfTLS returns a filter chain without filters, at which TLS ends with a certificate.
func endOfTLS(d *mesh.Destination, c mesh.ServerCertificate, match *listenerv3.FilterChainMatch) *listenerv3.FilterChain {
	common := &tlsv3.CommonTlsContext{
		TlsParams:                      &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, EcdhCurves: defaultKeyExchanges},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{adsSecret(certificatePrefix + c.Name.String())},
	}
	if d.Protocol.IsHTTP() {
		common.AlpnProtocols = httpALPN
	}
	return &listenerv3.FilterChain{
		FilterChainMatch: match, TransportSocket: transportSocket(&tlsv3.DownstreamTlsContext{CommonTlsContext: common}),
		TransportSocketConnectTimeout: durationpb.New(handshakeTimeout),
	}
}

// certificates returns the secrets with the certificates of the View's gateway ports, as far as they are
// there.
func certificates(view *mesh.View, from driver.ServerCertificates) []*Resource {
	var secrets []*Resource
	for _, d := range view.Outbound.Destinations.All() {
		for _, c := range d.Certificates {
			name := certificatePrefix + c.Name.String()
			if !isSecret(c.Name) || slices.ContainsFunc(secrets, func(s *Resource) bool { return s.Name == name }) {
				continue
			}
			pair, ok := from.ServerCertificate(c.Name)
			if !ok {
				continue
			}
			secret := &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
				CertificateChain: inlineBytes(pair.Chain), PrivateKey: inlineBytes(pair.Key),
			}}}
			// The digest is one of public data only: debug pages show it.
			secrets = append(secrets, xds.NewResource(secretType, name, pair.Digest, pack(secret).GetValue()))
		}
	}
	return secrets
}

func inlineBytes(content []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: content}}
}

// fromListener says to the routes of a port from which of its listeners a request is.
func fromListener(host string) *hcmv3.HttpConnectionManager {
	return &hcmv3.HttpConnectionManager{EarlyHeaderMutationExtensions: []*corev3.TypedExtensionConfig{
		earlyMutations(&mutationrulesv3.HeaderMutation{Action: &mutationrulesv3.HeaderMutation_Append{Append: &corev3.HeaderValueOption{
			Header: &corev3.HeaderValue{Key: listenerHeader, Value: host}, AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}}}),
	}}
}

// misdirected answers requests for a host of the listener that are from another one.
func misdirected(listener string) *routev3.Route {
	return &routev3.Route{
		Match: &routev3.RouteMatch{
			PathSpecifier: anyPath,
			Headers: []*routev3.HeaderMatcher{{
				Name: listenerHeader, InvertMatch: true, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: exact(listener)},
			}},
		},
		Action: respond(421),
	}
}

// listenerDefaults keep the header from the backends.
var listenerDefaults = constantOf(&routev3.RouteConfiguration{RequestHeadersToRemove: []string{listenerHeader}})

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

// terminatedServers returns the filter chains of a port at which TLS ends, and whose connections are routed
// by server name. A connection needs a certificate and a route.
func (o *outboundBuilder) terminatedServers(d *mesh.Destination, servers []mesh.ServerRoute) []filterChain {
	var chains []filterChain
	add := func(host string, c mesh.ServerCertificate, s mesh.ServerRoute) {
		match := &listenerv3.FilterChainMatch{TransportProtocol: "tls", ServerNames: namesOfTLS(host)}
		chains = append(chains, filterChain{
			match: endOfTLS(d, c, match), filter: o.tcp, own: tcpTarget(d, s.Backends),
		})
	}
	for _, name := range routedNames(d, servers) {
		c, presented := d.CertificateFor(name)
		i := slices.IndexFunc(servers, func(s mesh.ServerRoute) bool { return mesh.Covers(s.Host, name) })
		if presented && i >= 0 && isSecret(c.Name) {
			add(name, c, servers[i])
		}
	}
	return chains
}

// routedNames returns the hosts of the servers and certificates, each once.
func routedNames(d *mesh.Destination, servers []mesh.ServerRoute) []string {
	names := each(servers, func(s mesh.ServerRoute) string { return plainName(s.Host) })
	for _, c := range d.Certificates {
		if isHost(plainName(c.Host)) && c.Host != mesh.AnyHost {
			names = append(names, plainName(c.Host))
		}
	}
	slices.SortFunc(names, mesh.CompareHosts)
	return slices.Compact(names)
}
