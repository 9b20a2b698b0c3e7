// Package mesh is the vocabulary of the mesh. It has three parts, in the order in
// which data flows:
//
//   - Facts are what the user's objects say, one object at a time: Workload,
//     Service, EndpointSlice, AccessRule, RouteGroup, Split, EgressRule,
//     IngressRule, RetryRule, UpstreamSetting, Namespace and Settings. What is
//     wrong with an object is a Problem.
//   - A Snapshot is the whole mesh at one moment, after facts that refer to each
//     other have been joined.
//   - A View is all that one proxy may see of a Snapshot: its Inbound, its
//     Outbound and its Egress. It is all that a driver sees.
//
// Everything in a Snapshot is immutable and shared: a part that did not change is
// the same pointer in the next Snapshot. Parts that are shared are sealed (see
// Seal), and a Table holds many of them.
//
// The package knows no proxy and no Kubernetes type, and does no I/O. It imports
// the standard library only.
package mesh
