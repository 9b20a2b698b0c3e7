package source

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// httpRoute returns nil for a route without a service or a gateway as parent.
func httpRoute(obj *HTTPRoute, n *notes) mesh.Digester {
	route := &fact.Route{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta), Kind: fact.HTTPRoute}
	if !n.parents(route, obj.Spec.ParentRefs, &obj.later) {
		return nil
	}
	n.checkFields(&obj.later)
	n.routeHosts(route, obj.Spec.Hostnames)
	for i := range obj.Spec.Rules {
		from, path := &obj.Spec.Rules[i], index("spec.rules", i)
		rule := fact.RouteRule{Index: i, Name: string(deref(from.Name, ""))}
		n.filters(path+".filters", obj.Namespace, from.Filters, &rule)
		n.ruleLimits(path, from.Timeouts, from.Retry, &rule)
		for k, b := range from.BackendRefs {
			at := index(path+".backendRefs", k)
			rule.Backends = append(rule.Backends, n.routeBackend(at, obj.Namespace, b.BackendRef, b.Filters, answered500))
		}
		for k := range from.Matches {
			at := index(path+".matches", k)
			if match, ok := n.httpRouteMatch(at, &from.Matches[k]); n.checkMatch(&obj.later, at) && ok {
				rule.Matches = append(rule.Matches, match)
			}
		}
		if len(from.Matches) == 0 {
			rule.Matches = []fact.RouteMatch{{Precedence: fact.Precedence{0, 1}}}
		}
		n.checkRule(path, route, &rule)
		finishRedirect(&rule)
		n.checkRuleFields(&obj.later, path, &rule)
		n.ruleSession(path+".sessionPersistence", from.SessionPersistence, obj.later.sessions[i], &rule)
		route.Rules = append(route.Rules, rule)
	}
	n.boundRoute(route)
	return mesh.Seal(route)
}

// grpcRoute returns nil for a route without a service or a gateway as parent.
func grpcRoute(obj *GRPCRoute, n *notes) mesh.Digester {
	route := &fact.Route{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta), Kind: fact.GRPCRoute}
	if !n.parents(route, obj.Spec.ParentRefs, &obj.later) {
		return nil
	}
	n.checkFields(&obj.later)
	n.routeHosts(route, obj.Spec.Hostnames)
	for i := range obj.Spec.Rules {
		from, path := &obj.Spec.Rules[i], index("spec.rules", i)
		rule := fact.RouteRule{Index: i, Name: string(deref(from.Name, ""))}
		n.filters(path+".filters", obj.Namespace, httpFilters(from.Filters), &rule)
		for k, b := range from.BackendRefs {
			at := index(path+".backendRefs", k)
			rule.Backends = append(rule.Backends, n.routeBackend(at, obj.Namespace, b.BackendRef, httpFilters(b.Filters), answered500))
		}
		for k := range from.Matches {
			at := index(path+".matches", k)
			if match, ok := n.grpcRouteMatch(at, &from.Matches[k]); n.checkMatch(&obj.later, at) && ok {
				rule.Matches = append(rule.Matches, match)
			}
		}
		if len(from.Matches) == 0 {
			rule.Matches = []fact.RouteMatch{{}}
		}
		n.checkRule(path, route, &rule)
		finishRedirect(&rule)
		n.checkRuleFields(&obj.later, path, &rule)
		n.ruleSession(path+".sessionPersistence", from.SessionPersistence, obj.later.sessions[i], &rule)
		route.Rules = append(route.Rules, rule)
	}
	n.boundRoute(route)
	return mesh.Seal(route)
}

// parents sets the parents of a route, and returns false if there are none.
func (n *notes) parents(route *fact.Route, refs []gateway.ParentReference, later *laterFields) bool {
	route.Parents = n.routeParents(route.Namespace, refs, later)
	route.Gateways = n.gatewayParents(route.Namespace, refs, later)
	return len(route.Parents)+len(route.Gateways) > 0
}

// routeHosts sets the hosts of a route for gateways. A route whose hosts are all invalid gets one
// that no request has.
func (n *notes) routeHosts(route *fact.Route, hostnames []gateway.Hostname) {
	if len(hostnames) == 0 {
		return
	}
	if len(route.Parents) > 0 {
		n.add(ReasonNoEffect, "spec.hostnames", "host names have no effect in a route of a Service, whose requests are recognized by the address that the client connects to; remove them")
	}
	if len(route.Gateways) == 0 {
		return
	}
	for i, hostname := range hostnames {
		host := strings.ToLower(string(hostname))
		if !isDNSName(strings.TrimPrefix(host, "*.")) {
			n.add(fact.ReasonUnsupportedValue, index("spec.hostnames", i), "%q is not a host and is ignored; write a DNS name without a port", host)
			continue
		}
		route.Hosts = append(route.Hosts, host)
	}
	if route.Hosts = unique(route.Hosts); len(route.Hosts) == 0 {
		route.Hosts = []string{noHost}
	}
}

// noHost is a host name that no request has (RFC 6761).
const noHost = "host.invalid"

// maxRoute bounds what a route may make of a proxy's configuration, in bytes: it has each rule for
// each of its matches, and all of it for each parent.
const maxRoute = 4 << 20

// boundRoute replaces the rules of a route that would make too much configuration by one that
// answers all requests with 500. Other routes of the same Services go on.
func (n *notes) boundRoute(route *fact.Route) {
	size := 0
	for _, rule := range route.Rules {
		// Strings, numbers and lists of them cannot fail to be encoded.
		matches, _ := json.Marshal(rule.Matches)
		count := len(rule.Matches)
		rule.Matches = nil
		others, _ := json.Marshal(rule)
		size += len(matches) + count*len(others)
	}
	if size *= len(route.Parents) + len(route.Gateways)*max(1, len(route.Hosts)); size <= maxRoute {
		return
	}
	rule := fact.RouteRule{Matches: []fact.RouteMatch{{}}}
	n.unusable(&rule, fact.ReasonUnsupportedValue, "spec.rules", "with each rule for each of its matches, and all of them for each of %d parents, the route makes about %d KiB of configuration for each proxy, of at most %d; use several routes, fewer parents and hosts, or fewer filters and backends in rules with many matches", len(route.Parents)+len(route.Gateways), size>>10, maxRoute>>10)
	route.Rules = []fact.RouteRule{rule}
}

// checkRule marks a rule without an answer to its requests as unusable.
func (n *notes) checkRule(path string, route *fact.Route, rule *fact.RouteRule) {
	switch {
	case rule.Name != "" && slices.ContainsFunc(route.Rules, func(r fact.RouteRule) bool { return r.Name == rule.Name }):
		n.unusable(rule, fact.ReasonUnsupportedValue, path+".name", "another rule also has the name %q; use unique names", rule.Name)
	case rule.Redirect != nil && (rule.Rewrite != nil || len(rule.Mirrors)+len(rule.Backends) > 0):
		n.unusable(rule, fact.ReasonIncompatibleFilters, path+".filters", "a request that is redirected is neither rewritten nor sent to a backend or mirror; remove the redirect, or the others")
	case rule.Redirect != nil && changesHeader(rule.Response, "location"):
		n.unusable(rule, fact.ReasonIncompatibleFilters, path+".filters", "the header location of a redirect is its target and cannot be changed; set the parts of requestRedirect")
	case !rule.Unusable && changesPrefix(rule) && slices.ContainsFunc(rule.Matches, func(m fact.RouteMatch) bool { return m.Path.Exact+m.Path.Regex != "" }):
		n.unusable(rule, fact.ReasonUnsupportedValue, path+".filters", "a prefix can only be replaced if all matches of the rule have a path prefix; use ReplaceFullPath")
	}
}

func changesHeader(c mesh.HeaderChanges, name string) bool {
	return slices.Contains(c.Remove, name) || slices.ContainsFunc(slices.Concat(c.Set, c.Add), func(h mesh.Header) bool { return h.Name == name })
}

// finishRedirect gives the redirect the changes of response headers.
func finishRedirect(rule *fact.RouteRule) {
	if rule.Redirect != nil && !rule.Response.IsZero() {
		rule.Redirect.Response, rule.Response = rule.Response, mesh.HeaderChanges{}
	}
}

func changesPrefix(rule *fact.RouteRule) bool {
	return rule.Rewrite != nil && rule.Rewrite.Path.Prefix != "" || rule.Redirect != nil && rule.Redirect.Path.Prefix != ""
}

// unusable adds a Problem. The rule's requests are answered with 500: without the part in
// question, they could reach a backend in a way that was not meant.
func (n *notes) unusable(rule *fact.RouteRule, reason, path, format string, args ...any) {
	rule.Unusable = true
	n.add(reason, path, format+"; until then the rule's requests are answered with 500", args...)
}

const (
	kindService = "Service"
	kindSecret  = "Secret"
)

// routeParents returns the parents that are services and have no unknown fields.
func (n *notes) routeParents(namespace string, refs []gateway.ParentReference, later *laterFields) []fact.RouteParent {
	var parents []fact.RouteParent
	for i := range refs {
		if isServiceWithoutGroup(refs[i]) {
			n.add(fact.ReasonNoMatchingParent, index("spec.parentRefs", i), "without a group the parent is a Service of %s, which has no such kind, so the route has no effect there; add group: \"\"", gateway.GroupName)
		}
		if !isServiceParent(refs[i]) {
			continue
		}
		if fields := later.below(index("spec.parentRefs", i)); len(fields) > 0 {
			n.add(fact.ReasonNoMatchingParent, index("spec.parentRefs", i), "%q is not known and may restrict the route, which has no effect there; correct its name, or remove it", fields[0])
			continue
		}
		name := mesh.Name{Namespace: string(deref(refs[i].Namespace, gateway.Namespace(namespace))), Name: string(refs[i].Name)}
		port := deref(refs[i].Port, 0)
		if !isObjectLabel(name.Namespace) || !isObjectLabel(name.Name) || port < 0 || port > maxPort {
			n.add(fact.ReasonNoMatchingParent, index("spec.parentRefs", i), "%q with port %d is not a Service; correct it", name.String(), port)
			continue
		}
		parents = append(parents, fact.RouteParent{Index: i, Service: name, Port: uint16(port), PortName: string(deref(refs[i].SectionName, ""))})
	}
	return parents
}

func isServiceParent(ref gateway.ParentReference) bool {
	return deref(ref.Group, gateway.GroupName) == "" && deref(ref.Kind, "Gateway") == kindService
}

// isServiceWithoutGroup reports whether the parent is meant to be a Service, as in examples of
// Gateway API's documents, but has the API group of gateways, which is the default.
func isServiceWithoutGroup(ref gateway.ParentReference) bool {
	return deref(ref.Group, gateway.GroupName) == gateway.GroupName && deref(ref.Kind, "Gateway") == kindService
}

// answered500 is the outcome of a backend of a request that can't be used.
const answered500 = "its share of the requests is answered with 500"

// routeBackend adds Problems with the outcome if the backend is unusable.
func (n *notes) routeBackend(path, namespace string, ref gateway.BackendRef, filters []gateway.HTTPRouteFilter, outcome string) fact.RouteBackend {
	const until = "; until then %s"
	b := fact.RouteBackend{
		Service: mesh.Name{Namespace: string(deref(ref.Namespace, gateway.Namespace(namespace))), Name: string(ref.Name)},
		Weight:  uint32(min(max(deref(ref.Weight, 1), 0), 1_000_000)),
	}
	port := deref(ref.Port, 0)
	switch group, kind := deref(ref.Group, ""), deref(ref.Kind, kindService); {
	case group != "" || kind != kindService:
		b.Unusable = true
		n.add(fact.ReasonInvalidKind, path, "a %s of the group %q cannot be a backend, only a Service"+until, string(kind), string(group), outcome)
		return b
	case !isObjectLabel(b.Service.Namespace) || !isObjectLabel(b.Service.Name) || port < 1 || port > maxPort:
		b.Unusable = true
		n.add(fact.ReasonUnsupportedValue, path, "%q with port %d is not a port of a Service; correct it"+until, b.Service.String(), port, outcome)
		return b
	}
	b.Port = uint16(port)
	var of fact.RouteRule
	n.filters(path+".filters", namespace, filters, &of)
	if b.Request, b.Response, b.Unusable = of.Request, of.Response, of.Unusable; of.Rewrite != nil || of.Redirect != nil || of.CORS != nil || len(of.Mirrors) > 0 {
		b.Unusable = true
		n.add(fact.ReasonUnsupportedValue, path+".filters", "a backend can only change headers; move the other filters to the rule"+until, outcome)
	}
	return b
}

func (n *notes) httpRouteMatch(path string, m *gateway.HTTPRouteMatch) (fact.RouteMatch, bool) {
	var match fact.RouteMatch
	ok := true
	if p := m.Path; p != nil {
		value := deref(p.Value, "/")
		normal, isPath := routePath(value)
		switch kind := deref(p.Type, gateway.PathMatchPathPrefix); {
		case kind != gateway.PathMatchRegularExpression && !isPath:
			ok = n.noMatch(path+".path.value", "%q is not a path; write one that begins with a slash and has neither a query nor empty or dot segments", value)
		case kind == gateway.PathMatchExact:
			match.Path = mesh.StringMatch{Exact: normal}
			match.Precedence[0], match.Precedence[1] = 2, len(value)
		case kind == gateway.PathMatchPathPrefix:
			value = normal
			// A trailing slash makes no difference.
			if prefix := strings.TrimRight(value, "/"); prefix == "" {
				match.Precedence[1] = len("/")
			} else {
				match.Path, match.Precedence[1] = mesh.StringMatch{Prefix: prefix}, len(prefix)
			}
		case kind == gateway.PathMatchRegularExpression:
			match.Path, ok = n.expression(path+".path.value", value)
			match.Precedence[0], match.Precedence[1] = 1, len(value)
		default:
			ok = n.noMatch(path+".path.type", "%q is not a type of path match", string(kind))
		}
	} else {
		match.Precedence[1] = len("/")
	}
	if m.Method != nil && !slices.Contains(methods, string(*m.Method)) {
		ok = n.noMatch(path+".method", "%q is not one of the methods %s", string(*m.Method), strings.Join(methods, ", "))
	}
	if m.Method != nil {
		match.Methods, match.Precedence[2] = []string{string(*m.Method)}, 1
	}
	for i, h := range m.Headers {
		name := strings.ToLower(string(h.Name))
		ok = n.keyMatch(index(path+".headers", i), name, string(deref(h.Type, gateway.HeaderMatchExact)), h.Value, &match.Headers) && ok
	}
	for i, q := range m.QueryParams {
		ok = n.keyMatch(index(path+".queryParams", i), string(q.Name), string(deref(q.Type, gateway.QueryParamMatchExact)), q.Value, &match.Query) && ok
	}
	match.Precedence[3], match.Precedence[4] = len(match.Headers), len(match.Query)
	return match, ok
}

// routePath returns the form of a path in which requests are compared, and false for a path
// that no request has in that form.
func routePath(value string) (string, bool) {
	normal, ok := mesh.NormalPath(value)
	plain := !strings.Contains(value, "//") && !strings.Contains(strings.ToLower(value), "%2f") && !strings.ContainsFunc(value, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune("\"#<>?\\^`{|}", c)
	})
	dots := slices.ContainsFunc(strings.Split(strings.ReplaceAll(strings.ToLower(value), "%2e", "."), "/"), func(segment string) bool {
		segment, _, _ = strings.Cut(segment, ";")
		return segment == "." || segment == ".."
	})
	return normal, ok && plain && !dots
}

var (
	grpcService = regexp.MustCompile(`^\.?[A-Za-z_][A-Za-z_0-9]*(\.[A-Za-z_][A-Za-z_0-9]*)*$`)
	grpcMethod  = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*$`)
)

func (n *notes) grpcRouteMatch(path string, given *gateway.GRPCRouteMatch) (fact.RouteMatch, bool) {
	var match fact.RouteMatch
	ok := true
	if m := given.Method; m != nil {
		service, method := deref(m.Service, ""), deref(m.Method, "")
		match.Precedence[1], match.Precedence[2] = len(service), len(method)
		const any = "[^/]+"
		switch kind := deref(m.Type, gateway.GRPCMethodMatchExact); {
		case service == "" && method == "":
		case kind == gateway.GRPCMethodMatchExact && service != "" && !grpcService.MatchString(service):
			ok = n.noMatch(path+".method.service", "%q is not the name of a service", service)
		case kind == gateway.GRPCMethodMatchExact && method != "" && !grpcMethod.MatchString(method):
			ok = n.noMatch(path+".method.method", "%q is not the name of a method", method)
		case kind == gateway.GRPCMethodMatchRegularExpression:
			// Each must be complete by itself: ")|(" would end the parentheses around it.
			for _, part := range []string{cmp.Or(service, any), cmp.Or(method, any)} {
				if _, err := checkRegex(part); err != nil {
					return match, n.noMatch(path+".method", "%q is not usable (%v)", part, err)
				}
			}
			match.Path, ok = n.expression(path+".method", "/(?:"+cmp.Or(service, any)+")/(?:"+cmp.Or(method, any)+")")
		case kind != gateway.GRPCMethodMatchExact:
			ok = n.noMatch(path+".method.type", "%q is not a type of method match", string(kind))
		case service == "":
			match.Path, ok = n.expression(path+".method", "/"+any+"/"+regexp.QuoteMeta(method))
		case method == "":
			match.Path = mesh.StringMatch{Prefix: "/" + service}
		default:
			match.Path = mesh.StringMatch{Exact: "/" + service + "/" + method}
		}
	}
	for i, h := range given.Headers {
		name := strings.ToLower(string(h.Name))
		ok = n.keyMatch(index(path+".headers", i), name, string(deref(h.Type, gateway.GRPCHeaderMatchExact)), h.Value, &match.Headers) && ok
	}
	match.Precedence[3] = len(match.Headers)
	return match, ok
}

// noMatch adds a Problem with a match, which is dropped: without one of its conditions it
// would match more.
func (n *notes) noMatch(path, format string, args ...any) bool {
	n.add(fact.ReasonUnsupportedValue, path, format+", so the match is ignored; correct it", args...)
	return false
}

func (n *notes) expression(path, expression string) (mesh.StringMatch, bool) {
	match, err := n.parseMatch(expression)
	if err != nil {
		return match, n.noMatch(path, "%q is not usable (%v)", expression, err)
	}
	return match, true
}

// keyMatch adds a condition on a header or a query parameter. Of several conditions on one
// name only the first counts, as Gateway API has it.
func (n *notes) keyMatch(path, name, kind, value string, matches *[]mesh.KeyMatch) bool {
	if slices.ContainsFunc(*matches, func(m mesh.KeyMatch) bool { return m.Name == name }) {
		return true
	}
	if !isHeaderName(name) {
		return n.noMatch(path+".name", "%q is not a name", name)
	}
	match, ok := mesh.StringMatch{Exact: value}, true
	switch {
	case kind == string(gateway.HeaderMatchRegularExpression):
		match, ok = n.expression(path+".value", value)
	case kind != string(gateway.HeaderMatchExact):
		ok = n.noMatch(path+".type", "%q is not a type of match", kind)
	case value == "":
		ok = n.noMatch(path+".value", "there is no value")
	case hasControl(value):
		ok = n.noMatch(path+".value", "%q has control characters", value)
	}
	*matches = append(*matches, mesh.KeyMatch{Name: name, StringMatch: match})
	return ok
}
