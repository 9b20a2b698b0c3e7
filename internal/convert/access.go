package convert

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	outrigger "github.com/outrigger-mesh/outrigger/apis/outrigger/v1alpha1"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The limits of lists in the CRD of AccessPolicies.
const (
	mostAccessRules = 32
	mostSources     = 64
	mostRequests    = 16
	mostPorts       = 64
)

// AccessPolicies returns AccessPolicies that allow what TrafficTargets and IngressBackends allow, and
// those that mean the same as objects of other meshes, all sorted by namespace, kind and name, and
// Notes. What of a TrafficTarget or IngressBackend no AccessPolicy can say is left out, so that a
// policy never allows more, and there is a Note that says to keep the object. An object of another mesh
// of which a policy cannot say everything gets none. The Snapshot must be that of the facts: its
// Views have the protocols of the workloads' ports.
func AccessPolicies(s *fact.Snapshot, facts []fact.Fact, others []*unstructured.Unstructured) ([]*unstructured.Unstructured, []Note) {
	c := &accessConverter{
		policies: newPolicies(),
		http:     map[mesh.Name]*fact.RouteGroup{}, tcp: map[mesh.Name]*fact.RouteGroup{}, objects: map[mesh.Digester]mesh.ObjectRef{},
		ports: map[fact.ServiceAccount]map[uint16]mesh.Protocol{},
	}
	for _, view := range s.Views.All() {
		account := fact.ServiceAccount{Namespace: view.Proxy.Identity.Namespace, Name: view.Proxy.Identity.ServiceAccount}
		if c.ports[account] == nil {
			c.ports[account] = map[uint16]mesh.Protocol{}
		}
		for _, p := range view.Inbound.Ports {
			if former := c.ports[account][p.Port]; !former.IsHTTP() {
				c.ports[account][p.Port] = p.Protocol
			}
		}
	}
	var targets []*fact.AccessRule
	var ingresses []*fact.IngressRule
	for _, f := range facts {
		if f.Content == nil {
			continue
		}
		c.objects[f.Content] = f.Object
		switch content := f.Content.(type) {
		case *fact.RouteGroup:
			if content.TCP != nil {
				c.tcp[content.Name] = content
			} else {
				c.http[content.Name] = content
			}
		case *fact.AccessRule:
			targets = append(targets, content)
		case *fact.IngressRule:
			ingresses = append(ingresses, content)
		case *fact.AccessPolicy:
			c.policies.taken[content.Name] = true
		case *mesh.Settings:
			if content.PermissivePolicy {
				c.note(content, "", "the mesh is in permissive traffic policy mode, where TrafficTargets refuse nothing; AccessPolicies close the pods that they target, so apply them when you want that, or with action: Audit first")
			}
		}
	}
	slices.SortFunc(targets, func(a, b *fact.AccessRule) int { return a.Name.Compare(b.Name) })
	slices.SortFunc(ingresses, func(a, b *fact.IngressRule) int { return a.Name.Compare(b.Name) })
	for _, target := range targets {
		c.target(target)
	}
	for _, ingress := range ingresses {
		c.ingress(ingress)
	}
	c.otherMeshes(others)
	return c.sorted()
}

type accessConverter struct {
	*policies
	// http are the HTTPRouteGroups, and tcp the TCPRoutes.
	http, tcp map[mesh.Name]*fact.RouteGroup

	objects map[mesh.Digester]mesh.ObjectRef
	// ports has the protocol of each port of a service account's pods: HTTP if it is that of one.
	ports map[fact.ServiceAccount]map[uint16]mesh.Protocol
}

func (c *accessConverter) note(of mesh.Digester, field, format string, args ...any) {
	c.policies.note(c.objects[of], field, format, args...)
}

// target converts a TrafficTarget.
func (c *accessConverter) target(rule *fact.AccessRule) {
	if rule.Audit {
		c.note(rule, "metadata.annotations", "its audit has no equal in a policy that allows; annotate the namespace with openservicemesh.io/default-access: audit")
	}
	var sources []outrigger.AccessSource
	for _, source := range rule.Sources {
		sources = append(sources, accountOf(source.Namespace, source.Name))
	}
	var matches []gateway.HTTPRouteMatch
	var ports []uint16
	byPort, anyPort := false, false
	for i, routes := range rule.Rules {
		field := fmt.Sprintf("spec.rules[%d]", i)
		in, isTCP := c.http, routes.Kind == "TCPRoute"
		if isTCP {
			in, byPort = c.tcp, true
		}
		group := in[mesh.Name{Namespace: rule.Namespace, Name: routes.Group}]
		switch {
		case group == nil:
			c.note(rule, field, "there is no %s %s/%s among the objects, so nothing is allowed by it", routes.Kind, rule.Namespace, routes.Group)
		case isTCP:
			anyPort = anyPort || len(group.TCP.Ports) == 0
			ports = append(ports, group.TCP.Ports...)
		default:
			matches = append(matches, c.requests(rule, group, routes.Matches)...)
		}
	}
	target := outrigger.AccessTarget{Kind: "ServiceAccount", Name: rule.Destination.Name}
	if !byPort {
		var rules []outrigger.AccessRule
		if len(matches) > 0 {
			rules = rulesOf(sources, nil, matches)
		}
		c.write(rule, rule.Name, target, rules)
		return
	}
	known := c.ports[rule.Destination]
	if anyPort {
		for port, protocol := range known {
			if !protocol.IsHTTP() {
				ports = append(ports, port)
			}
		}
		c.note(rule, "spec.rules", "a TCPRoute without ports allows connections to all ports without HTTP, and a policy names its ports: it has those that services and policies name today; add others by hand")
	}
	slices.Sort(ports)
	ports = slices.Compact(ports)
	var connections []uint16
	for _, port := range ports {
		if !known[port].IsHTTP() {
			connections = append(connections, port)
		}
		if _, ok := known[port]; !ok {
			c.note(rule, "spec.rules", "no service of the pods of %s leads to port %d, so it is taken for a port without HTTP; if it gets one, all requests are allowed there", rule.Destination, port)
		}
	}
	var rules []outrigger.AccessRule
	if len(connections) > 0 {
		rules = rulesOf(sources, connections, nil)
	}
	switch {
	case len(matches) == 0:
	case anyPort:
		rules = append(rules, rulesOf(sources, nil, matches)...)
	case len(ports) > 0:
		rules = append(rules, rulesOf(sources, ports, matches)...)
	}
	c.write(rule, rule.Name, target, rules)
}

// requests returns the matches of an HTTPRouteGroup, or those of some names.
func (c *accessConverter) requests(of mesh.Digester, group *fact.RouteGroup, names []string) []gateway.HTTPRouteMatch {
	var matches []gateway.HTTPRouteMatch
	for _, m := range group.HTTP {
		if len(names) > 0 && !slices.Contains(names, m.Name) {
			continue
		}
		if why := unwritable(m.HTTPMatch); why != "" {
			c.note(of, "", "keep it: the match %s of HTTPRouteGroup %s %s", m.Name, group.Name, why)
			continue
		}
		for _, one := range matchesOf(m.HTTPMatch) {
			matches = append(matches, one.HTTPRouteMatch)
		}
	}
	return matches
}

// ingress converts an IngressBackend that allows ranges of addresses.
func (c *accessConverter) ingress(rule *fact.IngressRule) {
	var sources []outrigger.AccessSource
	for _, source := range rule.Sources {
		if source.Range == (netip.Prefix{}) {
			c.note(rule, "spec.sources", "keep it: a policy has ranges of addresses for callers outside the mesh, and neither Services nor principals")
			return
		}
		sources = append(sources, outrigger.AccessSource{IPBlock: source.Range.String()})
	}
	var matches []gateway.HTTPRouteMatch
	for _, name := range rule.Groups {
		if group := c.http[mesh.Name{Namespace: rule.Namespace, Name: name}]; group != nil {
			matches = append(matches, c.requests(rule, group, nil)...)
		}
	}
	if len(sources) == 0 || len(rule.Groups) > 0 && len(matches) == 0 {
		c.note(rule, "", "it allows nothing, so it gets no policy")
		return
	}
	for i, backend := range rule.Backends {
		field := fmt.Sprintf("spec.backends[%d]", i)
		if backend.TLS {
			c.note(rule, field, "keep it: a policy allows plaintext only from outside the mesh")
			continue
		}
		c.write(rule, rule.Name, outrigger.AccessTarget{Kind: "Service", Name: backend.Service}, rulesOf(sources, []uint16{backend.Port}, matches))
	}
}

// rulesOf returns rules with as many elements as the CRD allows. There must be a source, since none
// would mean everybody. No ports and no matches mean all.
func rulesOf(sources []outrigger.AccessSource, ports []uint16, matches []gateway.HTTPRouteMatch) []outrigger.AccessRule {
	var numbers []int32
	for _, port := range ports {
		numbers = append(numbers, int32(port))
	}
	var rules []outrigger.AccessRule
	for some := range chunks(sources, mostSources) {
		for at := range chunks(numbers, mostPorts) {
			for http := range chunks(matches, mostRequests) {
				rules = append(rules, outrigger.AccessRule{Sources: some, Ports: at, HTTP: http})
			}
		}
	}
	return rules
}

// chunks yields parts of a list, and the list itself if it is empty.
func chunks[T any](list []T, most int) func(func([]T) bool) {
	return func(yield func([]T) bool) {
		if len(list) == 0 {
			yield(nil)
			return
		}
		slices.Chunk(list, most)(yield)
	}
}

// write adds as many policies as the rules need.
func (c *accessConverter) write(of mesh.Digester, name mesh.Name, target outrigger.AccessTarget, rules []outrigger.AccessRule) {
	if len(rules) == 0 {
		c.note(of, "", "it allows nothing, so it gets no policy")
		return
	}
	c.policies.write(name, outrigger.AccessPolicySpec{TargetRefs: []outrigger.AccessTarget{target}, Action: outrigger.ActionAllow, Rules: rules})
}
