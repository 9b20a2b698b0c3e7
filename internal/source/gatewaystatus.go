package source

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// setGatewayClass writes the status of a class of the mesh.
func setGatewayClass(obj client.Object, found *fact.Problems, now metav1.Time) (fresh []mesh.Problem, changed bool) {
	class := obj.(*gateway.GatewayClass)
	if class.Spec.ControllerName != ControllerName {
		return nil, false
	}
	former := class.Status.DeepCopy()
	c := conditionSet{&class.Status.Conditions, class.Generation, now}
	const accepted = string(gateway.GatewayClassConditionStatusAccepted)
	if len(found.List) > 0 {
		c.set(accepted, false, found.List[0].Reason, message(found.List))
	} else {
		c.set(accepted, true, accepted, "the mesh serves the gateways of this class")
	}
	class.Status.SupportedFeatures = supportedFeatures(found.Features)
	return unsaid(former.Conditions, found.List), !equality.Semantic.DeepEqual(former, &class.Status)
}

// setGateway writes the status of a Gateway of the mesh: its addresses, conditions and listeners.
func setGateway(obj client.Object, found *fact.Problems, now metav1.Time) (fresh []mesh.Problem, changed bool) {
	g, state := obj.(*gateway.Gateway), found.Gateway
	if state == nil {
		return nil, false
	}
	former := g.Status.DeepCopy()
	g.Status.Addresses = nil
	for _, address := range state.Addresses {
		kind := gateway.HostnameAddressType
		if _, err := netip.ParseAddr(address); err == nil {
			kind = gateway.IPAddressType
		}
		g.Status.Addresses = append(g.Status.Addresses, gateway.GatewayStatusAddress{Type: &kind, Value: address})
	}
	runs := state.Pods > 0 && len(state.Addresses) > 0
	listeners := make([]gateway.ListenerStatus, 0, len(g.Spec.Listeners))
	known := slices.Clone(former.Conditions)
	broken := 0
	for i := range g.Spec.Listeners {
		l := &g.Spec.Listeners[i]
		status := gateway.ListenerStatus{Name: l.Name, SupportedKinds: []gateway.RouteGroupKind{}}
		if at := slices.IndexFunc(former.Listeners, func(s gateway.ListenerStatus) bool { return s.Name == l.Name }); at >= 0 {
			status.Conditions = slices.Clone(former.Listeners[at].Conditions)
			known = append(known, status.Conditions...)
		}
		if i < len(state.Listeners) {
			status.AttachedRoutes = int32(state.Listeners[i].Routes)
			for _, kind := range state.Listeners[i].Kinds {
				group := gateway.Group(gateway.GroupName)
				status.SupportedKinds = append(status.SupportedKinds, gateway.RouteGroupKind{Group: &group, Kind: gateway.Kind(kind)})
			}
		}
		closed := i < len(state.Listeners) && state.Listeners[i].Closed
		if !setListener(conditionSet{&status.Conditions, g.Generation, now}, index("spec.listeners", i), found.List, runs, closed) {
			broken++
		}
		listeners = append(listeners, status)
	}
	g.Status.Listeners = listeners
	c := conditionSet{&g.Status.Conditions, g.Generation, now}
	others := slices.DeleteFunc(slices.Clone(found.List), func(p mesh.Problem) bool { return strings.HasPrefix(p.Field, "spec.listeners[") })
	const (
		accepted   = string(gateway.GatewayConditionAccepted)
		programmed = string(gateway.GatewayConditionProgrammed)
	)
	refused := slices.IndexFunc(others, func(p mesh.Problem) bool {
		return p.Reason == fact.ReasonUnsupportedAddress || p.Reason == fact.ReasonInvalidParameters || p.Field == "metadata.name"
	})
	usable := broken < len(g.Spec.Listeners)
	switch {
	case refused >= 0:
		c.set(accepted, false, others[refused].Reason, message(others))
	case !usable:
		c.set(accepted, false, string(gateway.GatewayReasonListenersNotValid), "no listener can be used")
	case broken > 0:
		c.set(accepted, true, string(gateway.GatewayReasonListenersNotValid), "some listeners cannot be used")
	case len(others) > 0:
		c.set(accepted, true, accepted, message(others))
	default:
		c.set(accepted, true, accepted, "the gateway is served by the mesh")
	}
	switch {
	case !usable:
		c.set(programmed, false, string(gateway.GatewayReasonInvalid), "no listener can be used")
	case state.Pods == 0:
		c.set(programmed, false, string(gateway.GatewayReasonNoResources), "there is no pod with a proxy of the mesh and the label "+fact.GatewayLabel+"="+g.Name)
	case len(state.Addresses) == 0:
		c.set(programmed, false, string(gateway.GatewayReasonAddressNotAssigned), "no Service with an address leads to the gateway's pods")
	default:
		c.set(programmed, true, programmed, "the proxies have the configuration")
	}
	return unsaid(known, found.List), !equality.Semantic.DeepEqual(former, &g.Status)
}

// setListener sets the conditions of a listener with the Problems of the field, and reports whether
// the listener can be used. A closed one has no certificate.
func setListener(c conditionSet, field string, problems []mesh.Problem, runs, closed bool) bool {
	var conflicts, refused, unresolved []mesh.Problem
	for _, p := range problems {
		switch {
		case p.Field != field && !strings.HasPrefix(p.Field, field+"."):
		case p.Reason == fact.ReasonHostnameConflict, p.Reason == fact.ReasonProtocolConflict:
			conflicts = append(conflicts, p)
		case p.Reason == fact.ReasonInvalidRouteKinds, p.Reason == fact.ReasonInvalidCertificateRef, p.Reason == fact.ReasonRefNotPermitted:
			unresolved = append(unresolved, p)
		default:
			refused = append(refused, p)
		}
	}
	const (
		accepted   = string(gateway.ListenerConditionAccepted)
		resolved   = string(gateway.ListenerConditionResolvedRefs)
		conflicted = string(gateway.ListenerConditionConflicted)
		programmed = string(gateway.ListenerConditionProgrammed)
	)
	if len(conflicts) > 0 {
		c.set(conflicted, true, conflicts[0].Reason, message(conflicts))
	} else {
		c.set(conflicted, false, string(gateway.ListenerReasonNoConflicts), "no other listener has the port and the hostname")
	}
	if refused = append(refused, conflicts...); len(refused) > 0 {
		c.set(accepted, false, listenerReason(refused[0].Reason), message(refused))
	} else {
		c.set(accepted, true, accepted, "the listener can be used")
	}
	if len(unresolved) > 0 {
		c.set(resolved, false, unresolved[0].Reason, message(unresolved))
	} else {
		c.set(resolved, true, resolved, "all that the listener refers to exists")
	}
	switch {
	case len(refused) > 0:
		c.set(programmed, false, string(gateway.ListenerReasonInvalid), "the listener cannot be used")
	case closed:
		c.set(programmed, false, string(gateway.ListenerReasonInvalid), "the listener has no certificate that can be used, so it takes no connections")
	case !runs:
		c.set(programmed, false, string(gateway.ListenerReasonPending), "the gateway has no pods or no address yet")
	default:
		c.set(programmed, true, programmed, "the proxies have the configuration")
	}
	return len(refused) == 0 && !closed
}

// listenerReason returns the reason that Gateway API defines for a Problem of a listener.
func listenerReason(reason string) string {
	if reason == ReasonInvalid {
		return string(gateway.ListenerReasonUnsupportedValue)
	}
	return reason
}

// conditionSet has the conditions of an object or of a part of it.
type conditionSet struct {
	list       *[]metav1.Condition
	generation int64
	now        metav1.Time
}

func (c conditionSet) set(kind string, holds bool, reason, text string) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(c.list, metav1.Condition{
		Type: kind, Status: status, Reason: cmp.Or(reason, kind), Message: text, ObservedGeneration: c.generation, LastTransitionTime: c.now,
	})
}

// unsaid returns the Problems that no message of the conditions contains.
func unsaid(conditions []metav1.Condition, problems []mesh.Problem) []mesh.Problem {
	var rest []mesh.Problem
	for _, p := range problems {
		if !slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return slices.Contains(strings.Split(c.Message, "\n"), line(p)) }) {
			rest = append(rest, p)
		}
	}
	return rest
}
