package behaviour_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// eventuallyWithin is eventually with another limit.
func (w *world) eventuallyWithin(t *testing.T, limit time.Duration, is func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := is()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// shortLives makes certificates end soon, until the test's end.
func (w *world) shortLives(t *testing.T) {
	t.Helper()
	if err := w.Apply(t.Context(), "mesh.yaml", meshConfig("", "")+"  certificate: {serviceCertValidityDuration: 10s}\n"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Apply(context.WithoutCancel(t.Context()), "mesh.yaml", meshConfig("", "")); err != nil {
			t.Error(err)
		}
	})
	// What is valid for a day is renewed when its agent begins anew.
	for _, pod := range []string{"users/web", "shop/cart-v1"} {
		if err := w.pod(t, pod).Container("outrigger-proxy").Kill(); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually(t, func() error {
		leaf, err := w.certificateOf(t, "shop/cart-v1")
		if err != nil {
			return err
		}
		if life := time.Until(leaf.NotAfter); life > time.Minute {
			return fmt.Errorf("the certificate is valid for another %s", life)
		}
		return nil
	})
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))
}

// caFile reads a file of the CA's folder.
func (w *world) caFile(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(w.CADir(), name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// roots returns the roots that the mesh trusts.
func (w *world) roots(t *testing.T) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(w.caFile(t, "bundle.crt")) {
		t.Fatal("the bundle holds no certificate")
	}
	return pool
}

// certificate issues one, as the mesh would.
func (w *world) certificate(t *testing.T, id mesh.Identity) tls.Certificate {
	t.Helper()
	ca, err := issuer.FromPEM(w.caFile(t, "osm-ca-bundle/ca.crt"), w.caFile(t, "osm-ca-bundle/ca.key"))
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
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		out.Certificate = append(out.Certificate, block.Bytes)
	}
	return out
}

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

// testRotation goes the way of the runbook: a second root that is trusted, then signs,
// then is the only one. It is the last row, since the town is on another root then.
func testRotation(t *testing.T, w *world) {
	w.shortLives(t)
	const former, next = "osm-ca-bundle", "next-root"
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
		if err := w.Apply(t.Context(), "roots.yaml", manifest); err != nil {
			t.Fatal(err)
		}
		w.eventuallyWithin(t, time.Minute, func() error {
			bundle := w.caFile(t, "bundle.crt")
			// A root that was taken away is trusted until all that it has signed has ended.
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

// connection is what /debug/proxy says of a proxy.
type connection struct {
	Name mesh.Name `json:"name"`
	// State is "Current" when the proxy runs what it was sent last.
	State     string `json:"state"`
	Resources int    `json:"resources"`
}

func (w *world) connections(t *testing.T) ([]connection, error) {
	t.Helper()
	body, err := w.Debug(t.Context(), "/debug/proxy")
	if err != nil {
		return nil, err
	}
	var list []connection
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("%w in %.300s", err, body)
	}
	return list, nil
}

// settled returns the connections when nothing more is sent: what the row before has
// changed has arrived.
func (w *world) settled(t *testing.T) []connection {
	t.Helper()
	var last []connection
	since := time.Now()
	w.eventually(t, func() error {
		now, err := w.connections(t)
		if err != nil {
			return err
		}
		if !slices.Equal(now, last) {
			last, since = now, time.Now()
		}
		for _, c := range now {
			if c.State != "Current" && c.State != "Empty" {
				return fmt.Errorf("%s is %s", c.Name, c.State)
			}
		}
		if quiet := time.Since(since); quiet < 2*time.Second {
			return fmt.Errorf("something was sent %s ago", quiet)
		}
		return nil
	})
	return last
}

func testControllerKilled(t *testing.T, w *world) {
	before := w.settled(t)
	l := w.startLoad(w.pod(t, "users/web"), cartV1, 4)
	l.more(t, 50)
	if err := w.KillController(); err != nil {
		t.Fatal(err)
	}
	l.more(t, 200)
	if err := w.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.eventuallyWithin(t, time.Minute, func() error {
		now, err := w.connections(t)
		if err != nil {
			return err
		}
		if len(now) != len(before) {
			return fmt.Errorf("%d of %d proxies are connected", len(now), len(before))
		}
		return nil
	})
	l.more(t, 200)
	l.end(t)
	now, err := w.connections(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range now {
		if c.Resources != 0 {
			t.Errorf("%s was sent %d resources by a controller that knows nothing new", c.Name, c.Resources)
		}
	}
	// And it does its work again.
	w.apply(t, "split.yaml", fmt.Sprintf(splitTemplate, 0, 100))
	w.get(t, "users/web", cart, isFrom("cart-v2"))
}

// proxyProgram is the proxy's program.
const proxyProgram = "envoy"

// probeOf is a probe that the kubelet would ask.
type probeOf struct {
	port, path string
	header     map[string][]string
}

// probeURL returns what the kubelet would ask; all probes of injected pods are HTTP.
func probeURL(p *corev1.Probe) *probeOf {
	if p == nil || p.HTTPGet == nil {
		return nil
	}
	out := &probeOf{port: p.HTTPGet.Port.String(), path: p.HTTPGet.Path, header: map[string][]string{}}
	for _, h := range p.HTTPGet.HTTPHeaders {
		out.header[h.Name] = append(out.header[h.Name], h.Value)
	}
	return out
}
