package status

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Status is the controller's report about an object's spec.
type Status struct {
	// ObservedGeneration is the metadata.generation that the conditions refer to.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions say whether the object is in use and which of its fields are wrong
	// or have no effect.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
