package root_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/publish"
	"github.com/outrigger-mesh/outrigger/internal/identity/root"
)

// testOpenServiceMesh checks that Open Service Mesh's existing Secret is used unchanged.
func testOpenServiceMesh(t *testing.T, c *cluster) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "osm-ca.openservicemesh.io", Country: []string{"US"}, Organization: []string{"Open Service Mesh"}},
		NotBefore: time.Now(), NotAfter: time.Now().Add(87600 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c.put(t, "outrigger-ca-bundle", map[string][]byte{
		"ca.crt":      pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		"private.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		"expiration":  []byte("2032-10-01T00:00:00Z"),
	})
	r := run(t, c.options(t))
	r.want(t, "osm-ca.openservicemesh.io", "osm-ca.openservicemesh.io")
	r.noProblems(t)
}

func (c *cluster) namespace(t *testing.T, name, mesh string) *corev1.Namespace {
	t.Helper()
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if mesh != "" {
		n.Labels = map[string]string{"openservicemesh.io/monitored-by": mesh}
	}
	c.create(t, n)
	return n
}

// bundleIn returns the ConfigMap of a namespace, or nil.
func (c *cluster) bundleIn(t *testing.T, namespace string) *corev1.ConfigMap {
	t.Helper()
	var found corev1.ConfigMap
	err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "outrigger-ca"}, &found)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return &found
}

// wantBundle waits until a namespace has the roots with these names, or no ConfigMap.
func (c *cluster) wantBundle(t *testing.T, namespace string, names ...string) {
	t.Helper()
	eventually(t, func() string {
		want, got := map[string]bool{}, map[string]bool{}
		for _, name := range names {
			want[name] = true
		}
		if found := c.bundleIn(t, namespace); found != nil {
			for _, root := range parse(t, []byte(found.Data["ca.crt"])) {
				got[root.Subject.CommonName] = true
			}
			if len(found.Data) != 1 {
				got[fmt.Sprintf("%d keys", len(found.Data))] = true
			}
		}
		if maps.Equal(want, got) {
			return ""
		}
		return fmt.Sprintf("namespace %s (-want +got):\n%s", namespace, cmp.Diff(want, got))
	})
}

func testBundle(t *testing.T, c *cluster) {
	c.put(t, "outrigger-ca-bundle", goodCA(t, "one").data())
	shop := c.namespace(t, "shop", "osm")
	other := c.namespace(t, "other-mesh", "other")
	foreign := c.namespace(t, "foreign", "osm")
	c.namespace(t, "plain", "")
	evil := string(goodCA(t, "evil").cert)
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "foreign", Name: "outrigger-ca"}, Data: map[string]string{"ca.crt": evil}}
	c.create(t, theirs.DeepCopy())
	unmeshed := theirs.DeepCopy()
	unmeshed.Data["ca.crt"] = "mine"
	unmeshed.ObjectMeta = metav1.ObjectMeta{Namespace: "plain", Name: "outrigger-ca"}
	c.create(t, unmeshed)

	opts := c.options(t)
	opts.Propagation = time.Hour
	p := c.start(t, opts)
	c.wantBundle(t, "shop", "one")
	// Pods mount an existing ConfigMap of that name, so it gets the bundle too.
	c.wantBundle(t, "foreign", "one")

	// Changes are reverted.
	c.remove(t, c.bundleIn(t, "shop"))
	c.wantBundle(t, "shop", "one")
	for what, attack := range map[string]func(*corev1.ConfigMap){
		"another root":         func(*corev1.ConfigMap) {},
		"more of it":           func(m *corev1.ConfigMap) { m.Data["more"] = "of it" },
		"without our label":    func(m *corev1.ConfigMap) { delete(m.Labels, "app.kubernetes.io/managed-by") },
		"somebody else's":      func(m *corev1.ConfigMap) { m.Labels["app.kubernetes.io/managed-by"] = "Helm" },
		"of another mesh":      func(m *corev1.ConfigMap) { m.Labels["openservicemesh.io/monitored-by"] = "other" },
		"without labels":       func(m *corev1.ConfigMap) { m.Labels = nil },
		"immutable":            func(m *corev1.ConfigMap) { m.Immutable = new(true) },
		"immutable, unlabeled": func(m *corev1.ConfigMap) { m.Immutable, m.Labels = new(true), nil },
		"immutable, held": func(m *corev1.ConfigMap) {
			m.Immutable, m.Labels, m.Finalizers = new(true), nil, []string{"example.com/held"}
		},
		"owned": func(m *corev1.ConfigMap) {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "1"}}
		},
	} {
		t.Run(what, func(t *testing.T) {
			change(t, c, c.bundleIn(t, "shop"), func(m *corev1.ConfigMap) {
				m.Data = map[string]string{"ca.crt": evil}
				attack(m)
			})
			c.wantBundle(t, "shop", "one")
			eventually(t, func() string {
				found := c.bundleIn(t, "shop")
				if found == nil {
					return "it is gone"
				}
				return cmp.Diff(map[string]string{"app.kubernetes.io/managed-by": "outrigger-controller", "openservicemesh.io/monitored-by": "osm"}, found.Labels) +
					cmp.Diff([]string(nil), found.Finalizers) + cmp.Diff([]metav1.OwnerReference(nil), found.OwnerReferences)
			})
		})
	}
	c.remove(t, theirs)
	c.wantBundle(t, "foreign", "one")

	// It follows the roots, and namespaces.
	c.put(t, "outrigger-ca-bundle", goodCA(t, "two").data())
	c.wantBundle(t, "shop", "one", "two")
	c.wantBundle(t, "foreign", "one", "two")
	c.namespace(t, "late", "osm")
	c.wantBundle(t, "late", "one", "two")
	relabel := func(n *corev1.Namespace, mesh string) {
		change(t, c, n, func(n *corev1.Namespace) { n.Labels["openservicemesh.io/monitored-by"] = mesh })
	}
	relabel(other, "osm")
	c.wantBundle(t, "other-mesh", "one", "two")
	relabel(shop, "no")
	c.wantBundle(t, "shop")

	// Changes while no controller runs are handled later.
	p.stop()
	relabel(foreign, "no")
	relabel(shop, "osm")
	c.remove(t, c.bundleIn(t, "late"))
	c.start(t, opts)
	c.wantBundle(t, "shop", "one", "two")
	c.wantBundle(t, "late", "one", "two")
	c.wantBundle(t, "foreign")
	if got := c.bundleIn(t, "plain"); got == nil || got.Data["ca.crt"] != "mine" {
		t.Errorf("the ConfigMap of a namespace that is none of ours is now %v", got)
	}
}

// TestBundleFile tests the bundle's file, for a mesh without a cluster.
func TestBundleFile(t *testing.T) {
	store, dir := dirStore(t)
	put(t, dir, "outrigger-ca-bundle", goodCA(t, "one").data())
	ids, err := identity.NewManager(identity.Options{
		DNSNames: []string{"a"}, TrustDomain: func() string { return "cluster.local" }, Log: discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go ids.Run(ctx)
	go publish.PublishFile(ctx, ids, dir, discard())
	r := run(t, root.Options{Secrets: store})
	r.pass(ids)
	path := filepath.Join(dir, "bundle.crt")
	want := func(names ...string) {
		t.Helper()
		eventually(t, func() string {
			text, err := os.ReadFile(path)
			if err != nil {
				return err.Error()
			}
			wanted, got := map[string]bool{}, map[string]bool{}
			for _, name := range names {
				wanted[name] = true
			}
			for _, root := range parse(t, text) {
				got[root.Subject.CommonName] = true
			}
			return cmp.Diff(wanted, got)
		})
	}
	want("one")
	put(t, dir, "outrigger-ca-bundle", goodCA(t, "two").data())
	want("one", "two")
	if err := os.WriteFile(path, []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("one", "two")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want("one", "two")
}
