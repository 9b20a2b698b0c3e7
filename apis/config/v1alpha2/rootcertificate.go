package v1alpha2

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MeshRootCertificate is a root of the mesh's certificates and who signs with it. The
// control plane reads those in its own namespace. Without any it signs with a CA of
// its own making.
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

	// Spec is what the user wants of the root.
	Spec MeshRootCertificateSpec `json:"spec"`

	// Status is what has become of it.
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

// MeshRootCertificateSpec is what the user wants of a root.
type MeshRootCertificateSpec struct {
	// Provider is who signs.
	Provider ProviderSpec `json:"provider"`

	// TrustDomain is that of the identities in Open Service Mesh. In Outrigger it is
	// the MeshConfig's, and another one here has no effect.
	// +optional
	TrustDomain string `json:"trustDomain,omitempty"`

	// Intent is active for a root that signs and is trusted, passive for one that is
	// only trusted. Of several active ones the oldest signs.
	Intent MeshRootCertificateIntent `json:"intent"`

	// SpiffeEnabled asked Open Service Mesh for SPIFFE IDs. Outrigger's certificates
	// always have them.
	// +optional
	SpiffeEnabled bool `json:"spiffeEnabled,omitempty"`
}

// MeshRootCertificateIntent is what a root is for.
//
// +kubebuilder:validation:Enum=active;passive
type MeshRootCertificateIntent string

const (
	// IntentActive is for a root that signs and is trusted.
	IntentActive MeshRootCertificateIntent = "active"
	// IntentPassive is for a root that is only trusted.
	IntentPassive MeshRootCertificateIntent = "passive"
)

// ProviderSpec is one of several kinds of CA.
//
// +kubebuilder:validation:XValidation:rule="[has(self.tresor), has(self.certManager), has(self.vault)].exists_one(set, set)",message="exactly one of tresor, certManager and vault is needed"
type ProviderSpec struct {
	// CertManager has cert-manager sign.
	// +optional
	CertManager *CertManagerProviderSpec `json:"certManager,omitempty"`

	// Vault has HashiCorp Vault or OpenBao sign.
	// +optional
	Vault *VaultProviderSpec `json:"vault,omitempty"`

	// Tresor has the control plane itself sign.
	// +optional
	Tresor *TresorProviderSpec `json:"tresor,omitempty"`
}

// CertManagerProviderSpec names an issuer of cert-manager.
type CertManagerProviderSpec struct {
	// IssuerName is its name.
	// +kubebuilder:validation:MinLength=1
	IssuerName string `json:"issuerName"`

	// IssuerKind is Issuer, in the control plane's namespace, or ClusterIssuer, or a
	// kind of IssuerGroup. Empty means Issuer.
	// +optional
	IssuerKind string `json:"issuerKind,omitempty"`

	// IssuerGroup is the API group of its kind. Empty means cert-manager.io.
	// +optional
	IssuerGroup string `json:"issuerGroup,omitempty"`
}

// VaultProviderSpec names a role of a PKI secrets engine.
type VaultProviderSpec struct {
	// Host is the server's name or address.
	// +kubebuilder:validation:MinLength=1
	Host string `json:"host"`

	// Port is the server's. 0 means 8200.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// Role is the role of the PKI secrets engine that is mounted at pki.
	// +kubebuilder:validation:MinLength=1
	Role string `json:"role"`

	// Protocol is http or https. Empty means https.
	// +optional
	// +kubebuilder:validation:Enum=http;https;""
	Protocol string `json:"protocol,omitempty"`

	// Token is what the control plane logs in with.
	Token VaultTokenSpec `json:"token"`
}

// VaultTokenSpec says where a token is.
type VaultTokenSpec struct {
	// SecretKeyRef is the key of a Secret.
	SecretKeyRef SecretKeyReferenceSpec `json:"secretKeyRef"`
}

// SecretKeyReferenceSpec names a key of a Secret.
type SecretKeyReferenceSpec struct {
	// Name is the Secret's.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// Key is the key within it.
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key"`

	// Namespace is the control plane's, which empty means too.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// TresorProviderSpec is the control plane's own CA.
type TresorProviderSpec struct {
	// CA says where the CA is kept.
	// +optional
	CA TresorCASpec `json:"ca,omitzero"`
}

// TresorCASpec says where a CA is kept.
type TresorCASpec struct {
	// SecretRef names a Secret with ca.crt and ca.key, or private.key as Open Service
	// Mesh calls it, in the control plane's namespace. One that is not there is made,
	// with a new CA. Without a name it is outrigger-ca-bundle.
	// +optional
	SecretRef corev1.SecretReference `json:"secretRef,omitzero"`
}

// MeshRootCertificateStatus is what has become of a root. Fields of Open Service Mesh
// that are not here are taken and not looked at.
//
// +kubebuilder:pruning:PreserveUnknownFields
type MeshRootCertificateStatus struct {
	// State is active for the root that signs, passive for others that are trusted, and
	// error for those that cannot be used.
	// +optional
	State string `json:"state,omitempty"`

	// ObservedGeneration is the metadata.generation that the conditions speak of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions say whether the root can be used, is trusted and signs.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
