package drivertest

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestRandomView checks that every text of a View is the given one with some seed, and that
// equal seeds give equal Views.
func TestRandomView(t *testing.T) {
	filled := make(map[string]bool)
	for seed := range uint64(50) {
		f := &filler{rand: rand.New(rand.NewPCG(seed, 1)), text: "hostile", filled: filled}
		if f.view().Digest() != RandomView("hostile", seed).Digest() {
			t.Error("the same seed gave another View")
		}
	}
	seen := make(map[reflect.Type]bool)
	var visit func(reflect.Type, string)
	visit = func(of reflect.Type, field string) {
		if _, ok := choices[of]; ok {
			return
		}
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice:
			visit(of.Elem(), field)
		case reflect.String:
			if !filled[field] {
				t.Errorf("no View has the text in %s", field)
			}
		case reflect.Struct:
			if seen[of] {
				return
			}
			seen[of] = true
			for f := range of.Fields() {
				if f.IsExported() || f.Anonymous {
					visit(f.Type, of.Name()+"."+f.Name)
				}
			}
		}
	}
	for _, part := range []any{mesh.Proxy{}, mesh.Settings{}, mesh.Inbound{}, mesh.Egress{}, mesh.Destination{}, mesh.Backend{}} {
		visit(reflect.TypeOf(part), "")
	}
	if len(seen) < 30 {
		t.Errorf("only %d types were seen", len(seen))
	}
}
