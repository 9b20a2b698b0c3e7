// Package issuer signs the mesh's certificates: with Outrigger's own CA, cert-manager or
// Vault. All implement one interface, which issuertest checks. Package identity decides
// what may be signed.
package issuer

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Issuer signs certificates. It is safe for use by many goroutines.
type Issuer interface {
	// String describes the issuer for logs and errors, without secrets.
	fmt.Stringer
	// Issue signs a certificate with exactly the names of the request; further names in the
	// CSR are not included. It returns the leaf and the intermediates without the root,
	// leaf first. The error names the issuer and includes its message; it wraps
	// ErrUnavailable if a retry may help. Issue returns soon after ctx ends.
	Issue(ctx context.Context, req Request) ([]*x509.Certificate, error)
	// Roots returns the roots that verify issued certificates, in a stable order. They may
	// change at any time.
	Roots(ctx context.Context) ([]*x509.Certificate, error)
}

// KeySigner is an optional interface of an Issuer.
type KeySigner interface {
	// SignsKeys reports whether the CSR of a request needs only a key, and neither names nor a
	// signature. Other issuers return ErrUnchanged for such a request.
	SignsKeys() bool
}

// Request describes a certificate for TLS servers and clients.
type Request struct {
	// CSR is signed by the key that the certificate is for. Its signature has been checked.
	// External issuers sign a CSR unchanged, so they reject one that does not ask for
	// exactly the names below, including common name and unit.
	CSR *x509.CertificateRequest
	// CommonName and OrganizationalUnit are the subject; the unit may be empty.
	CommonName, OrganizationalUnit string
	// URI is the only URI SAN, or "" for none.
	URI string
	// DNSNames and IPAddresses are the other SANs. Addresses are in textual form.
	DNSNames, IPAddresses []string
	// Life is the lifetime from now; the certificate is valid from a little before. It is
	// shorter if the issuer's own certificate expires earlier.
	Life time.Duration
	// Backdate is how long before now Outrigger's own CA makes the certificate valid, for
	// verifiers whose clocks are behind; 0 means pki.Skew.
	Backdate time.Duration
}

// Trust is the signing issuer and the trusted roots. It is immutable.
type Trust struct {
	Signing Issuer
	// Roots are all trusted roots, including those of Signing.
	Roots []*x509.Certificate
}

// ErrUnchanged means that a CSR does not ask for exactly the names of the request, and that
// the issuer signs CSRs unchanged.
var ErrUnchanged = errors.New("the CSR does not match the request, and this issuer signs CSRs unchanged")

// ErrUnavailable means that an issuer could not be reached or was not ready.
var ErrUnavailable = errors.New("the issuer is not available")
