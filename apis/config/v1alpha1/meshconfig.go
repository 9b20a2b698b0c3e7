package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// MeshConfig is the configuration of one mesh. It is the older version of the same type
// in v1alpha2.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:deprecatedversion:warning="config.openservicemesh.io/v1alpha1 is deprecated; change apiVersion to config.openservicemesh.io/v1alpha2, the fields are the same"
// +kubebuilder:resource:path=meshconfigs,singular=meshconfig,shortName=meshconfig,scope=Namespaced
// +kubebuilder:printcolumn:name="Class",type=string,JSONPath=`.spec.sidecar.sidecarClass`
// +kubebuilder:printcolumn:name="Permissive",type=boolean,JSONPath=`.spec.traffic.enablePermissiveTrafficPolicyMode`
// +kubebuilder:printcolumn:name="Inbound-TLS",type=string,JSONPath=`.spec.traffic.inboundTLSMode`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MeshConfig struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is the desired configuration.
	// +optional
	// +kubebuilder:default={}
	Spec v1alpha2.MeshConfigSpec `json:"spec,omitzero"`

	// Status is the controller's report about the spec.
	// +optional
	Status v1alpha2.MeshConfigStatus `json:"status,omitzero"`
}

// MeshConfigList is a list of MeshConfigs.
//
// +kubebuilder:object:root=true
type MeshConfigList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []MeshConfig `json:"items"`
}
