package servingcert_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/outrigger-mesh/outrigger/internal/servingcert"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// Tests that need a real API server; they share one.
func TestOnAPIServer(t *testing.T) {
	t.Parallel()
	server := apiserver.StartServer(t)
	client, err := kubernetes.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: names.Namespace}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, newSubject := range subjects {
		t.Run("contract of "+name, func(t *testing.T) {
			issuerContract(t, func(t *testing.T) subject {
				cleanUp(t, client)
				return newSubject(t, client)
			})
		})
	}
	for name, test := range map[string]func(*testing.T, kubernetes.Interface){
		"replicas that start together agree on one CA":   replicasAgree,
		"replicas that replace the CA agree on the next": replicasAgreeOnTheNextCA,
		"a foreign change is put right":                  foreignChangeIsPutRight,
		"no call fails while everything is replaced":     noCallFails,
	} {
		t.Run(name, func(t *testing.T) {
			cleanUp(t, client)
			test(t, client)
		})
	}
	t.Run("an overtaken patch touches nothing", func(t *testing.T) {
		cleanUp(t, client)
		overtakenPatchTouchesNothing(t, server, client)
	})
	t.Run("the documented rights are enough", func(t *testing.T) {
		cleanUp(t, client)
		documentedRightsAreEnough(t, server, client)
	})
}

// cleanUp removes leftovers of earlier tests now, and of this one when it ends.
func cleanUp(t *testing.T, client kubernetes.Interface) {
	remove := func() {
		ctx, all := context.Background(), metav1.ListOptions{}
		for _, err := range []error{
			client.CoreV1().Secrets(names.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
			client.CoreV1().ConfigMaps(names.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
			client.AdmissionregistrationV1().MutatingWebhookConfigurations().DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	remove()
	t.Cleanup(remove)
}

func replicasAgreeOnTheNextCA(t *testing.T, client kubernetes.Interface) {
	issue(t, subject{issuer: newOwnCA(t, client, 6*time.Second, 2*time.Second)})
	first := caSecret(t, client).Data["tls.crt"]
	time.Sleep(4500 * time.Millisecond)
	// The first CA has less than a third of its life left. From now on CAs live long.
	replicasAgree(t, client)
	if bytes.Equal(first, caSecret(t, client).Data["tls.crt"]) {
		t.Error("the CA has not been replaced")
	}
}

// realConfiguration is webhookConfiguration with all fields that an API server requires. The
// webhooks are called for ConfigMaps with the label.
func realConfiguration(address string, webhooks int) *admissionv1.MutatingWebhookConfiguration {
	config := webhookConfiguration(make([][]byte, webhooks)...)
	for i := range config.Webhooks {
		webhook := &config.Webhooks[i]
		url := "https://" + address + "/inject"
		webhook.ClientConfig.URL = &url
		webhook.AdmissionReviewVersions = []string{"v1"}
		none, fail := admissionv1.SideEffectClassNone, admissionv1.Fail
		webhook.SideEffects, webhook.FailurePolicy = &none, &fail
		webhook.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"call": "webhook"}}
		webhook.Rules = []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}}
	}
	return config
}

func createConfiguration(t *testing.T, client kubernetes.Interface, config *admissionv1.MutatingWebhookConfiguration) {
	t.Helper()
	if _, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func published(t *testing.T, client kubernetes.Interface, manager *servingcert.Manager) func() bool {
	return func() bool {
		bundle := manager.CABundle()
		for _, got := range bundlesIn(t, client) {
			if len(bundle) == 0 || !bytes.Equal(got, bundle) {
				return false
			}
		}
		return true
	}
}

func foreignChangeIsPutRight(t *testing.T, client kubernetes.Interface) {
	manager := runManager(t, newOwnCA(t, client, 0, 0), patching(client))
	// The configuration is created after the start, as by a slow installer.
	createConfiguration(t, client, realConfiguration("127.0.0.1:1", 3))
	eventually(t, "the caBundle is written", published(t, client, manager))

	configs := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	for range 5 {
		config, err := configs.Get(t.Context(), configName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// Other fields change with the bundle, and the order of the webhooks too.
		config.Webhooks[0], config.Webhooks[2] = config.Webhooks[2], config.Webhooks[0]
		config.Webhooks[0].ClientConfig.CABundle = nil
		config.Webhooks[1].ClientConfig.CABundle = []byte("rubbish")
		*config.Webhooks[1].TimeoutSeconds++
		changed, err := configs.Update(t.Context(), config, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the caBundle is put right", published(t, client, manager))
		got, err := configs.Get(t.Context(), configName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range changed.Webhooks {
			changed.Webhooks[i].ClientConfig.CABundle = manager.CABundle()
		}
		if diff := cmp.Diff(changed.Webhooks, got.Webhooks); diff != "" {
			t.Errorf("more than the caBundle was changed (-want +got):\n%s", diff)
		}
	}
}

// overtakenPatchTouchesNothing lets another replica write its new CA, and reorder the
// webhooks, while a manager's first patch is in flight.
func overtakenPatchTouchesNothing(t *testing.T, server *apiserver.Server, admin kubernetes.Interface) {
	createConfiguration(t, admin, realConfiguration("127.0.0.1:1", 2))
	other := newTestCA(t, time.Hour)
	configs := admin.AdmissionregistrationV1().MutatingWebhookConfigurations()
	var patches atomic.Int64
	config := rest.CopyConfig(server.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodPatch && patches.Add(1) == 1 {
				live, err := configs.Get(request.Context(), configName, metav1.GetOptions{})
				if err != nil {
					return nil, err
				}
				live.Webhooks[0], live.Webhooks[1] = live.Webhooks[1], live.Webhooks[0]
				live.Webhooks[0].ClientConfig.CABundle = other.pem
				live.Webhooks[1].ClientConfig.CABundle = other.pem
				if _, err := configs.Update(request.Context(), live, metav1.UpdateOptions{}); err != nil {
					return nil, err
				}
			}
			return next.RoundTrip(request)
		})
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	manager := runManager(t, newOwnCA(t, client, 0, 0), patching(client))
	eventually(t, "our CA is in the caBundle", func() bool {
		bundles := bundlesIn(t, admin)
		return len(manager.CABundle()) > 0 && bytes.Contains(bundles[0], manager.CABundle()) && bytes.Contains(bundles[1], manager.CABundle())
	})
	for _, bundle := range bundlesIn(t, admin) {
		if !bytes.Contains(bundle, other.pem) {
			t.Error("the CA that the other replica has just written is gone")
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// noCallFails runs two replicas whose CAs and certificates expire after seconds, and clients
// that call continuously: the API server itself, one that trusts the current configuration,
// and one that trusts the configuration of half a second ago.
func noCallFails(t *testing.T, client kubernetes.Interface) {
	const stale = 500 * time.Millisecond
	hook := listen(t)
	hook.answer(review)
	options := patching(client)
	options.PropagationDelay = 1500 * time.Millisecond
	options.SelfCheck = reviewCheck(hook)
	replicas := make([]*servingcert.Manager, 2)
	for i := range replicas {
		replicas[i] = runManager(t, newOwnCA(t, client, 18*time.Second, 6*time.Second), options)
	}
	createConfiguration(t, client, realConfiguration(hook.listener.Addr().String(), 1))
	// Each connection meets the next replica, as behind a Service.
	var turn atomic.Int64
	certificates := struct {
		sync.Mutex
		served map[string]bool
	}{served: map[string]bool{}}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, err := replicas[turn.Add(1)%2].GetCertificate(hello)
			if err == nil {
				certificates.Lock()
				certificates.served[cert.Leaf.SerialNumber.String()] = true
				certificates.Unlock()
			}
			return cert, err
		},
	}
	hook.serveTLS(t, config)
	for _, replica := range replicas {
		eventually(t, "the webhook is ready", func() bool { return replica.Ready(t.Context()) == nil })
	}
	// Ready checks this replica's view of the configuration; the API server may see a change
	// slightly later.
	time.Sleep(time.Second)

	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var clients sync.WaitGroup
	var byServer, byHand, byHandLate atomic.Int64
	clients.Go(func() {
		for ctx.Err() == nil {
			configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "call", Labels: map[string]string{"call": "webhook"}}}
			_, err := client.CoreV1().ConfigMaps(names.Namespace).Create(ctx, configMap, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil && ctx.Err() == nil {
				t.Errorf("the API server's call: %v", err)
				cancel()
			}
			byServer.Add(1)
			time.Sleep(10 * time.Millisecond)
		}
	})
	authorities := map[string]bool{}
	clients.Go(func() {
		type sight struct {
			at     time.Time
			bundle []byte
		}
		var past []sight
		for ctx.Err() == nil {
			now := sight{time.Now(), bundlesIn(t, client)[0]}
			for ca := range serials(t, now.bundle) {
				authorities[ca] = true
			}
			past = append(past, now)
			if err := handshake(config, now.bundle, names.ServerName(), 0); err != nil {
				t.Errorf("a client with the present bundle: %v", err)
				cancel()
			}
			byHand.Add(1)
			for len(past) > 1 && time.Since(past[1].at) >= stale {
				past = past[1:]
			}
			if time.Since(past[0].at) >= stale {
				if err := handshake(config, past[0].bundle, names.ServerName(), 0); err != nil {
					t.Errorf("a client with a bundle %s old: %v", time.Since(past[0].at), err)
					cancel()
				}
				byHandLate.Add(1)
			}
			// Three CAs were in turn, and the first of them has expired and gone.
			if len(authorities) >= 3 && len(serials(t, now.bundle)) < len(authorities) {
				cancel()
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	clients.Wait()
	certificates.Lock() // a handshake of the API server may still be under way
	defer certificates.Unlock()
	t.Logf("%d calls of the API server, %d handshakes with the present and %d with a stale bundle; %d certificates of %d CAs",
		byServer.Load(), byHand.Load(), byHandLate.Load(), len(certificates.served), len(authorities))
	if len(certificates.served) < 10 || len(authorities) < 3 || byServer.Load() < 100 || byHand.Load() < 100 || byHandLate.Load() < 100 {
		t.Error("too little has happened to prove anything")
	}
}

// review allows every request.
func review(w http.ResponseWriter, r *http.Request) {
	var review admissionreviewv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	review.Response = &admissionreviewv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}

// reviewCheck is the self check of an injector.
func reviewCheck(hook *webhook) servingcert.SelfCheck {
	return servingcert.SelfCheck{
		Address: hook.listener.Addr().String(),
		Review:  []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"self-check"}}`),
		Accept: func(answer []byte) error {
			var review admissionreviewv1.AdmissionReview
			if err := json.Unmarshal(answer, &review); err != nil {
				return err
			}
			if review.Response == nil || review.Response.UID != "self-check" {
				return fmt.Errorf("not an answer to the self check")
			}
			return nil
		},
	}
}

func documentedRightsAreEnough(t *testing.T, server *apiserver.Server, admin kubernetes.Interface) {
	kubeconfig, err := server.Kubeconfig("injector")
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
	cluster := []rbacv1.PolicyRule{
		{APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"mutatingwebhookconfigurations"}, ResourceNames: []string{configName}, Verbs: []string{"get", "list", "watch", "patch"}},
	}
	own := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{secretName}, Verbs: []string{"get", "list", "watch", "update"}},
	}
	meta := metav1.ObjectMeta{Name: "injector", Namespace: names.Namespace}
	subjects := []rbacv1.Subject{{Kind: "User", Name: "injector", APIGroup: rbacv1.GroupName}}
	rbac := admin.RbacV1()
	for _, create := range []func() error{
		func() error {
			_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: meta.Name}, Rules: cluster}, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: meta.Name}, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}}, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := rbac.Roles(names.Namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: own}, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := rbac.RoleBindings(names.Namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}}, metav1.CreateOptions{})
			return err
		},
	} {
		if err := create(); err != nil {
			t.Fatal(err)
		}
	}
	createConfiguration(t, admin, realConfiguration("127.0.0.1:1", 1))

	t.Run("own CA", func(t *testing.T) {
		makeSecret(t, admin)
		manager := runManager(t, ownCA(t, client, 6*time.Second, 2*time.Second), patching(client))
		eventually(t, "the caBundle is written", published(t, admin, manager))
		first := string(caSecret(t, admin).Data["tls.crt"])
		eventually(t, "the CA is replaced", func() bool { return string(caSecret(t, admin).Data["tls.crt"]) != first })
	})
}
