package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Retry makes the sidecars of a workload retry failed requests to some services.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=retries,singular=retry,scope=Namespaced
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.source.name`
// +kubebuilder:printcolumn:name="Retry-On",type=string,JSONPath=`.spec.retryPolicy.retryOn`
// +kubebuilder:printcolumn:name="Retries",type=integer,JSONPath=`.spec.retryPolicy.numRetries`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Retry struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec says which requests are retried, and when.
	// +optional
	Spec RetrySpec `json:"spec,omitzero"`

	// Status is the controller's report about the spec.
	// +optional
	Status PolicyStatus `json:"status,omitzero"`
}

// RetryList is a list of Retries.
//
// +kubebuilder:object:root=true
type RetryList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []Retry `json:"items"`
}

// RetrySpec says which requests are retried, and when.
type RetrySpec struct {
	// Source is the calling workload, a ServiceAccount in the Retry's namespace.
	Source RetrySubject `json:"source"`

	// Destinations are the called services, each of kind Service.
	Destinations []RetrySubject `json:"destinations"`

	// RetryPolicy says when and how often a request is retried.
	RetryPolicy RetryPolicy `json:"retryPolicy"`
}

// The kinds of a RetrySubject.
const (
	// RetrySource is the kind of a source.
	RetrySource = "ServiceAccount"
	// RetryDestination is the kind of a destination.
	RetryDestination = "Service"
)

// RetrySubject is a calling workload or a called service.
type RetrySubject struct {
	// Kind is ServiceAccount for a source and Service for a destination.
	Kind string `json:"kind"`

	// Name is the subject's name.
	Name string `json:"name"`

	// Namespace is the subject's namespace.
	Namespace string `json:"namespace"`
}

// RetryPolicy says when and how often a request is retried.
type RetryPolicy struct {
	// RetryOn is a comma-separated list of retry conditions of Envoy's x-envoy-retry-on
	// and x-envoy-retry-grpc-on headers, such as 5xx, connect-failure or unavailable.
	RetryOn string `json:"retryOn"`

	// PerTryTimeout limits the duration of each attempt. By default only the request's
	// timeout applies.
	// +optional
	PerTryTimeout *Duration `json:"perTryTimeout,omitempty"`

	// NumRetries is the maximum number of retries. Defaults to 1.
	// +optional
	NumRetries *int64 `json:"numRetries,omitempty"`

	// RetryBackoffBaseInterval is the base of the exponential backoff between attempts.
	// Defaults to 25ms.
	// +optional
	RetryBackoffBaseInterval *Duration `json:"retryBackoffBaseInterval,omitempty"`
}
