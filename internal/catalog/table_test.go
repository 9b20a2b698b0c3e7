package catalog

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestInputs checks that every kind of objects with facts has an input. Without it the
// facts would have no effect.
func TestInputs(t *testing.T) {
	inputs := newJoin(Options{Features: features}).inputs
	for _, kind := range source.Kinds() {
		name := mesh.ObjectRef{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind}.FullKind()
		if _, hasFacts := source.Ref(kind.New()); hasFacts && inputs[name] == nil {
			t.Errorf("kind %s has facts in internal/source, but no input in newJoin", name)
		}
		delete(inputs, name)
	}
	// Of the ConfigMaps only those of one name have facts, so they are not a kind.
	if learned, _ := source.Learned(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fact.LearnedName}}); inputs[learned.Object.FullKind()] == nil {
		t.Errorf("newJoin has no input for %s", learned.Object)
	} else {
		delete(inputs, learned.Object.FullKind())
	}
	// The input of ConfigMaps takes the keys of tokens too, under their own name.
	j := newJoin(Options{Features: features})
	keys, _ := source.TokenKeys(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fact.TokenKeysName}})
	j.set(keys)
	if j.tokenKeys.Current(mesh.Name{Namespace: "shop", Name: fact.TokenKeysName}) == nil {
		t.Errorf("newJoin has no input for %s", keys.Object)
	}
	// Nor are Secrets, of which only those of one type have facts.
	delete(inputs, source.SecretRef(mesh.Name{}).FullKind())
	// Nor are keys that were fetched.
	delete(inputs, fact.KeyAddress{}.Object().FullKind())
	for name := range inputs {
		t.Errorf("newJoin has an input for kind %s, which internal/source does not have", name)
	}
}

// TestPolicyFields checks that every feature that an UpstreamPolicy can require has the
// field of UpstreamTrafficSetting that asks for it. Without it the Problem would name no field.
func TestPolicyFields(t *testing.T) {
	policy := mesh.UpstreamPolicy{
		MaxConnections: new(uint32(1)), MaxRequests: new(uint32(1)), MaxPendingRequests: new(uint32(1)), MaxRetries: new(uint32(1)),
		RequestsPerConnection: 1, ConnectTimeout: 1, RequestTimeout: 1, IdleTimeout: 1, Ejection: &mesh.Ejection{},
		LoadBalancing: mesh.LoadBalancing{PreferZone: true},
	}
	for field, value := range reflect.ValueOf(policy).Fields() {
		if value.IsZero() {
			t.Errorf("the test does not set the field %s of UpstreamPolicy", field.Name)
		}
	}
	required := map[mesh.Feature]bool{}
	for _, balancing := range []mesh.LoadBalancingPolicy{mesh.RoundRobin, mesh.LeastRequest, mesh.Random, mesh.RingHash, mesh.Maglev} {
		policy.LoadBalancing.Policy = balancing
		for _, feature := range policy.Needs() {
			required[feature] = true
			if policyFields[feature] == "" {
				t.Errorf("policyFields has no field for %s", feature)
			}
		}
	}
	for feature := range policyFields {
		if !required[feature] {
			t.Errorf("policyFields has %s, which no UpstreamPolicy requires", feature)
		}
	}
}
