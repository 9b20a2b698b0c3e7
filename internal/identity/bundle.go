package identity

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// bundle is a set of roots. It is not changed once it is made.
type bundle struct {
	pem   []byte
	roots []*x509.Certificate
	pool  *x509.CertPool
}

// newBundle returns the roots each once, in an order that does not depend on theirs,
// so that replicas and restarts agree on every byte.
func newBundle(roots []*x509.Certificate) *bundle {
	byBytes := func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) }
	roots = slices.SortedFunc(slices.Values(roots), byBytes)
	roots = slices.CompactFunc(roots, (*x509.Certificate).Equal)
	b := &bundle{roots: roots, pool: x509.NewCertPool()}
	for _, root := range roots {
		b.pem = append(b.pem, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Raw})...)
		b.pool.AddCert(root)
	}
	return b
}

// verify tells whether a chain, the leaf first, leads to one of the roots.
func (b *bundle) verify(chain []*x509.Certificate) error {
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: b.pool, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// knows tells whether one of the roots has signed a chain, by the identifiers of their
// keys. It is for chains that the issuer itself has verified just now, where only the
// root may be one that is not trusted, or not yet; a signature more would cost more than
// all else that is done here. A chain without identifiers is verified as a whole.
func (b *bundle) knows(chain []*x509.Certificate) bool {
	last, now := chain[len(chain)-1], time.Now()
	for _, root := range b.roots {
		if len(last.AuthorityKeyId) > 0 && bytes.Equal(last.AuthorityKeyId, root.SubjectKeyId) &&
			bytes.Equal(last.RawIssuer, root.RawSubject) && now.After(root.NotBefore) && now.Before(root.NotAfter) {
			return true
		}
	}
	return b.verify(chain) == nil
}

// parseCertificates reads PEM that holds certificates, at least one, and nothing else.
func parseCertificates(text []byte) ([]*x509.Certificate, error) {
	var certificates []*x509.Certificate
	for {
		var block *pem.Block
		block, text = pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("there is a PEM block of type %q among the certificates", block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certificates = append(certificates, certificate)
	}
	if len(bytes.TrimSpace(text)) > 0 {
		return nil, errors.New("there is something else than PEM after the certificates")
	}
	if len(certificates) == 0 {
		return nil, errors.New("there is no certificate in PEM")
	}
	return certificates, nil
}

// Root is one root of the trust bundle.
type Root struct {
	Subject     string    `json:"subject"`
	Fingerprint string    `json:"sha256"`
	NotBefore   time.Time `json:"notBefore"`
	NotAfter    time.Time `json:"notAfter"`
}

func describeRoot(root *x509.Certificate) Root {
	sum := sha256.Sum256(root.Raw)
	return Root{
		Subject: root.Subject.String(), Fingerprint: hex.EncodeToString(sum[:]),
		NotBefore: root.NotBefore, NotAfter: root.NotAfter,
	}
}
