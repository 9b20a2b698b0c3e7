// Package source converts the user's objects to facts, and errors in them to Problems
// and status conditions. A Mapper converts single objects from any origin;
// Conditions converts Problems.
//
// Errors in an object never allow more traffic. Whatever an invalid part would have
// restricted is dropped with it: an HTTPRouteGroup loses the whole match whose header
// is not a regular expression, not only the condition on the header.
//
// The subpackages fetch the objects. This package does no I/O and has no state.
package source
