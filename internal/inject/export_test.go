package inject

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// RuleNames returns the names of the decision table's rules, in order.
func RuleNames() []string {
	var names []string
	for _, r := range rules {
		names = append(names, r.name)
	}
	return names
}

// ProbeFields returns the names of the fields that Kubernetes' types of probes and hooks have, and
// those that are known here.
func ProbeFields() map[string][2][]string {
	handlers := append(fieldNames[corev1.Probe](), fieldNames[corev1.LifecycleHandler]()...)
	slices.Sort(handlers)
	return map[string][2][]string{
		"HTTPGetAction":   {fieldNames[corev1.HTTPGetAction](), fieldNames[rawGet]()},
		"HTTPHeader":      {fieldNames[corev1.HTTPHeader](), fieldNames[rawHeader]()},
		"TCPSocketAction": {fieldNames[corev1.TCPSocketAction](), fieldNames[rawSocket]()},
		"GRPCAction":      {fieldNames[corev1.GRPCAction](), fieldNames[rawGRPC]()},
		"handlers":        {slices.Compact(handlers), fieldNames[rawHandlers]()},
	}
}

// fieldNames returns the sorted JSON names of the fields of T.
func fieldNames[T any]() []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
