package root_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/internal/identity/publish"
)

// leafOf verifies a Secret's certificate as a gateway and its peers would, and returns it.
func leafOf(data map[string][]byte) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(data["tls.crt"], data["tls.key"])
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(data["ca.crt"])
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return pair.Leaf, err
}

func (c *cluster) secretIn(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	var found corev1.Secret
	err := c.Get(t.Context(), client.ObjectKey{Namespace: "ingress", Name: name}, &found)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return &found
}

// wantLeaf waits for a valid certificate in a Secret.
func (c *cluster) wantLeaf(t *testing.T, name string, ok func(*x509.Certificate) string) *x509.Certificate {
	t.Helper()
	return c.wantLeafOf(t, name, corev1.SecretTypeTLS, ok)
}

// gatewaySecret is a user's Secret for a gateway that requires the type kubernetes.io/tls.
func gatewaySecret(name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ingress", Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": nil, "tls.key": nil},
	}
}

// wantCleared waits until a Secret is empty, as its user created it.
func (c *cluster) wantCleared(t *testing.T, name string) {
	t.Helper()
	eventually(t, func() string {
		secret := c.secretIn(t, name)
		for key, value := range secret.Data {
			if len(value) > 0 {
				return fmt.Sprintf("Secret %s still has %s", name, key)
			}
		}
		return cmp.Diff(map[string]string(nil), secret.Annotations)
	})
}

// wantLeafOf is wantLeaf for a Secret of a type.
func (c *cluster) wantLeafOf(t *testing.T, name string, kind corev1.SecretType, ok func(*x509.Certificate) string) *x509.Certificate {
	t.Helper()
	var leaf *x509.Certificate
	eventually(t, func() string {
		secret := c.secretIn(t, name)
		if secret == nil {
			return "there is no Secret " + name
		}
		if secret.Type != kind || len(secret.Data) != 3 {
			return fmt.Sprintf("Secret %s is of type %s with %d keys", name, secret.Type, len(secret.Data))
		}
		var err error
		if leaf, err = leafOf(secret.Data); err != nil {
			return err.Error()
		}
		return ok(leaf)
	})
	return leaf
}

func signedBy(name string) func(*x509.Certificate) string {
	return func(leaf *x509.Certificate) string { return cmp.Diff(name, leaf.Issuer.CommonName) }
}

func (c *cluster) wantGatewayCondition(t *testing.T, want string) {
	t.Helper()
	eventually(t, func() string {
		var config v1alpha2.MeshConfig
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "osm-system", Name: "osm-mesh-config"}, &config); err != nil {
			t.Fatal(err)
		}
		got := "none"
		if found := meta.FindStatusCondition(config.Status.Conditions, publish.ConditionGateway); found != nil {
			got = fmt.Sprintf("%s %s %s", found.Status, found.Reason, found.Message)
		}
		if strings.HasPrefix(got, want) {
			return ""
		}
		return fmt.Sprintf("the condition is %q, want %q", got, want)
	})
}

func testGateway(t *testing.T, c *cluster) {
	c.put(t, "outrigger-ca-bundle", goodCA(t, "one").data())
	config := &v1alpha2.MeshConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "osm-system", Name: "osm-mesh-config"}}
	config.Spec.Certificate.IngressGateway = &v1alpha2.IngressGatewayCertSpec{
		SubjectAltNames: []string{"ingress.ingress.cluster.local", "10.0.0.1"}, ValidityDuration: "1h",
		Secret: corev1.SecretReference{Namespace: "ingress", Name: "gateway"},
	}
	c.create(t, config)
	edit := func(f func(*v1alpha2.IngressGatewayCertSpec)) {
		t.Helper()
		change(t, c, config, func(config *v1alpha2.MeshConfig) { f(config.Spec.Certificate.IngressGateway) })
	}
	opts := c.options(t)
	opts.Propagation = time.Second
	p := c.start(t, opts)
	first := c.wantLeaf(t, "gateway", func(leaf *x509.Certificate) string {
		life := time.Until(leaf.NotAfter).Round(5 * time.Minute)
		return cmp.Diff([]any{"ingress.ingress.cluster.local", []string{"ingress.ingress.cluster.local"}, "10.0.0.1", time.Hour},
			[]any{leaf.Subject.CommonName, leaf.DNSNames, leaf.IPAddresses[0].String(), life})
	})
	c.wantGatewayCondition(t, "True Issued")

	// No certificate is issued without need.
	p.stop()
	p = c.start(t, opts)
	c.wantGatewayCondition(t, "True Issued")
	eventually(t, func() string {
		select {
		case <-p.Ready():
			return ""
		default:
			return "it is not ready"
		}
	})
	// Other names or a damaged key cause a new certificate.
	edit(func(s *v1alpha2.IngressGatewayCertSpec) { s.SubjectAltNames = []string{"other.example.com"} })
	second := c.wantLeaf(t, "gateway", func(leaf *x509.Certificate) string { return cmp.Diff([]string{"other.example.com"}, leaf.DNSNames) })
	if first.SerialNumber.Cmp(second.SerialNumber) == 0 {
		t.Error("two certificates have one serial number")
	}

	// So does another signing root; the bundle has both.
	c.put(t, "outrigger-ca-bundle", goodCA(t, "two").data())
	c.wantLeaf(t, "gateway", signedBy("two"))
	eventually(t, func() string {
		return cmp.Diff(2, len(parse(t, c.secretIn(t, "gateway").Data["ca.crt"])))
	})

	// A root that is only trusted does not, but it is in the bundle.
	steady := c.wantLeaf(t, "gateway", signedBy("two"))
	c.put(t, "new", goodCA(t, "three").data())
	object(t, c, "new", passive)
	eventually(t, func() string {
		return cmp.Diff(3, len(parse(t, c.secretIn(t, "gateway").Data["ca.crt"])))
	})
	if now := c.wantLeaf(t, "gateway", signedBy("two")); now.SerialNumber.Cmp(steady.SerialNumber) != 0 {
		t.Error("a certificate was issued without need")
	}

	// A certificate with a short lifetime is renewed.
	edit(func(s *v1alpha2.IngressGatewayCertSpec) { s.ValidityDuration = "10s" })
	brief := c.wantLeaf(t, "gateway", func(leaf *x509.Certificate) string {
		return map[bool]string{false: "it lives too long"}[time.Until(leaf.NotAfter) <= 10*time.Second]
	})
	c.wantLeaf(t, "gateway", func(leaf *x509.Certificate) string {
		return map[bool]string{true: "it is not renewed"}[leaf.SerialNumber.Cmp(brief.SerialNumber) == 0]
	})
	if time.Now().After(brief.NotAfter) {
		t.Error("it was renewed too late")
	}
	edit(func(s *v1alpha2.IngressGatewayCertSpec) { s.ValidityDuration = "1h" })

	// A failure is reported and the existing certificate stays.
	edit(func(s *v1alpha2.IngressGatewayCertSpec) { s.SubjectAltNames = []string{"No Name"} })
	c.wantGatewayCondition(t, `False Unavailable spec.certificate.ingressGateway: subjectAltNames[0]: "No Name" is neither`)
	wantEvent(t, c, `MeshConfig osm-mesh-config Unavailable: spec.certificate.ingressGateway: subjectAltNames[0]: "No Name"`)
	if _, err := leafOf(c.secretIn(t, "gateway").Data); err != nil {
		t.Errorf("the certificate is gone: %v", err)
	}
	// A Secret with foreign content is not changed.
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ingress", Name: "other"}, Data: map[string][]byte{"password": []byte("x")}}
	c.create(t, theirs)
	edit(func(s *v1alpha2.IngressGatewayCertSpec) {
		s.SubjectAltNames[0], s.Secret.Name = "a.example.com", "other"
	})
	c.wantGatewayCondition(t, "False Unavailable spec.certificate.ingressGateway: secret: Secret ingress/other contains something other than a certificate of the mesh; empty it")
	c.wantCleared(t, "gateway")
	if string(c.secretIn(t, "other").Data["password"]) != "x" {
		t.Error("the other Secret is changed")
	}
	// A missing Secret is not created.
	c.remove(t, theirs)
	c.wantGatewayCondition(t, "False Unavailable spec.certificate.ingressGateway: there is no such Secret: Secret ingress/other; "+
		"the controller fills it but may not create Secrets, so create it: kubectl create secret generic other --namespace ingress")
	c.create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ingress", Name: "other"}})
	c.wantLeafOf(t, "other", corev1.SecretTypeOpaque, signedBy("two"))
	c.wantGatewayCondition(t, "True Issued")
	edit(func(s *v1alpha2.IngressGatewayCertSpec) { s.Secret.Name = "unallowed" })
	c.wantGatewayCondition(t, `False Unavailable spec.certificate.ingressGateway: reading Secret ingress/unallowed: secrets "unallowed" is forbidden`)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "ingress", Name: "outrigger-controller"}}
	change(t, c, role, func(r *rbacv1.Role) { r.Rules[0].ResourceNames = []string{"gateway", "other", "unallowed"} })
	c.wantLeaf(t, "unallowed", signedBy("two"))
	p.log.forget() // It contains the expected error about the missing right.

	// Open Service Mesh's Secret is taken over, since our root signed its certificate.
	p.stop()
	left := c.secretIn(t, "unallowed").Data
	change(t, c, gatewaySecret("gateway"), func(s *corev1.Secret) { s.Data = left })
	edit(func(s *v1alpha2.IngressGatewayCertSpec) { s.Secret.Name = "gateway" })
	p = c.start(t, opts)
	c.wantCleared(t, "unallowed")
	eventually(t, func() string {
		return cmp.Diff("true", c.secretIn(t, "gateway").Annotations["openservicemesh.io/ingress-gateway-certificate"])
	})
	c.wantLeaf(t, "gateway", signedBy("two"))
	// Removing the spec clears the Secret.
	change(t, c, config, func(config *v1alpha2.MeshConfig) { config.Spec.Certificate.IngressGateway = nil })
	c.wantCleared(t, "gateway")
	c.wantGatewayCondition(t, "none")
}

func (l *lines) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}
