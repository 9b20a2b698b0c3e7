package source

import (
	"regexp"
	"slices"
	"strings"

	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// filters reads the filters of a rule or a backend of a route in the namespace into the rule.
func (n *notes) filters(path, namespace string, filters []gateway.HTTPRouteFilter, rule *fact.RouteRule) {
	seen := make(map[gateway.HTTPRouteFilterType]bool)
	for i := range filters {
		f, at := &filters[i], index(path, i)
		if seen[f.Type] && f.Type != gateway.HTTPRouteFilterRequestMirror {
			n.unusable(rule, fact.ReasonUnsupportedValue, at, "there is already a filter %s; leave one", string(f.Type))
			continue
		}
		seen[f.Type] = true
		switch {
		case f.Type == gateway.HTTPRouteFilterRequestHeaderModifier && f.RequestHeaderModifier != nil:
			rule.Request = n.headerChanges(at+".requestHeaderModifier", f.RequestHeaderModifier, rule)
		case f.Type == gateway.HTTPRouteFilterResponseHeaderModifier && f.ResponseHeaderModifier != nil:
			rule.Response = n.headerChanges(at+".responseHeaderModifier", f.ResponseHeaderModifier, rule)
		case f.Type == gateway.HTTPRouteFilterURLRewrite && f.URLRewrite != nil:
			rule.Rewrite = &mesh.Rewrite{
				Host: n.newHost(at+".urlRewrite.hostname", f.URLRewrite.Hostname, rule),
				Path: n.pathChange(at+".urlRewrite.path", f.URLRewrite.Path, rule),
			}
		case f.Type == gateway.HTTPRouteFilterRequestRedirect && f.RequestRedirect != nil:
			rule.Redirect = n.redirect(at+".requestRedirect", f.RequestRedirect, rule)
		case f.Type == gateway.HTTPRouteFilterCORS && f.CORS != nil:
			rule.CORS = n.cors(at+".cors", f.CORS, rule)
		case f.Type == gateway.HTTPRouteFilterRequestMirror && f.RequestMirror != nil:
			n.mirror(at+".requestMirror", namespace, i, f.RequestMirror, rule)
		default:
			n.unusable(rule, fact.ReasonUnsupportedValue, at, "the filter %q is not supported; remove it", string(f.Type))
		}
	}
}

// mirror adds a mirror, unless no request is for it.
func (n *notes) mirror(path, namespace string, i int, filter *gateway.HTTPRequestMirrorFilter, rule *fact.RouteRule) {
	share := gateway.Fraction{Numerator: 1, Denominator: new(int32(1))}
	switch {
	case filter.Fraction != nil:
		share = gateway.Fraction{Numerator: filter.Fraction.Numerator, Denominator: new(deref(filter.Fraction.Denominator, 100))}
	case filter.Percent != nil:
		share = gateway.Fraction{Numerator: *filter.Percent, Denominator: new(int32(100))}
	}
	if share.Numerator < 0 || *share.Denominator < 1 || share.Numerator > *share.Denominator {
		n.unusable(rule, fact.ReasonUnsupportedValue, path, "%d of %d is not a share of the requests", share.Numerator, *share.Denominator)
		return
	}
	b := n.routeBackend(path+".backendRef", namespace, gateway.BackendRef{BackendObjectReference: filter.BackendRef}, nil, "nothing is mirrored to it")
	if share.Numerator > 0 && !b.Unusable {
		rule.Mirrors = append(rule.Mirrors, fact.RouteMirror{
			RouteBackend: b, Filter: i, Numerator: uint32(share.Numerator), Denominator: uint32(*share.Denominator),
		})
	}
}

// httpFilters returns the filters of a GRPCRoute as those of an HTTPRoute.
func httpFilters(filters []gateway.GRPCRouteFilter) []gateway.HTTPRouteFilter {
	var same []gateway.HTTPRouteFilter
	for _, f := range filters {
		same = append(same, gateway.HTTPRouteFilter{
			Type:                  gateway.HTTPRouteFilterType(f.Type),
			RequestHeaderModifier: f.RequestHeaderModifier, ResponseHeaderModifier: f.ResponseHeaderModifier,
			RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef,
		})
	}
	return same
}

func (n *notes) redirect(path string, filter *gateway.HTTPRequestRedirectFilter, rule *fact.RouteRule) *mesh.Redirect {
	to := &mesh.Redirect{
		Scheme: deref(filter.Scheme, ""), Host: n.newHost(path+".hostname", filter.Hostname, rule),
		Path: n.pathChange(path+".path", filter.Path, rule), Status: uint16(deref(filter.StatusCode, 302)),
	}
	if to.Scheme != "" && to.Scheme != "http" && to.Scheme != "https" {
		n.unusable(rule, fact.ReasonUnsupportedValue, path+".scheme", "%q is not a scheme for a redirect; use http or https", to.Scheme)
	}
	if !slices.Contains([]uint16{301, 302, 303, 307, 308}, to.Status) {
		n.unusable(rule, fact.ReasonUnsupportedValue, path+".statusCode", "%d is not the status of a redirect; use 301, 302, 303, 307 or 308", to.Status)
	}
	if filter.Port != nil {
		if *filter.Port < 1 || *filter.Port > maxPort {
			n.unusable(rule, fact.ReasonUnsupportedValue, path+".port", "%d is not a port; use 1 to %d", *filter.Port, maxPort)
		} else {
			to.Port = uint16(*filter.Port)
		}
	}
	return to
}

func (n *notes) newHost(path string, name *gateway.PreciseHostname, rule *fact.RouteRule) string {
	host := string(deref(name, ""))
	if host != "" && !isObjectName(host) {
		n.unusable(rule, fact.ReasonUnsupportedValue, path, "%q is not a host name", host)
	}
	return host
}

func (n *notes) pathChange(path string, modifier *gateway.HTTPPathModifier, rule *fact.RouteRule) mesh.PathChange {
	if modifier == nil {
		return mesh.PathChange{}
	}
	change, value := mesh.PathChange{}, ""
	switch {
	case modifier.Type == gateway.FullPathHTTPPathModifier && modifier.ReplaceFullPath != nil:
		value = *modifier.ReplaceFullPath
		change.Full = value
	case modifier.Type == gateway.PrefixMatchHTTPPathModifier && modifier.ReplacePrefixMatch != nil:
		value = *modifier.ReplacePrefixMatch
		if value == "" {
			// Gateway API has it that an empty prefix is the same as a slash.
			value = "/"
		}
		change.Prefix = value
	default:
		n.unusable(rule, fact.ReasonUnsupportedValue, path, "the type %q has no value; set replaceFullPath or replacePrefixMatch", string(modifier.Type))
		return change
	}
	if !strings.HasPrefix(value, "/") || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`?#"'\`, r) }) {
		n.unusable(rule, fact.ReasonUnsupportedValue, path, "%q is not a path; write one that begins with a slash and has no query", value)
		return mesh.PathChange{}
	}
	return change
}

// framing are headers that say where a message ends or whom it is for. Changing them would
// make readers disagree about the message.
var framing = []string{"host", "connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}

func (n *notes) headerChanges(path string, filter *gateway.HTTPHeaderFilter, rule *fact.RouteRule) mesh.HeaderChanges {
	var changes mesh.HeaderChanges
	valid := func(at, name string) bool {
		switch {
		case !isHeaderName(name):
			n.unusable(rule, fact.ReasonUnsupportedValue, at, "%q is not the name of a header", name)
		case slices.Contains(framing, name):
			n.unusable(rule, fact.ReasonUnsupportedValue, at, "the header %q cannot be changed; for host use the filter URLRewrite", name)
		default:
			return true
		}
		return false
	}
	for i, name := range filter.Remove {
		if name = strings.ToLower(name); valid(index(path+".remove", i), name) {
			changes.Remove = append(changes.Remove, name)
		}
	}
	changes.Remove = sortedSet(changes.Remove, strings.Compare)
	headers := func(field string, list []gateway.HTTPHeader) []mesh.Header {
		var out []mesh.Header
		for i, h := range list {
			at, name := index(path+"."+field, i), strings.ToLower(string(h.Name))
			switch {
			case !valid(at+".name", name):
			case strings.ContainsFunc(h.Value, func(r rune) bool { return r < ' ' && r != '\t' || r > '~' }):
				n.unusable(rule, fact.ReasonUnsupportedValue, at+".value", "%q has characters other than printable ASCII", h.Value)
			// What is removed in the end need not be set, and of equal names the first counts.
			case slices.Contains(changes.Remove, name) || slices.ContainsFunc(out, func(o mesh.Header) bool { return o.Name == name }):
			default:
				out = append(out, mesh.Header{Name: name, Value: h.Value})
			}
		}
		return out
	}
	changes.Set, changes.Add = headers("set", filter.Set), headers("add", filter.Add)
	return changes
}

// cors returns nil if no origin is allowed: the application then answers as if there were no
// filter.
func (n *notes) cors(path string, filter *gateway.HTTPCORSFilter, rule *fact.RouteRule) *mesh.CORS {
	to := &mesh.CORS{Credentials: deref(filter.AllowCredentials, false), MaxAge: uint32(max(filter.MaxAge, 0))}
	if to.MaxAge == 0 {
		to.MaxAge = 5
	}
	to.Origin = n.origins(path+".allowOrigins", filter.AllowOrigins, rule)
	names := func(field string, list []string) string {
		for i, name := range list {
			if name != "*" && !isHeaderName(strings.ToLower(name)) {
				n.unusable(rule, fact.ReasonUnsupportedValue, index(path+"."+field, i), "%q is not a name", name)
			}
		}
		if slices.Contains(list, "*") {
			return "*"
		}
		return strings.Join(list, ", ")
	}
	to.Methods, to.Headers = names("allowMethods", texts(filter.AllowMethods)), names("allowHeaders", texts(filter.AllowHeaders))
	if to.Expose = names("exposeHeaders", texts(filter.ExposeHeaders)); to.Expose == "*" && to.Credentials {
		n.add(ReasonNoEffect, path+".exposeHeaders", "with credentials there is no way to expose all headers; name them")
		to.Expose = ""
	}
	if to.Origin == (mesh.StringMatch{}) {
		if !rule.Unusable {
			n.add(ReasonNoEffect, path+".allowOrigins", "no origin is allowed, so the filter has no effect; name the origins")
		}
		return nil
	}
	return to
}

// origins returns the zero StringMatch if there is none.
func (n *notes) origins(path string, origins []gateway.CORSOrigin, rule *fact.RouteRule) mesh.StringMatch {
	var exact, expressions []string
	for i, o := range origins {
		origin := strings.ToLower(string(o))
		if origin == "*" {
			return mesh.StringMatch{Present: true}
		}
		found := originForm.FindStringSubmatch(origin)
		if found == nil {
			n.unusable(rule, fact.ReasonUnsupportedValue, index(path, i), "%q is not an origin such as https://example.com", origin)
			continue
		}
		// Browsers leave out the default port.
		if found[1] == "http" && found[3] == ":80" || found[1] == "https" && found[3] == ":443" {
			origin = strings.TrimSuffix(origin, found[3])
		}
		exact = append(exact, origin)
		expressions = append(expressions, strings.ReplaceAll(regexp.QuoteMeta(origin), `\*`, "[^/:]+"))
	}
	if len(exact) == 1 && !strings.Contains(exact[0], "*") {
		return mesh.StringMatch{Exact: exact[0]}
	}
	expression := strings.Join(expressions, "|")
	if expression != "" {
		if err := n.checkRegex(expression); err != nil {
			n.unusable(rule, fact.ReasonUnsupportedValue, path, "the origins are too many or too long for a proxy (%v)", err)
			return mesh.StringMatch{}
		}
	}
	return mesh.StringMatch{Regex: expression}
}

// originForm matches an origin in lower case, with its scheme, host and port.
var originForm = regexp.MustCompile(`^(https?)://([a-z0-9*_.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?$`)

func texts[T ~string](list []T) []string {
	var out []string
	for _, one := range list {
		out = append(out, string(one))
	}
	return out
}
