// Package mesh is the vocabulary of the mesh. It has three parts, in the order in
// which data flows:
//
//   - Facts are the content of the user's objects, one Fact for each object:
//     Workload, Service, EndpointSlice, AccessRule, RouteGroup, Split, EgressRule,
//     IngressRule, RetryRule, UpstreamSetting, Namespace and Settings. An error in
//     an object is a Problem.
//   - A Snapshot is the state of the mesh at one moment, with all references
//     between facts resolved.
//   - A View is the part of a Snapshot that one proxy may see: its Inbound, its
//     Outbound and its Egress. Drivers see nothing else.
//
// Everything in a Snapshot is immutable and shared: an unchanged part is the same
// pointer in the next Snapshot. Shared parts are sealed (see Seal) and kept in
// Tables.
//
// The package has no proxy or Kubernetes types and does no I/O. It imports only
// the standard library.
package mesh
