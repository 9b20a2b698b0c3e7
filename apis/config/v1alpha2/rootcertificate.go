package v1alpha2

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MeshRootCertificate is a root of the mesh's certificates together with its issuer. The
// control plane reads those in its own namespace. By default it signs with its own CA.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=meshrootcertificates,singular=meshrootcertificate,shortName=mrc,scope=Namespaced
// +kubebuilder:printcolumn:name="Intent",type=string,JSONPath=`.spec.intent`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Signing",type=string,JSONPath=`.status.conditions[?(@.type=="Signing")].status`
// +kubebuilder:printcolumn:name="Trusted",type=string,JSONPath=`.status.conditions[?(@.type=="Trusted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MeshRootCertificate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is the desired state of the root.
	Spec MeshRootCertificateSpec `json:"spec"`

	// Status is the actual state of the root.
	// +optional
	Status MeshRootCertificateStatus `json:"status,omitzero"`
}

// MeshRootCertificateList is a list of MeshRootCertificates.
//
// +kubebuilder:object:root=true
type MeshRootCertificateList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []MeshRootCertificate `json:"items"`
}

// MeshRootCertificateSpec is the desired state of a root.
type MeshRootCertificateSpec struct {
	// Provider is the issuer.
	Provider ProviderSpec `json:"provider"`

	// TrustDomain is the trust domain of the identities in Open Service Mesh. Outrigger
	// uses that of the MeshConfig; a different one here has no effect.
	// +optional
	TrustDomain string `json:"trustDomain,omitempty"`

	// Intent is active for a root that signs and is trusted, and passive for one that is
	// only trusted. If several are active, the oldest signs.
	Intent MeshRootCertificateIntent `json:"intent"`

	// SpiffeEnabled enabled SPIFFE IDs in Open Service Mesh. Outrigger's certificates
	// always have them.
	// +optional
	SpiffeEnabled bool `json:"spiffeEnabled,omitempty"`
}

// MeshRootCertificateIntent is the purpose of a root.
//
// +kubebuilder:validation:Enum=active;passive
type MeshRootCertificateIntent string

const (
	// IntentActive is for a root that signs and is trusted.
	IntentActive MeshRootCertificateIntent = "active"
	// IntentPassive is for a root that is only trusted.
	IntentPassive MeshRootCertificateIntent = "passive"
)

// ProviderSpec selects one of several kinds of CA.
//
// +kubebuilder:validation:XValidation:rule="[has(self.tresor), has(self.certManager), has(self.vault)].exists_one(set, set)",message="exactly one of tresor, certManager and vault is needed"
type ProviderSpec struct {
	// CertManager signs with cert-manager.
	// +optional
	CertManager *CertManagerProviderSpec `json:"certManager,omitempty"`

	// Vault signs with HashiCorp Vault or OpenBao.
	// +optional
	Vault *VaultProviderSpec `json:"vault,omitempty"`

	// Tresor signs with a CA of the control plane.
	// +optional
	Tresor *TresorProviderSpec `json:"tresor,omitempty"`
}

// CertManagerProviderSpec refers to an issuer of cert-manager.
type CertManagerProviderSpec struct {
	// IssuerName is the issuer's name.
	// +kubebuilder:validation:MinLength=1
	IssuerName string `json:"issuerName"`

	// IssuerKind is Issuer, in the control plane's namespace, or ClusterIssuer, or a
	// kind of IssuerGroup. Empty means Issuer.
	// +optional
	IssuerKind string `json:"issuerKind,omitempty"`

	// IssuerGroup is the API group of the issuer's kind. Empty means cert-manager.io.
	// +optional
	IssuerGroup string `json:"issuerGroup,omitempty"`
}

// VaultProviderSpec refers to a role of a PKI secrets engine.
type VaultProviderSpec struct {
	// Host is the server's name or address.
	// +kubebuilder:validation:MinLength=1
	Host string `json:"host"`

	// Port is the server's port. 0 means 8200.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// Role is the role of the PKI secrets engine, which must be mounted at pki.
	// +kubebuilder:validation:MinLength=1
	Role string `json:"role"`

	// Protocol is http or https. Empty means https.
	// +optional
	// +kubebuilder:validation:Enum=http;https;""
	Protocol string `json:"protocol,omitempty"`

	// Token is the token that the control plane logs in with.
	Token VaultTokenSpec `json:"token"`
}

// VaultTokenSpec refers to a token.
type VaultTokenSpec struct {
	// SecretKeyRef is the key of a Secret.
	SecretKeyRef SecretKeyReferenceSpec `json:"secretKeyRef"`
}

// SecretKeyReferenceSpec refers to a key of a Secret.
type SecretKeyReferenceSpec struct {
	// Name is the Secret's name.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// Key is the key within the Secret.
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key"`

	// Namespace must be the control plane's, which is also the default.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// TresorProviderSpec is the control plane's own CA.
type TresorProviderSpec struct {
	// CA is where the CA is stored.
	// +optional
	CA TresorCASpec `json:"ca,omitzero"`
}

// TresorCASpec is where a CA is stored.
type TresorCASpec struct {
	// SecretRef refers to a Secret in the control plane's namespace with ca.crt and ca.key
	// (or private.key, as in Open Service Mesh). If it does not exist, it is created with
	// a new CA. The name defaults to outrigger-ca-bundle.
	// +optional
	SecretRef corev1.SecretReference `json:"secretRef,omitzero"`
}

// MeshRootCertificateStatus is the actual state of a root. Other fields of Open Service
// Mesh are accepted and ignored.
//
// +kubebuilder:pruning:PreserveUnknownFields
type MeshRootCertificateStatus struct {
	// State is active for the root that signs, passive for other trusted roots, and error
	// for those that cannot be used.
	// +optional
	State string `json:"state,omitempty"`

	// ObservedGeneration is the metadata.generation that the conditions refer to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions say whether the root can be used, is trusted and signs.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
