package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// reportServer serves a report as a controller's debug page, and returns its address.
func reportServer(t *testing.T, report *traffic.Report) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(report); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// auditReport is trafficReport with an audit of cart, whose unread pod has ended, and of web.
func auditReport(seconds float64, refused map[string]float64) *traffic.Report {
	report := trafficReport(seconds)
	cart := &report.Pods[0]
	cart.Audited, cart.CountsAudits = true, true
	cart.Flows[0].Protocol, cart.Flows[0].AuditDenied = "http", refused
	report.Pods = append(report.Pods[:1], report.Pods[2:]...)
	report.Pods[1].Audited, report.Pods[1].CountsAudits = true, true
	return report
}

func TestAudit(t *testing.T) {
	refused := map[string]float64{"access": 30}
	unread := auditReport(0, nil)
	unread.Pods = append(unread.Pods, trafficReport(0).Pods[1])
	unread.Pods[len(unread.Pods)-1].Audited = true
	partial, many := auditReport(0, nil), auditReport(0, refused)
	partial.Pods[1].Audited = false
	for i := range 8 {
		pod := traffic.Pod{Name: mesh.Name{Namespace: "shop", Name: fmt.Sprintf("alone-%d", i)}, Class: "envoy"}
		if i < 4 {
			pod.Owner = fact.Owner{Kind: "deployment", Name: fmt.Sprintf("pair-%d", i/2)}
		}
		many.Pods = append(many.Pods, pod)
	}
	const toAnnotate = " with openservicemesh.io/access-mode: Audit: "
	for name, tt := range map[string]struct {
		report         *traffic.Report
		args           string
		stdout, stderr string
		want           error
	}{
		"something would be refused": {auditReport(0, refused), "audit", `
SOURCE     DESTINATION   CLIENT     REASON   COUNT
shop/web   shop/cart     shop/web   access   30
`, "", errRefused},
		"of a period": {auditReport(10, refused), "audit -n shop --from deploy/web --window 10s -o wide", `
SOURCE     DESTINATION   CLIENT     REASON   PER SECOND   SERVER      PROTOCOL
shop/web   shop/cart     shop/web   access   3.0          shop/cart   http
`, "", errRefused},
		"from another":             {auditReport(0, refused), "audit -n shop --from deploy/cart", "", "the policies would refuse nothing of what 2 audited pods have counted\n", nil},
		"nothing would be refused": {auditReport(0, nil), "audit", "", "the policies would refuse nothing of what 2 audited pods have counted\n", nil},
		"nothing, for a program":   {auditReport(0, nil), "audit -o json", "[]\n", "the policies would refuse nothing of what 2 audited pods have counted\n", nil},
		"a pod is not audited": {partial, "audit -A -o json", "[]\n",
			"warning: a pod is not audited, so what its policies would refuse is not known; annotate its namespace" + toAnnotate + "shop/web\n", errReported},
		"another object is not audited": {partial, "audit deploy/cart -n shop", "", "the policies would refuse nothing of what 1 audited pod has counted\n", nil},
		"many pods are not audited": {many, "audit", `
SOURCE     DESTINATION   CLIENT     REASON   COUNT
shop/web   shop/cart     shop/web   access   30
`, "warning: 8 pods are not audited, so what their policies would refuse is not known; annotate their namespaces" + toAnnotate +
			"shop/alone-4, shop/alone-5, shop/alone-6, shop/alone-7, shop/pair-0, and 1 more\n", errRefused},
		"an audited pod is not read": {unread, "audit", "", unreadCart, errReported},
	} {
		stdout, stderr, err := run(t.Context(), append(strings.Fields(tt.args), "--debug-address", reportServer(t, tt.report))...)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: error %v, want %v", name, err, tt.want)
		}
		if diff := cmp.Diff(strings.TrimPrefix(tt.stdout, "\n"), stdout); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if stderr != tt.stderr {
			t.Errorf("%s: warnings %q, want %q", name, stderr, tt.stderr)
		}
	}
	if _, _, err := run(t.Context(), "audit", "--debug-address", reportServer(t, trafficReport(0))); err == nil || !strings.Contains(err.Error(), "no pod is audited here") {
		t.Errorf("without an audit: error %v", err)
	}
	for args, want := range map[string]string{
		"audit deploy/a deploy/b":             "at most one object",
		"audit -A --from web":                 "give TYPE/NAME",
		"audit svc/cart -n shop":              "name the workload behind it",
		"audit -n shop --from svc/cart":       "name the workload behind it",
		"check --strict-ready --pre":          "do not give --strict-ready with it",
		"check --window 1m":                   "--window is for --strict-ready",
		"check --strict-ready --window 1h":    "at most 5m0s",
		"audit --prometheus http://127.0.0.1": "unknown flag: --prometheus",
	} {
		fields := strings.Fields(args)
		if fields[0] == "audit" && !strings.Contains(args, "prometheus") {
			fields = append(fields, "--debug-address", reportServer(t, auditReport(0, nil)))
		}
		_, _, err := run(t.Context(), fields...)
		if err == nil || !errors.As(err, &usage.Error{}) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want a wrong usage with %q", args, err, want)
		}
	}
}
