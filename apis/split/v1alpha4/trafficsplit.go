package v1alpha4

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/status"
)

// TrafficSplit divides the traffic to a service among others by weight.
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

	// Spec is how the traffic is divided.
	// +optional
	Spec TrafficSplitSpec `json:"spec,omitzero"`

	// Status is what the controller found in the spec.
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

// TrafficSplitSpec is how the traffic is divided.
type TrafficSplitSpec struct {
	// Service is the service whose traffic is divided, by its name or by its DNS
	// name within the cluster. It is in the TrafficSplit's namespace.
	Service string `json:"service"`

	// Backends are the services that get the traffic.
	Backends []TrafficSplitBackend `json:"backends"`

	// Matches are HTTPRouteGroups in the TrafficSplit's namespace that describe
	// the requests to divide. Empty means all traffic.
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

// Weight is a share of traffic, a whole number of at least 0. It is a floating-point
// number because the schema of Open Service Mesh was: one object with a fraction must
// not keep all others from being read.
type Weight float64

// Parse returns the weight. It returns an error for what is not a whole number from 0
// to 4294967295, which the API server admits too.
func (w Weight) Parse() (uint32, error) {
	if w < 0 || w > math.MaxUint32 || w != Weight(math.Trunc(float64(w))) {
		return 0, fmt.Errorf("weight %v is not a whole number from 0 to %d", float64(w), uint32(math.MaxUint32))
	}
	return uint32(w), nil
}
