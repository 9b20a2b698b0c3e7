package source

import (
	"slices"

	access "github.com/outrigger-mesh/outrigger/apis/access/v1alpha3"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// accessRule returns nil for a rule that allows nothing.
func accessRule(obj *access.TrafficTarget, n *notes) mesh.Digester {
	rule := &fact.AccessRule{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta), Audit: n.audit(obj.Annotations)}
	spec := &obj.Spec
	destination, ok := n.serviceAccount("spec.destination", spec.Destination.Kind, spec.Destination.Namespace, spec.Destination.Name)
	if ok && destination.Namespace != obj.Namespace {
		n.add(ReasonOtherNamespace, "spec.destination.namespace",
			"%q is not the namespace of the TrafficTarget, so it allows nothing; move it to that namespace", destination.Namespace)
		ok = false
	}
	rule.Destination = destination
	for i, s := range spec.Sources {
		if source, ok := n.serviceAccount(index("spec.sources", i), s.Kind, s.Namespace, s.Name); ok {
			rule.Sources = append(rule.Sources, source)
		}
	}
	rule.Sources = unique(rule.Sources)
	n.needed("spec.sources", len(spec.Sources), "source, so it allows nothing")
	rule.Rules = n.accessRoutes(spec.Rules)
	if !ok || len(rule.Sources) == 0 || len(rule.Rules) == 0 {
		return nil
	}
	return mesh.Seal(rule)
}

// accessRoutes returns nil if an unusable rule may have been a TCPRoute, since its ports
// would have restricted the others.
func (n *notes) accessRoutes(rules []access.TrafficTargetRule) []fact.AccessRoutes {
	n.needed("spec.rules", len(rules), "rule, so it allows nothing")
	var routes []fact.AccessRoutes
	lost := false
	for i, rule := range rules {
		path := index("spec.rules", i)
		switch rule.Kind {
		case access.RuleHTTPRouteGroup:
		case access.RuleTCPRoute:
			if len(rule.Matches) > 0 {
				n.add(ReasonNoEffect, path+".matches", "%s", inertMessage("a TCPRoute is one match; remove it"))
			}
		case access.RuleUDPRoute:
			n.add(ReasonNotSupported, path+".kind", "the mesh does not handle %q, so the rule allows nothing; use %s or %s", string(rule.Kind), access.RuleHTTPRouteGroup, access.RuleTCPRoute)
			continue
		default:
			n.add(ReasonUnknownKind, path+".kind", "%q is not a kind of route, and a TCPRoute would restrict the other rules, so the TrafficTarget allows nothing; use %s or %s", string(rule.Kind), access.RuleHTTPRouteGroup, access.RuleTCPRoute)
			lost = true
			continue
		}
		if !isObjectName(rule.Name) {
			outcome := "the rule"
			if rule.Kind == access.RuleTCPRoute {
				outcome, lost = "the TrafficTarget", true
			}
			n.add(ReasonInvalid, path+".name", "%q is not the name of an object, so %s allows nothing", rule.Name, outcome)
			continue
		}
		route := fact.AccessRoutes{Kind: string(rule.Kind), Group: rule.Name}
		if rule.Kind == access.RuleHTTPRouteGroup {
			route.Matches = slices.Clone(rule.Matches)
		}
		routes = append(routes, route)
	}
	if lost {
		return nil
	}
	return routes
}
