package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IngressBackend lets clients that are not in the mesh call services of it, such as an
// ingress controller.
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

	// Spec is who may call what.
	// +optional
	Spec IngressBackendSpec `json:"spec,omitzero"`

	// Status is what the controller found in the spec.
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

// IngressBackendSpec is who may call what from outside the mesh.
type IngressBackendSpec struct {
	// Backends are the services that may be called.
	Backends []Backend `json:"backends"`

	// Sources are the clients that may call them.
	Sources []IngressSource `json:"sources"`

	// Matches are HTTPRouteGroups in the IngressBackend's namespace that describe
	// the requests that may pass. Empty means all.
	// +optional
	Matches []corev1.TypedLocalObjectReference `json:"matches,omitempty"`
}

// Backend is a service that may be called from outside the mesh.
type Backend struct {
	// Name is the service's name, in the IngressBackend's namespace.
	Name string `json:"name"`

	// Port is the port of the pods, which is the service's target port, and whether
	// the clients speak http or https to it.
	Port Port `json:"port"`

	// TLS is how the service's sidecar takes TLS from the clients.
	// +optional
	TLS *BackendTLS `json:"tls,omitempty"`
}

// BackendTLS is how a service's sidecar takes TLS from clients outside the mesh.
type BackendTLS struct {
	// SkipClientCertValidation takes clients without a certificate, or with one that
	// the mesh did not issue.
	SkipClientCertValidation bool `json:"skipClientCertValidation"`

	// SNIHosts are the TLS server names that clients may ask for. Empty means any.
	// +optional
	SNIHosts []string `json:"sniHosts,omitempty"`
}

// The kinds of an IngressSource.
const (
	// IngressSourceService is the endpoints of a service, by their addresses.
	IngressSourceService = "Service"
	// IngressSourceAuthenticatedPrincipal is a name in the client's certificate, or
	// "*" for every client that has one.
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
