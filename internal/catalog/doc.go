// Package catalog joins facts into the Snapshot of the mesh and the Views of its
// proxies.
//
// Facts arrive one object at a time, in any order. Everything derived from them is
// a pure function of the facts it reads, and package graph reruns the functions
// affected by a change. So there is no code for updates, and the cost of a change is
// proportional to its effect. join.go wires inputs, indexes, functions and tables;
// backend.go, destination.go, outbound.go, access.go, inbound.go, egress.go and
// view.go contain the functions; problem*.go report conflicts, dangling references
// and features that proxies lack.
//
// The package must not import Kubernetes types or anything of a proxy.
package catalog
