package identity

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"fmt"

	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// maxCSR limits the length of a certificate request in DER, in bytes. One with the longest
// names has less than 2 KiB.
const maxCSR = 8 << 10

// CheckCSR parses a PKCS #10 certificate request in DER. It must ask for exactly the names
// of a workload: its URI, its DNS name, and a subject with its common name and the pod's UID
// as organizational unit. It must be signed with its own key, which must be ECDSA on P-256
// or P-384: other keys are not supported by every proxy or are too expensive. The error
// wraps ErrRequest and names the problem.
func CheckCSR(der []byte, identity mesh.Identity, podUID string) (*x509.CertificateRequest, error) {
	if len(der) > maxCSR {
		return nil, fmt.Errorf("%w: it is %d bytes long, want at most %d", ErrRequest, len(der), maxCSR)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("%w: it is not a PKCS #10 request in DER: %w", ErrRequest, err)
	}
	want := pki.Names{CommonName: identity.CommonName(), Unit: podUID, URIs: []string{identity.String()}, DNS: []string{identity.DNSName()}}
	if err = cmp.Or(CheckKey(csr.PublicKey), checkAlgorithm(csr), pki.CheckRequest(csr, want)); err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	return csr, nil
}

// CheckKey returns an error unless a public key is ECDSA on P-256 or P-384.
func CheckKey(public crypto.PublicKey) error {
	key, ok := public.(*ecdsa.PublicKey)
	if !ok {
		return fmt.Errorf("its key is of type %T, want ECDSA", public)
	}
	if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
		return fmt.Errorf("its key is on the curve %s, want P-256 or P-384", key.Curve.Params().Name)
	}
	return nil
}

func checkAlgorithm(csr *x509.CertificateRequest) error {
	switch csr.SignatureAlgorithm {
	case x509.ECDSAWithSHA256, x509.ECDSAWithSHA384, x509.ECDSAWithSHA512:
		return nil
	}
	return fmt.Errorf("it is signed with %s, want ECDSA with SHA-256, SHA-384 or SHA-512", csr.SignatureAlgorithm)
}
