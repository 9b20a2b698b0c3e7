package source

import (
	"cmp"
	"slices"
	"strings"

	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// tlsRoute returns nil for a route without a service or a gateway as parent.
func tlsRoute(obj *gateway.TLSRoute, n *notes) mesh.Digester {
	route := &fact.Route{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta), Kind: fact.TLSRoute}
	if !n.parents(route, obj.Spec.ParentRefs, new(laterFields)) {
		return nil
	}
	for i, hostname := range obj.Spec.Hostnames {
		host := strings.ToLower(string(hostname))
		if !isObjectName(strings.TrimPrefix(host, "*.")) {
			n.add(fact.ReasonUnsupportedValue, index("spec.hostnames", i), "%q is not a server name, so it is ignored; correct it", host)
			continue
		}
		route.Hosts = append(route.Hosts, host)
	}
	for i, rule := range obj.Spec.Rules {
		n.streamRule(route, i, rule.Name, rule.BackendRefs)
	}
	return mesh.Seal(route)
}

// gatewayTCPRoute returns nil for a route without a service or a gateway as parent.
func gatewayTCPRoute(obj *gateway.TCPRoute, n *notes) mesh.Digester {
	route := &fact.Route{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta), Kind: fact.TCPRoute}
	if !n.parents(route, obj.Spec.ParentRefs, new(laterFields)) {
		return nil
	}
	for i, rule := range obj.Spec.Rules {
		n.streamRule(route, i, rule.Name, rule.BackendRefs)
	}
	return mesh.Seal(route)
}

// streamRule adds a rule for connections. All connections match the first one.
func (n *notes) streamRule(route *fact.Route, i int, name *gateway.SectionName, backends []gateway.BackendRef) {
	path := index("spec.rules", i)
	if i > 0 {
		n.add(ReasonNoEffect, path, "all connections match the first rule; remove this one")
		return
	}
	rule := fact.RouteRule{Index: i, Name: string(deref(name, ""))}
	for k, b := range backends {
		rule.Backends = append(rule.Backends, n.routeBackend(index(path+".backendRefs", k), route.Namespace, b, nil, "its share of the connections is closed"))
	}
	route.Rules = append(route.Rules, rule)
}

// referenceGrant returns nil for a grant that is neither for routes and services nor for Gateways and
// Secrets.
func referenceGrant(obj *gateway.ReferenceGrant, _ *notes) mesh.Digester {
	grant := &fact.ReferenceGrant{Name: nameOf(&obj.ObjectMeta)}
	for _, from := range obj.Spec.From {
		if from.Group == gateway.GroupName && (from.Kind == kindGateway || slices.Contains(fact.RouteKinds(), fact.RouteKind(from.Kind))) {
			grant.From = append(grant.From, fact.Referrer{Kind: string(from.Kind), Namespace: string(from.Namespace)})
		}
	}
	for _, to := range obj.Spec.To {
		name := cmp.Or(string(deref(to.Name, "")), fact.AllNames)
		switch {
		case to.Group != "":
		case to.Kind == kindService:
			grant.Services = append(grant.Services, name)
		case to.Kind == kindSecret:
			grant.Secrets = append(grant.Secrets, name)
		}
	}
	if len(grant.From) == 0 || len(grant.Services)+len(grant.Secrets) == 0 {
		return nil
	}
	return mesh.Seal(grant)
}
