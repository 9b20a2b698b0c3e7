package envoy

import (
	_ "embed"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// sessionFilter keeps sessions by a script. Envoy's own filter for them does not know to which
// of several clusters a token belongs, and compares the expiry of cookies with a clock that
// differs between nodes.
var sessionFilter = []*hcmv3.HttpFilter{httpFilterOf(sessionFilterName, &luav3.Lua{
	DefaultSourceCode: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: sessionScript}},
})}

const sessionFilterName = "envoy.filters.http.lua"

//go:embed session.lua
var sessionScript string

// The headers by which the script and the routes tell each other the share of a request. No
// server and no client sees them.
const sessionMark, sessionServed = "x-outrigger-session", "x-outrigger-served"

// keepsSessions reports whether one of the routes of a Destination has sessions.
func keepsSessions(d *mesh.Destination) bool {
	return slices.ContainsFunc(d.Routes, func(r mesh.Route) bool { return r.Session != nil })
}

// keptRoutes returns a copy of the route for the requests of each backend's sessions, if there
// are several backends. The mark of a request leads to no other backend than a token does, so
// anybody may send it.
func keptRoutes(r *mesh.Route) []mesh.Route {
	if r.Session == nil || len(r.Backends) == 1 {
		return nil
	}
	var kept []mesh.Route
	for _, b := range r.Backends {
		if b.Backend == "" {
			continue
		}
		one := *r
		mark := mesh.KeyMatch{Name: sessionMark, StringMatch: mesh.StringMatch{Exact: r.Session.Share(b.Backend)}}
		one.Match.Headers = append(slices.Clip(r.Match.Headers), mark)
		b.Weight = 1
		one.Backends = []mesh.WeightedBackend{b}
		kept = append(kept, one)
	}
	return kept
}

// sessionRoute returns the fields of a route that tell the script about its sessions.
func sessionRoute(r *mesh.Route) *routev3.Route {
	s := r.Session
	fields := map[string]string{"lifetime": strconv.FormatInt(s.Seconds(), 10)}
	if s.Header != "" {
		fields["header"] = s.Header
	} else {
		fields["cookie"], fields["attributes"] = s.Cookie, s.Attributes()
	}
	for _, b := range r.Backends {
		if b.Backend != "" {
			fields["shares"] += " " + s.Share(b.Backend)
		}
	}
	values := make(map[string]*structpb.Value, len(fields))
	for name, value := range fields {
		values[name] = structpb.NewStringValue(value)
	}
	return &routev3.Route{
		Metadata:               &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{sessionFilterName: {Fields: values}}},
		RequestHeadersToRemove: []string{sessionMark},
	}
}

// servedBy returns the header of answers from which the script makes tokens.
func servedBy(share string) *corev3.HeaderValueOption {
	return setHeader(sessionServed, literal(share)+" %UPSTREAM_HOST% %RESPONSE_FLAGS%")
}
