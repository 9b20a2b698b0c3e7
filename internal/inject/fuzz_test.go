package inject_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// FuzzReview sends any body to the webhook: there is always an answer, and it is
// either an HTTP error or a review with a decision.
func FuzzReview(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(encode(f, creation(string(s.raw))))
	}
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"x","object":null}}`))
	d := ordinary().door(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		answer := d.do(http.MethodPost, inject.InjectPath, "application/json", bytes.NewReader(body))
		switch answer.Code {
		case http.StatusBadRequest:
		case http.StatusOK:
			var review struct{ Response *struct{ Allowed *bool } }
			if err := json.Unmarshal(answer.Body.Bytes(), &review); err != nil || review.Response == nil || review.Response.Allowed == nil {
				t.Errorf("the answer is no review: %v\n%s", err, answer.Body)
			}
		default:
			t.Errorf("the answer is %d %s", answer.Code, answer.Body)
		}
	})
}

// FuzzPod injects any pod: a second injection must change nothing, and uninjection must
// restore the pod.
func FuzzPod(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(s.raw)
	}
	w := ordinary()
	i := w.injector(f)
	f.Fuzz(func(t *testing.T, pod []byte) { injectAny(t, w, i, pod) })
}

// FuzzAnnotations injects a pod with any value in any of our annotations.
func FuzzAnnotations(f *testing.F) {
	keys := []string{
		"openservicemesh.io/sidecar-class", "openservicemesh.io/sidecar-image", "openservicemesh.io/sidecar-log-level",
		"openservicemesh.io/native-sidecar", "openservicemesh.io/inject-templates", metadata.Metrics, inject.StatusAnnotation,
		"openservicemesh.io/sidecar-resource-limits-cpu", "openservicemesh.io/inbound-port-exclusion-list",
		"openservicemesh.io/inbound-connections-per-source", "openservicemesh.io/outbound-ip-range-inclusion-list", "traffic.sidecar.istio.io/includeOutboundIPRanges",
	}
	for n, value := range []string{
		"pipy", "image:1", "debug", "false", "sidecar", "enabled", `{"version":1,"revision":"default","changed":{"cart":{"env":null}}}`,
		"1e3", "80, 443", "10.0.0.0/8", "*", "a\n  b: c", `"`, "{{ . }}", "OUTRIGGERv00v", "$(X)",
	} {
		f.Add(uint8(n), value, value)
	}
	w := ordinary()
	w.config = `compat: {istio: true}`
	i := w.injector(f)
	f.Fuzz(func(t *testing.T, n uint8, value, account string) {
		pod := encode(t, map[string]any{
			"metadata": map[string]any{"annotations": map[string]string{keys[int(n)%len(keys)]: value}},
			"spec":     map[string]any{"serviceAccountName": account, "containers": []any{map[string]any{"name": "cart", "image": "cart"}}},
		})
		injectAny(t, w, i, pod)
	})
}

// injectAny asserts the properties of every pod, valid or not.
func injectAny(t *testing.T, w *environment, i *inject.Injector, pod []byte) {
	t.Helper()
	r := i.Inject(t.Context(), w.request(string(pod)))
	switch {
	case r.Decision.Reason == "" || r.Decision.Reason == "internal_error":
		t.Fatalf("the decision is %+v", r.Decision)
	case r.Decision.Outcome != inject.Inject:
		if len(r.Patch) != 0 {
			t.Fatalf("%s has a patch", r.Decision.Reason)
		}
		return
	}
	injected := patched(t, pod, r.Patch)
	again := i.Inject(t.Context(), w.request(string(injected)))
	if again.Decision.Outcome != inject.Inject || len(again.Patch) != 0 && !jsonpatch.Equal(injected, patched(t, injected, again.Patch)) {
		t.Fatalf("a second injection gives %+v and %s", again.Decision, encode(t, again.Patch))
	}
	if _, err := inject.Uninject(injected); err != nil {
		t.Fatalf("what was injected cannot be taken back: %v", err)
	}
}
