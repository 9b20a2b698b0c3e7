package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/status"
)

// ClusterAccessPolicy allows or denies access to workloads of several namespaces, which cannot change
// that: their AccessPolicies, TrafficTargets and IngressBackends come after it.
//
// What it denies is refused. What it allows, and does not deny, is let through, although an
// AccessPolicy denies it. It says nothing about other callers, so it closes no workload.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Action",type=string,JSONPath=`.spec.action`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterAccessPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says what the policy is for, and whom it allows or denies what.
	Spec ClusterAccessPolicySpec `json:"spec"`
	// Status is the controller's report about the spec.
	// +optional
	Status status.Status `json:"status,omitzero"`
}

// ClusterAccessPolicyList is a list of ClusterAccessPolicies.
//
// +kubebuilder:object:root=true
type ClusterAccessPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the ClusterAccessPolicies.
	Items []ClusterAccessPolicy `json:"items"`
}

// ClusterAccessPolicySpec says what a policy is for, and whom it allows or denies what.
//
// +kubebuilder:validation:XValidation:rule="self.action == 'Deny' || !has(self.rules) || self.rules.all(r, !has(r.notSources) && !has(r.http) && (!has(r.sources) || r.sources.all(s, !has(s.ipBlock))))",message="Allow names callers of the mesh and ports only: notSources, http and ipBlock are for Deny, or for an AccessPolicy"
// +kubebuilder:validation:XValidation:rule="!has(self.rules) || self.rules.all(r, (!has(r.sources) || r.sources.all(s, !has(s.serviceAccount) || has(s.serviceAccount.__namespace__))) && (!has(r.notSources) || r.notSources.all(s, !has(s.serviceAccount) || has(s.serviceAccount.__namespace__))))",message="a service account needs its namespace"
// +kubebuilder:validation:XValidation:rule="!has(self.rules) || self.rules.all(r, !has(r.token))",message="token is for an AccessPolicy, whose namespace has the keys"
type ClusterAccessPolicySpec struct {
	// NamespaceSelector selects the namespaces of the workloads by their labels; {} selects all.
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	// PodSelector selects the workloads of these namespaces by their labels. Without it all are
	// selected.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// Action is Allow or Deny.
	// +kubebuilder:validation:Enum=Allow;Deny
	Action AccessAction `json:"action"`
	// Rules say what the action is about; one rule that matches is enough. Without the field
	// everything matches, and an empty list matches nothing. Rules of Allow have sources, without
	// address ranges, and ports only.
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Rules []AccessRule `json:"rules,omitzero"`
}
