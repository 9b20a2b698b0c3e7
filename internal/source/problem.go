package source

import (
	"fmt"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The reasons of the Problems of a MeshConfig.
const (
	// ReasonUnknownClass says that no registered driver bears a name.
	ReasonUnknownClass = "UnknownClass"
	// ReasonInvalid says that a value cannot be used; the default is in its place.
	ReasonInvalid = "Invalid"
	// ReasonMTLSDisabled says that the pods of a class speak plaintext.
	ReasonMTLSDisabled = "MTLSDisabled"
	// ReasonConflict says that a value gives way to another one for the same thing.
	ReasonConflict = "Conflict"
	// ReasonNoEffect says that a field does nothing in Outrigger.
	ReasonNoEffect = "NoEffect"
	// ReasonNotYet says that what a field asks for is not in this build.
	ReasonNotYet = "NotYet"
)

// reader reads one MeshConfig and notes what is wrong with it.
type reader struct {
	spec     *v1alpha2.MeshConfigSpec
	opts     ConfigOptions
	object   mesh.ObjectRef
	problems []mesh.Problem
}

// add notes a Problem. Values of the user's go into the message with %q, so that
// it stays one line.
func (r *reader) add(reason, field, format string, args ...any) {
	r.problems = append(r.problems, mesh.Problem{
		Object:  r.object,
		Reason:  reason,
		Field:   field,
		Message: fmt.Sprintf(format, args...),
	})
}
