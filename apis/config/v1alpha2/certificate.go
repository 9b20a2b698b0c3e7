package v1alpha2

import corev1 "k8s.io/api/core/v1"

// CertificateSpec configures the identities of workloads and their certificates.
type CertificateSpec struct {
	// TrustDomain is the SPIFFE trust domain of every identity in the mesh, a DNS name in
	// lower case. Empty means cluster.local. Changing it changes every identity. Added by
	// Outrigger.
	//
	// The maximum length leaves space for the rest of an identity in a DNS name of 253
	// bytes: 40 for the service account (or its hash, if it is longer), 63 for the
	// namespace, and the dots and "sa" between them.
	// +optional
	// +kubebuilder:default=cluster.local
	// +kubebuilder:validation:MaxLength=145
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$')",message="must be a DNS name in lower case, for example mesh.example.com; leave it out for cluster.local"
	TrustDomain string `json:"trustDomain,omitempty"`

	// ServiceCertValidityDuration is how long a workload's certificate is valid.
	// Empty means 24h.
	// +optional
	ServiceCertValidityDuration Duration `json:"serviceCertValidityDuration,omitempty"`

	// CertKeyBitSize is the size of a workload's RSA key in Open Service Mesh.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CertKeyBitSize int32 `json:"certKeyBitSize,omitempty"`

	// PodCertificates lets the kubelet make the keys of new pods and request their
	// certificates with PodCertificateRequests, in place of the agents. It needs Kubernetes
	// 1.37, or 1.36 with feature gates, and the mesh's own CA. Otherwise the agents request
	// certificates nevertheless. Added by Outrigger.
	// +optional
	PodCertificates bool `json:"podCertificates,omitempty"`

	// IngressGateway requests a client certificate for an ingress gateway.
	// +optional
	IngressGateway *IngressGatewayCertSpec `json:"ingressGateway,omitempty"`
}

// IngressGatewayCertSpec requests a client certificate for an ingress gateway.
type IngressGatewayCertSpec struct {
	// SubjectAltNames are the host names and IP addresses in the certificate.
	// +kubebuilder:validation:MinItems=1
	SubjectAltNames []string `json:"subjectAltNames"`

	// ValidityDuration is how long the certificate is valid. Empty means 24h.
	ValidityDuration Duration `json:"validityDuration"`

	// The expression language of Kubernetes 1.30 reserves the word namespace, hence
	// the underscores.

	// Secret is where the certificate and its key are stored.
	// +kubebuilder:validation:XValidation:rule="has(self.name) && has(self.__namespace__)",message="name and namespace of the Secret are both needed"
	Secret corev1.SecretReference `json:"secret"`
}
