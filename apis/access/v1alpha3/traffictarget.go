package v1alpha3

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/status"
)

// TrafficTarget allows the workloads of some identities to call those of another, as far
// as its rules say. Unless the mesh is permissive, traffic that no TrafficTarget allows
// is denied.
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

	// Spec is the allowed traffic.
	// +optional
	Spec TrafficTargetSpec `json:"spec,omitzero"`

	// Status is the controller's report about the spec.
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

// TrafficTargetSpec says who may call whom, and how.
type TrafficTargetSpec struct {
	// Destination is the identity that may be called.
	Destination Subject `json:"destination"`

	// Sources are the identities that may call it.
	Sources []Subject `json:"sources"`

	// Rules are the kinds of traffic that the sources may send. Traffic must match one of
	// them.
	Rules []TrafficTargetRule `json:"rules"`
}

// KindServiceAccount is the kind of a Subject for the identity of a service account.
const KindServiceAccount = "ServiceAccount"

// Subject is an identity of the mesh.
type Subject struct {
	// Kind is the subject's kind. Only ServiceAccount is supported.
	Kind string `json:"kind"`

	// Name is the subject's name.
	Name string `json:"name"`

	// Namespace is the subject's namespace. For the destination, it must be the
	// TrafficTarget's own. If empty, the subject matches no identity, as in Open Service
	// Mesh.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// RuleKind is the kind of object that a rule refers to.
//
// +kubebuilder:validation:Enum=HTTPRouteGroup;TCPRoute;UDPRoute
type RuleKind string

const (
	// RuleHTTPRouteGroup refers to an HTTPRouteGroup.
	RuleHTTPRouteGroup RuleKind = "HTTPRouteGroup"
	// RuleTCPRoute refers to a TCPRoute.
	RuleTCPRoute RuleKind = "TCPRoute"
	// RuleUDPRoute refers to a UDPRoute. The mesh does not handle UDP, so the rule allows
	// nothing.
	RuleUDPRoute RuleKind = "UDPRoute"
)

// TrafficTargetRule refers to a description of traffic.
type TrafficTargetRule struct {
	// Kind is the kind of the object that describes the traffic.
	Kind RuleKind `json:"kind"`

	// Name is the object's name. It is in the TrafficTarget's namespace.
	Name string `json:"name"`

	// Matches selects matches of an HTTPRouteGroup by name. Empty means all.
	// +optional
	Matches []string `json:"matches,omitempty"`
}
