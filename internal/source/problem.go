package source

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The reasons of the Problems of one object by itself.
const (
	// ReasonUnknownClass says that no registered driver bears a name.
	ReasonUnknownClass = "UnknownClass"
	// ReasonInvalid says that a value cannot be used; the default is in its place, or
	// what it belongs to is left out.
	ReasonInvalid = "Invalid"
	// ReasonInvalidRegex says that a value is not a regular expression that every
	// proxy can match with; what it belongs to is left out.
	ReasonInvalidRegex = "InvalidRegex"
	// ReasonMissing says that a value is not there without which an object, or a part
	// of it, says nothing.
	ReasonMissing = "Missing"
	// ReasonDuplicate says that something stands twice where it may stand once; the
	// first one counts.
	ReasonDuplicate = "Duplicate"
	// ReasonUnknownKind says that a reference is to a kind that means nothing there, or
	// that an object is of a kind that there is not.
	ReasonUnknownKind = "UnknownKind"
	// ReasonUnknownProtocol says that a port's protocol is not one of the mesh's.
	ReasonUnknownProtocol = "UnknownProtocol"
	// ReasonOtherNamespace says that an object names something in a namespace that it
	// has no say in.
	ReasonOtherNamespace = "OtherNamespace"
	// ReasonNotSupported says that Outrigger does not do what an object asks for, and
	// that leaving it undone makes a difference.
	ReasonNotSupported = "NotSupported"
	// ReasonMTLSDisabled says that the pods of a class speak plaintext.
	ReasonMTLSDisabled = "MTLSDisabled"
	// ReasonConflict says that a value gives way to another one for the same thing.
	ReasonConflict = "Conflict"
	// ReasonNoEffect says that a field does nothing in Outrigger.
	ReasonNoEffect = "NoEffect"
)

// notes are what is found to be wrong with one object.
type notes struct {
	object   mesh.ObjectRef
	problems []mesh.Problem
}

// add notes a Problem. Values of the user's go into the message with %q, so that
// it stays one line.
func (n *notes) add(reason, field, format string, args ...any) {
	n.problems = append(n.problems, mesh.Problem{
		Object:  n.object,
		Reason:  reason,
		Field:   field,
		Message: fmt.Sprintf(format, args...),
	})
}

// sorted returns the Problems by their fields and reasons.
func (n *notes) sorted() []mesh.Problem {
	slices.SortStableFunc(n.problems, func(a, b mesh.Problem) int {
		return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason))
	})
	return n.problems
}

// reader reads one MeshConfig and notes what is wrong with it.
type reader struct {
	notes
	spec *v1alpha2.MeshConfigSpec
	opts ConfigOptions
}
