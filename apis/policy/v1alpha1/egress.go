package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Egress allows workloads to call destinations outside the mesh.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=egresses,singular=egress,scope=Namespaced
// +kubebuilder:printcolumn:name="Hosts",type=string,JSONPath=`.spec.hosts`
// +kubebuilder:printcolumn:name="IP-Addresses",type=string,JSONPath=`.spec.ipAddresses`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Egress struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec says who may call what.
	// +optional
	Spec EgressSpec `json:"spec,omitzero"`

	// Status is the controller's report about the spec.
	// +optional
	Status PolicyStatus `json:"status,omitzero"`
}

// EgressList is a list of Egresses.
//
// +kubebuilder:object:root=true
type EgressList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []Egress `json:"items"`
}

// EgressSpec says who may call which destinations outside the mesh.
type EgressSpec struct {
	// Sources are the identities that may call.
	Sources []EgressSource `json:"sources"`

	// Hosts are the allowed hosts: matched with the Host header if the port's protocol is
	// http, and with the TLS server name if it is https. Other protocols ignore them.
	// +optional
	Hosts []string `json:"hosts,omitempty"`

	// IPAddresses are the allowed IPv4 and IPv6 ranges in CIDR notation. Open Service Mesh
	// supported only IPv4.
	// +optional
	IPAddresses []string `json:"ipAddresses,omitempty"`

	// Ports are the allowed destination ports.
	Ports []Port `json:"ports"`

	// Matches are objects in the Egress's namespace: HTTPRouteGroups that describe the
	// allowed HTTP requests (if there are none, all are allowed), and at most one
	// UpstreamTrafficSetting for the connections.
	// +optional
	Matches []corev1.TypedLocalObjectReference `json:"matches,omitempty"`
}

// EgressSourceKind is the kind of an EgressSource.
//
// +kubebuilder:validation:Enum=ServiceAccount
type EgressSourceKind string

// EgressSourceServiceAccount is the identity of a service account.
const EgressSourceServiceAccount EgressSourceKind = "ServiceAccount"

// EgressSource is an identity that may call destinations outside the mesh.
type EgressSource struct {
	// Kind is the source's kind.
	Kind EgressSourceKind `json:"kind"`

	// Name is the source's name.
	Name string `json:"name"`

	// Namespace is the source's namespace.
	Namespace string `json:"namespace"`

	// MTLS is the certificate that the source presents to the host (osm-edge).
	// +optional
	MTLS *EgressSourceMTLS `json:"mtls,omitempty"`
}

// EgressSourceMTLS is the certificate that a source presents to a host (osm-edge).
type EgressSourceMTLS struct {
	// Issuer is the certificate's issuer.
	// +kubebuilder:validation:Enum=osm;other
	Issuer string `json:"issuer"`

	// Cert is the certificate.
	// +optional
	Cert *EgressSourceCert `json:"cert,omitempty"`
}

// EgressSourceCert is a certificate in a Secret (osm-edge).
type EgressSourceCert struct {
	// SerialNumber is the certificate's serial number.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	SerialNumber int32 `json:"sn"`

	// SubjectAltNames are the host names and IP addresses in the certificate.
	// +optional
	// +kubebuilder:validation:MinItems=1
	SubjectAltNames []string `json:"subjectAltNames,omitempty"`

	// Expiration is when the certificate expires.
	Expiration string `json:"expiration"`

	// Secret is where the certificate and its key are stored.
	Secret corev1.SecretReference `json:"secret"`
}

// Port is a port and its protocol.
type Port struct {
	// Number is the port's number.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Number int32 `json:"number"`

	// Protocol is the protocol, in any case: http, https or, for an Egress, tcp or
	// tcp-server-first.
	Protocol string `json:"protocol"`
}
