// Package e2e tests the mesh on a real Kubernetes like a user: with kubectl, the program
// outrigger and requests of applications. 'make e2e' runs it; it needs the build tag e2e and
// a cluster in KUBECONFIG that it may change.
package e2e
