package v1alpha4

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/status"
)

// HTTPRouteGroup describes HTTP requests. By itself it does nothing; other objects
// refer to it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=httproutegroups,singular=httproutegroup,shortName=htr,scope=Namespaced
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type HTTPRouteGroup struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec is the requests that are meant.
	// +optional
	Spec HTTPRouteGroupSpec `json:"spec,omitzero"`

	// Status is what the controller found in the spec.
	// +optional
	Status status.Status `json:"status,omitzero"`
}

// HTTPRouteGroupList is a list of HTTPRouteGroups.
//
// +kubebuilder:object:root=true
type HTTPRouteGroupList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []HTTPRouteGroup `json:"items"`
}

// HTTPRouteGroupSpec is the requests that are meant.
type HTTPRouteGroupSpec struct {
	// Matches describe requests; a request is meant if one of them matches it.
	Matches []HTTPMatch `json:"matches"`
}

// HTTPMatch describes requests by their method, path and headers. A request must
// fit all of those that are set.
type HTTPMatch struct {
	// Name is what other objects call the match by.
	Name string `json:"name"`

	// Methods are the methods that match, "*" being all. Empty means all.
	// +optional
	Methods []HTTPMethod `json:"methods,omitempty"`

	// PathRegex is a regular expression that the whole path must match, without
	// the query. Empty means every path.
	// +optional
	PathRegex string `json:"pathRegex,omitempty"`

	// Headers are regular expressions that the whole values of headers must match,
	// by the header's name. They are written as a list of maps of one entry each;
	// where a map has several, each of them must match too.
	// +optional
	Headers []map[string]string `json:"headers,omitempty"`
}

// HTTPMethod is a method of RFC 9110 or RFC 5789, in capitals, or "*" for all.
//
// +kubebuilder:validation:Enum="*";GET;HEAD;PUT;POST;DELETE;CONNECT;OPTIONS;TRACE;PATCH
type HTTPMethod string

// HTTPMethodAll stands for every method.
const HTTPMethodAll HTTPMethod = "*"
