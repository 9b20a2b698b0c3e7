package check

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// gatewayWith returns a Gateway with conditions such as "Accepted True", and a listener that has them too.
func gatewayWith(namespace string, conditions ...string) unstructured.Unstructured {
	var all []any
	for _, c := range conditions {
		kind, status, _ := strings.Cut(c, " ")
		all = append(all, map[string]any{"type": kind, "status": status, "reason": "AddressNotAssigned", "message": "no Service leads to it"})
	}
	return unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": namespace, "name": "door"},
		"status":   map[string]any{"conditions": all, "listeners": []any{map[string]any{"name": "http", "conditions": append([]any(nil), all...)}}},
	}}
}

var brokenGateways = []brokenMesh{
	{"gateways/programmed", "without an address", func(_ *testing.T, f *Facts) {
		f.gateways.value[0] = gatewayWith("shop", "Accepted True", "Programmed False")
	},
		Finding{"", Error, "Gateway/shop/door", "AddressNotAssigned: no Service leads to it; listener http: AddressNotAssigned", "kubectl describe gateway door -n shop"}},
	{"gateways/programmed", "not seen", func(_ *testing.T, f *Facts) { f.gateways.value[0] = gatewayWith("shop") },
		Finding{"", Error, "Gateway/shop/door", "it has no conditions", "kubectl describe gateway door -n shop"}},
	{"gateways/programmed", "a listener in conflict", func(_ *testing.T, f *Facts) {
		f.gateways.value[0] = gatewayWith("shop", "Accepted True", "Programmed True", "Conflicted True")
	},
		Finding{"", Error, "Gateway/shop/door", "listener http: AddressNotAssigned", "kubectl describe gateway door -n shop"}},
	{"gateways/programmed", "outside the mesh", func(_ *testing.T, f *Facts) {
		f.gateways.value = append(f.gateways.value, gatewayWith("elsewhere", "Accepted True"))
	},
		Finding{"", Warning, "Gateway/elsewhere/door", "its namespace is not in the mesh", "outrigger namespace add elsewhere"}},
}
