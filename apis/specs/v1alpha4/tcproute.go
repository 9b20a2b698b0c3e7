package v1alpha4

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/status"
)

// TCPRoute describes TCP connections. It has no effect unless other objects refer to it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=tcproutes,singular=tcproute,shortName=tr,scope=Namespaced
// +kubebuilder:printcolumn:name="Ports",type=string,JSONPath=`.spec.matches.ports`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TCPRoute struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec describes the connections.
	// +optional
	Spec TCPRouteSpec `json:"spec,omitzero"`

	// Status is the controller's report about the spec.
	// +optional
	Status status.Status `json:"status,omitzero"`
}

// TCPRouteList is a list of TCPRoutes.
//
// +kubebuilder:object:root=true
type TCPRouteList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []TCPRoute `json:"items"`
}

// TCPRouteSpec describes connections.
type TCPRouteSpec struct {
	// Matches describes the connections. If omitted, all connections match.
	// +optional
	Matches TCPMatch `json:"matches,omitzero"`
}

// TCPMatch describes TCP connections.
type TCPMatch struct {
	// Name was the name of the match in the Service Mesh Interface.
	// +optional
	Name string `json:"name,omitempty"`

	// Ports are the destination ports that match. Empty means all.
	// +optional
	Ports []int64 `json:"ports,omitempty"`
}
