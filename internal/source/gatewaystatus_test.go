package source_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// conditionsOf returns "TYPE STATUS REASON" of each condition, sorted.
func conditionsOf(conditions []metav1.Condition) []string {
	var all []string
	for _, c := range conditions {
		all = append(all, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
	}
	slices.Sort(all)
	return all
}

// TestGatewayStatus writes what has been found of a gateway to its status, once.
func TestGatewayStatus(t *testing.T) {
	kind, _ := newMapper().KindOf(mesh.ObjectRef{APIVersion: "gateway.networking.k8s.io/v1", Kind: "Gateway"})
	good := []string{"Accepted True Accepted", "Conflicted False NoConflicts", "Programmed True Programmed", "ResolvedRefs True ResolvedRefs"}
	running := func(listeners ...fact.ListenerState) *fact.GatewayState {
		return &fact.GatewayState{Addresses: []string{"192.0.2.1", "lb.example.com"}, Pods: 1, Listeners: listeners}
	}
	one := fact.ListenerState{Routes: 2, Kinds: []fact.RouteKind{fact.HTTPRoute}}
	problem := func(reason, field string) mesh.Problem {
		return mesh.Problem{Reason: reason, Field: field, Message: "it is wrong"}
	}
	for _, tt := range []struct {
		name      string
		problems  []mesh.Problem
		state     *fact.GatewayState
		gateway   []string
		listeners [][]string
	}{
		{"another mesh's", nil, nil, nil, nil},
		{"all in order", nil, running(one, one), []string{"Accepted True Accepted", "Programmed True Programmed"}, [][]string{good, good}},
		{"no pods", nil, &fact.GatewayState{Addresses: []string{"192.0.2.1"}, Listeners: []fact.ListenerState{one, one}},
			[]string{"Accepted True Accepted", "Programmed False NoResources"},
			[][]string{{good[0], good[1], "Programmed False Pending", good[3]}, {good[0], good[1], "Programmed False Pending", good[3]}}},
		{"no address", nil, &fact.GatewayState{Pods: 1, Listeners: []fact.ListenerState{one, one}},
			[]string{"Accepted True Accepted", "Programmed False AddressNotAssigned"},
			[][]string{{good[0], good[1], "Programmed False Pending", good[3]}, {good[0], good[1], "Programmed False Pending", good[3]}}},
		{"a listener in conflict", []mesh.Problem{problem(fact.ReasonHostnameConflict, "spec.listeners[1]")}, running(one, one),
			[]string{"Accepted True ListenersNotValid", "Programmed True Programmed"},
			[][]string{good, {"Accepted False HostnameConflict", "Conflicted True HostnameConflict", "Programmed False Invalid", good[3]}}},
		{"no listener is left", []mesh.Problem{problem(fact.ReasonUnsupportedProtocol, "spec.listeners[0].protocol"), problem(source.ReasonInvalid, "spec.listeners[1].hostname")}, running(one, one),
			[]string{"Accepted False ListenersNotValid", "Programmed False Invalid"},
			[][]string{{"Accepted False UnsupportedProtocol", good[1], "Programmed False Invalid", good[3]}, {"Accepted False UnsupportedValue", good[1], "Programmed False Invalid", good[3]}}},
		{"kinds of routes", []mesh.Problem{problem(fact.ReasonInvalidRouteKinds, "spec.listeners[0].allowedRoutes.kinds[0]")}, running(one, one),
			[]string{"Accepted True Accepted", "Programmed True Programmed"}, [][]string{{good[0], good[1], good[2], "ResolvedRefs False InvalidRouteKinds"}, good}},
		{"a name that is too long", []mesh.Problem{problem(source.ReasonInvalid, "metadata.name")}, running(one, one),
			[]string{"Accepted False Invalid", "Programmed True Programmed"}, [][]string{good, good}},
		{"an address that is asked for", []mesh.Problem{problem(fact.ReasonUnsupportedAddress, "spec.addresses")}, running(one, one),
			[]string{"Accepted False UnsupportedAddress", "Programmed True Programmed"}, [][]string{good, good}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := &gateway.Gateway{Spec: gateway.GatewaySpec{Listeners: []gateway.Listener{{Name: "a"}, {Name: "b"}}}}
			found := &fact.Problems{List: tt.problems, Gateway: tt.state}
			fresh, changed := kind.SetGatewayStatus(g, found, metav1.NewTime(time.Unix(1700000000, 0)))
			if changed != (tt.state != nil) || len(fresh) != len(tt.problems) {
				t.Errorf("changed: %v, with the new Problems %v", changed, fresh)
			}
			if diff := cmp.Diff(tt.gateway, conditionsOf(g.Status.Conditions)); diff != "" {
				t.Errorf("the gateway (-want +got):\n%s", diff)
			}
			var listeners [][]string
			for _, l := range g.Status.Listeners {
				listeners = append(listeners, conditionsOf(l.Conditions))
				if l.AttachedRoutes != 2 || len(l.SupportedKinds) != 1 {
					t.Errorf("the listener %s has %d routes of %v", l.Name, l.AttachedRoutes, l.SupportedKinds)
				}
			}
			if diff := cmp.Diff(tt.listeners, listeners); diff != "" {
				t.Errorf("the listeners (-want +got):\n%s", diff)
			}
			if fresh, changed := kind.SetGatewayStatus(g, found, metav1.Now()); changed || len(fresh) > 0 {
				t.Errorf("a second time the status changes: %v, with the new Problems %v", changed, fresh)
			}
		})
	}
}

// TestGatewayClassStatus says in the status of a class what its gateways support, by what their proxies have.
func TestGatewayClassStatus(t *testing.T) {
	kind, _ := newMapper().KindOf(mesh.ObjectRef{APIVersion: "gateway.networking.k8s.io/v1", Kind: "GatewayClass"})
	without := func(lacks ...mesh.Feature) []mesh.Feature {
		return slices.DeleteFunc(mesh.Features(), func(f mesh.Feature) bool { return slices.Contains(lacks, f) })
	}
	for _, tt := range []struct {
		name  string
		found fact.Problems
		// has and lacks are some of the features that the status has and lacks.
		has, lacks []gateway.FeatureName
		accepted   string
	}{
		{"all features", fact.Problems{Features: mesh.Features()}, []gateway.FeatureName{"Gateway", "HTTPRoute", "HTTPRouteCORS", "GRPCRoute"}, []gateway.FeatureName{"UDPRoute", "Mesh"}, "Accepted True Accepted"},
		{"no CORS", fact.Problems{Features: without(mesh.FeatureCORS)}, []gateway.FeatureName{"Gateway", "HTTPRoute", "GRPCRoute"}, []gateway.FeatureName{"HTTPRouteCORS"}, "Accepted True Accepted"},
		{"no HTTP/2", fact.Problems{Features: without(mesh.FeatureHTTP2)}, []gateway.FeatureName{"Gateway", "HTTPRoute"}, []gateway.FeatureName{"GRPCRoute", "HTTPRouteBackendProtocolH2C"}, "Accepted True Accepted"},
		{"a proxy that is no gateway", fact.Problems{Features: without(mesh.FeatureGateways)}, nil, []gateway.FeatureName{"Gateway", "HTTPRoute"}, "Accepted True Accepted"},
		{"parameters", fact.Problems{List: []mesh.Problem{{Reason: fact.ReasonInvalidParameters, Message: "it is wrong"}}}, nil, []gateway.FeatureName{"Gateway"}, "Accepted False InvalidParameters"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			class := &gateway.GatewayClass{
				Spec:   gateway.GatewayClassSpec{ControllerName: source.ControllerName},
				Status: gateway.GatewayClassStatus{SupportedFeatures: []gateway.SupportedFeature{{Name: "Former"}}},
			}
			kind.SetGatewayStatus(class, &tt.found, metav1.NewTime(time.Unix(1700000000, 0)))
			var names []gateway.FeatureName
			for _, feature := range class.Status.SupportedFeatures {
				names = append(names, feature.Name)
			}
			for _, name := range tt.has {
				if !slices.Contains(names, name) {
					t.Errorf("the status lacks %s: %s", name, names)
				}
			}
			for _, name := range append(tt.lacks, "Former") {
				if slices.Contains(names, name) {
					t.Errorf("the status has %s", name)
				}
			}
			if !slices.IsSorted(names) {
				t.Errorf("the names are not sorted: %s", names)
			}
			if diff := cmp.Diff([]string{tt.accepted}, conditionsOf(class.Status.Conditions)); diff != "" {
				t.Errorf("the conditions (-want +got):\n%s", diff)
			}
			if _, changed := kind.SetGatewayStatus(class, &tt.found, metav1.Now()); changed {
				t.Error("a second time the status changes")
			}
		})
	}
}
