package v1alpha4

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/status"
)

// TrafficSplit distributes the traffic to a service over others by weight.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
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
	Spec TrafficSplitSpec `json:"spec,omitzero"`

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

// TrafficSplitSpec is the distribution of the traffic.
type TrafficSplitSpec struct {
	// Service is the service whose traffic is split, by its name or its DNS name in the
	// cluster. It must be in the TrafficSplit's namespace.
	Service string `json:"service"`

	// Backends are the services that get the traffic.
	Backends []TrafficSplitBackend `json:"backends"`

	// Matches are HTTPRouteGroups in the TrafficSplit's namespace that describe the
	// requests to split. Empty means all traffic.
	// +optional
	Matches []corev1.TypedLocalObjectReference `json:"matches,omitempty"`
}

// TrafficSplitBackend is a service that gets a share of the traffic.
type TrafficSplitBackend struct {
	// Service is the service's name, in the TrafficSplit's namespace.
	Service string `json:"service"`

	// Weight is the service's share of the sum of all weights.
	Weight Weight `json:"weight"`
}

// Weight is a share of traffic, a whole number of at least 0. The type is floating-point
// because the schema of Open Service Mesh has it: one object with a fraction must not
// prevent the others from being read.
type Weight float64

// Parse returns the weight. It returns an error unless it is a whole number from 0 to
// 4294967295, since the API server accepts other values too.
func (w Weight) Parse() (uint32, error) {
	if w < 0 || w > math.MaxUint32 || w != Weight(math.Trunc(float64(w))) {
		return 0, fmt.Errorf("weight %v is not a whole number from 0 to %d", float64(w), uint32(math.MaxUint32))
	}
	return uint32(w), nil
}
