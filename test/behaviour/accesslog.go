package behaviour

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// accessLine is a line of a proxy's access log.
type accessLine map[string]any

// text returns a field, or "" if the line does not have it. HAProxy writes "-" for that.
func (l accessLine) text(field string) string {
	if l[field] == nil || l[field] == "-" {
		return ""
	}
	return fmt.Sprint(l[field])
}

// accessLog returns the lines of a pod's proxy.
func (w *testMesh) accessLog(pod string) []accessLine { return w.accessLinesWith(pod, "") }

// accessLinesWith parses only the lines that contain a text.
func (w *testMesh) accessLinesWith(pod, text string) []accessLine {
	var out []accessLine
	for line := range strings.Lines(w.logs.of(pod + "/outrigger-proxy")) {
		if !strings.Contains(line, text) {
			continue
		}
		var fields accessLine
		// The proxies' other output may be JSON too.
		if json.Unmarshal([]byte(line), &fields) == nil && fields["downstream_remote"] != nil {
			out = append(out, fields)
		}
	}
	return out
}

// logged counts the lines about requests with a path.
func (w *testMesh) logged(pod, path string) int {
	count := 0
	for _, line := range w.accessLinesWith(pod, path) {
		if line.text("path") == path {
			count++
		}
	}
	return count
}

// testAccessLogLevels checks which requests have lines at each level, and that all are counted.
func testAccessLogLevels(t *testing.T, w *testMesh) {
	const client, server = "users/web", "shop/cart-v1"
	requests := 0
	// send sends requests of which the server answers the first kind and refuses the second, and
	// returns their paths.
	send := func(times int) (served, refused string) {
		requests++
		served, refused = fmt.Sprintf("/cart/served-%d", requests), fmt.Sprintf("/cart/refused-%d", requests)
		for range times {
			w.ask(t, client, request{url: "http://cart-v1.shop" + served}, isFrom("cart-v1"))
			w.ask(t, "users/thief", request{url: "http://cart-v1.shop" + refused}, isStatus(http.StatusForbidden))
		}
		return served, refused
	}
	// sampled sends requests and returns how many that are served have lines at both ends, once
	// the refused ones have one.
	sampled := func(times int) (atClient, atServer int) {
		served, refused := send(times)
		w.eventually(t, func() error {
			if n := w.logged(server, refused); n < times {
				return fmt.Errorf("%d of %d refused requests are in the log of %s", n, times, server)
			}
			return nil
		})
		// The client's own proxy has refused nothing, and writes its lines at the same time.
		time.Sleep(2 * time.Second)
		return w.logged(client, served), w.logged(server, served)
	}

	w.configure(t, "", "accessLog: errors")
	w.eventuallyWithin(t, time.Minute, func() error {
		if atClient, atServer := sampled(5); atClient+atServer > 0 {
			return fmt.Errorf("of 5 requests without an error, %d are in the log of %s and %d in that of %s", atClient, client, atServer, server)
		}
		return nil
	})

	w.configure(t, "", `accessLog: "0.5"`)
	w.eventuallyWithin(t, time.Minute, func() error {
		const times = 100
		atClient, atServer := sampled(times)
		// These bounds are four standard deviations away.
		if atClient < 30 || atClient > 70 || atServer < 30 || atServer > 70 {
			return fmt.Errorf("of %d requests without an error, %d are in the log of %s and %d in that of %s, want about half", times, atClient, client, atServer, server)
		}
		return nil
	})

	w.configure(t, "", "accessLog: none")
	w.eventuallyWithin(t, time.Minute, func() error {
		served, refused := send(5)
		time.Sleep(2 * time.Second)
		for _, pod := range []string{client, server} {
			if n := w.logged(pod, served) + w.logged(pod, refused); n > 0 {
				return fmt.Errorf("%d requests are in the log of %s, which is off", n, pod)
			}
		}
		return nil
	})
	w.counts(t, func() {
		w.once(t, client, http.StatusOK, request{url: cartV1})
		w.once(t, "users/thief", http.StatusForbidden, request{url: cartV1})
	},
		counted{server, telemetry.Requests, nil, 2},
		counted{server, telemetry.Denied, map[string]string{telemetry.LabelReason: telemetry.ReasonAccess}, 1},
		counted{client, telemetry.Requests, nil, 1},
	)
}

// testReasons lets sidecars refuse requests and connections, and looks for the reasons in their
// access logs, which are those of the metrics.
func testReasons(t *testing.T, w *testMesh) {
	const client, server = "users/web", "shop/cart-v1"
	// All connections must have forgotten the row before.
	tries := 0
	w.eventuallyWithin(t, time.Minute, func() error {
		const times = 10
		tries++
		path := fmt.Sprintf("/cart/before-%d", tries)
		for range times {
			for _, from := range []string{client, "users/thief"} {
				if _, err := w.send(w.pod(t, from), request{url: "http://cart-v1.shop" + path}); err != nil {
					return err
				}
			}
		}
		time.Sleep(2 * time.Second)
		if atClient, atServer := w.logged(client, path), w.logged(server, path); atClient != times || atServer != 2*times {
			return fmt.Errorf("%d and %d requests are in the logs of client and server, want %d and %d", atClient, atServer, times, 2*times)
		}
		return nil
	})
	cases := []struct {
		what, pod, reason string
		refused           func()
		is                func(accessLine) bool
	}{
		{"a request of a caller that no rule allows", server, telemetry.ReasonAccess, func() {
			w.once(t, "users/thief", http.StatusForbidden, request{url: cartV1 + "/stolen"})
		}, func(l accessLine) bool {
			return l.text("path") == "/cart/stolen" && l.text("downstream_peer") == thiefIdentity.String()
		}},
		{"a connection of a caller that no rule allows", server, telemetry.ReasonAccess, func() {
			w.intrudes(t, "9000", w.certificate(t, thiefIdentity))
		}, func(l accessLine) bool { return l.text("path") == "" }},
		{"plaintext", server, telemetry.ReasonPlaintext, func() {
			conn, err := w.pod(t, "plain/outsider").Dial(t.Context(), "tcp", w.address(t, server, "8080"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = io.WriteString(conn, "GET /cart HTTP/1.1\r\nHost: cart-v1.shop\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		}, func(accessLine) bool { return true }},
		{"a call out of the mesh", client, telemetry.ReasonEgress, func() {
			_, _ = w.send(w.pod(t, client), request{url: "http://" + net.JoinHostPort(nodeAddress, outsidePort) + "/", timeout: 5 * time.Second})
		}, func(accessLine) bool { return true }},
	}
	before := map[string]int{}
	refused := map[string]float64{}
	for _, tt := range cases {
		before[tt.pod] = len(w.accessLog(tt.pod))
		refused[tt.pod]++
		refused[tt.pod+tt.reason]++
	}
	var want []counted
	for _, tt := range cases {
		reason := map[string]string{telemetry.LabelReason: tt.reason}
		want = append(want, counted{tt.pod, telemetry.Denied, reason, refused[tt.pod+tt.reason]}, counted{tt.pod, telemetry.Denied, nil, refused[tt.pod]})
	}
	w.counts(t, func() {
		for _, tt := range cases {
			tt.refused()
		}
	}, want...)
	w.eventually(t, func() error {
		lines := map[string][]accessLine{}
		for pod, n := range before {
			lines[pod] = slices.DeleteFunc(w.accessLog(pod)[n:], func(l accessLine) bool { return l.text("reason") == "" })
		}
		for _, tt := range cases {
			i := slices.IndexFunc(lines[tt.pod], func(l accessLine) bool { return l.text("reason") == tt.reason && tt.is(l) })
			if i < 0 {
				return fmt.Errorf("%s: the log of %s has the reasons in %v, want a line with %q", tt.what, tt.pod, lines[tt.pod], tt.reason)
			}
			lines[tt.pod] = slices.Delete(lines[tt.pod], i, i+1)
		}
		if len(lines[client])+len(lines[server]) > 0 {
			return fmt.Errorf("there are more lines with reasons: %v", lines)
		}
		return nil
	})
	for _, line := range w.accessLog("users/thief") {
		if line.text("path") == "/cart/stolen" && line.text("reason") != "" {
			t.Errorf("the client's proxy has refused nothing, and its line has a reason: %v", line)
		}
	}
}
