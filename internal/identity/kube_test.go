package identity_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// cluster is a real API server that creates tokens as for a kubelet.
type cluster struct {
	kubernetes.Interface
	server *apiserver.Server
}

// pod creates a pod and its service account unless they exist.
func (c cluster) pod(t *testing.T, name, account string) *corev1.Pod {
	t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
	if _, err := c.CoreV1().ServiceAccounts("shop").Create(t.Context(), sa, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	pod, err := c.CoreV1().Pods("shop").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func (c cluster) remove(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	now := int64(0)
	if err := c.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
}

// token requests a token as the kubelet does for a projected volume; pod may be nil.
func (c cluster) token(t *testing.T, account string, pod *corev1.Pod, audiences ...string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	answer, err := c.CoreV1().ServiceAccounts("shop").CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}

func workload(pod *corev1.Pod) identity.Workload {
	return identity.Workload{
		Namespace: pod.Namespace, ServiceAccount: pod.Spec.ServiceAccountName, Pod: pod.Name, PodUID: string(pod.UID),
	}
}

// as returns a client for a new user with the rights in the rules.
func (c cluster) as(t *testing.T, user string, rules ...rbacv1.PolicyRule) kubernetes.Interface {
	t.Helper()
	kubeconfig, err := c.server.Kubeconfig(user)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: user}
	if _, err := c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return client
}

var reviewRights = []rbacv1.PolicyRule{
	{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
	{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
}

func TestOnAPIServer(t *testing.T) {
	t.Parallel()
	server := apiserver.StartServer(t)
	client, err := kubernetes.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{client, server}
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reviewer := identity.KubeReviewer{Client: c.as(t, "controller", reviewRights...)}
	// The roles of new users take a moment.
	probe := c.token(t, c.pod(t, "probe", "default").Spec.ServiceAccountName, nil, "outrigger")
	eventually(t, "the reviewer has its rights", func() bool {
		_, err := reviewer.Review(t.Context(), probe)
		return errors.Is(err, identity.ErrToken)
	})
	refused := func(t *testing.T, token string, want error, text string) {
		t.Helper()
		w, err := reviewer.Review(t.Context(), token)
		if !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
			t.Errorf("Review = %v, %v, want %q with %q", w, err, want, text)
		}
		if err != nil && len(token) > 100 && strings.Contains(err.Error(), token[:100]) {
			t.Errorf("the error %q shows the token", err)
		}
	}

	t.Run("a good token", func(t *testing.T) {
		pod := c.pod(t, "web-1", "web.v1")
		token := c.token(t, "web.v1", pod, "outrigger")
		w, err := reviewer.Review(t.Context(), token)
		if diff := cmp.Diff(workload(pod), w); err != nil || diff != "" {
			t.Errorf("Review: %v (-want +got):\n%s", err, diff)
		}
		several := c.token(t, "web.v1", pod, "vault", "outrigger")
		if _, err := reviewer.Review(t.Context(), several); err != nil {
			t.Errorf("a token for several audiences: %v", err)
		}
	})
	t.Run("tokens that are not good", func(t *testing.T) {
		pod := c.pod(t, "web-2", "web.v1")
		good := c.token(t, "web.v1", pod, "outrigger")
		refused(t, "", identity.ErrToken, "")
		refused(t, "rubbish", identity.ErrToken, "")
		refused(t, good[:len(good)-8]+"AAAAAAAA", identity.ErrToken, "")
		refused(t, c.token(t, "web.v1", pod, "vault"), identity.ErrToken, "")
		refused(t, c.token(t, "web.v1", pod), identity.ErrToken, "")
		refused(t, c.token(t, "web.v1", nil, "outrigger"), identity.ErrToken, "not bound to a pod")
	})
	t.Run("an expired token", func(t *testing.T) {
		good := c.token(t, "web.v1", c.pod(t, "web-3", "web.v1"), "outrigger")
		// The same token with unchanged times, to show that only the time is rejected.
		same := resign(t, server, good, nil)
		if _, err := reviewer.Review(t.Context(), same); err != nil {
			t.Fatalf("a token that was signed again: %v", err)
		}
		past := time.Now().Add(-time.Minute).Unix()
		refused(t, resign(t, server, good, map[string]any{"exp": past, "iat": past - 600, "nbf": past - 600}), identity.ErrToken, "expired")
	})
	t.Run("a pod that is deleted", func(t *testing.T) {
		pod := c.pod(t, "web-4", "web.v1")
		token := c.token(t, "web.v1", pod, "outrigger")
		// The API server itself caches a valid token for some seconds.
		if _, err := reviewer.Review(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		c.remove(t, pod)
		refused(t, token, identity.ErrToken, "")
		c.pod(t, "web-4", "web.v1")
		refused(t, token, identity.ErrToken, "")
	})
	t.Run("a pod of another service account", func(t *testing.T) {
		pod := c.pod(t, "web-5", "web.v1")
		token := c.token(t, "web.v1", pod, "outrigger")
		c.pod(t, "bank-1", "bank")
		bank, err := c.CoreV1().ServiceAccounts("shop").Get(t.Context(), "bank", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// No API server mints this token, but this one accepts it.
		forged := resign(t, server, token, map[string]any{"kubernetes.io": map[string]any{
			"namespace":      "shop",
			"pod":            map[string]any{"name": pod.Name, "uid": pod.UID},
			"serviceaccount": map[string]any{"name": "bank", "uid": bank.UID},
		}})
		refused(t, forged, identity.ErrToken, "runs as web.v1")
	})
	t.Run("a pod that has finished", func(t *testing.T) {
		for _, phase := range []corev1.PodPhase{corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed} {
			pod := c.pod(t, "job-"+strings.ToLower(string(phase)), "web.v1")
			token := c.token(t, "web.v1", pod, "outrigger")
			pod.Status.Phase = phase
			if _, err := c.CoreV1().Pods("shop").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if phase == corev1.PodRunning {
				if _, err := reviewer.Review(t.Context(), token); err != nil {
					t.Error(err)
				}
				continue
			}
			refused(t, token, identity.ErrNotMember, "has finished")
		}
	})
	t.Run("a reviewer without rights", func(t *testing.T) {
		token := c.token(t, "web.v1", c.pod(t, "web-6", "web.v1"), "outrigger")
		for name, rules := range map[string][]rbacv1.PolicyRule{"nobody": nil, "no-pods": reviewRights[:1]} {
			_, err := identity.KubeReviewer{Client: c.as(t, name, rules...)}.Review(t.Context(), token)
			if !errors.Is(err, issuer.ErrUnavailable) || !strings.Contains(err.Error(), "forbidden") {
				t.Errorf("%s: Review = %v, want that it could not be found out", name, err)
			}
		}
	})
	t.Run("an API server that is away", func(t *testing.T) {
		away := rest.CopyConfig(server.Config)
		away.Host = "https://127.0.0.1:1"
		client, err := kubernetes.NewForConfig(away)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (identity.KubeReviewer{Client: client}).Review(t.Context(), probe); !errors.Is(err, issuer.ErrUnavailable) {
			t.Errorf("Review = %v, want that it could not be found out", err)
		}
	})
	t.Run("through the service", func(t *testing.T) {
		pod, bank := c.pod(t, "web-7", "web.v1"), c.pod(t, "bank-2", "bank")
		service := serve(t, identity.ServiceOptions{Manager: run(t, identity.Options{}, newIssuer(t, "a")), Reviewer: reviewer})
		client := service.client(t)
		sign := func(token string, w identity.Workload) codes.Code {
			csr, _ := request(t, w)
			_, err := client.Sign(bearer(t.Context(), token), &identityv1.SignRequest{Csr: csr})
			return status.Code(err)
		}
		token := c.token(t, "web.v1", pod, "outrigger")
		for name, tt := range map[string]struct {
			token string
			w     identity.Workload
			want  codes.Code
		}{
			"its own names":           {token, workload(pod), codes.OK},
			"another service account": {token, workload(bank), codes.InvalidArgument},
			"another pod's token":     {c.token(t, "bank", bank, "outrigger"), workload(pod), codes.InvalidArgument},
			"a foreign audience":      {c.token(t, "web.v1", pod, "vault"), workload(pod), codes.Unauthenticated},
		} {
			if got := sign(tt.token, tt.w); got != tt.want {
				t.Errorf("%s: %s, want %s", name, got, tt.want)
			}
		}
		c.remove(t, pod)
		if got := sign(token, workload(pod)); got != codes.Unauthenticated {
			t.Errorf("the token of a pod that is deleted: %s, want Unauthenticated", got)
		}
	})
}

// resign changes claims of a token and signs it with the API server's own key.
func resign(t *testing.T, server *apiserver.Server, token string, changes map[string]any) string {
	t.Helper()
	text, err := server.ServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatalf("the API server signs with a key of type %T", parsed)
	}
	parts := strings.Split(token, ".")
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"exp", "iat", "nbf"} {
		claims[name] = int64(claims[name].(float64))
	}
	maps.Copy(claims, changes)
	if payload, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	body := parts[0] + "." + base64.RawURLEncoding.EncodeToString(payload)
	sum := sha256.Sum256([]byte(body))
	// ES256 is the two numbers, each in 32 bytes.
	a, b, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := make([]byte, 64)
	a.FillBytes(signature[:32])
	b.FillBytes(signature[32:])
	return body + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// Results that the test's API server never returns, but other servers and authenticators do.
func TestReviewWithOddAnswers(t *testing.T) {
	t.Parallel()
	bound := map[string]authenticationv1.ExtraValue{
		"authentication.kubernetes.io/pod-name": {"web-1"}, "authentication.kubernetes.io/pod-uid": {"7d8a3c"},
	}
	without := func(name string, values ...string) map[string]authenticationv1.ExtraValue {
		extra := maps.Clone(bound)
		extra[name] = values
		return extra
	}
	good := func() authenticationv1.TokenReviewStatus {
		return authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: []string{"outrigger"},
			User: authenticationv1.UserInfo{Username: "system:serviceaccount:shop:web.v1", Extra: bound},
		}
	}
	pod := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", UID: "7d8a3c"},
			Spec:       corev1.PodSpec{ServiceAccountName: "web.v1"},
		}
	}
	for _, tt := range []struct {
		name   string
		status func(*authenticationv1.TokenReviewStatus)
		pod    func(*corev1.Pod)
		want   string // part of the error; empty if there is none
	}{
		{"all is well", nil, nil, ""},
		{"not authenticated", func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }, nil, "does not know it"},
		{"authenticated, with an error", func(s *authenticationv1.TokenReviewStatus) { s.Error = "odd" }, nil, "odd"},
		{"a server that does not know of audiences", func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }, nil, "audiences"},
		{"another audience", func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"vault"} }, nil, "vault"},
		{"a person", func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "shop:web.v1" }, nil, "not a service account"},
		{"a node", func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "system:node:n1" }, nil, "not a service account"},
		{"no service account", func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "system:serviceaccount:shop:" }, nil, "not a service account"},
		{"no namespace", func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "system:serviceaccount::web.v1" }, nil, "not a service account"},
		{"one part too many", func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "system:serviceaccount:shop:web:v1" }, nil, "not a service account"},
		{"no pod's name", func(s *authenticationv1.TokenReviewStatus) {
			s.User.Extra = without("authentication.kubernetes.io/pod-name")
		}, nil, "not bound to a pod"},
		{"no pod's UID", func(s *authenticationv1.TokenReviewStatus) {
			s.User.Extra = without("authentication.kubernetes.io/pod-uid")
		}, nil, "not bound to a pod"},
		{"an empty UID", func(s *authenticationv1.TokenReviewStatus) {
			s.User.Extra = without("authentication.kubernetes.io/pod-uid", "")
		}, nil, "not bound to a pod"},
		{"two UIDs", func(s *authenticationv1.TokenReviewStatus) {
			s.User.Extra = without("authentication.kubernetes.io/pod-uid", "7d8a3c", "0000")
		}, nil, "not bound to a pod"},
		{"a pod of another UID", nil, func(p *corev1.Pod) { p.UID = "0000" }, "another pod named shop/web-1"},
		{"a pod of another service account", nil, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "bank" }, "runs as bank"},
		{"a pod of the default service account", nil, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "" }, "runs as default"},
		{"no such pod", nil, func(p *corev1.Pod) { p.Name = "other" }, "no longer exists"},
		{"a pod that has succeeded", nil, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "has finished"},
		{"a pod that has failed", nil, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, "has finished"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, live := good(), pod()
			if tt.status != nil {
				tt.status(&status)
			}
			if tt.pod != nil {
				tt.pod(live)
			}
			client := fake.NewClientset(live)
			client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
				review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
				if len(review.Spec.Audiences) != 1 || review.Spec.Audiences[0] != "outrigger" || review.Spec.Token != "token" {
					t.Errorf("the server was asked for %v", review.Spec)
				}
				return true, &authenticationv1.TokenReview{Status: status}, nil
			})
			w, err := identity.KubeReviewer{Client: client}.Review(context.Background(), "token")
			wrapped := identity.ErrToken
			if tt.want == "has finished" {
				wrapped = identity.ErrNotMember
			}
			switch {
			case tt.want == "" && (err != nil || w != shopper):
				t.Errorf("Review = %v, %v, want %v", w, err, shopper)
			case tt.want != "" && (!errors.Is(err, wrapped) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("Review = %v, %v, want %v with %q", w, err, wrapped, tt.want)
			}
		})
	}
}
