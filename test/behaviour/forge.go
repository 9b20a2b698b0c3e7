package behaviour

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// forged is in every value that one end sends to have it recorded.
const forged = "f0rged"

// forgery returns headers from which a proxy could take what it records: those of Outrigger's
// proxies, those in which an identity is claimed, and those with which Envoy names spans.
func forgery() http.Header {
	out := http.Header{}
	for _, name := range []string{"caller", "mirror", "served", "session", "status", "to", "try", "upstream"} {
		value := forged
		if name == "status" {
			value = "599"
		}
		// Names that are not canonical keep their spelling.
		out["x-outrigger-"+name], out["x_outrigger_"+name] = []string{value}, []string{value}
	}
	for _, name := range mesh.IdentityHeaders() {
		out[name] = []string{"URI=spiffe://cluster.local/ns/users/sa/" + forged}
	}
	for _, name := range []string{"decorator-operation", "downstream-service-cluster", "downstream-service-node", "original-path"} {
		out["x-envoy-"+name] = []string{"/" + forged}
	}
	return out
}

// breakers are values of headers that records contain, which would end a field of a record if
// they were not escaped.
func breakers() http.Header {
	field := `x","upstream_peer":"` + forged + `","downstream_peer":"` + forged + `","tail":"`
	return http.Header{
		"User-Agent":      {field + "\t\\" + strings.Repeat("long ", 600)},
		"X-Request-Id":    {field},
		"X-Forwarded-For": {field + `;` + forged + `;]} {`},
	}
}

// rawAnswer returns an answer of the application with the headers.
func rawAnswer(headers http.Header) odd {
	var out strings.Builder
	out.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n")
	for name, values := range headers {
		fmt.Fprintf(&out, "%s: %s\r\n", name, values[0])
	}
	return odd{"an answer with forged headers", out.String() + "\r\ntrue"}
}

// testForgery has a client, a server and a peer without a sidecar send what the sidecars record,
// with and without a retry, and looks for it in everything that they write or pass on.
func testForgery(t *testing.T, w *testMesh) {
	const client, server = "users/web", "shop/cart-v1"
	spans := &spanTexts{}
	listener := listenOn(t, w.Lab().Node(), net.JoinHostPort(nodeAddress, "9411"))
	collector := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: spans}
	go collector.Serve(listener)
	defer collector.Close()
	w.configure(t, "", `tracing: {enable: true, address: "`+nodeAddress+`", port: 9411, sampledFraction: "1.0"}`)
	// All threads of the proxies must follow, and a former worker may still accept connections.
	tries := 0
	w.eventuallyWithin(t, time.Minute, func() error {
		const times = 10
		tries++
		path := fmt.Sprintf("/cart/traced-%d-", tries)
		for i := range times {
			if err := w.answers(w.pod(t, client), fmt.Sprintf("http://cart-v1.shop%s%d", path, i), http.StatusOK, ""); err != nil {
				return err
			}
		}
		var missing error
		for until := time.Now().Add(3 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
			missing = nil
			for i := range times {
				missing = errors.Join(missing, spans.both(fmt.Sprint(path, i)))
			}
			if missing == nil {
				return nil
			}
		}
		return missing
	})
	w.apps[server].setRaw([]odd{rawAnswer(forgery())})
	before := map[string]int{client: len(w.logs.of(client + "/outrigger-proxy")), server: len(w.logs.of(server + "/outrigger-proxy"))}

	var paths []string
	round := func(name string) {
		path := "/cart/forge-" + name
		paths = append(paths, path)
		url := "http://cart-v1.shop" + path
		headers := forgery()
		notForged(t, w.ask(t, client, request{url: url, header: headers}, ok).answer.Header)
		for name, values := range breakers() {
			headers[name] = values
		}
		r := w.ask(t, client, request{url: url + "?raw=0", header: headers}, ok)
		for name, values := range r.Header {
			if strings.HasPrefix(strings.ToLower(strings.ReplaceAll(name, "_", "-")), "x-outrigger-") {
				t.Errorf("the client gets %s: %s", name, values)
			}
		}
		if r.Body != "true" {
			t.Errorf("the client gets %q, want the application's answer", r.Body)
		}
		w.uploadSlowly(t, "/cart/items?raw=0&of="+name)
	}
	round("once")
	w.apply(t, "retry.yaml", retryOf("users", "cart-v1"))
	w.afterFailures(t, request{url: cartV1}, "times=2", ok)
	round("retried")
	peer := w.repeat(t, "a request of a peer without a sidecar", ok, func() (reply, error) {
		return w.directly(t, server, w.meshTLSOf(t, w.certificate(t, webIdentity)), 1, "/cart/forge-peer", forgery())
	})
	notForged(t, peer.answer.Header)

	w.eventually(t, func() error {
		for _, path := range paths {
			if err := spans.both(path); err != nil {
				return err
			}
		}
		for pod, want := range map[string]int{client: 6, server: 7} {
			// Envoy writes its lines late.
			text := w.logs.of(pod + "/outrigger-proxy")[before[pod]:]
			if n := strings.Count(text, "/cart/forge-") + strings.Count(text, "of="); n < want {
				return fmt.Errorf("the log of %s has %d lines about the requests, want %d", pod, n, want)
			}
		}
		return nil
	})
	if text := spans.with(forged + `"`); text != "" {
		t.Errorf("a span has a forged value: %s", text)
	}
	for pod, peers := range map[string]map[string]string{
		client: {"upstream_peer": "spiffe://cluster.local/ns/shop/sa/cart-v1", "downstream_peer": ""},
		server: {"downstream_peer": webIdentity.String(), "upstream_peer": ""},
	} {
		w.checkLines(t, pod, before[pod], peers)
		url := "http://" + w.address(t, pod, "15010") + "/stats/prometheus"
		if page := w.ask(t, "plain/outsider", request{url: url}, ok).Body; strings.Contains(page, forged) {
			t.Errorf("the metrics of %s have a forged value", pod)
		}
	}
}

// notForged checks the headers of a request that the application has got.
func notForged(t *testing.T, header http.Header) {
	t.Helper()
	for name, values := range header {
		if strings.Contains(values[0], forged) || strings.HasPrefix(strings.ToLower(strings.ReplaceAll(name, "_", "-")), "x-outrigger-") {
			t.Errorf("the application gets %s: %s", name, values)
		}
	}
}

// checkLines checks that each line of a pod's access log about the forged requests is one JSON
// object with the true identities.
func (w *testMesh) checkLines(t *testing.T, pod string, before int, peers map[string]string) {
	t.Helper()
	lines := 0
	for line := range strings.Lines(w.logs.of(pod + "/outrigger-proxy")[before:]) {
		if !strings.Contains(line, "forge-") && !strings.Contains(line, "of=") {
			if strings.Contains(line, forged) {
				t.Errorf("the log of %s has a line with a forged value and no path: %.300s", pod, line)
			}
			continue
		}
		var fields accessLine
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("a line in the log of %s: %v: %.300s", pod, err, line)
			continue
		}
		lines++
		for field := range fields {
			known := []string{"user_agent", "request_id", "x_forwarded_for"}
			if value := fields.text(field); strings.Contains(value, forged) && !slices.Contains(known, field) {
				t.Errorf("in the log of %s the field %s is %q", pod, field, value)
			}
		}
		for field, want := range peers {
			if got := fields.text(field); got != want {
				t.Errorf("in the log of %s the %s of %s is %q, want %q", pod, field, fields.text("path"), got, want)
			}
		}
		if code := fields.text("response_code"); code != "200" {
			t.Errorf("in the log of %s the status of %s is %s, want 200", pod, fields.text("path"), code)
		}
	}
	if lines < 6 {
		t.Errorf("the log of %s has %d lines about the requests, want 6 or more", pod, lines)
	}
}

// uploadSlowly sends a request that the application answers before it is complete, so that no
// proxy can repeat it.
func (w *testMesh) uploadSlowly(t *testing.T, target string) {
	t.Helper()
	conn, err := w.clientDialer(t)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: cart-v1.shop\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", target)
	time.Sleep(100 * time.Millisecond)
	// The answer may have closed the connection.
	_, _ = io.WriteString(conn, "0\r\n\r\n")
	answer, _ := io.ReadAll(conn)
	if !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") || strings.Contains(strings.ToLower(string(answer)), "outrigger") {
		t.Errorf("the answer to an upload is %.300q, want the application's without forged headers", answer)
	}
}

// spanTexts collects spans in Zipkin's format.
type spanTexts struct {
	mu    sync.Mutex
	spans []json.RawMessage
}

func (s *spanTexts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var spans []json.RawMessage
	if json.NewDecoder(r.Body).Decode(&spans) == nil {
		s.mu.Lock()
		s.spans = append(s.spans, spans...)
		s.mu.Unlock()
	}
	w.WriteHeader(http.StatusAccepted)
}

// both returns an error unless both proxies have sent a span of a request with the path.
func (s *spanTexts) both(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	kinds := map[string]bool{}
	for _, text := range s.spans {
		var span struct {
			Kind string            `json:"kind"`
			Tags map[string]string `json:"tags"`
		}
		if json.Unmarshal(text, &span) == nil && strings.Contains(span.Tags["http.url"], path) {
			kinds[span.Kind] = true
		}
	}
	if len(kinds) < 2 {
		return fmt.Errorf("of %d spans those with the path %s are of the kinds %v, want CLIENT and SERVER", len(s.spans), path, kinds)
	}
	return nil
}

// with returns a span that contains the text, or "".
func (s *spanTexts) with(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range s.spans {
		if strings.Contains(string(span), text) {
			return string(span)
		}
	}
	return ""
}
