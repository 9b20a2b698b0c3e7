package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
	"github.com/outrigger-mesh/outrigger/apis/status"
)

// TrafficSplit distributes the traffic to a service over others by weight. It is the
// older version of the same type in v1alpha4.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=trafficsplits,singular=trafficsplit,shortName=ts,scope=Namespaced
// +kubebuilder:printcolumn:name="Service",type=string,JSONPath=`.spec.service`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TrafficSplit struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is the distribution of the traffic.
	// +optional
	Spec v1alpha4.TrafficSplitSpec `json:"spec,omitzero"`

	// Status is the controller's report about the spec.
	// +optional
	Status status.Status `json:"status,omitzero"`
}

// TrafficSplitList is a list of TrafficSplits.
//
// +kubebuilder:object:root=true
type TrafficSplitList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []TrafficSplit `json:"items"`
}
