package convert

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The limits of the CRDs of routes.
const (
	mostRules    = 16
	mostBackends = 16
	// mostMatches is the limit of a rule, and mostOfRoute that of all rules of a route, in which
	// a rule without matches counts as one.
	mostMatches = 64
	mostOfRoute = 128
	// mostWeight is the limit of a backend's weight.
	mostWeight = 1_000_000
)

// port converts the policies of one port of a service.
type port struct {
	*converter
	root   mesh.Name
	spec   fact.PortSpec
	splits []*fact.Split
	// kept says that something cannot be written as a route.
	kept bool
}

// keep notes that the port gets no route, because of something in one of its policies.
func (p *port) keep(of mesh.Digester, field, format string, args ...any) {
	p.kept = true
	p.note(of, field, "%s, so port %d of %s gets no route; keep its TrafficSplits", fmt.Sprintf(format, args...), p.spec.Port, p.root)
}

// convert makes the port's routes. Several says that the service has other ports.
func (p *port) convert(several bool) {
	name := p.root
	if several {
		name.Name = fmt.Sprintf("%s-%d", p.root.Name, p.spec.Port)
	}
	if p.spec.Protocol.IsHTTP() {
		first, rest := p.rules()
		if p.kept {
			return
		}
		// The rule for all other requests comes with the first route, so that no request is
		// answered with 404 until all routes are applied.
		for _, rules := range inRoutes(first, rest) {
			p.print("HTTPRoute", &gateway.HTTPRoute{ObjectMeta: p.meta("HTTPRoute", name), Spec: gateway.HTTPRouteSpec{CommonRouteSpec: p.parents(), Rules: rules}})
		}
		return
	}
	i := slices.IndexFunc(p.splits, func(s *fact.Split) bool { return len(s.Matches) == 0 })
	if i < 0 {
		return
	}
	shares := p.shares(p.splits[i])
	if len(shares) == 0 && !p.kept {
		p.keep(p.splits[i], "spec.backends", "no backend can be called, and a TCPRoute must have one")
	}
	if p.kept {
		return
	}
	rule := gateway.TCPRouteRule{BackendRefs: shares}
	p.print("TCPRoute", &gateway.TCPRoute{ObjectMeta: p.meta("TCPRoute", name), Spec: gateway.TCPRouteSpec{CommonRouteSpec: p.parents(), Rules: []gateway.TCPRouteRule{rule}}})
}

func (p *port) meta(kind string, name mesh.Name) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: p.name(kind, name), Namespace: p.root.Namespace}
}

func (p *port) parents() gateway.CommonRouteSpec {
	return gateway.CommonRouteSpec{ParentRefs: []gateway.ParentReference{{
		Group: new(gateway.Group("")), Kind: new(gateway.Kind("Service")), Name: gateway.ObjectName(p.root.Name), Port: new(gateway.PortNumber(p.spec.Port)),
	}}}
}

// rules returns the rules of splits with matches, in the order of the splits, and the one for all
// other requests.
func (p *port) rules() (rules []gateway.HTTPRouteRule, rest gateway.HTTPRouteRule) {
	var timeouts *gateway.HTTPRouteTimeouts
	if setting := p.settings[p.root]; setting != nil && setting.Policy.RequestTimeout > 0 {
		if setting.Policy.RequestTimeout > longestTimeout {
			p.keep(setting, "spec.timeouts.request", "a route cannot have a timeout of more than %s", longestTimeout)
		}
		timeouts = &gateway.HTTPRouteTimeouts{Request: new(durationText(setting.Policy.RequestTimeout))}
	}
	rest = gateway.HTTPRouteRule{BackendRefs: httpBackends([]gateway.BackendRef{backendRef(p.root.Name, p.spec.Port, 1)}), Timeouts: timeouts}
	var before []split
	for _, s := range p.ordered() {
		matches, all := p.matches(s)
		shares := p.shares(s)
		if !slices.ContainsFunc(shares, func(b gateway.BackendRef) bool { return *b.Weight > 0 }) {
			p.note(s, "spec.backends", "no backend at port %d gets anything: a split answers such requests with 503, and a route with 500", p.spec.Port)
		}
		if all {
			// Nothing is left for later splits.
			rest.BackendRefs = httpBackends(shares)
			matches = matches[:len(matches)-1]
		}
		before = append(before, split{s, matches})
		for chunk := range slices.Chunk(matches, mostMatches) {
			rule := gateway.HTTPRouteRule{BackendRefs: httpBackends(shares), Timeouts: timeouts}
			for _, m := range chunk {
				rule.Matches = append(rule.Matches, m.HTTPRouteMatch)
			}
			rules = append(rules, rule)
		}
		if all {
			break
		}
	}
	p.checkOrder(before)
	return rules, rest
}

// ordered returns the splits in the order in which a request is compared with them: those with
// matches by age, and then the oldest one of the others.
func (p *port) ordered() []*fact.Split {
	var matching, whole []*fact.Split
	for _, s := range p.splits {
		if len(s.Matches) == 0 {
			whole = append(whole, s)
		} else {
			matching = append(matching, s)
		}
	}
	return append(matching, whole[:min(len(whole), 1)]...)
}

// inRoutes divides rules into routes that the CRD accepts. The rule rest is the last one of the
// first route.
func inRoutes(rules []gateway.HTTPRouteRule, rest gateway.HTTPRouteRule) [][]gateway.HTTPRouteRule {
	routes := [][]gateway.HTTPRouteRule{nil}
	// The first route has room for rest.
	count, matches := 1, 1
	for _, rule := range rules {
		if count == mostRules || matches+len(rule.Matches) > mostOfRoute {
			routes = append(routes, nil)
			count, matches = 0, 0
		}
		last := len(routes) - 1
		routes[last] = append(routes[last], rule)
		count, matches = count+1, matches+len(rule.Matches)
	}
	routes[0] = append(routes[0], rest)
	return routes
}

func httpBackends(shares []gateway.BackendRef) []gateway.HTTPBackendRef {
	var refs []gateway.HTTPBackendRef
	for _, share := range shares {
		refs = append(refs, gateway.HTTPBackendRef{BackendRef: share})
	}
	return refs
}

func backendRef(service string, port uint16, weight uint32) gateway.BackendRef {
	return gateway.BackendRef{
		BackendObjectReference: gateway.BackendObjectReference{Name: gateway.ObjectName(service), Port: new(gateway.PortNumber(port))},
		Weight:                 new(int32(weight)),
	}
}

// shares returns the backends of a split for the port: at the port with the same number,
// otherwise with the same name, otherwise at the only one.
func (p *port) shares(s *fact.Split) []gateway.BackendRef {
	var backends []fact.SplitBackend
	var ports []uint16
	for i, b := range s.Backends {
		field := fmt.Sprintf("spec.backends[%d].service", i)
		svc := p.services[mesh.Name{Namespace: s.Namespace, Name: b.Service}]
		switch {
		case svc == nil:
			p.note(s, field, "there is no Service %s/%s among the objects, so it is left out; a split gives its share to the others, and a route would answer it with 500", s.Namespace, b.Service)
			continue
		case svc.ExternalName != "":
			p.keep(s, field, "Service %s is a name outside the cluster or of another Service, which cannot be a backend of a route", svc.Name)
			continue
		case svc.Headless:
			p.note(s, field, "Service %s has no cluster IP, so it is left out: it cannot be a backend of a route", svc.Name)
			continue
		}
		spec, ok := portFor(svc, p.spec)
		switch {
		case !ok:
			p.note(s, field, "Service %s has no port for port %d of %s, so it is left out", svc.Name, p.spec.Port, p.root)
			continue
		case spec.Protocol.IsHTTP() != p.spec.Protocol.IsHTTP():
			p.keep(s, field, "port %d of Service %s has the protocol %s and that of %s has %s: a split sends there, and a route does not", spec.Port, svc.Name, spec.Protocol, p.root, p.spec.Protocol)
			continue
		}
		backends, ports = append(backends, b), append(ports, spec.Port)
	}
	if len(backends) > mostBackends {
		p.keep(s, "spec.backends", "a rule of a route has at most %d backends", mostBackends)
	}
	weights, exact := scaled(backends)
	if !exact {
		p.note(s, "spec.backends", "a route has weights of at most %d, and the shares are rounded to that", mostWeight)
	}
	var refs []gateway.BackendRef
	for i, b := range backends {
		refs = append(refs, backendRef(b.Service, ports[i], weights[i]))
	}
	return refs
}

// scaled returns weights with the same shares that a route accepts, and whether they are exact.
func scaled(backends []fact.SplitBackend) (weights []uint32, exact bool) {
	var most, divisor uint64
	for _, b := range backends {
		most, divisor = max(most, uint64(b.Weight)), gcd(divisor, uint64(b.Weight))
	}
	exact = true
	for _, b := range backends {
		weight := uint64(b.Weight)
		switch {
		case most <= mostWeight:
		case most/divisor <= mostWeight:
			weight /= divisor
		default:
			whole := weight * mostWeight
			exact = exact && whole%most == 0
			weight = (whole + most/2) / most
			if b.Weight > 0 {
				weight = max(weight, 1)
			}
		}
		weights = append(weights, uint32(weight))
	}
	return weights, exact
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func portFor(svc *fact.Service, spec fact.PortSpec) (fact.PortSpec, bool) {
	for _, same := range []func(fact.PortSpec) bool{
		func(p fact.PortSpec) bool { return p.Port == spec.Port },
		func(p fact.PortSpec) bool { return p.Name == spec.Name && spec.Name != "" },
		func(fact.PortSpec) bool { return len(svc.Ports) == 1 },
	} {
		if i := slices.IndexFunc(svc.Ports, same); i >= 0 {
			return svc.Ports[i], true
		}
	}
	return fact.PortSpec{}, false
}
