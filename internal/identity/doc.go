// Package identity decides who gets which certificate. Its Manager serves the trust bundle,
// signs with the current issuer and renews the controller's own certificate. Its Service
// answers agents, which authenticate with a token that a TokenReviewer checks.
//
// Package root chooses the issuers and when to switch between them. Workloads' keys are
// never sent here, and no key leaves the package.
package identity

import (
	"errors"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Audience is the audience of agents' tokens.
const Audience = "outrigger"

// Workload is a pod and the service account that it runs as.
type Workload struct {
	Namespace      string
	ServiceAccount string
	// Pod and PodUID are the pod's name and UID.
	Pod    string
	PodUID string
}

// identity returns the workload's identity in a trust domain.
func (w Workload) identity(trustDomain string) mesh.Identity {
	return mesh.Identity{TrustDomain: trustDomain, Namespace: w.Namespace, ServiceAccount: w.ServiceAccount}
}

// Reasons to refuse a certificate. Errors of this package wrap one of these, or
// issuer.ErrUnavailable if a retry may help.
var (
	// ErrToken means that a token is invalid: unknown, expired, for another audience, or of
	// a pod that no longer exists.
	ErrToken = errors.New("the token is invalid")
	// ErrNotMember means that the pod is not in the mesh, or has finished.
	ErrNotMember = errors.New("the pod is not in the mesh")
	// ErrRequest means that a certificate request does not ask for exactly the pod's names.
	ErrRequest = errors.New("the certificate request is invalid")
)
