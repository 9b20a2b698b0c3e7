// Package apiserver holds the API server of a real Kubernetes that the tests and
// the demo run, compiled from Go modules at the versions of this module's
// go.sum. It is a module of its own, so that nothing of it reaches the product.
// build.sh compiles them.
package apiserver

import (
	// Named here so that go.mod requires it; build.sh compiles it by its path.
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
)
