package kubelet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// TestDecide asks for each check of a request by itself, without an API server. TestSigner has
// some of them on a real one, which makes no request that contradicts its pod.
func TestDecide(t *testing.T) {
	cert, key, err := issuer.NewRoot("root", issuer.RootLife)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := issuer.FromPEM(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := ca.Roots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	manager, err := identity.NewManager(identity.Options{
		DNSNames: []string{"controller"}, TrustDomain: func() string { return "cluster.local" },
		Life: func() time.Duration { return 2 * time.Hour }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	manager.SetTrust(&issuer.Trust{Signing: ca, Roots: roots})
	request := func(curve elliptic.Curve) []byte {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	small, large := request(elliptic.P256()), request(elliptic.P521())
	const retried, unanswered = "tried again", "no answer"
	for name, tt := range map[string]struct {
		request func(*certificatesv1.PodCertificateRequest)
		pod     func(*corev1.Pod)
		want    string // the condition's type, or one of the two above
		text    string
	}{
		"as it should be": {want: issued},
		"default account": {func(r *certificatesv1.PodCertificateRequest) { r.Spec.ServiceAccountName = "default" }, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "" }, issued, ""},
		"another UID":     {func(r *certificatesv1.PodCertificateRequest) { r.Spec.PodUID = "2" }, nil, denied, "has the UID 1, not 2"},
		"a pod made anew": {nil, func(p *corev1.Pod) { p.UID = "2" }, denied, "has the UID 2, not 1"},
		"another account": {func(r *certificatesv1.PodCertificateRequest) { r.Spec.ServiceAccountName = "bank" }, nil, denied, "runs as the service account cart, not bank"},
		"no account":      {nil, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "" }, denied, "runs as the service account default, not cart"},
		"another node":    {func(r *certificatesv1.PodCertificateRequest) { r.Spec.NodeName = "other" }, nil, denied, `is on the node "node", not "other"`},
		"no node":         {nil, func(p *corev1.Pod) { p.Spec.NodeName = "" }, denied, `is on the node "", not "node"`},
		"annotations": {func(r *certificatesv1.PodCertificateRequest) {
			r.Spec.UnverifiedUserAnnotations = map[string]string{"example.com/account": "bank"}
		}, nil, denied, "this signer knows none"},
		"a large key":       {func(r *certificatesv1.PodCertificateRequest) { r.Spec.StubPKCS10Request = large }, nil, denied, "use ECDSAP256"},
		"no request":        {func(r *certificatesv1.PodCertificateRequest) { r.Spec.StubPKCS10Request = []byte("x") }, nil, denied, "unreadable"},
		"another namespace": {func(r *certificatesv1.PodCertificateRequest) { r.Namespace = "other" }, nil, unanswered, ""},
		"another pod":       {func(r *certificatesv1.PodCertificateRequest) { r.Spec.PodName = "other" }, nil, unanswered, ""},
		"succeeded":         {nil, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, unanswered, ""},
		"failed":            {nil, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, unanswered, ""},
		"outside the mesh": {func(r *certificatesv1.PodCertificateRequest) { r.Namespace = "outside" },
			func(p *corev1.Pod) { p.Namespace = "outside" }, retried, "no member"},
	} {
		t.Run(name, func(t *testing.T) {
			most := int32(3600)
			r := &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "r"}, Spec: certificatesv1.PodCertificateRequestSpec{
				PodName: "web", PodUID: "1", ServiceAccountName: "cart", NodeName: "node", MaxExpirationSeconds: &most, StubPKCS10Request: small,
			}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}, Spec: corev1.PodSpec{ServiceAccountName: "cart", NodeName: "node"}}
			if tt.request != nil {
				tt.request(r)
			}
			if tt.pod != nil {
				tt.pod(pod)
			}
			s := &signer{client: fake.NewClientset(pod), Options: Options{Manager: manager, Member: func(_ context.Context, w identity.Workload) error {
				if w.Namespace == "outside" {
					return identity.ErrNotMember
				}
				return nil
			}}}
			status, err := s.decide(t.Context(), r)
			got, text := unanswered, ""
			switch {
			case errors.Is(err, identity.ErrNotMember):
				got, text = retried, "no member"
			case err != nil:
				t.Fatal(err)
			case status != nil:
				got, text = status.Conditions[0].Type, status.Conditions[0].Message
			}
			if got != tt.want || !strings.Contains(text, tt.text) {
				t.Errorf("the answer is %q: %s, want %q: %s", got, text, tt.want, tt.text)
			}
			if hasChain := status != nil && status.CertificateChain != ""; hasChain != (tt.want == issued) {
				t.Errorf("there is a certificate: %t", hasChain)
			}
		})
	}
}
