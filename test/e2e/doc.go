// Package e2e tests the mesh on a real Kubernetes, as its users meet it: by kubectl, the
// program outrigger and requests of applications. 'make e2e' runs it; it needs the build tag
// e2e and a cluster that KUBECONFIG names and that may be changed.
package e2e
