package behaviour

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// largeValue is the value of a trailer that takes more than a frame's usual share.
var largeValue = strings.Repeat("large-trailer-", 400)

// shapes are the answers whose form a retry policy could damage: in pieces between which the server
// waits, in many small messages, and without a body but with trailers.
var shapes = []string{"pieces", "many", "nothing"}

// awaitPiece waits until the client has read the first piece of an answer, or long enough to find
// out that it has not got it.
func (a *application) awaitPiece() {
	select {
	case <-a.proceed:
	case <-time.After(3 * time.Second):
	}
}

// readPiece tells the application that the client has read the first piece.
func (a *application) readPiece() error {
	select {
	case a.proceed <- struct{}{}:
		return nil
	case <-time.After(5 * time.Second):
		return errors.New("the application has sent the second piece before the client got the first one")
	}
}

// callShape answers a call of gRPC whose method names a shape. It returns false for other methods.
func (a *application) callShape(stream grpc.ServerStream) (bool, error) {
	method, _ := grpc.MethodFromServerStream(stream)
	shape := strings.ToLower(method[strings.LastIndexByte(method, '/')+1:])
	if !slices.Contains(shapes, shape) {
		return false, nil
	}
	send := func(text string) error {
		message := []byte(text)
		return stream.SendMsg(&message)
	}
	stream.SetTrailer(metadata.Pairs("sum", "5", "large", largeValue))
	if err := stream.SendHeader(metadata.Pairs("initial", "yes")); err != nil {
		return true, err
	}
	switch shape {
	case "pieces":
		if err := send("first"); err != nil {
			return true, err
		}
		a.awaitPiece()
		return true, send("second")
	case "many":
		for i := range 1000 {
			if err := send(fmt.Sprint("message ", i)); err != nil {
				return true, err
			}
		}
		return true, nil
	}
	return true, status.Error(codes.NotFound, "there is nothing")
}

// serveShape answers a request with a shape in chunks and a trailer.
func (a *application) serveShape(w http.ResponseWriter, shape string) {
	flush := http.NewResponseController(w).Flush
	w.Header().Set("Trailer", "Sum")
	w.WriteHeader(http.StatusOK)
	_ = flush()
	switch shape {
	case "pieces":
		_, _ = io.WriteString(w, "first\n")
		_ = flush()
		a.awaitPiece()
		_, _ = io.WriteString(w, "second\n")
	case "many":
		for i := range 1000 {
			fmt.Fprintln(w, "message", i)
			_ = flush()
		}
	}
	w.Header().Set("Sum", "5")
}

// testAnswersWithRetries compares answers that need no retry with those without a retry policy.
func testAnswersWithRetries(t *testing.T, w *testMesh) {
	compare := func(policy string) {
		t.Helper()
		for _, shape := range shapes {
			want := map[string]string{
				"pieces": "first second; 0; sum 5", "many": "1000 messages; 0; sum 5", "nothing": "; 5; sum 5",
			}[shape]
			if got, err := w.call(t, shape); err != nil || got != want {
				t.Errorf("%s, a call with the answer %s gives %q, %v, want %q", policy, shape, got, err, want)
			}
			want = map[string]string{"pieces": "first second; 200; sum 5", "many": "1000 lines; 200; sum 5", "nothing": "; 200; sum 5"}[shape]
			if got, err := w.read(t, shape); err != nil || got != want {
				t.Errorf("%s, a request with the answer %s gives %q, %v, want %q", policy, shape, got, err, want)
			}
		}
	}
	w.get(t, "users/web", cartV1, ok)
	compare("without a policy")
	w.apply(t, "retry.yaml", retryOf("users", "cart-v1"))
	w.afterFailures(t, request{url: cartV1}, "times=2", ok)
	compare("with a Retry")
}

// call calls the method of a shape, and returns a summary of the answer.
func (w *testMesh) call(t *testing.T, shape string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream, end, err := w.openStream(ctx, t, "users/web", "/town.Cart/"+strings.ToUpper(shape[:1])+shape[1:])
	if err != nil {
		return "", err
	}
	defer end()
	message := []byte("hello")
	if err := stream.SendMsg(&message); err != nil {
		return "", err
	}
	_ = stream.CloseSend()
	var got []string
	var failed error
	for {
		var message []byte
		if failed = stream.RecvMsg(&message); failed != nil {
			break
		}
		got = append(got, string(message))
		if shape == "pieces" && len(got) == 1 {
			if err := w.apps["shop/cart-v1"].readPiece(); err != nil {
				return "", err
			}
		}
	}
	if errors.Is(failed, io.EOF) {
		failed = nil
	}
	trailer := stream.Trailer()
	if large := strings.Join(trailer.Get("large"), ","); large != largeValue {
		return "", fmt.Errorf("the large trailer has %d bytes, want %d; the status is %w", len(large), len(largeValue), failed)
	}
	return fmt.Sprintf("%s; %d; sum %s", summary(got, "messages"), status.Code(failed), strings.Join(trailer.Get("sum"), ",")), nil
}

// read requests a shape by HTTP/1.1, and returns a summary of the answer.
func (w *testMesh) read(t *testing.T, shape string) (string, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: w.pod(t, "users/web").Dial, DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cartV1+"?shape="+shape, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("TE", "trailers")
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var got []string
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		got = append(got, lines.Text())
		if shape == "pieces" && len(got) == 1 {
			if err := w.apps["shop/cart-v1"].readPiece(); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("%s; %d; sum %s", summary(got, "lines"), answer.StatusCode, answer.Trailer.Get("Sum")), lines.Err()
}

// summary returns a few texts, or how many there are if they are the numbered ones.
func summary(all []string, what string) string {
	for i, text := range all {
		if text != fmt.Sprint("message ", i) {
			return strings.Join(all, " ")
		}
	}
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprint(len(all), " ", what)
}
