package v1alpha1

import "github.com/outrigger-mesh/outrigger/apis/status"

// PolicyStatus is the controller's report about a policy's spec.
type PolicyStatus struct {
	status.Status `json:",inline"`

	// CurrentStatus summarizes the conditions in Open Service Mesh's terms: committed,
	// pending or error.
	// +optional
	CurrentStatus string `json:"currentStatus,omitempty"`

	// Reason explains CurrentStatus.
	// +optional
	Reason string `json:"reason,omitempty"`
}
