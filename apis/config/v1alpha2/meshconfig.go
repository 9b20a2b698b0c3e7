package v1alpha2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MeshConfig is the configuration of one mesh. The control plane reads a single object,
// which its options name.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
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
	Spec MeshConfigSpec `json:"spec,omitzero"`

	// Status is the controller's report about the spec.
	// +optional
	Status MeshConfigStatus `json:"status,omitzero"`
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

// MeshConfigSpec is the desired configuration of the mesh.
type MeshConfigSpec struct {
	// ClusterSet identifies the cluster within a set of clusters (osm-edge).
	// +optional
	ClusterSet ClusterSetSpec `json:"clusterSet,omitzero"`

	// Sidecar configures the sidecars and chooses their driver.
	// +optional
	// +kubebuilder:default={}
	Sidecar SidecarSpec `json:"sidecar,omitzero"`

	// RepoServer is the address of a Pipy repository outside the controller (osm-edge).
	// +optional
	RepoServer RepoServerSpec `json:"repoServer,omitzero"`

	// Traffic configures which traffic the sidecars capture and allow.
	// +optional
	// +kubebuilder:default={}
	Traffic TrafficSpec `json:"traffic,omitzero"`

	// Observability configures logs, traces and debug pages.
	// +optional
	Observability ObservabilitySpec `json:"observability,omitzero"`

	// Certificate configures the identities of workloads and their certificates.
	// +optional
	// +kubebuilder:default={}
	Certificate CertificateSpec `json:"certificate,omitzero"`

	// FeatureFlags turns optional parts of the mesh on and off.
	// +optional
	FeatureFlags FeatureFlags `json:"featureFlags,omitzero"`

	// PluginChains lists the modules of osm-edge's Pipy scripts.
	// +optional
	PluginChains PluginChainsSpec `json:"pluginChains,omitzero"`
}

// MeshConfigStatus is the controller's report about the spec.
type MeshConfigStatus struct {
	// ObservedGeneration is the metadata.generation that the conditions refer to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions say whether the configuration is in use and which of its fields
	// are wrong or have no effect.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
