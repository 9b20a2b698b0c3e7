// Package convert turns SMI's TrafficSplits, with the HTTPRouteGroups and timeouts that apply
// to them, into routes of Gateway API.
package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Note says what of an object has no equal among routes, or differs there.
type Note struct {
	Object mesh.ObjectRef `json:"object"`
	// Field is empty if the Note is about the whole object.
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// String returns the Note as one line of text.
func (n Note) String() string {
	if n.Field == "" {
		return n.Object.String() + ": " + n.Message
	}
	return n.Object.String() + ": " + n.Field + ": " + n.Message
}

// Routes returns an HTTPRoute or a TCPRoute for each service port with a TrafficSplit or a
// timeout, sorted by namespace and name, and Notes. The routes of a service do what its
// policies do; Services must be among the facts, since routes name ports.
func Routes(facts []fact.Fact) ([]*unstructured.Unstructured, []Note) {
	c := &converter{
		services: map[mesh.Name]*fact.Service{}, splits: map[mesh.Name][]*fact.Split{}, groups: map[mesh.Name]*fact.RouteGroup{},
		settings: map[mesh.Name]*fact.UpstreamSetting{}, objects: map[mesh.Digester]mesh.ObjectRef{},
	}
	for _, f := range facts {
		c.add(f)
	}
	roots := make([]mesh.Name, 0, len(c.splits))
	for root := range c.splits {
		roots = append(roots, root)
	}
	for service, setting := range c.settings {
		if setting.Policy.RequestTimeout > 0 {
			roots = append(roots, service)
		}
	}
	slices.SortFunc(roots, mesh.Name.Compare)
	for _, root := range slices.Compact(roots) {
		c.convert(root)
	}
	slices.SortStableFunc(c.notes, func(a, b Note) int {
		return cmp.Or(strings.Compare(a.Object.Namespace, b.Object.Namespace), strings.Compare(a.Object.Name, b.Object.Name))
	})
	return c.routes, c.notes
}

type converter struct {
	services map[mesh.Name]*fact.Service
	// splits are by root, the oldest first.
	splits   map[mesh.Name][]*fact.Split
	groups   map[mesh.Name]*fact.RouteGroup
	settings map[mesh.Name]*fact.UpstreamSetting
	objects  map[mesh.Digester]mesh.ObjectRef

	routes []*unstructured.Unstructured
	notes  []Note
}

func (c *converter) note(of mesh.Digester, field, format string, args ...any) {
	n := Note{c.objects[of], field, fmt.Sprintf(format, args...)}
	if !slices.Contains(c.notes, n) {
		c.notes = append(c.notes, n)
	}
}

func (c *converter) add(f fact.Fact) {
	if f.Content == nil {
		return
	}
	c.objects[f.Content] = f.Object
	switch content := f.Content.(type) {
	case *fact.Service:
		c.services[content.Name] = content
	case *fact.Split:
		root := mesh.Name{Namespace: content.Namespace, Name: content.Root}
		c.splits[root] = append(c.splits[root], content)
		slices.SortFunc(c.splits[root], func(a, b *fact.Split) int {
			return cmp.Or(cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
		})
	case *fact.RouteGroup:
		if len(content.HTTP) > 0 {
			c.groups[content.Name] = content
		}
	case *fact.UpstreamSetting:
		service := content.Service()
		if former := c.settings[service]; service != (mesh.Name{}) && (former == nil || content.Created < former.Created) {
			c.settings[service] = content
		}
		c.note(content, "", "only the request's timeout has an equal; keep the object, which applies to routes too")
	case *fact.RetryRule:
		c.note(content, "", "it is for the requests of one service account, and routes are for those of all; keep it, since it applies to routes too")
	}
}

func (c *converter) convert(root mesh.Name) {
	splits, svc := c.splits[root], c.services[root]
	report := func(format string, args ...any) {
		for _, split := range splits {
			c.note(split, "spec.service", format, args...)
		}
	}
	switch {
	case svc == nil:
		report("there is no Service %s among the objects; add it, since a route names its ports", root)
		return
	case svc.Headless || svc.ExternalName != "":
		report("Service %s has no cluster IP, by which a route recognizes its requests", root)
		return
	}
	for _, spec := range svc.Ports {
		name := root.Name
		if len(svc.Ports) > 1 {
			name = fmt.Sprintf("%s-%d", root.Name, spec.Port)
		}
		meta := metav1.ObjectMeta{Name: name, Namespace: root.Namespace}
		parents := gateway.CommonRouteSpec{ParentRefs: []gateway.ParentReference{{
			Group: new(gateway.Group("")), Kind: new(gateway.Kind("Service")), Name: gateway.ObjectName(root.Name), Port: new(gateway.PortNumber(spec.Port)),
		}}}
		if spec.Protocol.IsHTTP() {
			c.print("HTTPRoute", &gateway.HTTPRoute{ObjectMeta: meta, Spec: gateway.HTTPRouteSpec{CommonRouteSpec: parents, Rules: c.rules(root, spec, splits)}})
			continue
		}
		for _, split := range splits {
			if len(split.Matches) == 0 {
				rule := gateway.TCPRouteRule{BackendRefs: c.shares(split, root, spec)}
				c.print("TCPRoute", &gateway.TCPRoute{ObjectMeta: meta, Spec: gateway.TCPRouteSpec{CommonRouteSpec: parents, Rules: []gateway.TCPRouteRule{rule}}})
				break
			}
		}
	}
}

// print adds a route without its status.
func (c *converter) print(kind string, route any) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(route)
	if err != nil {
		panic(err) // Impossible: the types are compiled in and tested.
	}
	delete(content, "status")
	object := &unstructured.Unstructured{Object: content}
	object.SetAPIVersion(gateway.GroupVersion.String())
	object.SetKind(kind)
	unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
	c.routes = append(c.routes, object)
}

// mostMatches is the limit of a rule.
const mostMatches = 64

// rules returns the rules of splits with matches by age, and then one for all other requests.
func (c *converter) rules(root mesh.Name, spec fact.PortSpec, splits []*fact.Split) []gateway.HTTPRouteRule {
	var timeouts *gateway.HTTPRouteTimeouts
	if setting := c.settings[root]; setting != nil && setting.Policy.RequestTimeout > 0 {
		timeouts = &gateway.HTTPRouteTimeouts{Request: new(durationText(setting.Policy.RequestTimeout))}
	}
	rest := []gateway.BackendRef{backendRef(root.Name, spec.Port, 1)}
	var rules []gateway.HTTPRouteRule
	var whole *fact.Split
	matched := 0
	for _, split := range splits {
		if len(split.Matches) == 0 {
			if whole == nil {
				whole = split
				rest = c.shares(split, root, spec)
			}
			continue
		}
		matches := c.matches(split)
		if matched += len(matches); matched > 1 {
			c.note(split, "spec.matches", "a route uses the most specific match, and splits the first one; check those that overlap")
		}
		shares := c.shares(split, root, spec)
		for chunk := range slices.Chunk(matches, mostMatches) {
			rules = append(rules, gateway.HTTPRouteRule{Matches: chunk, BackendRefs: httpBackends(shares), Timeouts: timeouts})
		}
	}
	return append(rules, gateway.HTTPRouteRule{BackendRefs: httpBackends(rest), Timeouts: timeouts})
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
		Weight:                 new(int32(min(weight, 1_000_000))),
	}
}

// shares returns the backends of a split for a port of its root: at the port with the same
// number, otherwise with the same name, otherwise at the only one.
func (c *converter) shares(split *fact.Split, root mesh.Name, spec fact.PortSpec) []gateway.BackendRef {
	var refs []gateway.BackendRef
	for i, b := range split.Backends {
		field := fmt.Sprintf("spec.backends[%d].service", i)
		svc := c.services[mesh.Name{Namespace: split.Namespace, Name: b.Service}]
		switch {
		case svc == nil:
			c.note(split, field, "there is no Service %s/%s among the objects, so it is left out; a split gives its share to the others, and a route would answer it with 500", split.Namespace, b.Service)
			continue
		case svc.Headless || svc.ExternalName != "":
			c.note(split, field, "Service %s has no cluster IP, so it is left out: it cannot be a backend of a route", svc.Name)
			continue
		}
		if port := portFor(svc, spec); port != 0 {
			refs = append(refs, backendRef(b.Service, port, b.Weight))
		} else {
			c.note(split, field, "Service %s has no port for port %d of %s, so it is left out", svc.Name, spec.Port, root)
		}
	}
	return refs
}

func portFor(svc *fact.Service, spec fact.PortSpec) uint16 {
	for _, same := range []func(fact.PortSpec) bool{
		func(p fact.PortSpec) bool { return p.Port == spec.Port },
		func(p fact.PortSpec) bool { return p.Name == spec.Name && spec.Name != "" },
		func(fact.PortSpec) bool { return len(svc.Ports) == 1 },
	} {
		if i := slices.IndexFunc(svc.Ports, same); i >= 0 {
			return svc.Ports[i].Port
		}
	}
	return 0
}

// matches returns the matches of a split's HTTPRouteGroups.
func (c *converter) matches(split *fact.Split) []gateway.HTTPRouteMatch {
	var matches []gateway.HTTPRouteMatch
	for i, name := range split.Matches {
		group := c.groups[mesh.Name{Namespace: split.Namespace, Name: name}]
		if group == nil {
			c.note(split, fmt.Sprintf("spec.matches[%d]", i), "there is no HTTPRouteGroup %s/%s among the objects, so no request matches", split.Namespace, name)
			continue
		}
		for _, m := range group.HTTP {
			if slices.ContainsFunc(m.Headers, func(h mesh.KeyMatch) bool { return h.Name == "host" }) {
				c.note(group, "", "the match %s is left out, since a route does not compare hosts", m.Name)
				continue
			}
			matches = append(matches, matchesOf(m.HTTPMatch)...)
		}
	}
	return matches
}

// matchesOf returns one match for each method.
func matchesOf(m mesh.HTTPMatch) []gateway.HTTPRouteMatch {
	var match gateway.HTTPRouteMatch
	path := func(kind gateway.PathMatchType, value string) {
		match.Path = &gateway.HTTPPathMatch{Type: new(kind), Value: new(value)}
	}
	switch {
	case m.Path.Exact != "":
		path(gateway.PathMatchExact, m.Path.Exact)
	case m.Path.Prefix != "":
		path(gateway.PathMatchPathPrefix, m.Path.Prefix)
	case m.Path.Regex != "":
		path(gateway.PathMatchRegularExpression, m.Path.Regex)
	}
	for _, h := range m.Headers {
		kind, value := gateway.HeaderMatchExact, h.Exact
		switch {
		case h.Regex != "":
			kind, value = gateway.HeaderMatchRegularExpression, h.Regex
		case h.Exact == "":
			kind, value = gateway.HeaderMatchRegularExpression, ".*"
		}
		match.Headers = append(match.Headers, gateway.HTTPHeaderMatch{Type: new(kind), Name: gateway.HTTPHeaderName(h.Name), Value: value})
	}
	if len(m.Methods) == 0 {
		return []gateway.HTTPRouteMatch{match}
	}
	var matches []gateway.HTTPRouteMatch
	for _, method := range m.Methods {
		one := match
		one.Method = new(gateway.HTTPMethod(method))
		matches = append(matches, one)
	}
	return matches
}

// durationText returns a duration in the form of Gateway API, in milliseconds at least.
func durationText(d time.Duration) gateway.Duration {
	var text strings.Builder
	d = max(d.Truncate(time.Millisecond), time.Millisecond)
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}} {
		if n := d / unit.of; n > 0 {
			fmt.Fprintf(&text, "%d%s", n, unit.name)
			d -= n * unit.of
		}
	}
	return gateway.Duration(text.String())
}
