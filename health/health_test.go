package health_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/outrigger-mesh/outrigger/health"
)

func TestJoin(t *testing.T) {
	no := func() bool { return false }
	up := health.Func{ID: "up"}
	dead := health.Func{ID: "dead", Live: no}
	busy := health.Func{ID: "busy", Ready: no}

	tests := []struct {
		name              string
		probes            health.Probes
		live, ready       int
		liveBody, readies string
	}{
		{"nothing", health.Join("all"), 200, 200, "ok\n", "ok\n"},
		{"all well", health.Join("all", up, up), 200, 200, "ok\n", "ok\n"},
		{"one dead", health.Join("all", up, dead), 503, 200, "dead\n", "ok\n"},
		{"one busy", health.Join("all", busy, up), 200, 503, "ok\n", "busy\n"},
		{"nested", health.Join("all", health.Join("inner", busy, dead), up), 503, 503, "dead\n", "busy\n"},
		{"alone", busy, 200, 503, "ok\n", "busy\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			check := func(h http.Handler, want int, body string) {
				t.Helper()
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				if w.Code != want || w.Body.String() != body {
					t.Errorf("answer is %d %q, want %d %q", w.Code, w.Body, want, body)
				}
			}
			check(health.LivenessHandler(tt.probes), tt.live, tt.liveBody)
			check(health.ReadinessHandler(tt.probes), tt.ready, tt.readies)
			if tt.probes.Liveness() != (tt.live == 200) || tt.probes.Readiness() != (tt.ready == 200) {
				t.Error("methods and handlers disagree")
			}
		})
	}
}
