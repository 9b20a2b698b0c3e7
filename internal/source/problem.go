package source

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The reasons of Problems in single objects.
const (
	// ReasonUnknownClass: no driver is registered under a name.
	ReasonUnknownClass = "UnknownClass"
	// ReasonInvalid: a value is invalid; the default is used, or the enclosing part is
	// ignored.
	ReasonInvalid = "Invalid"
	// ReasonInvalidRegex: a value is not a regular expression that all proxies support;
	// the enclosing part is ignored.
	ReasonInvalidRegex = "InvalidRegex"
	// ReasonMissing: a required value is missing, so an object or part of it has no
	// effect.
	ReasonMissing = "Missing"
	// ReasonDuplicate: a duplicate is ignored; the first one is used.
	ReasonDuplicate = "Duplicate"
	// ReasonUnknownKind: a reference or an object has a kind that is not supported there.
	ReasonUnknownKind = "UnknownKind"
	// ReasonUnknownProtocol: the mesh does not know a port's protocol.
	ReasonUnknownProtocol = "UnknownProtocol"
	// ReasonOtherNamespace: an object refers to a namespace that it must not configure.
	ReasonOtherNamespace = "OtherNamespace"
	// ReasonNotSupported: Outrigger does not support a feature whose absence makes a
	// difference.
	ReasonNotSupported = "NotSupported"
	// ReasonMTLSDisabled: the pods of a class use plaintext.
	ReasonMTLSDisabled = "MTLSDisabled"
	// ReasonConflict: a value is overridden by another one.
	ReasonConflict = "Conflict"
	// ReasonNoEffect: a field has no effect in Outrigger.
	ReasonNoEffect = "NoEffect"
	// ReasonNotSupportedByProxy: an image lacks a feature that its class declares.
	ReasonNotSupportedByProxy = "NotSupportedByProxy"
)

// notes collects the Problems of one object.
type notes struct {
	object   mesh.ObjectRef
	problems []mesh.Problem
	// steps are those of the object's regular expressions so far.
	steps int
}

// add adds a Problem. User input is formatted with %q, so that the message stays on one
// line.
func (n *notes) add(reason, field, format string, args ...any) {
	n.problems = append(n.problems, mesh.Problem{
		Object:  n.object,
		Reason:  reason,
		Field:   field,
		Message: fmt.Sprintf(format, args...),
	})
}

// sorted returns the Problems, sorted by field and reason.
func (n *notes) sorted() []mesh.Problem {
	slices.SortStableFunc(n.problems, func(a, b mesh.Problem) int {
		return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason))
	})
	return n.problems
}

// reader reads one MeshConfig and collects its Problems.
type reader struct {
	notes
	spec *v1alpha2.MeshConfigSpec
	opts ConfigOptions
}
