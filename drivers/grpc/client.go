package grpc

import (
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/xds"
)

// destination returns the listeners and the routes of a Destination. Only gRPC's clients
// read them, so those of TCP ports have none.
func destination(d *mesh.Destination, namespace string) []*xds.Resource {
	if d.Listens {
		return nil // It is for clients of a gateway, and gRPC is no proxy.
	}
	if !d.Protocol.IsHTTP() {
		return nil
	}
	var made []*xds.Resource
	for _, name := range targets(d, namespace) {
		made = append(made, newResource(resource.ListenerType, name, &listenerv3.Listener{
			Name: name,
			ApiListener: &listenerv3.ApiListener{ApiListener: pack(&hcmv3.HttpConnectionManager{
				RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: ads, RouteConfigName: d.Name}},
				HttpFilters:    []*hcmv3.HttpFilter{router},
			})},
		}))
	}
	var routes []*routev3.Route
	for i := range d.Routes {
		routes = append(routes, route(&d.Routes[i])...)
	}
	return append(made, newResource(resource.RouteType, d.Name, &routev3.RouteConfiguration{
		Name:         d.Name,
		VirtualHosts: []*routev3.VirtualHost{{Name: d.Name, Domains: []string{"*"}, Routes: routes}},
	}))
}

// targets returns what an application may write after "xds:///": the addresses and the
// names of the service, with the port. An endpoint of a headless service has addresses
// only.
func targets(d *mesh.Destination, namespace string) []string {
	hosts := make([]string, 0, len(d.Addresses)+4)
	for _, address := range d.Addresses {
		hosts = append(hosts, address.String())
	}
	if d.Name == d.Service.String() {
		name := d.Service.Name.Name + "." + d.Service.Namespace
		hosts = append(hosts, name, name+".svc", name+".svc.cluster.local")
		if d.Service.Namespace == namespace {
			hosts = append(hosts, d.Service.Name.Name)
		}
	}
	for i, host := range hosts {
		hosts[i] = net.JoinHostPort(host, strconv.Itoa(int(d.Port)))
	}
	return hosts
}

// route returns gRPC's form of a route. It has none for a condition that no call fulfils,
// and for one on headers it has the same path and denies: gRPC compares the lines of a
// header as one value.
func route(r *mesh.Route) []*routev3.Route {
	if len(r.Match.Query) > 0 || len(r.Match.Methods) > 0 && !slices.Contains(r.Match.Methods, "POST") {
		return nil
	}
	made := paths(r.Match.Path)
	clusters := weighted(r.Backends)
	denied := len(r.Match.Headers) > 0 || r.Redirect != nil || r.Rewrite != nil || len(clusters) == 0 ||
		slices.ContainsFunc(r.Backends, func(b mesh.WeightedBackend) bool { return !b.Request.IsZero() || !b.Response.IsZero() })
	for _, to := range made {
		if denied {
			to.Action = &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}}
			continue
		}
		to.Action = &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier:  &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{Clusters: clusters}},
			MaxStreamDuration: limit(r.Timeout),
		}}
	}
	return made
}

func limit(timeout time.Duration) *routev3.RouteAction_MaxStreamDuration {
	if timeout <= 0 {
		return nil
	}
	return &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: durationpb.New(timeout)}
}

// paths returns routes for the paths, without actions. gRPC's prefixes are of characters.
func paths(path mesh.StringMatch) []*routev3.Route {
	exact := func(text string) *routev3.Route {
		return &routev3.Route{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: text}}}
	}
	below := func(prefix string) *routev3.Route {
		return &routev3.Route{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: prefix}}}
	}
	switch prefix := strings.TrimRight(path.Prefix, "/"); {
	case path.Exact != "":
		return []*routev3.Route{exact(path.Exact)}
	case path.Regex != "":
		if _, err := regexp.Compile(path.Regex); err != nil {
			return nil
		}
		return []*routev3.Route{{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{
			SafeRegex: &matcherv3.RegexMatcher{Regex: path.Regex},
		}}}}
	case prefix != "":
		return []*routev3.Route{exact(prefix), below(prefix + "/")}
	}
	return []*routev3.Route{below("/")}
}

// weighted returns the clusters of a route.
func weighted(backends []mesh.WeightedBackend) []*routev3.WeightedCluster_ClusterWeight {
	var clusters []*routev3.WeightedCluster_ClusterWeight
	for _, b := range backends {
		if b.Backend == "" {
			b.Backend = refuse
		}
		if b.Weight > 0 {
			clusters = append(clusters, &routev3.WeightedCluster_ClusterWeight{Name: b.Backend, Weight: wrapperspb.UInt32(b.Weight)})
		}
	}
	return clusters
}

var (
	ads    = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}, ResourceApiVersion: corev3.ApiVersion_V3}
	router = &hcmv3.HttpFilter{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(&routerv3.Router{})}}
)

func pack(message proto.Message) *anypb.Any {
	body, err := deterministic.Marshal(message)
	if err != nil {
		body = nil
	}
	return &anypb.Any{TypeUrl: "type.googleapis.com/" + string(message.ProtoReflect().Descriptor().FullName()), Value: body}
}

func socket(address netip.Addr, port uint16) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
	}}}
}
