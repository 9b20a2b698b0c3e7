package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of the mesh's configuration.
const GroupName = "config.openservicemesh.io"

// SchemeGroupVersion is the group and version of the types in this package.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha2"}

// Resource returns the name of a resource of this group, for errors and RBAC; for
// MeshConfig the resource is "meshconfigs".
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

// AddToScheme makes the types of this package known to a scheme. It never returns
// an error; it has one to fit runtime.SchemeBuilder.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &MeshConfig{}, &MeshConfigList{}, &MeshRootCertificate{}, &MeshRootCertificateList{})
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
