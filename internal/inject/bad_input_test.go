package inject_test

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/test/race"
)

// TestNoReview sends requests that are no admission reviews over one connection. The
// server must answer each of them.
func TestNoReview(t *testing.T) {
	server := httptest.NewServer(ordinary().door(t).mux)
	defer server.Close()
	const media = "application/json"
	huge := strings.Repeat(" ", 8<<20+1)
	head := `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"`
	tests := []struct {
		name, method, contentType, body string
		code                            int
		text                            string
	}{
		{"GET", "GET", "", "", 405, "an admission review is sent by POST, not GET"},
		{"PUT", "PUT", media, "{}", 405, "an admission review is sent by POST, not PUT"},
		{"no content type", "POST", "", "{}", 415, `content type "" is not application/json`},
		{"YAML", "POST", "application/yaml", "a: b", 415, `content type "application/yaml" is not application/json`},
		{"a form", "POST", "application/x-www-form-urlencoded", "a=b", 415, `content type "application/x-www-form-urlencoded" is not application/json`},
		{"a broken content type", "POST", "application/json; charset", "{}", 415, `content type "application/json; charset" is not application/json`},
		{"a content type like JSON", "POST", "application/jsonp", "{}", 415, `content type "application/jsonp" is not application/json`},
		{"empty", "POST", media, "", 400, "the body is empty; an admission review is expected"},
		{"huge", "POST", media, huge, 413, "the review is larger than 8388608 bytes"},
		{"as large as may be", "POST", media, huge[1:], 400, "reading the review: "},
		{"no JSON", "POST", media, "review", 400, "reading the review: "},
		{"cut off", "POST", media, head, 400, "reading the review: "},
		{"two documents", "POST", media, head + "}{}", 400, "reading the review: "},
		{"deeply nested", "POST", media, head + `,"request":{"object":` + strings.Repeat("[", 1<<20), 400, "reading the review: "},
		{"deeply nested beside", "POST", media, head + `,"other":` + strings.Repeat(`{"a":`, 1<<19), 400, "reading the review: "},
		{"a list", "POST", media, "[]", 400, "reading the review: "},
		{"a string", "POST", media, `"review"`, 400, "reading the review: "},
		{"null", "POST", media, "null", 400, `kind is ""; an AdmissionReview is expected`},
		{"wrong types", "POST", media, `{"apiVersion":1,"kind":["AdmissionReview"]}`, 400, "reading the review: "},
		{"a request of a wrong type", "POST", media, head + `,"request":"pod"}`, 400, "reading the review: "},
		{"a UID of a wrong type", "POST", media, head + `,"request":{"uid":{}}}`, 400, "reading the review: "},
		{"invalid UTF-8", "POST", media, head + ",\"request\":{\"uid\":\"\xff\"}}", 400, "reading the review: "},
		{"a name twice", "POST", media, head + `,"kind":"AdmissionReview","request":{}}`, 400, "reading the review: "},
		{"another kind", "POST", media, `{"apiVersion":"admission.k8s.io/v1","kind":"ConversionReview"}`, 400, `kind is "ConversionReview"; an AdmissionReview is expected`},
		{"kind in another case", "POST", media, `{"apiVersion":"admission.k8s.io/v1","Kind":"AdmissionReview"}`, 400, `kind is ""; an AdmissionReview is expected`},
		{"another version", "POST", media, `{"apiVersion":"admission.k8s.io/v2","kind":"AdmissionReview","request":{}}`, 400,
			`apiVersion is "admission.k8s.io/v2"; admission.k8s.io/v1 and admission.k8s.io/v1beta1 are understood`},
		{"no version", "POST", media, `{"kind":"AdmissionReview","request":{}}`, 400,
			`apiVersion is ""; admission.k8s.io/v1 and admission.k8s.io/v1beta1 are understood`},
		{"no request", "POST", media, head + "}", 400, "the admission review has no request"},
		{"a null request", "POST", media, head + `,"request":null}`, 400, "the admission review has no request"},
		{"an answer", "POST", media, head + `,"response":{"uid":"a","allowed":true}}`, 400, "the admission review has no request"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			code, header, body := send(t, server.Client(), server.URL+inject.InjectPath, test.method, test.contentType, strings.NewReader(test.body))
			exact := strings.TrimSuffix(body, "\n") == test.text
			if strings.HasSuffix(test.text, ": ") {
				exact = strings.HasPrefix(body, test.text) && len(body) < 1024
			}
			if code != test.code || !exact {
				t.Errorf("the answer is %d %q, want %d %q", code, body, test.code, test.text)
			}
			if got := header.Get("Content-Type"); got != "text/plain; charset=utf-8" {
				t.Errorf("its content type is %s", got)
			}
			if allow := header.Get("Allow"); (allow == "POST") != (code == 405) {
				t.Errorf("the methods that are allowed are %q", allow)
			}
		})
	}
	// The server still works.
	code, _, body := send(t, server.Client(), server.URL+inject.InjectPath, "POST", media, bytes.NewReader(encode(t, creation(smallPod))))
	if code != 200 || !strings.Contains(body, `"allowed":true`) {
		t.Errorf("a review is answered with %d %s", code, body)
	}
}

// send returns the answer, which must come: a dropped connection is an error.
func send(t *testing.T, client *http.Client, url, method, contentType string, body io.Reader) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatalf("there is no answer: %v", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

// TestHugeReviewIsAnswered sends far more than the webhook reads, with and without a
// Content-Length, over HTTP/1.1 and HTTP/2.
func TestHugeReviewIsAnswered(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for _, declared := range []bool{false, true} {
			t.Run(fmt.Sprintf("http2=%t declared=%t", http2, declared), func(t *testing.T) {
				server := httptest.NewUnstartedServer(ordinary().door(t).mux)
				server.EnableHTTP2 = http2
				server.StartTLS()
				defer server.Close()
				client := server.Client()
				if !http2 {
					client.Transport.(*http.Transport).TLSClientConfig.NextProtos = nil
					client.Transport.(*http.Transport).TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
				}
				for range 5 {
					var body io.Reader = bytes.NewReader(make([]byte, 32<<20))
					if !declared {
						body = io.MultiReader(body)
					}
					code, _, text := send(t, client, server.URL+inject.InjectPath, "POST", "application/json", body)
					if code != 413 || text != "the review is larger than 8388608 bytes\n" {
						t.Errorf("the answer is %d %q", code, text)
					}
				}
			})
		}
	}
}

func TestBadPods(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	tests := []struct {
		name, pod string
		outcome   inject.Outcome
		reason    inject.Reason
	}{
		{"a list", `[]`, inject.Deny, "pod_invalid"},
		{"a string", `"pod"`, inject.Deny, "pod_invalid"},
		{"a number", `1`, inject.Deny, "pod_invalid"},
		{"no JSON", `pod`, inject.Deny, "pod_invalid"},
		{"nothing", ``, inject.Deny, "pod_invalid"},
		{"a spec of a wrong type", `{"spec":[]}`, inject.Deny, "pod_invalid"},
		{"containers of a wrong type", `{"spec":{"containers":{"name":"a"}}}`, inject.Deny, "pod_invalid"},
		{"a name of a wrong type", `{"metadata":{"name":1}}`, inject.Deny, "pod_invalid"},
		{"an annotation of a wrong type", `{"metadata":{"annotations":{"a":true}}}`, inject.Deny, "pod_invalid"},
		{"a port out of range of its type", `{"spec":{"containers":[{"ports":[{"containerPort":99999999999}]}]}}`, inject.Deny, "pod_invalid"},
		{"a quantity that is none", `{"spec":{"containers":[{"resources":{"limits":{"cpu":"lots"}}}]}}`, inject.Deny, "pod_invalid"},
		{"a name twice", `{"metadata":{"name":"a"},"metadata":{"labels":{"a":"b"}}}`, inject.Deny, "pod_invalid"},
		{"invalid UTF-8", "{\"metadata\":{\"annotations\":{\"a\xff\":\"b\"}}}", inject.Deny, "pod_invalid"},
		{"nesting without end", `{"x":` + deep(20_000) + `}`, inject.Deny, "pod_invalid"},
		{"nesting that is still read", `{"x":` + deep(5_000) + `}`, inject.Inject, "namespace_annotation_enabled"},
		{"empty", `{}`, inject.Inject, "namespace_annotation_enabled"},
		{"null parts", `{"metadata":null,"spec":null,"status":null}`, inject.Inject, "namespace_annotation_enabled"},
		{"null elements", `{"spec":{"containers":[null],"initContainers":[],"volumes":[null]}}`, inject.Inject, "namespace_annotation_enabled"},
		{"a probe of nothing", `{"spec":{"containers":[{"name":"a","livenessProbe":{},"lifecycle":{"preStop":{}}}]}}`, inject.Inject, "namespace_annotation_enabled"},
		{"a probe of port 0", `{"spec":{"containers":[{"name":"a","livenessProbe":{"tcpSocket":{"port":0}}}]}}`, inject.Inject, "namespace_annotation_enabled"},
		{"the sidecar's user", `{"spec":{"containers":[{"name":"a","securityContext":{"runAsUser":1500}}]}}`, inject.Deny, "uid_conflict"},
		{"the sidecar's user for all but one", `{"spec":{"securityContext":{"runAsUser":1500},"containers":[{"name":"a","securityContext":{"runAsUser":1}}]}}`, inject.Inject, "namespace_annotation_enabled"},
		{"the sidecar's user in a container that goes on", `{"spec":{"initContainers":[{"name":"a","restartPolicy":"Always","securityContext":{"runAsUser":1500}}]}}`, inject.Deny, "uid_conflict"},
		{"a volume of the sidecar's", `{"spec":{"volumes":[{"name":"outrigger-token","emptyDir":{}}]}}`, inject.Deny, "driver_error"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := ordinary()
			r := w.injector(t).Inject(t.Context(), w.request(test.pod))
			if r.Decision.Outcome != test.outcome || r.Decision.Reason != test.reason || r.Decision.Message == "" {
				t.Errorf("the decision is %+v, want %s %s", r.Decision, test.outcome, test.reason)
			}
			if len(r.Decision.Message) > 1024 {
				t.Errorf("the message has %d bytes", len(r.Decision.Message))
			}
			if test.outcome == inject.Inject {
				proxy(t, decode(t, patched(t, []byte(test.pod), r.Patch)))
			}
		})
	}
}

// TestHostileSizes injects pods of about the maximal size that an API server accepts, with
// as many parts as possible. Quadratic work would take minutes.
func TestHostileSizes(t *testing.T) {
	list := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	spec := func(format string) string { return list(20_000, format) }
	// The limit of all annotations together is 256 KiB.
	status := func(start, format, end string) string {
		return `{"version":1,"revision":"default","class":"envoy","templates":["envoy"],` + start + list(8_000, format) + end + `}`
	}
	many := spec(`{"name":"c%d"}`)
	tests := []struct {
		name, annotation, spec string
		reason                 inject.Reason
	}{
		{"containers", "", `"containers":[` + many + `]`, ""},
		{"init containers", "", `"initContainers":[` + many + `]`, ""},
		{"volumes", "", `"volumes":[` + many + `]`, ""},
		{"probes", "", `"containers":[` + spec(`{"name":"c%d","livenessProbe":{"tcpSocket":{"port":1}}}`) + `]`, ""},
		{"ports", "", `"containers":[{"name":"c","ports":[` + spec(`{"containerPort":%d}`) + `]}]`, ""},
		{"the user's own ports", "", `"containers":[{"name":"outrigger-proxy","ports":[` + spec(`{"containerPort":%d}`) + `]}]`, ""},
		{"the user's own mounts", "", `"containers":[{"name":"outrigger-proxy","volumeMounts":[` + spec(`{"name":"v","mountPath":"/%d"}`) + `]}]`, ""},
		{"a variable many times", "", `"containers":[{"name":"outrigger-proxy","env":[` + spec(`{"name":"A","value":"%d"}`) + `]}]`, ""},
		{"added containers", status(`"containers":[`, `{"name":"c%d"}`, `]`), `"containers":[` + many + `,{"name":"app"}]`, ""},
		{"added volumes", status(`"volumes":[`, `"c%d"`, `]`), `"volumes":[` + many + `]`, ""},
		{"changed containers", status(`"changed":{`, `"c%d":{"image":"a"}`, `}`), `"containers":[` + many + `]`, ""},
		{"added variables", status(`"initContainers":[{"name":"outrigger-proxy","env":[`, `"c%d"`, `]}]`),
			`"initContainers":[{"name":"outrigger-proxy","env":[` + many + `]}]`, ""},
		{"labels", status(`"labels":[`, `"c%d"`, `]`), `"containers":[{"name":"app"}]`, ""},
		{"moved containers", status(`"moved":{`, `"c%[1]d":{"index":-%[1]d}`, `}`), `"containers":[` + many + `,{"name":"app"}]`, "status_invalid"},
		{"a status that no API server takes", status(`"labels":[`, `"label-of-a-name-of-forty-characters-%05d"`, `]`), `"containers":[{"name":"app"}]`, "status_invalid"},
	}
	w := ordinary()
	i := w.injector(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			annotations := []byte("{}")
			if test.annotation != "" {
				annotations = encode(t, map[string]string{inject.StatusAnnotation: test.annotation})
			}
			pod := fmt.Sprintf(`{"metadata":{"name":"a","annotations":%s},"spec":{%s}}`, annotations, test.spec)
			start := cpuTime(t)
			r := i.Inject(t.Context(), w.request(pod))
			// The limit does not apply with the race detector.
			if used := cpuTime(t) - start; used > 3*time.Second && !race.Enabled {
				t.Errorf("it takes %v of CPU time", used)
			} else {
				t.Logf("%d bytes take %v of CPU time", len(pod), used)
			}
			if r.Decision.Reason != cmp.Or(test.reason, "namespace_annotation_enabled") {
				t.Errorf("the decision is %+v", r.Decision)
			}
		})
	}
}
