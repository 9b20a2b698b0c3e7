package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IngressBackend allows clients outside the mesh, such as an ingress controller, to call
// services of the mesh.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=ingressbackends,singular=ingressbackend,scope=Namespaced
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IngressBackend struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec says who may call what.
	// +optional
	Spec IngressBackendSpec `json:"spec,omitzero"`

	// Status is the controller's report about the spec.
	// +optional
	Status PolicyStatus `json:"status,omitzero"`
}

// IngressBackendList is a list of IngressBackends.
//
// +kubebuilder:object:root=true
type IngressBackendList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []IngressBackend `json:"items"`
}

// IngressBackendSpec says which clients outside the mesh may call which services.
type IngressBackendSpec struct {
	// Backends are the services that may be called.
	Backends []Backend `json:"backends"`

	// Sources are the clients that may call them.
	Sources []IngressSource `json:"sources"`

	// Matches are HTTPRouteGroups in the IngressBackend's namespace that describe the
	// allowed requests. Empty means all.
	// +optional
	Matches []corev1.TypedLocalObjectReference `json:"matches,omitempty"`
}

// Backend is a service that may be called from outside the mesh.
type Backend struct {
	// Name is the service's name, in the IngressBackend's namespace.
	Name string `json:"name"`

	// Port is the port of the pods, that is the service's target port, and the clients'
	// protocol, http or https.
	Port Port `json:"port"`

	// TLS configures TLS from the clients to the service's sidecar.
	// +optional
	TLS *BackendTLS `json:"tls,omitempty"`
}

// BackendTLS configures TLS from clients outside the mesh to a service's sidecar.
type BackendTLS struct {
	// SkipClientCertValidation accepts clients without a certificate, or with one from
	// another issuer.
	SkipClientCertValidation bool `json:"skipClientCertValidation"`

	// SNIHosts are the allowed TLS server names. Empty means any.
	// +optional
	SNIHosts []string `json:"sniHosts,omitempty"`
}

// The kinds of an IngressSource.
const (
	// IngressSourceService is a service, by the addresses of its endpoints.
	IngressSourceService = "Service"
	// IngressSourceAuthenticatedPrincipal is a name in the client's certificate, or "*"
	// for any mesh certificate.
	IngressSourceAuthenticatedPrincipal = "AuthenticatedPrincipal"
	// IngressSourceIPRange is a range of addresses in CIDR notation.
	IngressSourceIPRange = "IPRange"
)

// IngressSource is a client outside the mesh.
type IngressSource struct {
	// Kind is Service, AuthenticatedPrincipal or IPRange.
	Kind string `json:"kind"`

	// Name is the service's name, the principal or the range.
	Name string `json:"name"`

	// Namespace is the namespace of a service. The other kinds have none.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}
