// Package source turns objects of the user's into facts, and what is wrong with
// them into Problems and status conditions. A Mapper does the first for one object
// at a time, whatever the object came from; Conditions does the second.
//
// What is wrong in an object never lets more through. A part that is left out
// because it cannot be read takes with it what it would have narrowed: an
// HTTPRouteGroup loses the match whose header is not a regular expression, not the
// header alone.
//
// Fetching the objects is done by its subpackages; this package does no I/O and
// keeps no state.
package source
