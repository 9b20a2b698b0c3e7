package behaviour

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const rootTemplate = `
---
apiVersion: config.openservicemesh.io/v1alpha2
kind: MeshRootCertificate
metadata: {name: %[1]s, namespace: osm-system}
spec:
  trustDomain: cluster.local
  intent: %[2]s
  provider: {tresor: {ca: {secretRef: {name: %[1]s, namespace: osm-system}}}}
`

// testRotation follows the runbook: a second root is first trusted, then signs, then is
// the only one. It must be the last row, since it leaves the mesh with another root.
func testRotation(t *testing.T, w *testMesh) {
	w.shortLives(t)
	const former, next = "outrigger-ca-bundle", "next-root"
	certificate, key, err := issuer.NewRoot("cluster.local", 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.CADir(), next)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"ca.crt": certificate, "ca.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	steps := []struct{ former, next string }{{"active", "passive"}, {"passive", "active"}, {"", "active"}}
	l := w.startLoad(w.pod(t, "users/web"), cartV1, 4)
	root, err := x509.ParseCertificate(mustDecode(t, certificate))
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range steps {
		manifest := fmt.Sprintf(rootTemplate, next, step.next)
		if step.former != "" {
			manifest += fmt.Sprintf(rootTemplate, former, step.former)
		}
		w.set(t, "roots.yaml", manifest)
		w.eventuallyWithin(t, time.Minute, func() error {
			bundle := w.caFile(t, "bundle.crt")
			// A removed root stays trusted until all of its certificates have expired.
			if n := bytes.Count(bundle, []byte("BEGIN CERTIFICATE")); n != 2 {
				return fmt.Errorf("step %d: the bundle has %d roots", i, n)
			}
			leaf, err := w.certificateOf(t, "shop/cart-v1")
			if err != nil {
				return err
			}
			if byNext := leaf.CheckSignatureFrom(root) == nil; byNext != (step.next == "active") {
				return fmt.Errorf("step %d: the server's certificate is signed by the new root: %t", i, byNext)
			}
			return nil
		})
		l.more(t, 200)
	}
	l.end(t)
}

func mustDecode(t *testing.T, text []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("no PEM")
	}
	return block.Bytes
}

// caFile reads a file of the CA's directory.
func (w *testMesh) caFile(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(w.CADir(), name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// roots returns the roots that the mesh trusts.
func (w *testMesh) roots(t *testing.T) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(w.caFile(t, "bundle.crt")) {
		t.Fatal("the bundle holds no certificate")
	}
	return pool
}

// certificate issues a certificate as the mesh would.
func (w *testMesh) certificate(t *testing.T, id mesh.Identity) tls.Certificate {
	t.Helper()
	return issue(t, w.caFile(t, "outrigger-ca-bundle/ca.crt"), w.caFile(t, "outrigger-ca-bundle/ca.key"), id)
}

// foreignCertificate issues a certificate of the identity from another root with the
// same name.
func foreignCertificate(t *testing.T, id mesh.Identity) tls.Certificate {
	t.Helper()
	certificate, key, err := issuer.NewRoot(id.TrustDomain, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return issue(t, certificate, key, id)
}

func issue(t *testing.T, root, rootKey []byte, id mesh.Identity) tls.Certificate {
	t.Helper()
	ca, err := issuer.FromPEM(root, rootKey)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := ca.Issue(t.Context(), issuer.Request{
		CSR: csr, CommonName: id.CommonName(), OrganizationalUnit: "test", URI: id.String(), DNSNames: []string{id.DNSName()}, Life: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	out := tls.Certificate{PrivateKey: key}
	for _, c := range chain {
		out.Certificate = append(out.Certificate, c.Raw)
	}
	return out
}
