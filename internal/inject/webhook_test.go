package inject_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// door is a webhook under test, on a mux with another handler.
type door struct {
	mux      *http.ServeMux
	registry *prometheus.Registry
	log      *bytes.Buffer
}

func (w *environment) door(t testing.TB) *door {
	t.Helper()
	d := &door{mux: http.NewServeMux(), registry: prometheus.NewRegistry(), log: &bytes.Buffer{}}
	log := slog.New(slog.NewTextHandler(d.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	d.mux.HandleFunc("/other", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "other") })
	inject.NewWebhook(w.injector(t), inject.NewMetrics(d.registry), log).Mount(d.mux)
	return d
}

func (d *door) do(method, path, contentType string, body io.Reader) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, body)
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	rw := httptest.NewRecorder()
	d.mux.ServeHTTP(rw, r)
	return rw
}

// ask sends a review and returns the response of the answer.
func (d *door) ask(t testing.TB, path string, review any) *admissionv1.AdmissionResponse {
	t.Helper()
	rw := d.do(http.MethodPost, path, "application/json", bytes.NewReader(encode(t, review)))
	if rw.Code != http.StatusOK || rw.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("the answer is %d %s: %s", rw.Code, rw.Header().Get("Content-Type"), rw.Body)
	}
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(rw.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Response == nil || answer.Request != nil {
		t.Fatalf("the answer is %s", rw.Body)
	}
	return answer.Response
}

// creation is the review of a pod that is created.
func creation(pod string) *admissionv1.AdmissionReview {
	return &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID:       types.UID(uid),
			Kind:      metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Resource:  metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Namespace: "shop",
			Operation: admissionv1.Create,
			Object:    runtime.RawExtension{Raw: []byte(pod)},
		},
	}
}

// scriptedPod is injected by the scripted driver with the behaviour.
func scriptedPod(behaviour string) string {
	return fmt.Sprintf(`{"metadata":{"name":"app","annotations":{"openservicemesh.io/sidecar-class":"scripted","behaviour":%q}},
		"spec":{"containers":[{"name":"app","image":"app"},{"name":"second","image":"app"}]}}`, behaviour)
}

func TestWebhookAnswersBothVersions(t *testing.T) {
	d := ordinary().door(t)
	v1 := creation(smallPod)
	v1beta1 := &admissionv1beta1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1beta1", Kind: "AdmissionReview"},
		Request: &admissionv1beta1.AdmissionRequest{
			UID: types.UID(uid), Kind: v1.Request.Kind, Resource: v1.Request.Resource,
			Namespace: "shop", Operation: admissionv1beta1.Create, Object: v1.Request.Object,
		},
	}
	var patches [][]byte
	for _, review := range []any{v1, v1beta1} {
		for _, path := range []string{inject.InjectPath, inject.OSMInjectPath} {
			rw := d.do(http.MethodPost, path, "application/json; charset=utf-8", bytes.NewReader(encode(t, review)))
			var answer struct {
				APIVersion, Kind string
				Response         struct {
					UID, PatchType string
					Allowed        bool
					Patch          []byte
				}
			}
			if err := json.Unmarshal(rw.Body.Bytes(), &answer); err != nil {
				t.Fatalf("%v: %s", err, rw.Body)
			}
			var asked metav1.TypeMeta
			_ = json.Unmarshal(encode(t, review), &asked)
			got := []any{rw.Code, answer.APIVersion, answer.Kind, answer.Response.UID, answer.Response.PatchType, answer.Response.Allowed}
			want := []any{200, asked.APIVersion, "AdmissionReview", uid, "JSONPatch", true}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s of %s answers (-want +got):\n%s", path, asked.APIVersion, d)
			}
			patches = append(patches, answer.Response.Patch)
		}
	}
	for _, patch := range patches {
		if !bytes.Equal(patch, patches[0]) {
			t.Errorf("the patches differ: %s and %s", patches[0], patch)
		}
	}
	if rw := d.do(http.MethodGet, "/other", "", nil); rw.Body.String() != "other" {
		t.Errorf("the mux's other handler answers %d %s", rw.Code, rw.Body)
	}
}

func TestWebhookInjects(t *testing.T) {
	w := ordinary()
	response := w.door(t).ask(t, inject.InjectPath, creation(smallPod))
	var ops []inject.Operation
	if err := json.Unmarshal(response.Patch, &ops); err != nil {
		t.Fatal(err)
	}
	pod := decode(t, patched(t, []byte(smallPod), ops))
	if pod.Labels[inject.ProxyUUIDLabel] != uid {
		t.Errorf("the label %s is %q, want the review's UID", inject.ProxyUUIDLabel, pod.Labels[inject.ProxyUUIDLabel])
	}
	proxy(t, pod)
	if d := cmp.Diff(map[string]string{"decision": "inject: namespace_annotation_enabled"}, response.AuditAnnotations); d != "" {
		t.Errorf("audit annotations differ (-want +got):\n%s", d)
	}
	if response.Warnings != nil || response.Result != nil {
		t.Errorf("the response has the warnings %q and the status %v", response.Warnings, response.Result)
	}
}

func TestWebhookSkipsAndDenies(t *testing.T) {
	with := func(change func(*admissionv1.AdmissionRequest)) *admissionv1.AdmissionReview {
		review := creation(smallPod)
		change(review.Request)
		return review
	}
	const off = `{"metadata":{"name":"a","labels":{"openservicemesh.io/sidecar-injection":"disabled"}},"spec":{}}`
	tests := []struct {
		name    string
		review  *admissionv1.AdmissionReview
		allowed bool
		audit   string
		warning string
	}{
		{"switched off", creation(off), true, "skip: label_disabled",
			"outrigger: label_disabled: not injected: pod label openservicemesh.io/sidecar-injection is disabled"},
		{"an update", with(func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }), true, "skip: not_a_creation",
			"outrigger: not_a_creation: not injected: the review is about UPDATE; pods are injected when they are created"},
		{"a deletion without object", with(func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Delete; r.Object.Raw = nil }), true, "skip: not_a_creation",
			"outrigger: not_a_creation: not injected: the review is about DELETE; pods are injected when they are created"},
		{"another kind", with(func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = "Service" }), true, "skip: not_a_pod",
			"outrigger: not_a_pod: not injected: the review is about Service; check the rules of the webhook configuration"},
		{"another group", with(func(r *admissionv1.AdmissionRequest) { r.Kind.Group = "metrics.k8s.io" }), true, "skip: not_a_pod",
			"outrigger: not_a_pod: not injected: the review is about Pod; check the rules of the webhook configuration"},
		{"a subresource", with(func(r *admissionv1.AdmissionRequest) { r.SubResource = "eviction" }), true, "skip: not_a_pod",
			"outrigger: not_a_pod: not injected: the review is about Pod/eviction; check the rules of the webhook configuration"},
		{"no object", with(func(r *admissionv1.AdmissionRequest) { r.Object.Raw = nil }), false, "deny: pod_invalid",
			"outrigger: pod_invalid: denied: the review contains no pod"},
		{"a null object", with(func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte("null") }), false, "deny: pod_invalid",
			"outrigger: pod_invalid: denied: the review contains no pod"},
		{"another object", creation(`{"apiVersion":"v1","kind":"Service"}`), false, "deny: pod_invalid",
			"outrigger: pod_invalid: denied: reading the pod: it is a Service of v1, not a Pod of v1"},
		{"a pod of another version", creation(`{"apiVersion":"v2","kind":"Pod"}`), false, "deny: pod_invalid",
			"outrigger: pod_invalid: denied: reading the pod: it is a Pod of v2, not a Pod of v1"},
		{"a wrong UID", with(func(r *admissionv1.AdmissionRequest) { r.UID = "../../etc" }), false, "deny: review_invalid",
			`outrigger: review_invalid: denied: the review's uid "../../etc" is not a UUID`},
		{"no UID", with(func(r *admissionv1.AdmissionRequest) { r.UID = "" }), false, "deny: review_invalid",
			"outrigger: review_invalid: denied: the review has no uid"},
		{"a driver that fails", creation(scriptedPod("error")), false, "deny: driver_error",
			"outrigger: driver_error: denied: driver scripted: scripted failed"},
		{"a driver that panics", creation(scriptedPod("panic")), false, "deny: driver_error",
			"outrigger: driver_error: denied: driver scripted panicked: scripted panic"},
		{"a driver that drops containers", creation(scriptedPod("drop")), false, "deny: driver_error",
			"outrigger: driver_error: denied: the injected pod lacks containers of the original pod: app, second"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := ordinary().door(t)
			r := d.ask(t, inject.InjectPath, test.review)
			if r.UID != test.review.Request.UID || r.Allowed != test.allowed || r.Patch != nil || r.PatchType != nil {
				t.Errorf("the response is %+v", r)
			}
			if got := r.AuditAnnotations["decision"]; got != test.audit {
				t.Errorf("the audit annotation is %q, want %q", got, test.audit)
			}
			if d := cmp.Diff([]string{test.warning}, r.Warnings); d != "" {
				t.Errorf("warnings differ (-want +got):\n%s", d)
			}
			if test.allowed {
				if r.Result != nil {
					t.Errorf("an allowed pod has the status %v", r.Result)
				}
				return
			}
			message := strings.Replace(test.warning, "denied: ", "", 1)
			want := &metav1.Status{Status: "Failure", Code: 422, Reason: "Invalid", Message: message}
			if d := cmp.Diff(want, r.Result); d != "" {
				t.Errorf("the status differs (-want +got):\n%s", d)
			}
		})
	}
}

// TestBadDriversLeaveNothing covers drivers that break their contract.
func TestBadDriversLeaveNothing(t *testing.T) {
	w := ordinary()
	i := w.injector(t)
	if r := i.Inject(t.Context(), w.request(scriptedPod("nil"))); r.Decision.Outcome != inject.Inject {
		t.Errorf("a driver that forgets the pod makes %+v", r.Decision)
	}
	shuffled := once(t, i, w, []byte(scriptedPod("shuffle")))
	if got := names(decode(t, shuffled).Spec.Containers); got != "second app outrigger-proxy " {
		t.Errorf("the containers are %s", got)
	}
	back, err := inject.Uninject(shuffled)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(decode(t, patched(t, shuffled, back)).Spec.Containers); got != "app second " {
		t.Errorf("uninject leaves the containers %s", got)
	}
}

func TestWebhookDryRun(t *testing.T) {
	d := ordinary().door(t)
	yes, no := true, false
	for _, dryRun := range []*bool{&yes, &no, nil} {
		review := creation(scriptedPod(""))
		review.Request.DryRun = dryRun
		patch := string(d.ask(t, inject.InjectPath, review).Patch)
		want := fmt.Sprintf(`"path":"/metadata/annotations/scripted~1dry-run","value":"%t"`, dryRun == &yes)
		if !strings.Contains(patch, want) {
			t.Errorf("the driver got another value of DryRun: %s", patch)
		}
	}
}

func TestWebhookTimeout(t *testing.T) {
	d := ordinary().door(t)
	for query, want := range map[string]string{
		"": "9s", "?timeout=10s": "9s", "?timeout=30s": "27s", "?timeout=1s": "900ms",
		"?timeout=0s": "9s", "?timeout=-5s": "9s", "?timeout=2h": "9s", "?timeout=soon": "9s", "?timeout=%zz": "9s",
	} {
		r := d.ask(t, inject.InjectPath+query, creation(scriptedPod("deadline")))
		if got := "outrigger: driver_error: driver scripted: " + want + " are left"; r.Result.Message != got {
			t.Errorf("with %q: %q, want %q", query, r.Result.Message, got)
		}
	}
	start := time.Now()
	r := d.ask(t, inject.InjectPath+"?timeout=100ms", creation(scriptedPod("wait")))
	if want := "outrigger: timeout: driver scripted: context deadline exceeded"; r.Allowed || r.Result.Message != want {
		t.Errorf("a driver that is slow makes %q, want %q", r.Result.Message, want)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the answer took %v", took)
	}
}

func TestWarningsAreShort(t *testing.T) {
	long := strings.Repeat("ü", 4000)
	r := ordinary().door(t).ask(t, inject.InjectPath, creation(`{"metadata":{"name":"a"},"spec":{
		"initContainers":[{"name":"`+long+`","securityContext":{"runAsUser":1500}}],
		"containers":[{"name":"app","ports":[{"containerPort":15001}],"livenessProbe":{"tcpSocket":{"port":"`+long+`"}}}]}}`))
	if len(r.Warnings) != 3 || !r.Allowed {
		t.Fatalf("the warnings are %q", r.Warnings)
	}
	for _, warning := range r.Warnings {
		if len(warning) > 256 || strings.ToValidUTF8(warning, "?") != warning || !strings.HasPrefix(warning, "outrigger: ") {
			t.Errorf("a warning of %d bytes: %q", len(warning), warning)
		}
	}
	r = ordinary().door(t).ask(t, inject.InjectPath, creation(`{"metadata":{"name":"a","annotations":{"openservicemesh.io/sidecar-image":"`+long+`"}},"spec":{}}`))
	if r.Allowed || len(r.Result.Message) > 1024 || len(r.Warnings[0]) > 256 {
		t.Errorf("a denial with a message of %d bytes", len(r.Result.Message))
	}
}

func TestWebhookMetrics(t *testing.T) {
	d := ordinary().door(t)
	d.ask(t, inject.InjectPath, creation(smallPod))
	d.ask(t, inject.OSMInjectPath, creation(smallPod))
	d.ask(t, inject.InjectPath, creation(scriptedPod("")))
	d.ask(t, inject.InjectPath, creation(scriptedPod("error")))
	d.ask(t, inject.InjectPath, creation(`{"spec":{"hostNetwork":true}}`))
	d.do(http.MethodGet, inject.InjectPath, "", nil)
	d.do(http.MethodPost, inject.InjectPath, "application/json", strings.NewReader("{"))
	d.do(http.MethodPost, inject.InjectPath, "application/json", strings.NewReader("{}"))
	const want = `
# HELP outrigger_injector_bad_requests_total Requests that were no admission review, by HTTP status code.
# TYPE outrigger_injector_bad_requests_total counter
outrigger_injector_bad_requests_total{code="400"} 2
outrigger_injector_bad_requests_total{code="405"} 1
# HELP outrigger_injector_decisions_total Pods decided about, by outcome, coded reason and sidecar class.
# TYPE outrigger_injector_decisions_total counter
outrigger_injector_decisions_total{class="",outcome="deny",reason="driver_error"} 1
outrigger_injector_decisions_total{class="",outcome="skip",reason="host_network"} 1
outrigger_injector_decisions_total{class="envoy",outcome="inject",reason="namespace_annotation_enabled"} 2
outrigger_injector_decisions_total{class="scripted",outcome="inject",reason="namespace_annotation_enabled"} 1
`
	if err := testutil.GatherAndCompare(d.registry, strings.NewReader(want),
		"outrigger_injector_decisions_total", "outrigger_injector_bad_requests_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(d.registry, "outrigger_injector_request_duration_seconds"); n != 1 || err != nil {
		t.Errorf("the duration is there %d times: %v", n, err)
	}
}

// TestWebhookLogsNoPod checks that the content of a pod, which may be secret, is not
// logged.
func TestWebhookLogsNoPod(t *testing.T) {
	d := ordinary().door(t)
	for _, behaviour := range []string{"", "error", "panic"} {
		pod := strings.Replace(scriptedPod(behaviour), `"image":"app"`, `"image":"app","env":[{"name":"PASSWORD","value":"hunter2"}]`, 1)
		d.ask(t, inject.InjectPath, creation(pod))
	}
	log := d.log.String()
	for _, want := range []string{"reason=driver_error", "reason=namespace_annotation_enabled", "uid=" + uid, "class=scripted", "namespace=shop"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s: %s", want, log)
		}
	}
	if strings.Contains(log, "hunter2") || strings.Contains(log, driver.ProxyContainer) {
		t.Errorf("the log holds parts of the pod: %s", log)
	}
}
