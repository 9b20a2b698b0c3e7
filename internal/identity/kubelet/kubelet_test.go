package kubelet_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/internal/identity/kubelet"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

const (
	signerName = "openservicemesh.io/mesh-osm"
	bundleName = "openservicemesh.io:mesh-osm:roots"
)

// rights are those that the chart grants for this package.
var rights = []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
	{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"podcertificaterequests"}, Verbs: []string{"get", "list", "watch"}},
	{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"podcertificaterequests/status"}, Verbs: []string{"update"}},
	{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{signerName}, Verbs: []string{"sign", "attest"}},
	{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"clustertrustbundles"}, Verbs: []string{"create"}},
	{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"clustertrustbundles"}, ResourceNames: []string{bundleName}, Verbs: []string{"get", "update"}},
}

// cluster is a real API server that serves both kinds, with the signer and a node.
type cluster struct {
	kubernetes.Interface
	t       *testing.T
	server  *apiserver.Server
	manager *identity.Manager
	ca      *issuer.CA
	node    *corev1.Node
	account *corev1.ServiceAccount
}

func newCA(t *testing.T, name string) *issuer.CA {
	t.Helper()
	cert, key, err := issuer.NewRoot(name, issuer.RootLife)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := issuer.FromPEM(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func (c *cluster) trust(signing *issuer.CA, others ...*issuer.CA) {
	c.t.Helper()
	trust := &issuer.Trust{Signing: signing}
	for _, ca := range append([]*issuer.CA{signing}, others...) {
		roots, err := ca.Roots(c.t.Context())
		if err != nil {
			c.t.Fatal(err)
		}
		trust.Roots = append(trust.Roots, roots...)
	}
	c.manager.SetTrust(trust)
}

// newUser returns the client configuration of a new user with the rights.
func newUser(t *testing.T, server *apiserver.Server, admin kubernetes.Interface, name string, rights []rbacv1.PolicyRule) *rest.Config {
	t.Helper()
	text, err := server.Kubeconfig(name)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: name}
	if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rights}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return config
}

func start(t *testing.T) *cluster {
	t.Helper()
	server := apiserver.StartWith(t, apiserver.PodCertificates())
	admin, err := kubernetes.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Interface: admin, t: t, server: server, ca: newCA(t, "a")}
	config := newUser(t, server, admin, "controller", rights)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	c.manager, err = identity.NewManager(identity.Options{
		DNSNames: []string{"controller"}, TrustDomain: func() string { return "cluster.local" }, Life: func() time.Duration { return 2 * time.Hour }, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.trust(c.ca)
	mgr, err := manager.New(config, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	err = kubelet.Add(mgr, kubelet.Options{
		Manager: c.manager, Signer: signerName, Bundle: bundleName, Wanted: func() bool { return true }, Log: log,
		Member: func(_ context.Context, w identity.Workload) error {
			if w.Namespace != "shop" {
				return fmt.Errorf("%w: %s", identity.ErrNotMember, w.Namespace)
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	// The roles of new users take a moment.
	user, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c.eventually("the signer has its rights", func() bool {
		_, err := user.CertificatesV1beta1().PodCertificateRequests("").List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the manager: %v", err)
		}
	})
	for _, namespace := range []string{"shop", "outside"} {
		if _, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if c.account, err = c.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "cart"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if c.node, err = c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("not in time: %s", what)
		}
	}
}

func (c *cluster) pod(namespace, name string) *corev1.Pod {
	c.t.Helper()
	pod, err := c.CoreV1().Pods(namespace).Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: "node", ServiceAccountName: "cart", Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return pod
}

// request makes a request for a pod as its kubelet does.
func (c *cluster) request(pod *corev1.Pod, key crypto.Signer, change func(*certificatesv1beta1.PodCertificateRequestSpec)) *certificatesv1beta1.PodCertificateRequest {
	c.t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		c.t.Fatal(err)
	}
	most := int32(24 * 60 * 60)
	spec := certificatesv1beta1.PodCertificateRequestSpec{
		SignerName: signerName, PodName: pod.Name, PodUID: pod.UID, ServiceAccountName: "cart", ServiceAccountUID: c.account.UID,
		NodeName: "node", NodeUID: c.node.UID, MaxExpirationSeconds: &most, StubPKCS10Request: der,
	}
	if change != nil {
		change(&spec)
	}
	r, err := c.CertificatesV1beta1().PodCertificateRequests(pod.Namespace).Create(c.t.Context(), &certificatesv1beta1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "req-"}, Spec: spec,
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// answer waits for the answer to a request.
func (c *cluster) answer(r *certificatesv1beta1.PodCertificateRequest) certificatesv1beta1.PodCertificateRequestStatus {
	c.t.Helper()
	c.eventually("an answer", func() bool {
		var err error
		if r, err = c.CertificatesV1beta1().PodCertificateRequests(r.Namespace).Get(c.t.Context(), r.Name, metav1.GetOptions{}); err != nil {
			c.t.Fatal(err)
		}
		return len(r.Status.Conditions) > 0
	})
	return r.Status
}

func newKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestSigner(t *testing.T) {
	t.Parallel()
	c := start(t)
	pod := c.pod("shop", "web")

	t.Run("signs", func(t *testing.T) {
		for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384()} {
			key := newKey(t, curve)
			status := c.answer(c.request(pod, key, nil))
			if status.Conditions[0].Type != "Issued" {
				t.Fatalf("the condition is %v", status.Conditions[0])
			}
			chain, err := pki.Parse([]byte(status.CertificateChain))
			if err != nil {
				t.Fatal(err)
			}
			roots, _ := c.ca.Roots(t.Context())
			if err := pki.NewBundle(roots...).Verify(chain, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth); err != nil {
				t.Error(err)
			}
			got, err := pki.NamesOf(chain[0])
			if err != nil {
				t.Fatal(err)
			}
			want := pki.Names{CommonName: "cart.shop", Unit: string(pod.UID), URIs: []string{"spiffe://cluster.local/ns/shop/sa/cart"}, DNS: []string{"cart.shop.sa.cluster.local"}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the names (-want +got):\n%s", diff)
			}
			if !pki.SameKey(chain[0].PublicKey, key.Public()) {
				t.Error("the certificate is for another key")
			}
			if left := time.Until(status.NotAfter.Time); left < 119*time.Minute || left > 2*time.Hour {
				t.Errorf("it is valid for another %s, want the mesh's 2 h", left)
			}
			if refresh := time.Until(status.BeginRefreshAt.Time); refresh < 70*time.Minute || refresh > 80*time.Minute {
				t.Errorf("it is renewed in %s, want two thirds of its life at most", refresh)
			}
		}
	})

	t.Run("within the request's limit", func(t *testing.T) {
		status := c.answer(c.request(pod, newKey(t, elliptic.P256()), func(s *certificatesv1beta1.PodCertificateRequestSpec) { *s.MaxExpirationSeconds = 3600 }))
		if life := status.NotAfter.Sub(status.NotBefore.Time); status.Conditions[0].Type != "Issued" || life != time.Hour {
			t.Errorf("%s for %s, want an hour", status.Conditions[0].Type, life)
		}
	})

	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		key    crypto.Signer
		change func(*certificatesv1beta1.PodCertificateRequestSpec)
		reason string
		text   string
	}{
		"another UID":     {nil, func(s *certificatesv1beta1.PodCertificateRequestSpec) { s.PodUID = "other" }, "OtherPod", "has the UID"},
		"another account": {nil, func(s *certificatesv1beta1.PodCertificateRequestSpec) { s.ServiceAccountName = "bank" }, "OtherPod", "runs as the service account cart, not bank"},
		"another node":    {nil, func(s *certificatesv1beta1.PodCertificateRequestSpec) { s.NodeName = "other" }, "OtherPod", `is on the node "node", not "other"`},
		"Ed25519":         {edwards, nil, "UnsupportedKeyType", "use ECDSAP256"},
		"P-521":           {newKey(t, elliptic.P521()), nil, "UnsupportedKeyType", "use ECDSAP256"},
		"annotations": {nil, func(s *certificatesv1beta1.PodCertificateRequestSpec) {
			s.UnverifiedUserAnnotations = map[string]string{"example.com/a": "b"}
		}, "InvalidUnverifiedUserAnnotations", "this signer knows none"},
	} {
		t.Run("denies "+name, func(t *testing.T) {
			key := tt.key
			if key == nil {
				key = newKey(t, elliptic.P256())
			}
			status := c.answer(c.request(pod, key, tt.change))
			if got := status.Conditions[0]; got.Type != "Denied" || got.Reason != tt.reason || !strings.Contains(got.Message, tt.text) || status.CertificateChain != "" {
				t.Errorf("the answer is %v, want %s with %q", got, tt.reason, tt.text)
			}
		})
	}

	// What may pass is not final: the request stays without an answer.
	outside := c.request(c.pod("outside", "web"), newKey(t, elliptic.P256()), nil)
	gone := c.pod("shop", "gone")
	now := int64(0)
	if err := c.CoreV1().Pods("shop").Delete(t.Context(), gone.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	missing := c.request(gone, newKey(t, elliptic.P256()), nil)
	other := c.request(pod, newKey(t, elliptic.P256()), func(s *certificatesv1beta1.PodCertificateRequestSpec) { s.SignerName = "example.com/other" })
	c.answer(c.request(pod, newKey(t, elliptic.P256()), nil))
	for name, r := range map[string]*certificatesv1beta1.PodCertificateRequest{"outside of the mesh": outside, "of a pod that is no more": missing, "of another signer": other} {
		r, err := c.CertificatesV1beta1().PodCertificateRequests(r.Namespace).Get(t.Context(), r.Name, metav1.GetOptions{})
		if err != nil || len(r.Status.Conditions) > 0 {
			t.Errorf("a request %s: %v, %v, want no answer", name, r.Status, err)
		}
	}
}

// TestBundle changes the roots, and lets somebody change and delete the bundle.
func TestBundle(t *testing.T) {
	t.Parallel()
	c := start(t)
	has := func(what string, want string) {
		t.Helper()
		c.eventually(what, func() bool {
			found, err := c.CertificatesV1beta1().ClusterTrustBundles().Get(t.Context(), bundleName, metav1.GetOptions{})
			return err == nil && found.Spec.TrustBundle == want && found.Spec.SignerName == signerName
		})
	}
	has("the root", string(c.manager.TrustBundle()))
	c.trust(c.ca, newCA(t, "b"))
	has("two roots", string(c.manager.TrustBundle()))
	if err := c.CertificatesV1beta1().ClusterTrustBundles().Delete(t.Context(), bundleName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if why := c.why(); why == nil || !strings.Contains(why.Error(), "has not published") {
		t.Errorf("without the bundle, pods get certificates of the kubelet: %v", why)
	}
	c.trust(c.ca)
	has("one root again", string(c.manager.TrustBundle()))
	if why := c.why(); why != nil {
		t.Errorf("with the bundle: %v", why)
	}

	// An issuer that signs only requests with names.
	roots, _ := c.ca.Roots(t.Context())
	others, _ := newCA(t, "c").Roots(t.Context())
	c.manager.SetTrust(&issuer.Trust{Signing: namesOnly{c.ca}, Roots: append(roots, others...)})
	has("the roots of another issuer", string(c.manager.TrustBundle()))
	if why := c.why(); why == nil || !strings.Contains(why.Error(), "signs only requests with all names") {
		t.Errorf("with an issuer that cannot sign for kubelets: %v", why)
	}
}

// namesOnly hides that an issuer signs for keys.
type namesOnly struct{ issuer.Issuer }

// why returns why an injector, which has the rights of all service accounts, does not let the
// kubelet issue certificates.
func (c *cluster) why() error {
	c.t.Helper()
	text, err := c.server.Kubeconfig("system:serviceaccount:osm-system:outrigger-injector", "system:serviceaccounts", "system:authenticated")
	if err != nil {
		c.t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		c.t.Fatal(err)
	}
	source, err := kube.New(config, kube.Options{Namespace: "osm-system", MeshConfigName: "osm-mesh-config", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.t.Fatal(err)
	}
	return source.PodCertificates(c.t.Context(), bundleName)
}

// TestServed asks API servers of Kubernetes 1.36 with and without the feature gates, and of later
// releases, which need none. KUBERNETES_VERSION chooses the release.
func TestServed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		flags map[string]string
		want  string
	}{"without the gates": {nil, ""}, "with the gates": {apiserver.PodCertificates(), "v1beta1"}} {
		t.Run(name, func(t *testing.T) {
			client, err := kubernetes.NewForConfig(apiserver.StartWith(t, tt.flags).Config)
			if err != nil {
				t.Fatal(err)
			}
			server, err := client.Discovery().ServerVersion()
			if err != nil {
				t.Fatal(err)
			}
			if server.Minor != "36" {
				tt.want = "v1"
			}
			got, err := kube.PodCertificates(t.Context(), client.Discovery())
			if got != tt.want || (tt.want == "") != (err != nil && strings.Contains(err.Error(), "feature gates")) {
				t.Errorf("PodCertificates is %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}
