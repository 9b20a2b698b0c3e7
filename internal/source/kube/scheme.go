package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/outrigger-mesh/outrigger/internal/source"
)

// Scheme returns a new scheme with all kinds that the control plane uses.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, kind := range source.Kinds() {
		kind.AddToScheme(scheme)
	}
	return scheme
}

// Mapper returns a mapper for the kinds that the control plane uses. It does not query
// the API server, so an API server that is down or lacks CRDs does not prevent startup.
func Mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"ConfigMap", "Event"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	for _, kind := range source.Kinds() {
		kind.AddToMapper(mapper)
	}
	return mapper
}
