package source

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// ControllerName identifies the mesh in the status of routes.
const ControllerName gateway.GatewayController = "outrigger.openservicemesh.io/controller"

// ConditionPartiallyInvalid is True if some rules of a route, but not all, are answered
// with 500 or do not match.
const ConditionPartiallyInvalid = "PartiallyInvalid"

// droppedRule begins the message of ConditionPartiallyInvalid, as Gateway API demands.
const droppedRule = "Dropped Rule: what follows matches nothing, or is answered with 500\n"

// setParents writes the Problems of a route with the content to its status: one entry for each parent
// that is a Service or a Gateway of the mesh, with the conditions that Gateway API defines. Entries of
// other controllers stay.
func setParents(refs []gateway.ParentReference, status *gateway.RouteStatus, generation int64, content mesh.Digester, found *fact.Problems, now metav1.Time) (fresh []mesh.Problem, changed bool) {
	problems := found.List
	var former, next []gateway.RouteParentStatus
	for _, entry := range status.Parents {
		if entry.ControllerName == ControllerName {
			former = append(former, entry)
		} else {
			next = append(next, entry)
		}
	}
	others := len(next)
	for i, ref := range refs {
		if !isServiceParent(ref) && !isServiceWithoutGroup(ref) && !slices.Contains(found.Parents, i) {
			continue
		}
		entry := gateway.RouteParentStatus{ParentRef: ref, ControllerName: ControllerName}
		if at := slices.IndexFunc(former, func(f gateway.RouteParentStatus) bool { return equality.Semantic.DeepEqual(f.ParentRef, ref) }); at >= 0 {
			entry.Conditions = slices.Clone(former[at].Conditions)
		}
		setParentConditions(&entry.Conditions, i, problems, isDropped(content), generation, now)
		next = append(next, entry)
	}
	var said []metav1.Condition
	for _, entry := range former {
		said = append(said, entry.Conditions...)
	}
	changed = !equality.Semantic.DeepEqual(former, next[others:])
	if changed {
		status.Parents = next
	}
	return unsaid(said, problems), changed
}

// isDropped reports whether the route has rules, and none of them does what it says: each
// matches nothing, or answers 500 to all requests.
func isDropped(content mesh.Digester) bool {
	route, ok := content.(*fact.Route)
	return ok && route.Kind.IsHTTP() && len(route.Rules) > 0 &&
		!slices.ContainsFunc(route.Rules, func(rule fact.RouteRule) bool { return !rule.Unusable && len(rule.Matches) > 0 })
}

// setParentConditions sets the conditions for the parent with the index. A route that is
// dropped is not accepted.
func setParentConditions(conditions *[]metav1.Condition, parent int, problems []mesh.Problem, dropped bool, generation int64, now metav1.Time) {
	var refused, unresolved, partial, others []mesh.Problem
	const parents = "spec.parentRefs"
	for _, p := range problems {
		switch {
		case p.Field == index(parents, parent):
			refused = append(refused, p)
		case strings.HasPrefix(p.Field, parents):
		case slices.Contains([]string{fact.ReasonBackendNotFound, fact.ReasonInvalidKind, fact.ReasonRefNotPermitted, fact.ReasonUnsupportedBackend, fact.ReasonUnsupportedProtocol}, p.Reason):
			unresolved = append(unresolved, p)
		case slices.Contains([]string{fact.ReasonUnsupportedValue, fact.ReasonIncompatibleFilters, ReasonInvalid}, p.Reason):
			partial = append(partial, p)
		default:
			others = append(others, p)
		}
	}
	set := (conditionSet{conditions, generation, now}).set
	if dropped && len(refused) == 0 {
		refused, partial = partial, nil
	}
	if len(refused) > 0 {
		set(ConditionAccepted, false, refused[0].Reason, message(refused))
	} else if len(others) > 0 {
		set(ConditionAccepted, true, ConditionAccepted, message(others))
	} else {
		set(ConditionAccepted, true, ConditionAccepted, "the route is in use")
	}
	if len(unresolved) > 0 {
		set(string(gateway.RouteConditionResolvedRefs), false, unresolved[0].Reason, message(unresolved))
	} else {
		set(string(gateway.RouteConditionResolvedRefs), true, "ResolvedRefs", "every backend exists")
	}
	if len(partial) > 0 {
		set(ConditionPartiallyInvalid, true, partial[0].Reason, droppedRule+message(partial))
	} else {
		meta.RemoveStatusCondition(conditions, ConditionPartiallyInvalid)
	}
}
