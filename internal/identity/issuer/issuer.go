// Package issuer is what signs the mesh's certificates: Outrigger's own CA,
// cert-manager, Vault. They are behind one interface, and issuertest holds them all to
// it. What may be signed is decided before, in package identity.
package issuer

import (
	"context"
	"crypto/x509"
	"errors"
	"time"
)

// Issuer signs certificates. It is safe for use by many goroutines.
type Issuer interface {
	// Issue signs a certificate as the request says, no more and no less: names that
	// the CSR asks for besides are not in it. It returns the leaf and the
	// intermediates up to but without the root as PEM, the leaf first. The error names
	// the issuer and what it said; one that is worth another try wraps ErrUnavailable.
	// It returns soon after ctx ends.
	Issue(ctx context.Context, req Request) ([]byte, error)
	// Roots returns the PEM of the roots that verify what it issues. They may change
	// while it lives, and whoever needs them asks again.
	Roots(ctx context.Context) ([]byte, error)
}

// Request is a certificate that is wanted. It is good for servers and clients.
type Request struct {
	// CSR is signed by the key that the certificate is for. Its signature has been
	// checked. Issuers elsewhere sign a CSR as it is, and refuse one that does not ask
	// for exactly the names below, common name and unit included.
	CSR *x509.CertificateRequest
	// CommonName and OrganizationalUnit are the subject; the unit may be empty.
	CommonName, OrganizationalUnit string
	// URI is the one URI SAN, or "" for none.
	URI string
	// DNSNames and IPAddresses are the other SANs. Addresses are in textual form.
	DNSNames, IPAddresses []string
	// Life is how long it is to be valid, from a little before now on. An issuer whose
	// own certificate ends sooner issues a shorter one.
	Life time.Duration
}

// Trust is who signs and which roots are trusted at one moment. Nobody changes it once it
// is made.
type Trust struct {
	Signing Issuer
	// Roots are all that are trusted, those that verify what Signing issues among them.
	Roots []*x509.Certificate
}

// ErrUnavailable says that an issuer could not be reached or was not ready.
var ErrUnavailable = errors.New("the issuer is not available")
