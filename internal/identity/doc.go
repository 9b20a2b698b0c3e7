// Package identity decides who may have which certificate. Its Manager keeps the trust
// bundle and the controller's own certificates over the issuers that sign; its Service
// is what agents call, with a token that a Reviewer has to know.
//
// Which issuers there are and when one takes over from another is decided elsewhere.
// A workload's key never comes here, and no key leaves.
package identity

import (
	"errors"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Audience is the audience of the tokens that agents show.
const Audience = "outrigger"

// Workload is a pod and the service account that it runs as.
type Workload struct {
	Namespace      string
	ServiceAccount string
	// Pod and PodUID are the pod's name and UID.
	Pod    string
	PodUID string
}

// identity returns who the workload is in a trust domain.
func (w Workload) identity(trustDomain string) mesh.Identity {
	return mesh.Identity{TrustDomain: trustDomain, Namespace: w.Namespace, ServiceAccount: w.ServiceAccount}
}

// Why a certificate is refused. Errors of this package wrap one of these, or
// issuer.ErrUnavailable where it is worth another try.
var (
	// ErrToken says that a token is not good: unknown, expired, for somebody else, or
	// of a pod that is no more.
	ErrToken = errors.New("the token is not good")
	// ErrNotMember says that the pod is not in the mesh, or has finished.
	ErrNotMember = errors.New("the pod is not in the mesh")
	// ErrRequest says that a certificate request asks for something else than what is
	// due.
	ErrRequest = errors.New("the certificate request is not as it must be")
)
