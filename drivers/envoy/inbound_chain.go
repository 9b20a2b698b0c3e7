package envoy

import (
	"net/netip"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// inboundBuilder collects the filter chains of the listener "inbound". Envoy selects
// the chain with the most specific port, among these the one with the most specific
// server name, and so on, without backtracking; it closes connections that match no
// chain.
type inboundBuilder struct {
	proxy    *mesh.Proxy
	settings *mesh.Settings
	// issuers are those of the tokens that rules ask for.
	issuers []mesh.TokenIssuer
	// takesPlaintext is set if connections without mesh TLS may come from anywhere.
	takesPlaintext bool

	chains    []*listenerv3.FilterChain
	resources []*Resource
	// plaintextTCP is set if there is a chain for plaintext whose server may send first.
	plaintextTCP bool
}

// port adds the filter chains of an application port. Access rules are in their routes
// or secrets, so that changed rules do not disturb connections.
func (b *inboundBuilder) port(p *mesh.InboundPort) {
	b.resources = append(b.resources, limitOf(p.Limits.Connections, portName(p.Port)))
	if p.Protocol.IsHTTP() {
		b.httpPort(p)
	} else {
		b.tcpPort(p)
	}
}

func (b *inboundBuilder) httpPort(p *mesh.InboundPort) {
	trustDomain, name := b.settings.TrustDomain, portName(p.Port)
	if !b.proxy.Plaintext {
		allowed, shadow := policies{}, audited(p.Access)
		allowed.addAccess(p.Access, trustDomain)
		shadow.addAccess(p.Access.Enforced(), trustDomain)
		for _, r := range p.Ingress {
			// A caller from outside may have a certificate of the mesh and use the
			// workload's server name in the mesh.
			if r.TLS && len(r.SNIHosts) == 0 && requiresIdentity(r) {
				allowed.addIngress(r, trustDomain)
				shadow.addIngress(r, trustDomain)
			}
		}
		b.http(p, name, b.meshTLS(p.Port), downstreamTLS(b.settings, memberCert, httpALPN), allowed, shadow)
	}

	allowed, shadow := policies{}, audited(p.Access)
	if b.takesPlaintext && p.Access.Anyone {
		allowed.add("anyone", anyPrincipal, anyPermission)
	}
	for _, r := range p.Ingress {
		if !r.TLS {
			allowed.addIngress(r, trustDomain)
			shadow.addIngress(r, trustDomain)
		}
	}
	if b.takesPlaintext || len(allowed) > 0 {
		b.http(p, name+"/plaintext", rawBuffer(p.Port), nil, allowed, shadow)
	}

	// HTTP/2 support of an outside client does not imply that of the application.
	alpn := httpALPN
	if p.Protocol == mesh.HTTP {
		alpn = []string{"http/1.1"}
	}
	groups := byHost(p.Ingress, trustDomain)
	for _, group := range groups {
		allowed := policies{}
		for _, r := range group.rules {
			allowed.addIngress(r, trustDomain)
		}
		b.http(p, group.name(name), tlsTo(p.Port, group.hosts), downstreamTLS(b.settings, group.clientCert(), alpn), allowed, nil)
	}
	b.appTLS(p, name, p.Access, groups, connectionLimit(name))
}

func (b *inboundBuilder) tcpPort(p *mesh.InboundPort) {
	name, limit := portName(p.Port), connectionLimit(portName(p.Port))
	if !b.proxy.Plaintext {
		b.tcp(p, name, b.meshTLS(p.Port), b.callers(name, callersOf(p.Access, b.settings.TrustDomain)), append(slices.Clip(limit), auditCallers(name, p.Access)...))
	}

	var plain, tls []mesh.Ingress
	for _, r := range p.Ingress {
		switch {
		case !matchesAny(r.Requests) || !isSatisfiable(r) || !r.TLS && deniesOutsiders(p.Access):
		case r.TLS:
			tls = append(tls, r)
		default:
			plain = append(plain, r)
		}
	}
	if b.takesPlaintext && p.Access.Anyone && !deniesOutsiders(p.Access) {
		shadow := audited(p.Access)
		shadow.addRanges(rangesOf(plain))
		b.tcp(p, name+"/plaintext", rawBuffer(p.Port), nil, append(slices.Clip(limit), auditConnections(name, shadow)...))
	} else if ranges := rangesOf(plain); len(ranges) > 0 {
		match := rawBuffer(p.Port)
		match.SourcePrefixRanges = cidrs(ranges)
		b.tcp(p, name+"/plaintext", match, nil, limit)
	}

	groups := byHost(tls, b.settings.TrustDomain)
	for _, group := range groups {
		for _, from := range byRange(group.rules) {
			chain := group.name(name)
			match := tlsTo(p.Port, group.hosts)
			if from.source != nil {
				chain += "/" + from.source.String()
				match.SourcePrefixRanges = cidrs([]netip.Prefix{*from.source})
			}
			socket := downstreamTLS(b.settings, clientCert{}, nil)
			if accepted, ok := from.callers(b.settings.TrustDomain); ok {
				socket = b.callers(chain, accepted.without(p.Access.Denials))
			} else if deniesOutsiders(p.Access) {
				continue
			}
			b.tcp(p, chain, match, socket, limit)
		}
	}
	b.appTLS(p, name, p.Access, groups, limit)
}

// others adds the filter chains for all other ports.
func (b *inboundBuilder) others(a mesh.Access) {
	const name = "inbound/others"
	all := new(mesh.InboundPort)
	if !b.proxy.Plaintext {
		b.tcp(all, name, b.meshTLS(0), b.callers(name, callersOf(a, b.settings.TrustDomain)), auditCallers(name, a))
	}
	if b.takesPlaintext && a.Anyone && !deniesOutsiders(a) {
		b.tcp(all, name+"/plaintext", rawBuffer(0), nil, auditConnections(name, audited(a)))
	}
	b.appTLS(all, name, a, nil, nil)
}

// appTLS adds a filter chain for the application's own TLS, which is passed through.
// The caller is unauthenticated, as with plaintext.
func (b *inboundBuilder) appTLS(p *mesh.InboundPort, name string, a mesh.Access, ingress []ingressGroup, limit []*listenerv3.Filter) {
	if !b.takesPlaintext || !a.Anyone || deniesOutsiders(a) {
		return
	}
	for _, group := range ingress {
		if len(group.hosts) == 0 {
			return
		}
	}
	b.tcp(p, name+"/tls", tlsTo(p.Port, nil), nil, append(slices.Clip(limit), auditConnections(name, audited(a))...))
}

// auditCallers returns the filter that audits connections of mesh peers, if there is one.
func auditCallers(name string, a mesh.Access) []*listenerv3.Filter {
	shadow := audited(a)
	shadow.addCallers(a)
	return auditConnections(name, shadow)
}

// callers returns mesh TLS for clients with one of the names. The names are in a
// separate secret, so changing them does not change the filter chain. A filter could
// only decide once the client sends something, and by then a server that sends first
// would have sent data to anybody.
func (b *inboundBuilder) callers(name string, accepted callers) *corev3.TransportSocket {
	b.resources = append(b.resources, newResource(secretType, name, callersSecret(name, b.settings.Roots, accepted.sans())))
	return downstreamTLS(b.settings, clientCert{validation: adsSecret(name), required: true}, nil)
}

// http adds a filter chain for requests and its routes.
func (b *inboundBuilder) http(p *mesh.InboundPort, name string, match *listenerv3.FilterChainMatch, socket *corev3.TransportSocket, allowed, shadow policies) {
	manager := httpFilter(httpOptions{
		StatPrefix: portName(p.Port), RouteName: name, Settings: b.settings, Logs: inboundRequests, Inbound: true, ComparesPath: p.ComparesPath(),
		ServiceName: b.proxy.Identity.CommonName(),
		Filters:     slices.Concat(verifyTokens(p, b.issuers), []*hcmv3.HttpFilter{denyAll, denials, noRequestLimit}, authorization(b.settings.Authorization)),
	})
	b.chain(name, match, socket, append(connectionLimit(portName(p.Port)), manager))
	routes := inboundRoutes(name, b.settings.TrustDomain, p, allowed, shadow)
	if b.settings.ForwardedFor {
		routes.RequestHeadersToAdd = callerAddress
	}
	b.resources = append(b.resources, newResource(routeType, name, routes))
}

// tcp adds a filter chain for connections to a port, which pass the filters first.
func (b *inboundBuilder) tcp(p *mesh.InboundPort, name string, match *listenerv3.FilterChainMatch, socket *corev3.TransportSocket, filters []*listenerv3.Filter) {
	b.plaintextTCP = b.plaintextTCP || match.TransportProtocol == rawBufferProtocol
	record := inboundConnections
	if socket == nil {
		record = plaintextConnections
	}
	proxy := tcpDefaults(accessLogs(b.settings, record))
	proxy.StatPrefix = name
	proxy.ClusterSpecifier = &tcpv3.TcpProxy_Cluster{Cluster: appClusterOf(p, appTCPCluster)}
	if socket != nil {
		// Connect to the application only after verifying the client.
		proxy.UpstreamConnectMode = tcpv3.UpstreamConnectMode_ON_DOWNSTREAM_TLS_HANDSHAKE
		proxy.MaxEarlyDataBytes = wrapperspb.UInt32(0)
	}
	b.chain(name, match, socket, append(filters[:len(filters):len(filters)], filter("envoy.filters.network.tcp_proxy", proxy)))
}

func (b *inboundBuilder) chain(name string, match *listenerv3.FilterChainMatch, socket *corev3.TransportSocket, filters []*listenerv3.Filter) {
	chain := &listenerv3.FilterChain{Name: name, FilterChainMatch: match, TransportSocket: socket, Filters: filters}
	if socket != nil {
		chain.TransportSocketConnectTimeout = durationpb.New(handshakeTimeout)
	}
	b.chains = append(b.chains, chain)
}

// inboundRoutes returns the routes of a filter chain. They all lead to the application
// and carry the access rules, also those that are only audited, and rate limits.
func inboundRoutes(name, trustDomain string, p *mesh.InboundPort, allowed, shadow policies) *routev3.RouteConfiguration {
	cluster := appHTTPCluster
	if p.Protocol != mesh.HTTP {
		cluster = appHTTP2Cluster
	}
	action := forward(0)
	action.ClusterSpecifier, action.RetryPolicy = &routev3.RouteAction_Cluster{Cluster: appClusterOf(p, cluster)}, unanswered
	host := &routev3.VirtualHost{
		Name: name, Domains: []string{"*"},
		TypedPerFilterConfig: map[string]*anypb.Any{rbacFilter: allowed.perRoute(shadow)},
	}
	denied := policies{}
	if denied.addDenials(p.Access.Denials, trustDomain); len(denied) > 0 {
		host.TypedPerFilterConfig[denialsFilter] = denied.refused()
	}
	if names := p.ComparedHeaders(); len(names) > 0 {
		host.TypedPerFilterConfig[mutationFilter] = normalizeHeaders(names)
	}
	if r := p.Limits.Requests; r != nil {
		host.TypedPerFilterConfig[requestLimitFilter] = requestLimit(*r)
	}
	for _, r := range p.Limits.Routes {
		host.Routes = append(host.Routes, &routev3.Route{
			Match:                match(mesh.HTTPMatch{Path: mesh.StringMatch{Regex: r.Path}}),
			Action:               &routev3.Route_Route{Route: action},
			TypedPerFilterConfig: map[string]*anypb.Any{requestLimitFilter: requestLimit(r.Limit)},
		})
	}
	host.Routes = append(host.Routes, &routev3.Route{Match: match(mesh.HTTPMatch{}), Action: &routev3.Route_Route{Route: action}})
	if p.Protocol == mesh.HTTP {
		host.Routes = chunkedOnce(host.Routes, appClusterOf(p, cluster+once))
	}
	return &routev3.RouteConfiguration{
		Name: name, VirtualHosts: []*routev3.VirtualHost{host}, RequestHeadersToRemove: append(slices.Clip(envoyHeaders), chunkedHeader),
	}
}

// chunkedOnce returns the routes with another one before each, which sends requests in chunks to a
// cluster that uses each connection once.
func chunkedOnce(routes []*routev3.Route, cluster string) []*routev3.Route {
	var all []*routev3.Route
	for _, r := range routes {
		chunked := proto.Clone(r).(*routev3.Route)
		chunked.Match.Headers = append(chunked.Match.Headers, &routev3.HeaderMatcher{
			Name: chunkedHeader, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
		})
		chunked.GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: cluster}
		all = append(all, chunked, r)
	}
	return all
}

// unanswered repeats a request once that changes nothing, if the application has closed the
// connection without an answer: it may have done so because the connection was idle.
var unanswered = &routev3.RetryPolicy{
	RetryOn: "reset", NumRetries: wrapperspb.UInt32(1),
	RetriableRequestHeaders: []*routev3.HeaderMatcher{methodMatch([]string{"GET", "HEAD", "OPTIONS", "TRACE"})},
}

// callerAddress appends the address of the connection's other end, which no header can claim.
var callerAddress = []*corev3.HeaderValueOption{
	headerOption("x-forwarded-for", "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%", corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD),
}

// envoyHeaders are Envoy's own headers that it does not remove by itself from clients'
// requests.
var envoyHeaders = []string{
	"x-envoy-decorator-operation", "x-envoy-downstream-service-cluster", "x-envoy-downstream-service-node",
	"x-envoy-external-address", "x-envoy-original-host", "x-envoy-original-path",
}

// portName is the name prefix of all resources for the port.
func portName(port uint16) string { return "inbound/" + strconv.Itoa(int(port)) }

const (
	tlsProtocol       = "tls"
	rawBufferProtocol = "raw_buffer"
)

// meshTLS matches connections from mesh peers.
func (b *inboundBuilder) meshTLS(port uint16) *listenerv3.FilterChainMatch {
	return tlsTo(port, []string{meshNames(b.settings.TrustDomain)})
}

// Filter chains with port 0 are for all ports without a chain of their own.

// tlsTo matches TLS with one of the server names; without names it matches any.
func tlsTo(port uint16, hosts []string) *listenerv3.FilterChainMatch {
	return &listenerv3.FilterChainMatch{DestinationPort: nonZero(uint32(port)), ServerNames: hosts, TransportProtocol: tlsProtocol}
}

func rawBuffer(port uint16) *listenerv3.FilterChainMatch {
	return &listenerv3.FilterChainMatch{DestinationPort: nonZero(uint32(port)), TransportProtocol: rawBufferProtocol}
}
