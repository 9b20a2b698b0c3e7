package v1alpha4

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/status"
)

// HTTPRouteGroup describes HTTP requests. It has no effect unless other objects refer to
// it.
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

	// Spec describes the requests.
	// +optional
	Spec HTTPRouteGroupSpec `json:"spec,omitzero"`

	// Status is the controller's report about the spec.
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

// HTTPRouteGroupSpec describes requests.
type HTTPRouteGroupSpec struct {
	// Matches describe requests. A request must match one of them.
	Matches []HTTPMatch `json:"matches"`
}

// HTTPMatch describes requests by method, path and headers. A request must match all
// fields that are set.
type HTTPMatch struct {
	// Name is the name by which other objects refer to the match.
	Name string `json:"name"`

	// Methods are the methods that match, "*" being all. Empty means all.
	// +optional
	Methods []HTTPMethod `json:"methods,omitempty"`

	// PathRegex is a regular expression that the whole path must match, without
	// the query. Empty means every path.
	// +optional
	PathRegex string `json:"pathRegex,omitempty"`

	// Headers are regular expressions that the whole values of headers must match, by
	// header name. They are written as a list of maps with one entry each; if a map has
	// several entries, all must match.
	// +optional
	Headers []map[string]string `json:"headers,omitempty"`
}

// HTTPMethod is a method of RFC 9110 or RFC 5789, in capitals, or "*" for all.
//
// +kubebuilder:validation:Enum="*";GET;HEAD;PUT;POST;DELETE;CONNECT;OPTIONS;TRACE;PATCH
type HTTPMethod string

// HTTPMethodAll means every method.
const HTTPMethodAll HTTPMethod = "*"
