package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/outrigger-mesh/outrigger/internal/source"
)

// Scheme returns a new scheme with the kinds that the control plane reads and
// writes.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, kind := range source.Kinds() {
		kind.AddToScheme(scheme)
	}
	return scheme
}

// Mapper returns a mapper that knows the kinds which the control plane uses without
// asking the API server, so that one that is away, or has no CRDs yet, stops nobody
// from starting.
func Mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"ConfigMap", "Event"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range source.Kinds() {
		mapper.Add(kind.GroupVersionKind, kind.Scope())
	}
	return mapper
}
