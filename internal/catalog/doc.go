// Package catalog joins facts into the Snapshot of the mesh and the Views of its
// proxies.
//
// The facts come one object at a time, in any order. What is made of them is
// written as plain functions of the facts that they read, and package graph runs
// those again that a change concerns: so a join has no code for changes, and the work
// for one is proportional to what it changes. The files follow the picture: join.go
// wires inputs, indexes, functions and tables; backend.go, destination.go,
// outbound.go, access.go, inbound.go, egress.go and view.go are the functions, and
// problem.go, problem_route.go and problem_edge.go tell what contradicts or leads
// nowhere.
//
// The package knows the vocabulary of package mesh and nothing else: no Kubernetes,
// no proxy.
package catalog
