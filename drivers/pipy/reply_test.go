package pipy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// messageClass is the part of Pipy's Message that reply.js uses.
const messageClass = `function Message(head, body, tail) { this.head = head; this.body = body; this.tail = tail }`

// TestAnswersOfGRPC checks the statuses of the proxy's own answers to gRPC clients. A client
// repeats what is UNAVAILABLE (14), which a request that has timed out must not be.
func TestAnswersOfGRPC(t *testing.T) {
	e := newEngine(t)
	_, err := e.vm.RunString(messageClass)
	e.must(err)
	head := map[string]any{"headers": map[string]any{"content-type": "application/grpc+proto"}}
	for status, want := range map[int]string{400: "13", 401: "16", 403: "7", 404: "12", 429: "14", 431: "14", 500: "14", 501: "12", 503: "14", 504: "4"} {
		e.must(e.vm.Set("answer", e.call("./reply.js", "reply", head, status, "text", map[string]any{})))
		got, err := e.vm.RunString("answer.tail.headers['grpc-status']")
		e.must(err)
		if got.String() != want {
			t.Errorf("%d is code %s, want %s", status, got, want)
		}
	}
}

// TestTrailersOnly checks that the metadata of an answer without messages stays beside its
// status, where clients look for it.
func TestTrailersOnly(t *testing.T) {
	e := newEngine(t)
	head := e.value(map[string]any{"headers": map[string]any{
		"content-type": "application/grpc", "date": "now", "grpc-status": "9", "grpc-message": "no", "x-details": "a", "details-bin": "YQ==",
	}})
	var trailers, kept map[string]string
	e.must(e.vm.ExportTo(e.call("./reply.js", "takeTrailers", head), &trailers))
	e.must(e.vm.ExportTo(head.ToObject(e.vm).Get("headers"), &kept))
	if diff := cmp.Diff(map[string]string{"grpc-status": "9", "grpc-message": "no", "x-details": "a", "details-bin": "YQ=="}, trailers); diff != "" {
		t.Errorf("trailers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"content-type": "application/grpc", "date": "now"}, kept); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// TestOwnHeaders checks that neither end can send the headers that proxies send each other.
func TestOwnHeaders(t *testing.T) {
	e := newEngine(t)
	head := e.value(map[string]any{"method": "GET", "path": "/", "protocol": "HTTP/1.1", "headers": map[string]any{
		"host": "a", "x-outrigger-session": "1", "x_outrigger_served": "2", "x-outrigger": "3", "x-envoy-internal": "4",
	}})
	if !e.call("./request.js", "clean", head, true).ToBoolean() {
		t.Fatal("the request is refused")
	}
	answer := e.value(map[string]any{"x-outrigger-served": "1", "x-outrigger": "3"})
	e.call("./request.js", "dropOwn", answer)
	for name, headers := range map[string]any{"request": head.ToObject(e.vm).Get("headers").Export(), "answer": answer.Export()} {
		kept := headers.(map[string]any)
		delete(kept, "host")
		if diff := cmp.Diff(map[string]any{"x-outrigger": "3"}, kept); diff != "" {
			t.Errorf("headers of the %s (-want +got):\n%s", name, diff)
		}
	}
	if e.call("./request.js", "isChangeable", "x-outrigger-session", "1").ToBoolean() {
		t.Error("an external authorization may set the proxies' own headers")
	}
}
