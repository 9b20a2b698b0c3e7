package mesh

import "strings"

// ObjectRef identifies one of the user's objects.
type ObjectRef struct {
	// APIVersion and Kind are those of the object, for example
	// "config.openservicemesh.io/v1alpha2" and "MeshConfig".
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Namespace is empty for cluster-scoped objects.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// FullKind returns the kind. That of Gateway API's TCPRoutes includes the API group, as in
// kubectl, because SMI has a kind of that name too.
func (r ObjectRef) FullKind() string {
	const gateway = "gateway.networking.k8s.io"
	if r.Kind == "TCPRoute" && strings.HasPrefix(r.APIVersion, gateway+"/") {
		return r.Kind + "." + gateway
	}
	return r.Kind
}

// String returns "Kind namespace/name", or "Kind name" for cluster-scoped objects, with the
// FullKind.
func (r ObjectRef) String() string {
	if r.Namespace == "" {
		return r.FullKind() + " " + r.Name
	}
	return r.FullKind() + " " + r.Namespace + "/" + r.Name
}

// Problem is an error in one of the user's objects, or a field that is valid but has no
// effect. It is data, not a Go error: it is published in the object's status, as an Event
// and as a metric, and does not affect the rest of the mesh.
type Problem struct {
	// Object is the object with the problem.
	Object ObjectRef `json:"object"`
	// Reason is a CamelCase word for programs, for example "UnknownClass".
	Reason string `json:"reason"`
	// Field is the path of the field, for example "spec.sidecar.sidecarClass". It is empty
	// if the problem is not about one field.
	Field string `json:"field,omitempty"`
	// Message is a sentence that says what is wrong and what would be right.
	Message string `json:"message"`
}

// ReasonAdvice is the reason of a Problem that is not an error: the object takes effect
// unchanged but probably does not do what its author meant.
const ReasonAdvice = "Advice"

// IsAdvice reports whether the object takes effect in spite of the problem.
func (p Problem) IsAdvice() bool { return p.Reason == ReasonAdvice }

// String returns the problem as one line of text.
func (p Problem) String() string {
	if p.Field == "" {
		return p.Object.String() + ": " + p.Reason + ": " + p.Message
	}
	return p.Object.String() + ": " + p.Reason + ": " + p.Field + ": " + p.Message
}
