package issuer_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer/issuertest"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

var (
	requestResource = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificaterequests"}
	issuerResource  = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "issuers"}
	clusterResource = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "clusterissuers"}
)

// cluster is an API server with cert-manager's own CRDs and controllers.
type cluster struct {
	kube    kubernetes.Interface
	dynamic dynamic.Interface
}

const meshNamespace = "mesh"

// TestCertManager runs everything on one API server with the real cert-manager.
func TestCertManager(t *testing.T) {
	dir := program(t, "certmanager")
	apiserver.Require(t)
	server, err := apiserver.Run(filepath.Join(dir, "crds"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	c := &cluster{}
	if c.kube, err = kubernetes.NewForConfig(server.Config); err != nil {
		t.Fatal(err)
	}
	if c.dynamic, err = dynamic.NewForConfig(server.Config); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{meshNamespace, "cert-manager"} {
		if _, err := c.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig, err := server.Kubeconfig("cert-manager", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, filepath.Join(dir, "certmanager"), file)

	t.Run("Root", c.root)
	t.Run("Intermediate", c.intermediate)
	t.Run("NoRoot", c.noRoot)
	t.Run("NewCA", c.newCA)
	t.Run("CAEnds", c.caEnds)
	t.Run("NoIssuer", c.noIssuer)
	t.Run("External", c.external)
	t.Run("Denied", c.denied)
	t.Run("Invalid", c.invalid)
	t.Run("Gone", c.gone)
	t.Run("NoRight", func(t *testing.T) { c.noRight(t, server) })
	t.Run("NothingLeft", func(t *testing.T) {
		left, err := c.dynamic.Resource(requestResource).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(left.Items) > 0 {
			t.Errorf("%d CertificateRequests are left (%v)", len(left.Items), err)
		}
	})
}

// secret writes the Secret that a CA issuer signs with.
func (c *cluster) secret(t *testing.T, namespace, name string, a authority, chain ...authority) {
	t.Helper()
	certificates := a.pem()
	for _, above := range chain {
		certificates = append(certificates, above.pem()...)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": certificates, "tls.key": a.keyPEM(t)},
	}
	secrets := c.kube.CoreV1().Secrets(namespace)
	if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err == nil {
		return
	}
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// caIssuer creates an Issuer or ClusterIssuer for the Secret of its name.
func (c *cluster) caIssuer(t *testing.T, kind, name string) *issuer.CertManager {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": map[string]any{"name": name},
		"spec": map[string]any{"ca": map[string]any{"secretName": name}},
	}}
	var err error
	if kind == "ClusterIssuer" {
		_, err = c.dynamic.Resource(clusterResource).Create(t.Context(), object, metav1.CreateOptions{})
	} else {
		_, err = c.dynamic.Resource(issuerResource).Namespace(meshNamespace).Create(t.Context(), object, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return c.issuer(t, issuer.CertManagerOptions{IssuerKind: kind, IssuerName: name})
}

func (c *cluster) issuer(t *testing.T, o issuer.CertManagerOptions) *issuer.CertManager {
	t.Helper()
	if o.Client == nil {
		o.Client = c.dynamic
	}
	if o.Namespace == "" {
		o.Namespace = meshNamespace
	}
	i, err := issuer.NewCertManager(o)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// unreachable uses an API server that does not exist.
func (c *cluster) unreachable(t *testing.T, kind, name string) *issuer.CertManager {
	t.Helper()
	client, err := dynamic.NewForConfig(&rest.Config{Host: "https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	return c.issuer(t, issuer.CertManagerOptions{Client: client, IssuerKind: kind, IssuerName: name})
}

func (c *cluster) root(t *testing.T) {
	c.secret(t, meshNamespace, "root", newAuthority(t, "cm root", ecKey(t), nil, nil))
	issuertest.Run(t, issuertest.Suite{
		Issuer: c.caIssuer(t, "Issuer", "root"), Prefix: "cert-manager Issuer root: ",
		Unreachable: c.unreachable(t, "Issuer", "root"), Within: 30 * time.Second,
	})
}

func (c *cluster) intermediate(t *testing.T) {
	root := newAuthority(t, "cm root 2", ecKey(t), nil, nil)
	middle := newAuthority(t, "cm middle", ecKey(t), &root, nil)
	c.secret(t, "cert-manager", "middle", middle, root)
	i := c.caIssuer(t, "ClusterIssuer", "middle")
	issuertest.Run(t, issuertest.Suite{Issuer: i, Prefix: "cert-manager ClusterIssuer middle: ", Within: 30 * time.Second})
	if roots, err := i.Roots(t.Context()); err != nil || !same(roots, []*x509.Certificate{root.cert}) {
		t.Errorf("the roots are %s (%v)", pki.Encode(roots...), err)
	}
}

// noRoot tests an issuer without its root, which proxies could not verify.
func (c *cluster) noRoot(t *testing.T) {
	root := newAuthority(t, "cm root 3", ecKey(t), nil, nil)
	c.secret(t, meshNamespace, "rootless", newAuthority(t, "cm middle 3", ecKey(t), &root, nil))
	chain, err := c.caIssuer(t, "Issuer", "rootless").Issue(deadline(t, 30*time.Second), issuertest.Workload(t))
	wantError(t, chain, err, false, "there is no root; configure the issuer with its complete chain")
}

// newCA replaces an issuer's CA, as a user may at any time.
func (c *cluster) newCA(t *testing.T) {
	first := newAuthority(t, "cm first", ecKey(t), nil, nil)
	second := newAuthority(t, "cm second", ecKey(t), nil, nil)
	c.secret(t, meshNamespace, "changing", first)
	i := c.caIssuer(t, "Issuer", "changing")
	req := issuertest.Workload(t)
	chain, err := i.Issue(deadline(t, 30*time.Second), req)
	if err != nil {
		t.Fatal(err)
	}
	c.secret(t, meshNamespace, "changing", second)
	eventually(t, 30*time.Second, func() error {
		if _, err := i.Issue(deadline(t, 30*time.Second), issuertest.Workload(t)); err != nil {
			return err
		}
		roots, err := i.Roots(t.Context())
		if err == nil && !slices.ContainsFunc(roots, second.cert.Equal) {
			err = errors.New("the new root is not among the roots")
		}
		return err
	})
	roots, err := i.Roots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	issuertest.Check(t, req, chain, roots)
}

// caEnds tests an issuer that signs for longer than its CA is valid.
func (c *cluster) caEnds(t *testing.T) {
	end := time.Now().Add(20 * time.Minute).Truncate(time.Second)
	root := newAuthority(t, "cm short", ecKey(t), nil, func(c *x509.Certificate) { c.NotAfter = end })
	c.secret(t, meshNamespace, "short", root)
	req := issuertest.Workload(t)
	chain, err := c.caIssuer(t, "Issuer", "short").Issue(deadline(t, 30*time.Second), req)
	if err != nil {
		t.Fatal(err)
	}
	issuertest.Check(t, req, chain, []*x509.Certificate{root.cert})
}

func (c *cluster) noIssuer(t *testing.T) {
	i := c.issuer(t, issuer.CertManagerOptions{IssuerName: "nobody"})
	chain, err := i.Issue(deadline(t, 3*time.Second), issuertest.Workload(t))
	wantError(t, chain, err, true, `Referenced "Issuer" not found`)
	// A request for an unserved kind of issuer is approved and never signed.
	i = c.issuer(t, issuer.CertManagerOptions{IssuerName: "nobody", IssuerKind: "Nobody", IssuerGroup: "example.com"})
	chain, err = i.Issue(deadline(t, 2*time.Second), issuertest.Workload(t))
	wantError(t, chain, err, true, "is cert-manager running, and does it approve requests for this issuer?")
	i = c.issuer(t, issuer.CertManagerOptions{IssuerName: "root", Namespace: "nowhere"})
	chain, err = i.Issue(deadline(t, 10*time.Second), issuertest.Workload(t))
	wantError(t, chain, err, false, "does the namespace exist?")
}

// play answers the next CertificateRequest of an external issuer, whose group cert-manager
// ignores.
func (c *cluster) play(t *testing.T, group string, act func(ctx context.Context, request *unstructured.Unstructured) error) *issuer.CertManager {
	t.Helper()
	requests := c.dynamic.Resource(requestResource).Namespace(meshNamespace)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	w, err := requests.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			if g, _, _ := unstructured.NestedString(object.Object, "spec", "issuerRef", "group"); g != group {
				continue
			}
			if err := act(ctx, object); err != nil {
				t.Error(err)
			}
			return
		}
	}()
	return c.issuer(t, issuer.CertManagerOptions{IssuerName: "player", IssuerKind: "Player", IssuerGroup: group})
}

// status writes a request's status and retries on conflicts.
func (c *cluster) status(ctx context.Context, request *unstructured.Unstructured, status map[string]any) error {
	requests := c.dynamic.Resource(requestResource).Namespace(request.GetNamespace())
	for {
		current, err := requests.Get(ctx, request.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		current.Object["status"] = status
		if _, err = requests.UpdateStatus(ctx, current, metav1.UpdateOptions{}); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
	}
}

func condition(kind, status, reason string) []any {
	return []any{map[string]any{"type": kind, "status": status, "reason": reason, "message": "because I say so"}}
}

// external tests external issuers: an honest one and one that signs another key.
func (c *cluster) external(t *testing.T) {
	root := newAuthority(t, "external", ecKey(t), nil, nil)
	for _, honest := range []bool{true, false} {
		t.Run(fmt.Sprintf("honest=%t", honest), func(t *testing.T) {
			i := c.play(t, fmt.Sprintf("honest-%t.example.com", honest), func(ctx context.Context, request *unstructured.Unstructured) error {
				text, _, _ := unstructured.NestedString(request.Object, "spec", "request")
				csrPEM, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					return err
				}
				block, _ := pem.Decode(csrPEM)
				csr, err := x509.ParseCertificateRequest(block.Bytes)
				if err != nil {
					return err
				}
				key := csr.PublicKey
				if !honest {
					key = root.key.Public()
				}
				serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 150))
				der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
					SerialNumber: serial, Subject: csr.Subject, ExtraExtensions: csr.Extensions,
					NotBefore: time.Now().Add(-time.Second), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
					ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
				}, root.cert, key, root.key)
				if err != nil {
					return err
				}
				certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
				return c.status(ctx, request, map[string]any{
					"conditions":  condition("Ready", "True", "Issued"),
					"certificate": base64.StdEncoding.EncodeToString(certificate),
					"ca":          base64.StdEncoding.EncodeToString(root.pem()),
				})
			})
			req := issuertest.Workload(t)
			chain, err := i.Issue(deadline(t, 30*time.Second), req)
			if !honest {
				wantError(t, chain, err, false, "not for the CSR's key")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			issuertest.Check(t, req, chain, []*x509.Certificate{root.cert})
		})
	}
}

func (c *cluster) denied(t *testing.T) {
	for name, conditions := range map[string][]any{
		"denied": condition("Denied", "True", "Policy"),
		"failed": condition("Ready", "False", "Failed"),
	} {
		t.Run(name, func(t *testing.T) {
			i := c.play(t, name+".example.com", func(ctx context.Context, request *unstructured.Unstructured) error {
				return c.status(ctx, request, map[string]any{"conditions": conditions})
			})
			chain, err := i.Issue(deadline(t, 30*time.Second), issuertest.Workload(t))
			wantError(t, chain, err, false, "it denied the CertificateRequest: ")
			wantError(t, chain, err, false, "because I say so")
		})
	}
}

func (c *cluster) invalid(t *testing.T) {
	i := c.play(t, "invalid.example.com", func(ctx context.Context, request *unstructured.Unstructured) error {
		return c.status(ctx, request, map[string]any{"conditions": condition("InvalidRequest", "True", "BadName")})
	})
	chain, err := i.Issue(deadline(t, 30*time.Second), issuertest.Workload(t))
	wantError(t, chain, err, false, "InvalidRequest (BadName): because I say so")
}

// gone tests a request that is deleted.
func (c *cluster) gone(t *testing.T) {
	i := c.play(t, "gone.example.com", func(ctx context.Context, request *unstructured.Unstructured) error {
		return c.dynamic.Resource(requestResource).Namespace(meshNamespace).Delete(ctx, request.GetName(), metav1.DeleteOptions{})
	})
	chain, err := i.Issue(deadline(t, 30*time.Second), issuertest.Workload(t))
	wantError(t, chain, err, true, "was deleted before it was signed")
}

// noRight tests a controller that may not create requests.
func (c *cluster) noRight(t *testing.T, server *apiserver.Server) {
	config := rest.CopyConfig(server.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "nobody"}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	i := c.issuer(t, issuer.CertManagerOptions{Client: client, IssuerName: "root"})
	chain, err := i.Issue(deadline(t, 10*time.Second), issuertest.Workload(t))
	wantError(t, chain, err, false, `cannot create resource "certificaterequests"`)
}

func deadline(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestNewCertManager(t *testing.T) {
	if _, err := issuer.NewCertManager(issuer.CertManagerOptions{Namespace: "mesh", IssuerName: "a"}); err == nil {
		t.Error("an issuer without a client was made")
	}
}
