package v1alpha1

import "github.com/outrigger-mesh/outrigger/apis/status"

// PolicyStatus is what the controller found in a policy's spec.
type PolicyStatus struct {
	status.Status `json:",inline"`

	// CurrentStatus sums the conditions up in the word that Open Service Mesh had
	// for it: committed, pending or error.
	// +optional
	CurrentStatus string `json:"currentStatus,omitempty"`

	// Reason says why CurrentStatus is what it is.
	// +optional
	Reason string `json:"reason,omitempty"`
}
