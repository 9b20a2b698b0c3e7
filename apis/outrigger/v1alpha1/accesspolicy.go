package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/apis/status"
)

// AccessPolicy says who may send which requests to workloads of its namespace.
//
// Policies that deny come first: what one of them matches is refused. Once a policy that allows
// targets a workload, only what one of them allows may pass, also in permissive traffic policy mode.
// TrafficTargets and IngressBackends add to what these policies allow.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Action",type=string,JSONPath=`.spec.action`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AccessPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says what the policy is for, and whom it allows or denies what.
	Spec AccessPolicySpec `json:"spec"`
	// Status is the controller's report about the spec.
	// +optional
	Status status.Status `json:"status,omitzero"`
}

// AccessPolicyList is a list of AccessPolicies.
//
// +kubebuilder:object:root=true
type AccessPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the AccessPolicies.
	Items []AccessPolicy `json:"items"`
}

// AccessPolicySpec says what a policy is for, and whom it allows or denies what.
type AccessPolicySpec struct {
	// TargetRefs are the workloads, all in the policy's namespace.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	TargetRefs []AccessTarget `json:"targetRefs"`
	// Action is Allow, Deny or Audit. Deny refuses what a rule matches, and is enforced everywhere.
	// Audit counts what the policy would refuse if it were an Allow; it has an effect where nothing
	// is refused otherwise.
	// +kubebuilder:validation:Enum=Allow;Deny;Audit
	// +kubebuilder:default=Allow
	// +optional
	Action AccessAction `json:"action,omitempty"`
	// Rules say what the action is about; one rule that matches is enough. Without the field
	// everything matches, and an empty list matches nothing: with Allow it closes the workloads.
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Rules []AccessRule `json:"rules,omitzero"`
}

// AccessAction says what happens to what a policy matches.
type AccessAction string

// The actions.
const (
	ActionAllow AccessAction = "Allow"
	ActionDeny  AccessAction = "Deny"
	ActionAudit AccessAction = "Audit"
)

// AccessTarget selects workloads of the policy's namespace.
//
// +kubebuilder:validation:XValidation:rule="self.kind == 'Pod' ? has(self.selector) && !has(self.name) : has(self.name) && !has(self.selector)",message="a Pod needs a selector, and a Service or ServiceAccount a name"
type AccessTarget struct {
	// Kind is Pod, which needs a selector, or Service or ServiceAccount, which need a name.
	// +kubebuilder:validation:Enum=Pod;Service;ServiceAccount
	Kind string `json:"kind"`
	// Selector selects pods by their labels; {} selects all pods of the namespace.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// Name is that of a Service or a ServiceAccount. The policy is for the ports of the endpoints that
	// the Service leads to, or for all ports of the pods that run as the ServiceAccount.
	// +optional
	Name string `json:"name,omitempty"`
}

// AccessRule matches callers and what they send. All of its fields must match.
type AccessRule struct {
	// Sources are the callers. Without the field everybody matches, and an empty list matches
	// nobody.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Sources []AccessSource `json:"sources,omitzero"`
	// NotSources are callers that the rule does not match. Address ranges cannot be excepted.
	// +kubebuilder:validation:MaxItems=64
	// +optional
	NotSources []AccessSource `json:"notSources,omitzero"`
	// Ports are ports of the workload, which its containers listen on. Without the field every port
	// matches, and an empty list matches none.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	// +optional
	Ports []int32 `json:"ports,omitzero"`
	// HTTP are conditions on requests, of which one must hold. Without the field everything
	// matches, and an empty list matches nothing. On a port without HTTP nothing is allowed by them,
	// and every connection is denied.
	// +kubebuilder:validation:MaxItems=16
	// +optional
	HTTP []gateway.HTTPRouteMatch `json:"http,omitzero"`
	// Token is a condition on the user's token. Without the field everything matches. On a port without
	// HTTP nothing is allowed by it, and every connection is denied. A ClusterAccessPolicy has none.
	// +optional
	Token *AccessToken `json:"token,omitempty"`
}

// AccessSource is a set of callers.
//
// +kubebuilder:validation:XValidation:rule="[has(self.serviceAccount), has(self.namespaces), has(self.spiffe), has(self.ipBlock)].filter(f, f).size() == 1",message="set exactly one of serviceAccount, namespaces, spiffe and ipBlock"
type AccessSource struct {
	// ServiceAccount is a service account, or all of a namespace.
	// +optional
	ServiceAccount *AccessServiceAccount `json:"serviceAccount,omitempty"`
	// Namespaces are all service accounts of the namespaces with these labels.
	// +optional
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
	// SPIFFE is a SPIFFE ID, such as spiffe://cluster.local/ns/shop/sa/cart.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^spiffe://[^/]+/ns/[^/]+/sa/[^/]+$`
	// +optional
	SPIFFE string `json:"spiffe,omitempty"`
	// IPBlock is a range of addresses, such as 10.0.0.0/8, from which callers without an identity
	// of the mesh may send in plaintext. It can only be allowed: a Deny with one denies everybody.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	IPBlock string `json:"ipBlock,omitempty"`
}

// AccessServiceAccount is a service account, or all of a namespace.
type AccessServiceAccount struct {
	// Namespace is the namespace of the service account, by default the policy's.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Name is the service account's name. Without it all of the namespace are meant.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Name string `json:"name,omitempty"`
}
