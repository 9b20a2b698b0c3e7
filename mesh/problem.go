package mesh

// ObjectRef names an object of the user's.
type ObjectRef struct {
	// APIVersion and Kind are as the object itself gives them, for example
	// "config.openservicemesh.io/v1alpha2" and "MeshConfig".
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Namespace is empty for objects without one.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String returns Kind namespace/name, or Kind name without a namespace.
func (r ObjectRef) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// Problem is something wrong with an object of the user's, or a field of it
// that was accepted and has no effect. It is data, never a failure of ours: it
// ends in the object's status, an Event and a metric, and the rest of the mesh
// goes on.
type Problem struct {
	// Object is what is wrong.
	Object ObjectRef `json:"object"`
	// Reason is one CamelCase word for programs, for example "UnknownClass".
	Reason string `json:"reason"`
	// Field is the path of the field, for example "spec.sidecar.sidecarClass";
	// empty if the problem is not one field's.
	Field string `json:"field,omitempty"`
	// Message says in a sentence what is wrong and what would be right.
	Message string `json:"message"`
}

// ReasonAdvice is the reason of a Problem that nothing is wrong for: the object is carried
// out as it stands, and probably means something else.
const ReasonAdvice = "Advice"

// IsAdvice reports whether the object is carried out as it stands.
func (p Problem) IsAdvice() bool { return p.Reason == ReasonAdvice }

// String returns the problem as one line for a person.
func (p Problem) String() string {
	if p.Field == "" {
		return p.Object.String() + ": " + p.Reason + ": " + p.Message
	}
	return p.Object.String() + ": " + p.Reason + ": " + p.Field + ": " + p.Message
}
