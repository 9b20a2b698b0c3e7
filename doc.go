// Package outrigger holds no code but the tests of the house. Outrigger is a
// Kubernetes service mesh whose sidecar proxy is a plug-in.
//
// Start reading at [github.com/outrigger-mesh/outrigger/sidecar/driver], the
// contract with a proxy, and at internal/inject, which puts proxies into pods.
// What may import what, and why, is the table in house_test.go.
package outrigger
