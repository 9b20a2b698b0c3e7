package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Retry has the sidecars of a workload try failed requests to some services again.
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

	// Spec is what is tried again and when.
	// +optional
	Spec RetrySpec `json:"spec,omitzero"`

	// Status is what the controller found in the spec.
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

// RetrySpec is what is tried again and when.
type RetrySpec struct {
	// Source is the workload that calls, a ServiceAccount in the Retry's namespace.
	Source RetrySubject `json:"source"`

	// Destinations are the services that it calls, each of the kind Service.
	Destinations []RetrySubject `json:"destinations"`

	// RetryPolicy is when a request is tried again, and how often.
	RetryPolicy RetryPolicy `json:"retryPolicy"`
}

// The kinds of a RetrySubject.
const (
	// RetrySource is the kind of a source.
	RetrySource = "ServiceAccount"
	// RetryDestination is the kind of a destination.
	RetryDestination = "Service"
)

// RetrySubject is a workload that calls, or a service that is called.
type RetrySubject struct {
	// Kind is ServiceAccount for a source and Service for a destination.
	Kind string `json:"kind"`

	// Name is the subject's name.
	Name string `json:"name"`

	// Namespace is the subject's namespace.
	Namespace string `json:"namespace"`
}

// RetryPolicy is when a request is tried again, and how often.
type RetryPolicy struct {
	// RetryOn lists what counts as a failure, separated by commas, in the words of
	// Envoy's x-envoy-retry-on and x-envoy-retry-grpc-on headers, such as 5xx,
	// connect-failure or unavailable.
	RetryOn string `json:"retryOn"`

	// PerTryTimeout is how long each try may take. Left out, it may take as long as
	// the request.
	// +optional
	PerTryTimeout *Duration `json:"perTryTimeout,omitempty"`

	// NumRetries is how often a request is tried again at most. Left out, it is 1.
	// +optional
	NumRetries *int64 `json:"numRetries,omitempty"`

	// RetryBackoffBaseInterval is what the pauses between tries grow from,
	// exponentially. Left out, it is 25ms.
	// +optional
	RetryBackoffBaseInterval *Duration `json:"retryBackoffBaseInterval,omitempty"`
}
