package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// SchemeGroupVersion is the group and version of the types in this package.
var SchemeGroupVersion = schema.GroupVersion{Group: v1alpha2.GroupName, Version: "v1alpha1"}

// Resource returns the name of a resource of this group, for errors and RBAC; for
// MeshConfig the resource is "meshconfigs".
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

// AddToScheme makes the types of this package known to a scheme. It never returns
// an error; it has one to fit runtime.SchemeBuilder.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &MeshConfig{}, &MeshConfigList{})
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
