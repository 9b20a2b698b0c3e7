package grpc

import (
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// serverPrefix begins the names of servers' listeners; the address follows, as the
// application listens on it.
const serverPrefix = "outrigger/server/"

// servers returns the listeners of the proxy's servers: of each port on all addresses of
// the pod, and on the unspecified ones. A server on any other port gets none, and serves
// nobody.
func servers(view *mesh.View) []*xds.Resource {
	var made []*xds.Resource
	addresses := append([]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}, view.Proxy.Addresses...)
	for i := range view.Inbound.Ports {
		port := &view.Inbound.Ports[i]
		chain := []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{{Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(connections(access(view.Settings, port), denied(port)))}}},
			TransportSocket: tlsSocket(&tlsv3.DownstreamTlsContext{
				CommonTlsContext: identity(nil), RequireClientCertificate: wrapperspb.Bool(true),
			}),
		}}
		for _, address := range addresses {
			name := serverPrefix + net.JoinHostPort(address.String(), strconv.Itoa(int(port.Port)))
			made = append(made, newResource(resource.ListenerType, name, &listenerv3.Listener{
				Name: name, Address: socket(address, port.Port), FilterChains: chain,
			}))
		}
	}
	return made
}

// connections returns the configuration of a server's connections. Without a route, gRPC
// answers no call.
func connections(allowed, denied map[string]*rbacv3.Policy) *hcmv3.HttpConnectionManager {
	filter := func(name string, rules *rbacv3.RBAC) *hcmv3.HttpFilter {
		return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(&httprbacv3.RBAC{Rules: rules})}}
	}
	var filters []*hcmv3.HttpFilter
	if len(denied) > 0 {
		filters = append(filters, filter("denials", &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: denied}))
	}
	filters = append(filters, filter("access", &rbacv3.RBAC{Action: rbacv3.RBAC_ALLOW, Policies: allowed}), router)
	return &hcmv3.HttpConnectionManager{
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: "server",
			VirtualHosts: []*routev3.VirtualHost{{Name: "server", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
			}}}},
		}},
		HttpFilters: filters,
	}
}

// access returns the policies of a port; a call that none allows is denied. If calls need
// the permission of an external service too, which gRPC can't ask, nothing is allowed.
func access(settings *mesh.Settings, port *mesh.InboundPort) map[string]*rbacv3.Policy {
	allowed := map[string]*rbacv3.Policy{}
	switch {
	case settings.Authorization != nil:
	case port.Access.Anyone:
		member := regex("spiffe://" + regexp.QuoteMeta(settings.TrustDomain) + "/ns/[^/]+/sa/[^/]+")
		allowed["anyone"] = &rbacv3.Policy{Principals: []*rbacv3.Principal{authenticated(member)}, Permissions: []*rbacv3.Permission{anything}}
	default:
		for i, rule := range port.Access.Rules {
			policy := &rbacv3.Policy{Principals: callers(rule.Sources, rule.Except)}
			for _, match := range rule.Requests {
				if p := permission(match); p != nil {
					policy.Permissions = append(policy.Permissions, p)
				}
			}
			if len(policy.Principals) > 0 && len(policy.Permissions) > 0 {
				allowed[strconv.Itoa(i)+" "+rule.Origin.Name()] = policy
			}
		}
	}
	return allowed
}

// denied returns the policies of calls that are refused, whatever allows them.
func denied(port *mesh.InboundPort) map[string]*rbacv3.Policy {
	refused := map[string]*rbacv3.Policy{}
	for i, d := range port.Access.Denials {
		policy := &rbacv3.Policy{}
		switch {
		case !d.Everyone:
			policy.Principals = callers(d.Sources, d.Except)
		case len(d.Except) > 0:
			policy.Principals = []*rbacv3.Principal{noneOf(d.Except)}
		default:
			policy.Principals = []*rbacv3.Principal{{Identifier: &rbacv3.Principal_Any{Any: true}}}
		}
		for _, match := range d.Requests {
			policy.Permissions = append(policy.Permissions, denial(match))
		}
		if len(policy.Principals) > 0 && len(policy.Permissions) > 0 {
			refused[strconv.Itoa(i)+" "+d.Origin.Name()] = policy
		}
	}
	return refused
}

// denial returns gRPC's form of what a denial refuses. What gRPC can't compare holds.
func denial(m mesh.HTTPMatch) *rbacv3.Permission {
	if len(m.Methods) > 0 && !slices.Contains(m.Methods, "POST") {
		// Every call is a POST request.
		return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: anything}}
	}
	path := permission(mesh.HTTPMatch{Path: m.Path})
	if path == nil || path == anything {
		return anything
	}
	// The path without the condition that it is unambiguous, or one that is ambiguous.
	return &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: []*rbacv3.Permission{
		path.GetAndRules().GetRules()[0], unambiguous.GetNotRule(),
	}}}}
}

// callers returns the principals of the sources but for the exceptions.
func callers(sources, except []mesh.Identity) []*rbacv3.Principal {
	principals := identities(sources)
	if len(principals) == 0 || len(except) == 0 {
		return principals
	}
	some := &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: principals}}}
	return []*rbacv3.Principal{{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: []*rbacv3.Principal{some, noneOf(except)}}}}}
}

func noneOf(ids []mesh.Identity) *rbacv3.Principal {
	some := &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: identities(ids)}}}
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: some}}
}

func identities(ids []mesh.Identity) []*rbacv3.Principal {
	var principals []*rbacv3.Principal
	for _, id := range ids {
		name := exact(id.String())
		if group, ok := id.GroupPrefix(); ok {
			name = regex(regexp.QuoteMeta(group) + ".+")
		}
		principals = append(principals, authenticated(name))
	}
	return principals
}

// permission returns gRPC's form of a condition, or nil if no call fulfils it, or if gRPC
// can't compare what it is about: the lines of a header are one value to gRPC.
func permission(m mesh.HTTPMatch) *rbacv3.Permission {
	if len(m.Headers)+len(m.Query) > 0 || m.Token != nil {
		return nil
	}
	var all []*rbacv3.Permission
	switch prefix := strings.TrimRight(m.Path.Prefix, "/"); {
	case m.Path.Exact != "":
		all = append(all, urlPath(exact(m.Path.Exact)))
	case m.Path.Regex != "":
		if _, err := regexp.Compile(m.Path.Regex); err != nil {
			return nil
		}
		all = append(all, urlPath(regex(m.Path.Regex)), unambiguous)
	case prefix != "":
		all = append(all, urlPath(regex(regexp.QuoteMeta(prefix)+"(?:/.*)?")), unambiguous)
	}
	if len(m.Methods) > 0 {
		var methods []string
		for _, method := range m.Methods {
			methods = append(methods, regexp.QuoteMeta(method))
		}
		all = append(all, &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: &routev3.HeaderMatcher{
			Name:                 ":method",
			HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: regex(strings.Join(methods, "|"))},
		}}})
	}
	if len(all) == 0 {
		return anything
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: all}}}
}

// unambiguous excludes paths that some applications read as another one.
var unambiguous = &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: urlPath(regex(".*(?:" + mesh.AmbiguousPath + ").*"))}}

var anything = &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}}

func urlPath(m *matcherv3.StringMatcher) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_UrlPath{UrlPath: &matcherv3.PathMatcher{Rule: &matcherv3.PathMatcher_Path{Path: m}}}}
}

func authenticated(name *matcherv3.StringMatcher) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_Authenticated_{Authenticated: &rbacv3.Principal_Authenticated{PrincipalName: name}}}
}

func exact(text string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: text}}
}

func regex(pattern string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: pattern}}}
}

func tlsSocket(context proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(context)}}
}
