package envoy

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// unresolvedCluster is the name of a cluster that never exists.
const unresolvedCluster = "unresolved"

// clusterFor returns the weight of a backend, with its changes of headers. A backend
// without a name is one that can't be called.
func clusterFor(b mesh.WeightedBackend) *routev3.WeightedCluster_ClusterWeight {
	name := b.Backend
	if name == "" {
		name = unresolvedCluster
	}
	return &routev3.WeightedCluster_ClusterWeight{
		Name: name, Weight: wrapperspb.UInt32(b.Weight),
		RequestHeadersToAdd: requestHeaders(b.Request), RequestHeadersToRemove: b.Request.Remove,
		ResponseHeadersToAdd: responseHeaders(b.Response), ResponseHeadersToRemove: b.Response.Remove,
	}
}

// isPlain reports whether requests for a backend only need its cluster's name.
func isPlain(b mesh.WeightedBackend) bool {
	return b.Backend != "" && b.Request.IsZero() && b.Response.IsZero()
}

// requestHeaders returns the headers to set and to add. Envoy removes headers first, which
// makes no difference: a header that is removed is neither set nor added. What is added is
// joined with the lines that are there.
func requestHeaders(c mesh.HeaderChanges) []*corev3.HeaderValueOption {
	out := setHeaders(c)
	for _, h := range c.Add {
		if h.Name == "cookie" {
			out = append(out, headerOption(h.Name, literal(h.Value), corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD))
			continue
		}
		out = append(out,
			headerOption(h.Name, allLines(h.Name)+","+literal(h.Value), corev3.HeaderValueOption_OVERWRITE_IF_EXISTS),
			headerOption(h.Name, literal(h.Value), corev3.HeaderValueOption_ADD_IF_ABSENT))
	}
	return out
}

func responseHeaders(c mesh.HeaderChanges) []*corev3.HeaderValueOption {
	out := setHeaders(c)
	for _, h := range c.Add {
		out = append(out, headerOption(h.Name, literal(h.Value), corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD))
	}
	return out
}

func setHeaders(c mesh.HeaderChanges) []*corev3.HeaderValueOption {
	var out []*corev3.HeaderValueOption
	for _, h := range c.Set {
		out = append(out, headerOption(h.Name, literal(h.Value), corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD))
	}
	return out
}

func headerOption(name string, value format, action corev3.HeaderValueOption_HeaderAppendAction) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: string(value)}, AppendAction: action, KeepEmptyValue: true}
}

// rewrite sets what changes in forwarded requests.
func rewrite(action *routev3.RouteAction, r *mesh.Route) {
	if r.Rewrite == nil {
		return
	}
	if r.Rewrite.Host != "" {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: r.Rewrite.Host}
	}
	action.RegexRewrite = pathRewrite(r.Rewrite.Path, r.Match.Path.Prefix)
}

// pathRewrite returns nil if the path stays.
func pathRewrite(change mesh.PathChange, prefix string) *matcherv3.RegexMatchAndSubstitute {
	pattern, substitution := expression(""), change.Full
	matched := quoted(strings.TrimSuffix(prefix, "/"))
	switch {
	case change.Full != "":
		pattern = "^.*$"
	case change.Prefix == "":
		return nil
	case strings.TrimSuffix(change.Prefix, "/") == "":
		// The slash that follows the prefix must not double.
		pattern, substitution = "^"+matched+"/?", "/"
	default:
		pattern, substitution = "^"+matched, strings.TrimSuffix(change.Prefix, "/")
	}
	return &matcherv3.RegexMatchAndSubstitute{
		Pattern: regexMatcher(pattern), Substitution: strings.ReplaceAll(substitution, `\`, `\\`),
	}
}

// mirrorPolicy rounds the share of the requests up to a millionth.
func mirrorPolicy(m mesh.Mirror) *routev3.RouteAction_RequestMirrorPolicy {
	const million = 1_000_000
	millionths := (uint64(m.Numerator)*million + uint64(m.Denominator) - 1) / uint64(m.Denominator)
	return &routev3.RouteAction_RequestMirrorPolicy{
		Cluster: m.Backend, DisableShadowHostSuffixAppend: true,
		RuntimeFraction: &corev3.RuntimeFractionalPercent{
			DefaultValue: &typev3.FractionalPercent{Numerator: uint32(millionths), Denominator: typev3.FractionalPercent_MILLION},
		},
	}
}

var redirectCodes = map[uint16]routev3.RedirectAction_RedirectResponseCode{
	301: routev3.RedirectAction_MOVED_PERMANENTLY,
	302: routev3.RedirectAction_FOUND,
	303: routev3.RedirectAction_SEE_OTHER,
	307: routev3.RedirectAction_TEMPORARY_REDIRECT,
	308: routev3.RedirectAction_PERMANENT_REDIRECT,
}

// redirect returns the answer of a route to a Destination with the port. Without a port of
// its own Envoy keeps that of the request's host, so it gets one wherever that could be
// another one than the redirect's.
func redirect(r *mesh.Route, port uint16) *routev3.Route_Redirect {
	to := r.Redirect
	action := &routev3.RedirectAction{HostRedirect: to.Host, ResponseCode: redirectCodes[to.Status]}
	if to.Scheme != "" {
		action.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: to.Scheme}
	}
	action.PortRedirect = uint32(to.PortFor(port))
	if action.PortRedirect == 0 && to.Host == "" && port != 80 && port != 443 {
		if action.PortRedirect = 80; to.Scheme == "https" {
			action.PortRedirect = 443
		}
	}
	if to.Path.Full != "" {
		action.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: to.Path.Full}
	} else if rewrite := pathRewrite(to.Path, r.Match.Path.Prefix); rewrite != nil {
		action.PathRewriteSpecifier = &routev3.RedirectAction_RegexRewrite{RegexRewrite: rewrite}
	}
	return &routev3.Route_Redirect{Redirect: action}
}
