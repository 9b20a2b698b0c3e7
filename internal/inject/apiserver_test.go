package inject_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// cluster is a real API server with the namespace shop.
type cluster struct {
	client   kubernetes.Interface
	warnings warnings
}

// warnings are those that the API server sent to its client.
type warnings struct {
	mu   sync.Mutex
	list []string
}

func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list = append(w.list, text)
}

func newCluster(t *testing.T) *cluster {
	config := rest.CopyConfig(apiserver.Start(t))
	c := &cluster{}
	config.WarningHandlerWithContext = &c.warnings
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c.client = client
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// dryRun returns the pod as the API server would store it. It sets the service account
// like an admission plug-in that envtest disables.
func (c *cluster) dryRun(t *testing.T, pod []byte) ([]byte, error) {
	t.Helper()
	return c.dryRunIn(t, "shop", pod)
}

// dryRunIn is dryRun for a namespace.
func (c *cluster) dryRunIn(t *testing.T, namespace string, pod []byte) ([]byte, error) {
	t.Helper()
	more := `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"` + namespace + `"}}`
	if decode(t, pod).Spec.ServiceAccountName == "" {
		more = strings.TrimSuffix(more, "}") + `,"spec":{"serviceAccountName":"default"}}`
	}
	pod, err := jsonpatch.MergePatch(pod, []byte(more))
	if err != nil {
		t.Fatal(err)
	}
	result := c.client.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Param("dryRun", "All").
		SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(pod).Do(context.WithoutCancel(t.Context()))
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// TestAgainstAPIServer runs the tests that need an API server.
func TestAgainstAPIServer(t *testing.T) {
	c := newCluster(t)
	t.Run("takes injected pods", c.takesInjectedPods)
	t.Run("reinvokes", c.reinvokes)
}

func (c *cluster) takesInjectedPods(t *testing.T) {
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		taken, err := c.dryRun(t, once(t, i, w, s.raw))
		if (err != nil) != s.refused() {
			t.Fatalf("the API server says: %v", err)
		}
		if err != nil {
			return
		}
		unchanged(t, i, w, taken)
	})
}

// hooks serves our webhook, and one that does what other webhooks do.
type hooks struct {
	*httptest.Server
	mu sync.Mutex
	// ours is the webhook that answers on /inject.
	ours http.Handler
	// served is how often it was called.
	served int
	// again are our answers for pods that were already injected.
	again []*admissionv1.AdmissionResponse
	// change is the other webhook's change of a pod.
	change func(*corev1.Pod)
}

func newHooks(t *testing.T) *hooks {
	h := &hooks{}
	mux := http.NewServeMux()
	mux.HandleFunc("/ours", h.serveOurs)
	mux.HandleFunc("/other", h.serveOther)
	h.Server = httptest.NewTLSServer(mux)
	t.Cleanup(h.Close)
	return h
}

func (h *hooks) serveOurs(rw http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.served++
	var body bytes.Buffer
	_, _ = body.ReadFrom(r.Body)
	r.Body = http.NoBody
	recorder := httptest.NewRecorder()
	forwarded := httptest.NewRequest(r.Method, inject.InjectPath+"?"+r.URL.RawQuery, bytes.NewReader(body.Bytes()))
	forwarded.Header = r.Header
	h.ours.ServeHTTP(recorder, forwarded)
	if bytes.Contains(body.Bytes(), []byte(`"`+inject.StatusAnnotation+`"`)) {
		var answer admissionv1.AdmissionReview
		_ = json.Unmarshal(recorder.Body.Bytes(), &answer)
		h.again = append(h.again, answer.Response)
	}
	rw.Header().Set("Content-Type", recorder.Header().Get("Content-Type"))
	rw.WriteHeader(recorder.Code)
	_, _ = rw.Write(recorder.Body.Bytes())
}

func (h *hooks) serveOther(rw http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var review admissionv1.AdmissionReview
	var pod corev1.Pod
	if err := json.NewDecoder(r.Body).Decode(&review); err == nil {
		err = json.Unmarshal(review.Request.Object.Raw, &pod)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
	}
	h.change(&pod)
	changed, _ := json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata", "value": pod.ObjectMeta}, {"op": "replace", "path": "/spec", "value": pod.Spec},
	})
	jsonPatch := admissionv1.PatchTypeJSONPatch
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, Patch: changed, PatchType: &jsonPatch}
	review.Request = nil
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(review)
}

// configuration names both webhooks; ours comes first.
func (h *hooks) configuration(policy admissionregistrationv1.ReinvocationPolicyType) *admissionregistrationv1.MutatingWebhookConfiguration {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
	sideEffects, fail := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail
	webhook := func(name string, policy admissionregistrationv1.ReinvocationPolicyType) admissionregistrationv1.MutatingWebhook {
		url := h.URL + "/" + name
		return admissionregistrationv1.MutatingWebhook{
			Name: name + ".outrigger.test", AdmissionReviewVersions: []string{"v1", "v1beta1"}, SideEffects: &sideEffects, FailurePolicy: &fail,
			ReinvocationPolicy: &policy, ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: ca},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}
	}
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "ours-and-another"},
		Webhooks:   []admissionregistrationv1.MutatingWebhook{webhook("ours", policy), webhook("other", admissionregistrationv1.NeverReinvocationPolicy)},
	}
}

// install creates the configuration and waits until the API server uses it.
func (c *cluster) install(t *testing.T, h *hooks, policy admissionregistrationv1.ReinvocationPolicyType) {
	t.Helper()
	api := c.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	want := h.configuration(policy)
	if old, err := api.Get(t.Context(), want.Name, metav1.GetOptions{}); err == nil {
		want.ResourceVersion = old.ResourceVersion
		if _, err := api.Update(t.Context(), want, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	} else if _, err := api.Create(t.Context(), want, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.set(nil, func(pod *corev1.Pod) { setKey(&pod.Annotations, "other", "1") })
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		h.again = nil
		_, err := c.dryRun(t, []byte(smallPod))
		return err == nil && len(h.again) == map[admissionregistrationv1.ReinvocationPolicyType]int{"Never": 0, "IfNeeded": 1}[policy], nil
	})
	if err != nil {
		t.Fatalf("waiting for the webhook configuration: %v", err)
	}
}

func (h *hooks) set(ours http.Handler, change func(*corev1.Pod)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ours != nil {
		h.ours = ours
	}
	h.change, h.again = change, nil
}

// reinvokes compares each pod that our webhook saw twice, because another one
// changed it in between, with the one that it saw once.
func (c *cluster) reinvokes(t *testing.T) {
	h := newHooks(t)
	everyShape := make(map[shape]http.Handler)
	for _, shape := range shapes {
		everyShape[shape] = shape.environment().door(t).mux
	}
	h.ours = everyShape[shapes[0]]
	change := func(pod *corev1.Pod) { another(pod) }

	single := make(map[string]any)
	for _, policy := range []admissionregistrationv1.ReinvocationPolicyType{"Never", "IfNeeded"} {
		c.install(t, h, policy)
		t.Run(string(policy), func(t *testing.T) {
			everySample(t, func(t *testing.T, w *environment, _ *inject.Injector, s sample) {
				if s.refused() {
					t.Skip("the API server refuses the pod itself")
				}
				h.set(everyShape[shape{w.configurator.class, w.classic}], change)
				taken, err := c.dryRun(t, s.raw)
				if err != nil {
					t.Fatal(err)
				}
				_, name, _ := strings.Cut(t.Name(), string(policy))
				if policy == admissionregistrationv1.NeverReinvocationPolicy {
					single[name] = comparable(t, taken)
					return
				}
				if d := cmp.Diff(single[name], comparable(t, taken)); d != "" {
					t.Errorf("the second call changes the pod (-once +twice):\n%s", d)
				}
				if len(h.again) != 1 || h.again[0].Patch != nil || !h.again[0].Allowed {
					t.Errorf("our answers to the second call are %+v", h.again)
				}
			})
		})
	}
	t.Run("a container that another webhook adds", func(t *testing.T) {
		h.set(everyShape[shapes[0]], func(pod *corev1.Pod) {
			pod.Spec.Containers = slices.Concat([]corev1.Container{decode(t, []byte(smallPod)).Spec.Containers[0]}, pod.Spec.Containers)
		})
		taken, err := c.dryRun(t, []byte(podAnnotated(nil)))
		if err != nil {
			t.Fatal(err)
		}
		pod := decode(t, taken)
		if probe := container(pod, "cart").ReadinessProbe; probe.HTTPGet == nil || probe.HTTPGet.Path != "/app-health/cart/readyz" {
			t.Errorf("its readiness probe is %+v", probe)
		}
		if !strings.Contains(variable(proxy(t, pod), "OUTRIGGER_AGENT"), `"path":"/app-health/cart/readyz"`) {
			t.Error("the agent does not get the probe")
		}
	})
	t.Run("what the client hears", func(t *testing.T) {
		h.set(nil, func(*corev1.Pod) {})
		c.warnings.list = nil
		if _, err := c.dryRun(t, []byte(podAnnotated(map[string]string{metadata.Injection: "disabled"}))); err != nil {
			t.Fatal(err)
		}
		want := "outrigger: annotation_disabled: not injected: pod annotation " + metadata.Injection + " is disabled"
		if !slices.Contains(c.warnings.list, want) {
			t.Errorf("the warnings are %q", c.warnings.list)
		}
		_, err := c.dryRun(t, []byte(podAnnotated(map[string]string{prefix + "native-sidecar": "maybe"})))
		if err == nil || !strings.Contains(err.Error(), `outrigger: invalid_annotation: pod annotation openservicemesh.io/native-sidecar: "maybe" must be`) {
			t.Errorf("the denial is %v", err)
		}
		taken, err := c.dryRun(t, []byte(scriptedPod("")))
		if err != nil || decode(t, taken).Annotations["scripted/dry-run"] != "true" {
			t.Errorf("of a dry run the driver sees %v, %s", err, taken)
		}
	})
}

// comparable returns the pod without fields that differ between requests.
func comparable(t *testing.T, raw []byte) any {
	t.Helper()
	pod := decode(t, raw)
	pod.UID, pod.CreationTimestamp, pod.ManagedFields, pod.Name = "", metav1.Time{}, nil, ""
	handle := pod.Labels[inject.ProxyUUIDLabel]
	delete(pod.Labels, inject.ProxyUUIDLabel)
	text := encode(t, pod)
	if handle != "" {
		text = bytes.ReplaceAll(text, []byte(handle), []byte("(handle)"))
	}
	return generic(t, text)
}
