// Package outrigger contains only the tests of the repository's structure. Outrigger is a
// Kubernetes service mesh whose sidecar proxy is a plug-in.
//
// Start reading at [github.com/outrigger-mesh/outrigger/sidecar/driver], the contract
// for drivers, and at internal/inject, which adds proxies to pods. The table in
// house_test.go defines the allowed imports, with reasons.
package outrigger
