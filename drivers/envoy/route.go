package envoy

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// match returns the condition of a route. A path prefix consists of whole elements:
// "/a" matches /a and /a/b, but not /ab. A condition that Envoy would reject never holds, since
// no request can satisfy it.
func match(m mesh.HTTPMatch) *routev3.RouteMatch {
	if !canMatch(m) {
		return never
	}
	out := new(routev3.RouteMatch)
	prefix := strings.TrimRight(m.Path.Prefix, "/")
	switch {
	case m.Path.Exact != "":
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: m.Path.Exact}
	case m.Path.Regex != "":
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regexMatcher(expression(m.Path.Regex))}
	case prefix != "":
		out.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: prefix}
	default:
		out.PathSpecifier = anyPath
	}
	if len(m.Methods) > 0 {
		out.Headers = append(out.Headers, methodMatch(m.Methods))
	}
	for _, h := range m.Headers {
		out.Headers = append(out.Headers, headerMatch(h))
	}
	addQuery(out, m.Query)
	return out
}

var anyPath = &routev3.RouteMatch_Prefix{Prefix: "/"}

// never matches no request: each has a method.
var never = &routev3.RouteMatch{PathSpecifier: anyPath, Headers: []*routev3.HeaderMatcher{{
	Name: ":method", HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{},
}}}

// methodMatch matches one of the methods, of which there must be one that a request can have.
func methodMatch(methods []string) *routev3.HeaderMatcher {
	methods = tokens(methods)
	if len(methods) == 1 {
		return requestMatch(":method", exact(methods[0]))
	}
	return requestMatch(":method", regex(expression(strings.Join(each(methods, regexp.QuoteMeta), "|"))))
}

func headerMatch(h mesh.KeyMatch) *routev3.HeaderMatcher {
	name := h.Name
	if name == "host" {
		name = ":authority"
	}
	return requestMatch(name, stringMatch(h.StringMatch))
}

// requestMatch matches the value of a header or pseudo-header, and any value if it is nil.
func requestMatch(name string, value *matcherv3.StringMatcher) *routev3.HeaderMatcher {
	if value == nil {
		return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}
	}
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: value}}
}

// stringMatch returns nil for a condition that any string satisfies.
func stringMatch(m mesh.StringMatch) *matcherv3.StringMatcher {
	switch {
	case m.Exact != "":
		return exact(m.Exact)
	case m.Prefix != "":
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: m.Prefix}}
	case m.Regex != "":
		return regex(expression(m.Regex))
	}
	return nil
}

// routes returns the route configuration of a Destination.
func routes(d *mesh.Destination) *Resource {
	e := newEncoder(len(routeDefaults.encoding) + routeSize*(len(d.Routes)+1))
	e.constant(routeDefaults)
	e.text(routeConfigurationName, d.Name)
	write := func(r *mesh.Route) {
		if r.CORS != nil {
			writeCORS(&e, d, r)
		}
		if isSimple(d, r) {
			e.message(virtualHostRoutes, func() { writeRoute(&e, d, r) })
		} else {
			e.accepted(r, r.Match, func(own *encoder) { writeRoute(own, d, r) })
		}
	}
	put := func(r *mesh.Route) {
		for _, kept := range keptRoutes(r) {
			write(&kept)
		}
		write(r)
	}
	several := len(d.Listeners()) > 1
	var byHost map[string][]*mesh.Route
	if len(d.Hosts) > 0 {
		byHost = d.RoutesByHost()
	}
	virtualHost := func(name, host string, domains []string) {
		e.message(routeConfigurationVirtualHosts, func() {
			e.text(virtualHostName, name)
			for _, domain := range domains {
				e.text(virtualHostDomains, domain)
			}
			if listener, ok := d.ListenerOf(host); ok && several {
				e.message(virtualHostRoutes, func() { e.part(misdirected(listener)) })
			}
			if strings.HasPrefix(host, "*") {
				e.message(virtualHostRoutes, func() { e.constant(oddHost) })
			}
			for _, r := range byHost[host] {
				put(r)
			}
			for i := 0; byHost == nil && i < len(d.Routes); i++ {
				put(&d.Routes[i])
			}
		})
	}
	if len(d.Hosts) == 0 {
		virtualHost(d.Name, "", anyHost)
		return e.resource(routeType, d.Name)
	}
	e.constant(hostDefaults)
	if several {
		e.constant(listenerDefaults)
	}
	// Envoy rejects all virtual hosts if two have a domain.
	seen := make(map[string]bool)
	for _, host := range d.Hosts {
		if domains := domainsOf(host); len(domains) > 0 && !seen[domains[0]] {
			seen[domains[0]] = true
			virtualHost(d.Name+" "+host, host, domains)
		}
	}
	return e.resource(routeType, d.Name)
}

// isSimple reports whether no text of a user is in the route.
func isSimple(d *mesh.Destination, r *mesh.Route) bool {
	return matchesAny([]mesh.HTTPMatch{r.Match}) && r.Rewrite == nil && r.Redirect == nil && r.CORS == nil && r.Session == nil &&
		len(d.HashOn) == 0 && !slices.ContainsFunc(r.Backends, func(b mesh.WeightedBackend) bool { return b.Backend != "" && !isPlain(b) })
}

// accepted writes a route of a virtual host. Envoy rejects a listener or all routes of a
// Destination because of one of them, so a route that it would reject answers 500.
func (e *encoder) accepted(r *mesh.Route, m mesh.HTTPMatch, fields func(own *encoder)) {
	own, route := newEncoder(routeSize), new(routev3.Route)
	fields(&own)
	if own.invalid || !canChange(r) || proto.Unmarshal(own.body, route) != nil || route.ValidateAll() != nil {
		own = newEncoder(routeSize)
		own.part(&routev3.Route{Match: match(m), Action: respond(500)})
	}
	e.message(virtualHostRoutes, func() { e.fields(own) })
}

// canChange reports whether Envoy can make the route's changes of headers.
func canChange(r *mesh.Route) bool {
	if r.Redirect != nil && !canChangeHeaders(r.Redirect.Response) {
		return false
	}
	return !slices.ContainsFunc(r.Backends, func(b mesh.WeightedBackend) bool {
		return !canChangeHeaders(b.Request) || !canChangeHeaders(b.Response)
	})
}

func canChangeHeaders(c mesh.HeaderChanges) bool {
	isWrong := func(h mesh.Header) bool { return !isToken(h.Name) || h.Name == "host" || !isText(h.Value) }
	return !slices.ContainsFunc(c.Set, isWrong) && !slices.ContainsFunc(c.Add, isWrong) &&
		!slices.ContainsFunc(c.Remove, func(name string) bool { return isWrong(mesh.Header{Name: name}) })
}

// routeSize is the typical size of a route in bytes.
const routeSize = 160

var anyHost = []string{"*"}

// Most routes match every request and have no limits.
var (
	// Routes may arrive before their clusters.
	routeDefaults = constantOf(&routev3.RouteConfiguration{ValidateClusters: wrapperspb.Bool(false)})
	everyRequest  = constantOf(&routev3.Route{Match: match(mesh.HTTPMatch{})})
	noBackend     = constantOf(&routev3.Route{Action: respond(503)})
	unresolved    = constantOf(&routev3.Route{Action: respond(500)})
	unlimited     = constantOf(forward(0), &routev3.RouteAction{RetryPolicy: otherEndpoint})
)

func writeRoute(e *encoder, d *mesh.Destination, r *mesh.Route) {
	e.text(routeName, r.Name())
	if m := r.Match; m.Path == (mesh.StringMatch{}) && len(m.Methods)+len(m.Headers)+len(m.Query) == 0 {
		e.constant(everyRequest)
	} else {
		e.part(&routev3.Route{Match: match(m)})
	}
	if r.Session != nil {
		e.part(sessionRoute(r))
	}
	backends := weighted(r.Backends)
	switch {
	case r.Redirect != nil:
		changes := r.Redirect.Response
		e.part(&routev3.Route{
			Action:               redirect(r, d.Port),
			ResponseHeadersToAdd: responseHeaders(changes), ResponseHeadersToRemove: changes.Remove,
		})
		return
	case len(backends) == 0:
		e.constant(noBackend)
		return
	case !slices.ContainsFunc(backends, func(b mesh.WeightedBackend) bool { return b.Backend != "" }):
		e.constant(unresolved)
		return
	}
	e.message(routeAction, func() {
		if len(backends) == 1 && isPlain(backends[0]) && r.Session == nil {
			e.text(routeActionCluster, backends[0].Backend)
		} else {
			e.part(&routev3.RouteAction{ClusterSpecifier: weightedClusters(backends, r.Session)})
		}
		failing := slices.ContainsFunc(backends, func(b mesh.WeightedBackend) bool { return b.Backend == "" })
		if r.Timeout == 0 && r.Retry == nil && len(d.HashOn) == 0 && r.Rewrite == nil && len(r.Mirrors) == 0 && r.Session == nil && !failing {
			e.constant(unlimited)
			return
		}
		action := forward(r.Timeout)
		action.RetryPolicy, action.HashPolicy = otherEndpoint, hashPolicies(d.HashOn)
		if r.Retry != nil {
			action.RetryPolicy = retryPolicy(r.Retry)
		}
		if failing {
			action.ClusterNotFoundResponseCode = routev3.RouteAction_INTERNAL_SERVER_ERROR
		}
		rewrite(action, r)
		action.RequestMirrorPolicies = each(r.Mirrors, mirrorPolicy)
		e.part(action)
	})
}

func weightedClusters(backends []mesh.WeightedBackend, session *mesh.Session) *routev3.RouteAction_WeightedClusters {
	clusters := each(backends, clusterFor)
	if session != nil {
		for i, b := range backends {
			clusters[i].ResponseHeadersToAdd = append(clusters[i].ResponseHeadersToAdd, servedBy(session.Share(b.Backend)))
		}
	}
	return &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{Clusters: clusters}}
}

// weighted returns the backends with a non-zero weight. Envoy rejects weights whose sum does not
// fit into 32 bits, so they are divided then.
func weighted(backends []mesh.WeightedBackend) []mesh.WeightedBackend {
	idle := func(b mesh.WeightedBackend) bool { return b.Weight == 0 }
	sum := uint64(0)
	for _, b := range backends {
		sum += uint64(b.Weight)
	}
	if sum <= math.MaxUint32 && !slices.ContainsFunc(backends, idle) {
		return backends
	}
	backends = slices.DeleteFunc(slices.Clone(backends), idle)
	if sum > math.MaxUint32 {
		for i := range backends {
			backends[i].Weight = max(backends[i].Weight/uint32(len(backends)+1), 1)
		}
	}
	return backends
}

// respond returns a direct response.
func respond(status uint32) *routev3.Route_DirectResponse {
	return &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: status}}
}

// forward returns an action with the timeout; 0 means none, where Envoy's default is 15
// seconds.
func forward(timeout time.Duration) *routev3.RouteAction {
	return &routev3.RouteAction{Timeout: duration(timeout)}
}

var noTimeout = durationpb.New(0)

// otherEndpoint repeats a request once, at another endpoint if there is one, if it has not
// reached its own: nothing has been sent then.
var otherEndpoint = frozen(retryPolicy(&mesh.Retry{On: []string{"connect-failure"}, Attempts: 1}))

func retryPolicy(r *mesh.Retry) *routev3.RetryPolicy {
	on := r.On
	if len(r.Codes) > 0 {
		on = append(slices.Clone(on), "retriable-status-codes")
	}
	policy := &routev3.RetryPolicy{
		RetryOn: strings.Join(on, ","), NumRetries: wrapperspb.UInt32(r.Attempts),
		RetriableStatusCodes: each(r.Codes, func(code uint16) uint32 { return uint32(code) }),
		RetryHostPredicate:   otherHost, HostSelectionRetryMaxAttempts: otherHostAttempts,
		PerTryTimeout: optionalDuration(r.PerTry),
	}
	if r.Backoff > 0 {
		policy.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: duration(r.Backoff)}
	}
	return policy
}

// otherHostAttempts is how often to look for an endpoint that has not failed the
// request yet before a retry. With hash-based load balancing there may be none.
const otherHostAttempts = 20

var otherHost = []*routev3.RetryPolicy_RetryHostPredicate{{
	Name:       "envoy.retry_host_predicates.previous_hosts",
	ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: pack(&previoushostsv3.PreviousHostsPredicate{})},
}}

// hashPolicies returns what identifies clients. The first policy that applies to a
// request decides.
func hashPolicies(on []mesh.HashOn) []*routev3.RouteAction_HashPolicy {
	var out []*routev3.RouteAction_HashPolicy
	for _, h := range on {
		policy := &routev3.RouteAction_HashPolicy{Terminal: true}
		switch {
		case h.Header != "":
			policy.PolicySpecifier = &routev3.RouteAction_HashPolicy_Header_{
				Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: h.Header},
			}
		case h.Cookie != "":
			policy.PolicySpecifier = &routev3.RouteAction_HashPolicy_Cookie_{
				// Envoy sets the cookie only if there is a TTL, even if it is 0.
				Cookie: &routev3.RouteAction_HashPolicy_Cookie{Name: h.Cookie, Ttl: duration(h.CookieTTL), Path: "/"},
			}
		case h.SourceIP:
			policy.PolicySpecifier = &routev3.RouteAction_HashPolicy_ConnectionProperties_{
				ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{SourceIp: true},
			}
		default:
			continue
		}
		out = append(out, policy)
	}
	return out
}
