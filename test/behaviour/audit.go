package behaviour

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// auditedTarget asks to audit the policies of cart-v1.
var auditedTarget = strings.Replace(
	trafficTarget("shop/audited", "cart-v1", "{kind: HTTPRouteGroup, name: window}", "users/thief"),
	"namespace: shop}", "namespace: shop, annotations: {openservicemesh.io/access-mode: Audit}}", 1)

// audit audits the policies of cart-v1 in permissive mode, until the test's end. The client
// would be refused what it requests.
func (w *testMesh) audit(t *testing.T, traffic, client string, r request) {
	t.Helper()
	const server = "shop/cart-v1"
	w.configure(t, traffic, "")
	w.apply(t, "audit.yaml", auditedTarget)
	w.expectProblem(t, "TrafficTarget shop/audited", "NoEffect")
	w.set(t, "mesh.yaml", strings.Replace(meshConfig(traffic, ""), "PolicyMode: false", "PolicyMode: true", 1))
	w.ask(t, client, r, isFrom("cart-v1"))
	before := w.metrics(t, server).sum(telemetry.AuditDenied, nil)
	w.ask(t, client, r, func(reply) error {
		if w.metrics(t, server).sum(telemetry.AuditDenied, nil) == before {
			return fmt.Errorf("%s counts nothing", server)
		}
		return nil
	})
	// All threads of the proxies must follow.
	w.inTurn(t, 20, client, r, isFrom("cart-v1"))
}

// testAudit sends what the policies would refuse, and what they allow.
func testAudit(t *testing.T, w *testMesh) {
	const server = "shop/cart-v1"
	destination := map[string]string{
		telemetry.LabelReporter: telemetry.ReporterDestination, telemetry.LabelDestinationWorkload: "cart-v1",
		telemetry.LabelDestinationNamespace: "shop", telemetry.LabelDestinationServiceAccount: "cart-v1",
		telemetry.LabelSourceNamespace: "users",
	}
	thief := labelled(destination, telemetry.LabelSourceServiceAccount, "thief", telemetry.LabelReason, telemetry.ReasonAccess)
	web := labelled(destination, telemetry.LabelSourceServiceAccount, "web", telemetry.LabelReason, telemetry.ReasonAccess)
	w.audit(t, "", "users/thief", request{url: cartV1})
	w.inTurn(t, 20, "users/web", request{url: cartV1}, isFrom("cart-v1"))
	w.counts(t, func() {
		for range 6 {
			w.once(t, "users/thief", http.StatusOK, request{url: cartV1})
			w.once(t, "users/thief", http.StatusOK, request{url: "http://cart-v1.shop/window"})
			w.once(t, "users/web", http.StatusOK, request{url: cartV1})
		}
		for range 2 {
			w.once(t, "users/web", http.StatusOK, request{method: http.MethodDelete, url: cartV1})
		}
	},
		counted{server, telemetry.AuditDenied, labelled(thief, telemetry.LabelProtocol, telemetry.HTTP), 6},
		counted{server, telemetry.AuditDenied, labelled(web, telemetry.LabelProtocol, telemetry.HTTP), 2},
		counted{server, telemetry.AuditDenied, nil, 8},
		counted{server, telemetry.Requests, nil, 20},
		counted{server, telemetry.Denied, nil, 0},
	)
	w.counts(t, func() {
		for range 3 {
			for _, client := range []string{"users/thief", "users/web"} {
				if got, err := line(w.pod(t, client), "cart-v1.shop:9000", "echo\n"); err != nil || got != "echo\n" {
					t.Errorf("%s gets %q, %v", client, got, err)
				}
			}
		}
	},
		counted{server, telemetry.AuditDenied, labelled(thief, telemetry.LabelProtocol, telemetry.TCP), 3},
		counted{server, telemetry.AuditDenied, nil, 3},
		counted{server, telemetry.Connections, nil, 6},
		counted{server, telemetry.Denied, nil, 0},
	)
	w.knowsAudits(t)
	w.set(t, "mesh.yaml", meshConfig("", ""))
	w.inTurn(t, 5, "users/thief", request{url: cartV1}, isStatus(http.StatusForbidden))
}

// knowsAudits checks that the controller knows which pods are audited, and that also a proxy
// which has not audited anything says that it counts.
func (w *testMesh) knowsAudits(t *testing.T) {
	t.Helper()
	text, err := w.Debug(t.Context(), "/debug/traffic?period=0s")
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Pods []struct {
			Namespace, Name       string
			Audited, CountsAudits bool
		}
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatal(err)
	}
	audited := map[string]bool{}
	for _, pod := range report.Pods {
		if pod.Namespace == "shop" {
			if audited[pod.Name] = pod.Audited; !pod.CountsAudits {
				t.Errorf("shop/%s does not say that it counts audits", pod.Name)
			}
		}
	}
	if !audited["cart-v1"] || audited["cart-v2"] || len(audited) < 2 {
		t.Errorf("the controller takes these pods for audited: %v", audited)
	}
}

// testAuditOfPlaintext sends requests and opens connections without an identity.
func testAuditOfPlaintext(t *testing.T, w *testMesh) {
	const client, server = "plain/outsider", "shop/cart-v1"
	anonymous := map[string]string{
		telemetry.LabelReporter: telemetry.ReporterDestination, telemetry.LabelDestinationWorkload: "cart-v1",
		telemetry.LabelSourceNamespace: "", telemetry.LabelSourceServiceAccount: "",
	}
	refused := labelled(anonymous, telemetry.LabelReason, telemetry.ReasonPlaintext)
	byAddress := request{url: "http://" + w.address(t, server, "8080") + "/cart"}
	w.audit(t, "inboundTLSMode: Permissive", client, byAddress)
	w.counts(t, func() {
		for range 4 {
			w.once(t, client, http.StatusOK, byAddress)
		}
		for range 3 {
			if got, err := line(w.pod(t, client), w.address(t, server, "9000"), "echo\n"); err != nil || got != "echo\n" {
				t.Errorf("%q, %v", got, err)
			}
		}
	},
		counted{server, telemetry.AuditDenied, labelled(refused, telemetry.LabelProtocol, telemetry.HTTP), 4},
		counted{server, telemetry.AuditDenied, labelled(refused, telemetry.LabelProtocol, telemetry.TCP), 3},
		counted{server, telemetry.AuditDenied, nil, 7},
		counted{server, telemetry.Requests, labelled(anonymous, telemetry.LabelTLS, telemetry.NoTLS), 4},
		counted{server, telemetry.Connections, labelled(anonymous, telemetry.LabelTLS, telemetry.NoTLS), 3},
	)
	w.set(t, "mesh.yaml", meshConfig("", ""))
	w.denies(t, client, byAddress.url)
}
