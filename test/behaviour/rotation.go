package behaviour

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
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
	root := authority(t, certificate, key).Leaf
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
	return w.root(t).SignFor(&mesh.Proxy{Identity: id}, time.Hour)
}

// root is the mesh's own root.
func (w *testMesh) root(t *testing.T) drivertest.TestAuthority {
	t.Helper()
	return authority(t, w.caFile(t, "outrigger-ca-bundle/ca.crt"), w.caFile(t, "outrigger-ca-bundle/ca.key"))
}

// authority issues certificates of a root.
func authority(t *testing.T, certificate, key []byte) drivertest.TestAuthority {
	t.Helper()
	root, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return drivertest.TestAuthority{Authority: &drivertest.Authority{Certificate: root}, T: t}
}

// foreignCertificate issues a certificate of the identity from another root with the
// same name.
func foreignCertificate(t *testing.T, id mesh.Identity) tls.Certificate {
	t.Helper()
	certificate, key, err := issuer.NewRoot(id.TrustDomain, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return authority(t, certificate, key).SignFor(&mesh.Proxy{Identity: id}, time.Hour)
}
