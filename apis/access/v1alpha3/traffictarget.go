package v1alpha3

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/status"
)

// TrafficTarget lets the workloads of some identities call those of another, as far
// as its rules say. Where the mesh is not permissive, what no TrafficTarget lets
// pass is denied.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=traffictargets,singular=traffictarget,shortName=tt,scope=Namespaced
// +kubebuilder:printcolumn:name="Destination",type=string,JSONPath=`.spec.destination.name`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TrafficTarget struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is what the user wants to let pass.
	// +optional
	Spec TrafficTargetSpec `json:"spec,omitzero"`

	// Status is what the controller found in the spec.
	// +optional
	Status status.Status `json:"status,omitzero"`
}

// TrafficTargetList is a list of TrafficTargets.
//
// +kubebuilder:object:root=true
type TrafficTargetList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []TrafficTarget `json:"items"`
}

// TrafficTargetSpec is who may call whom, and how.
type TrafficTargetSpec struct {
	// Destination is the identity that may be called.
	Destination Subject `json:"destination"`

	// Sources are the identities that may call it.
	Sources []Subject `json:"sources"`

	// Rules are the kinds of traffic that they may send; one that any of them
	// matches may pass.
	Rules []TrafficTargetRule `json:"rules"`
}

// KindServiceAccount is the kind of a Subject that is the identity of a service
// account.
const KindServiceAccount = "ServiceAccount"

// Subject is an identity of the mesh.
type Subject struct {
	// Kind is the subject's kind. Only ServiceAccount means something.
	Kind string `json:"kind"`

	// Name is the subject's name.
	Name string `json:"name"`

	// Namespace is the subject's namespace; for the destination it must be the
	// TrafficTarget's own. Empty names nobody, as in Open Service Mesh.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// RuleKind is the kind of object that a rule names.
//
// +kubebuilder:validation:Enum=HTTPRouteGroup;TCPRoute;UDPRoute
type RuleKind string

const (
	// RuleHTTPRouteGroup is a rule that names an HTTPRouteGroup.
	RuleHTTPRouteGroup RuleKind = "HTTPRouteGroup"
	// RuleTCPRoute is a rule that names a TCPRoute.
	RuleTCPRoute RuleKind = "TCPRoute"
	// RuleUDPRoute is a rule that names a UDPRoute. UDP does not go through the
	// mesh, so it lets nothing pass.
	RuleUDPRoute RuleKind = "UDPRoute"
)

// TrafficTargetRule names a kind of traffic.
type TrafficTargetRule struct {
	// Kind is the kind of the object that describes the traffic.
	Kind RuleKind `json:"kind"`

	// Name is the object's name. It is in the TrafficTarget's namespace.
	Name string `json:"name"`

	// Matches are the names of those matches of an HTTPRouteGroup that are meant.
	// Empty means all.
	// +optional
	Matches []string `json:"matches,omitempty"`
}
