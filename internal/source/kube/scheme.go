package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// Scheme returns a new scheme with the kinds that the control plane reads and
// writes.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha2.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // The kinds are compiled in, so it fails always or never.
		}
	}
	return scheme
}

// Mapper returns a mapper that knows the kinds which the control plane uses without
// asking the API server, so that one that is away, or has no MeshConfigs yet, stops
// nobody from starting.
func Mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"ConfigMap", "Event", "Pod"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	mapper.Add(v1alpha2.SchemeGroupVersion.WithKind("MeshConfig"), meta.RESTScopeNamespace)
	return mapper
}
