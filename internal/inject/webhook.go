package inject

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
)

// The paths of the webhook. OSMInjectPath is the one that Open Service Mesh uses.
const (
	InjectPath    = "/inject"
	OSMInjectPath = "/mutate-pod-creation"
)

// SelfCheckUID is the uid of the reviews that the injector sends to itself. They are
// answered like any other but do not count in the metrics.
const SelfCheckUID = "00000000-0000-4000-8000-000000000000"

// GCPercent is a suitable GOGC for a process that answers reviews: the live heap is
// small and each review allocates much, so the default of 100 would collect every few
// dozen reviews.
const GCPercent = 400

// defaultTimeout is used if the API server sends no timeout.
const defaultTimeout = 10 * time.Second

// Webhook answers admission reviews of pods. It is safe for use by many
// goroutines.
type Webhook struct {
	injector *Injector
	metrics  *Metrics
	log      *slog.Logger
	intake   *intake
}

// answers holds idle buffers.
var answers = sync.Pool{New: func() any { return new(answerBuffers) }}

// answerBuffers are those of one answer and of the patch in it.
type answerBuffers struct {
	patch  []byte
	answer bytes.Buffer
}

// put makes the buffers idle, unless they are large.
func (b *answerBuffers) put() {
	if cap(b.patch) <= largestKept && b.answer.Cap() <= 2*largestKept {
		answers.Put(b)
	}
}

// NewWebhook returns the webhook of an injector.
func NewWebhook(injector *Injector, metrics *Metrics, log *slog.Logger) *Webhook {
	return &Webhook{injector: injector, metrics: metrics, log: log, intake: newIntake()}
}

// Mount adds the webhook to a mux, which may serve other things too.
func (w *Webhook) Mount(mux *http.ServeMux) {
	mux.Handle(InjectPath, w)
	mux.Handle(OSMInjectPath, w)
}

// review is an AdmissionReview of v1 or v1beta1, which agree in the fields used here.
type review struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Request    *reviewRequest  `json:"request,omitempty"`
	Response   *reviewResponse `json:"response,omitempty"`
}

type reviewRequest struct {
	UID         string    `json:"uid"`
	Kind        groupKind `json:"kind"`
	SubResource string    `json:"subResource"`
	Namespace   string    `json:"namespace"`
	Name        string    `json:"name"`
	Operation   string    `json:"operation"`
	Object      object    `json:"object"`
	DryRun      *bool     `json:"dryRun"`
}

type groupKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

type reviewResponse struct {
	UID              string            `json:"uid"`
	Allowed          bool              `json:"allowed"`
	Status           *responseStatus   `json:"status,omitempty"`
	Patch            []byte            `json:"patch,omitempty"`
	PatchType        string            `json:"patchType,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
	Warnings         []string          `json:"warnings,omitempty"`
}

type responseStatus struct {
	Status  string `json:"status"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Code    int32  `json:"code"`
}

// badRequest is the error for a request that is not a valid admission review.
type badRequest struct {
	code    int
	message string
}

func (b badRequest) Error() string { return b.message }

// ServeHTTP answers one review with its decision. Any other request gets a plain error
// with an HTTP status.
func (w *Webhook) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	in, done, err := w.readReview(rw, r)
	if err != nil {
		bad := badRequest{code: http.StatusBadRequest, message: err.Error()}
		errors.As(err, &bad)
		w.metrics.refused.WithLabelValues(strconv.Itoa(bad.code)).Inc()
		w.log.Warn("a request was not an admission review", "code", bad.code, "error", bad.message, "from", r.RemoteAddr)
		http.Error(rw, bad.message, bad.code)
		return
	}
	defer done()
	ctx, cancel := context.WithTimeout(r.Context(), timeout(r))
	defer cancel()
	buffers := answers.Get().(*answerBuffers)
	defer buffers.put()
	out := review{APIVersion: in.APIVersion, Kind: in.Kind, Response: w.answer(ctx, in.Request, buffers)}
	buffer := &buffers.answer
	buffer.Reset()
	if err := jsonv2.MarshalWrite(buffer, &out); err != nil {
		w.log.Error("an answer could not be encoded", "uid", in.Request.UID, "error", err)
		http.Error(rw, "encoding the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("Content-Length", strconv.Itoa(buffer.Len()))
	if _, err := rw.Write(buffer.Bytes()); err != nil {
		w.log.Warn("an answer could not be sent", "uid", in.Request.UID, "error", err)
	}
}

// timeout returns nine tenths of the time that the API server waits; the rest is for
// sending the answer.
func timeout(r *http.Request) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 || d > time.Minute {
		d = defaultTimeout
	}
	return d - d/10
}

// readReview returns the review and a function that releases its body's share of the
// memory limit.
func (w *Webhook) readReview(rw http.ResponseWriter, r *http.Request) (*review, func(), error) {
	if r.Method != http.MethodPost {
		rw.Header().Set("Allow", http.MethodPost)
		return nil, nil, badRequest{http.StatusMethodNotAllowed, "an admission review is sent by POST, not " + r.Method}
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return nil, nil, badRequest{http.StatusUnsupportedMediaType, fmt.Sprintf(
			"content type %q is not application/json", r.Header.Get("Content-Type"))}
	}
	body, done, err := w.intake.read(rw, r)
	switch {
	case errors.Is(err, errTooLarge):
		return nil, nil, badRequest{http.StatusRequestEntityTooLarge, fmt.Sprintf("the review is larger than %d bytes", maxBody)}
	case errors.Is(err, errBusy):
		rw.Header().Set("Retry-After", "1")
		return nil, nil, badRequest{http.StatusServiceUnavailable, err.Error()}
	case err != nil:
		return nil, nil, badRequest{http.StatusBadRequest, "reading the review: " + err.Error()}
	}
	in, err := parseReview(body)
	if err != nil {
		done()
		return nil, nil, err
	}
	return in, done, nil
}

func parseReview(body []byte) (*review, error) {
	if len(body) == 0 {
		return nil, badRequest{http.StatusBadRequest, "the body is empty; an admission review is expected"}
	}
	in, err := unmarshalReview(body)
	if err != nil {
		return nil, badRequest{http.StatusBadRequest, "reading the review: " + err.Error()}
	}
	switch {
	case in.Kind != "AdmissionReview":
		return nil, badRequest{http.StatusBadRequest, fmt.Sprintf("kind is %q; an AdmissionReview is expected", in.Kind)}
	case in.APIVersion != "admission.k8s.io/v1" && in.APIVersion != "admission.k8s.io/v1beta1":
		return nil, badRequest{http.StatusBadRequest, fmt.Sprintf(
			"apiVersion is %q; admission.k8s.io/v1 and admission.k8s.io/v1beta1 are understood", in.APIVersion)}
	case in.Request == nil:
		return nil, badRequest{http.StatusBadRequest, "the admission review has no request"}
	}
	return in, nil
}

const (
	// maxWarning is the length that the API server shows of a warning, in bytes.
	maxWarning = 256
	// maxMessage bounds the message of a denial, which may quote an annotation.
	maxMessage = 1024
)

// answer decides about the request. The patch in the response is in the buffers.
func (w *Webhook) answer(ctx context.Context, req *reviewRequest, buffers *answerBuffers) *reviewResponse {
	start := time.Now()
	out := &reviewResponse{UID: req.UID, Allowed: true}
	r := w.decide(ctx, req)
	d := &r.Decision
	var patch []byte
	if len(r.Patch) > 0 {
		var err error
		if patch, err = appendPatch(buffers.patch[:0], r.Patch); err != nil {
			r = denied(deny("internal_error", err))
		}
		buffers.patch = patch
	}
	if req.UID != SelfCheckUID {
		w.metrics.decided(&r, time.Since(start))
	}
	out.AuditAnnotations = map[string]string{"decision": string(d.Outcome) + ": " + string(d.Reason)}
	if d.Outcome != Inject {
		out.Warnings = append(out.Warnings, shorten(Warning{d.Reason, verb(d.Outcome) + d.Message}.String(), maxWarning))
	}
	for _, warning := range r.Warnings {
		out.Warnings = append(out.Warnings, shorten(warning.String(), maxWarning))
	}
	if d.Outcome == Deny {
		out.Allowed = false
		out.Status = &responseStatus{
			Status: "Failure", Code: http.StatusUnprocessableEntity, Reason: "Invalid",
			Message: shorten("outrigger: "+string(d.Reason)+": "+d.Message, maxMessage),
		}
	} else if patch != nil {
		out.Patch, out.PatchType = patch, "JSONPatch"
	}
	level := slog.LevelDebug
	if d.Outcome == Deny {
		level = slog.LevelWarn
	}
	if w.log.Enabled(ctx, level) {
		w.log.Log(ctx, level, "decided", "outcome", d.Outcome, "reason", d.Reason, "message", d.Message,
			"namespace", req.Namespace, "pod", req.Name, "class", r.Class, "uid", req.UID)
	}
	return out
}

func verb(o Outcome) string {
	if o == Deny {
		return "denied: "
	}
	return "not injected: "
}

// decide asks the injector about pod creations and answers all other reviews itself.
func (w *Webhook) decide(ctx context.Context, req *reviewRequest) Result {
	skip := func(reason Reason, message string) Result {
		return Result{Decision: Decision{Outcome: Skip, Reason: reason, Message: message}}
	}
	switch {
	case req.Kind.Kind != "Pod" || req.Kind.Group != "" || req.SubResource != "":
		return skip("not_a_pod", "the review is about "+strings.TrimSuffix(req.Kind.Kind+"/"+req.SubResource, "/")+
			"; check the rules of the webhook configuration")
	case req.Operation != "" && req.Operation != "CREATE":
		return skip("not_a_creation", "the review is about "+req.Operation+"; pods are injected when they are created")
	case req.Object.pod == nil && req.Object.raw == nil:
		return denied(deny("pod_invalid", errors.New("the review contains no pod")))
	case req.UID == "":
		return denied(deny("review_invalid", errors.New("the review has no uid")))
	}
	return w.injector.Inject(ctx, Request{
		UID: req.UID, Namespace: req.Namespace, Pod: req.Object.raw, decoded: req.Object.pod,
		DryRun: req.DryRun != nil && *req.DryRun, KeepForeign: true,
	})
}

func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-3], "") + "..."
}

// MarshalPatch returns the operations as a JSON patch document.
func MarshalPatch(ops []Operation) ([]byte, error) {
	return appendPatch(nil, ops)
}

// appendPatch appends the operations as encoding/json encodes them, but with HTML's characters
// as they are.
func appendPatch(b []byte, ops []Operation) ([]byte, error) {
	to := bytes.NewBuffer(b)
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(ops); err != nil {
		return nil, fmt.Errorf("encoding the patch: %w", err)
	}
	return bytes.TrimSuffix(to.Bytes(), []byte("\n")), nil
}
