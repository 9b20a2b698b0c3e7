// Package mesh is the vocabulary of a driver. A View is all that one proxy may see of the
// mesh: its Inbound, its Outbound and its Egress. An error in an object of the user's is
// a Problem, and what a View asks of a driver is a Feature.
//
// Facts and the Snapshot, which Views are made from, are in package internal/fact.
//
// Everything in a View is immutable and shared: an unchanged part is the same
// pointer in the next View. Shared parts are sealed (see Seal) and kept in
// Tables.
//
// The package has no proxy or Kubernetes types and does no I/O. It imports only
// the standard library.
package mesh
