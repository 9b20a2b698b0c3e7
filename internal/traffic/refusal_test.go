package traffic_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// audited has a report of the shop in which cart's pods are audited, and the proxy of one of
// them is older.
func audited() *traffic.Report {
	refused := func(by traffic.Flow, reason string, n float64) traffic.Flow {
		by.Protocol = telemetry.HTTP
		by.AuditDenied = map[string]float64{reason: n}
		return by
	}
	r := shop()
	for i := range r.Pods {
		pod := &r.Pods[i]
		pod.Audited = pod.Owner.Name == "cart" || pod.Owner.Name == "db"
		pod.CountsAudits = pod.Read
	}
	r.Pods[2].Flows[0] = refused(r.Pods[2].Flows[0], "access", 30)
	r.Pods[3].Flows[0] = refused(r.Pods[3].Flows[0], "access", 20)
	r.Pods[3].Flows[1] = refused(r.Pods[3].Flows[1], "plaintext", 10)
	r.Pods[3].CountsAudits = false
	return r
}

func TestRefusals(t *testing.T) {
	const (
		plaintext = "/ () -> shop/cart (cart) http plaintext 1"
		desk      = "front/desk (desk) -> shop/cart (cart) http access 3"
		robot     = "front/robot (robot) -> shop/cart (cart) http access 2"
	)
	deployment := func(namespace, name string) *traffic.Object {
		return &traffic.Object{Kind: "deployment", Namespace: namespace, Name: name}
	}
	for name, tt := range map[string]struct {
		namespace    string
		object, from *traffic.Object
		want         []string
	}{
		"all":                  {"", nil, nil, []string{plaintext, desk, robot}},
		"of a namespace":       {"shop", nil, nil, []string{plaintext, desk, robot}},
		"of another namespace": {"front", nil, nil, nil},
		"of a workload":        {"", deployment("shop", "cart"), nil, []string{plaintext, desk, robot}},
		"from a workload":      {"shop", nil, deployment("front", "desk"), []string{desk}},
		"from a namespace":     {"", nil, &traffic.Object{Kind: traffic.KindNamespace, Name: "front"}, []string{desk, robot}},
	} {
		refusals, err := audited().Refusals(tt.namespace, tt.object, tt.from)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, r := range refusals {
			end := func(of traffic.EdgeEnd) string {
				return fmt.Sprintf("%s/%s (%s)", of.Namespace, of.ServiceAccount, strings.Join(of.Workloads, " "))
			}
			got = append(got, fmt.Sprintf("%s -> %s %s %s %g", end(r.Source), end(r.Destination), r.Protocol, r.Reason, r.Count))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for name, objects := range map[string][2]*traffic.Object{
		"at a service":   {{Kind: traffic.KindService, Namespace: "shop", Name: "db"}},
		"from a service": {nil, {Kind: traffic.KindService, Namespace: "shop", Name: "db"}},
		"from a pod":     {nil, {Kind: traffic.KindPod, Namespace: "front", Name: "desk-0"}},
	} {
		if _, err := audited().Refusals("", objects[0], objects[1]); !errors.Is(err, traffic.ErrQuery) {
			t.Errorf("%s: error %v, want %v", name, err, traffic.ErrQuery)
		}
	}
	if _, err := audited().Refusals("", deployment("shop", "nothing"), nil); err == nil {
		t.Error("an unknown workload has refusals")
	}
}

// TestAudited counts pods whose counts are not known as audited, too. Of the others it returns
// those with a proxy.
func TestAudited(t *testing.T) {
	report := audited()
	report.Pods = append(report.Pods,
		traffic.Pod{Name: mesh.Name{Namespace: "shop", Name: "call-0"}, Class: "grpc", Proxyless: true},
		traffic.Pod{Name: mesh.Name{Namespace: "shop", Name: "late-0"}, Class: "envoy"})
	count, unknown, unaudited := report.Audited("shop", nil)
	var names []string
	for _, pod := range unknown {
		names = append(names, pod.Name.String()+": "+pod.Problem)
	}
	want := []string{
		"shop/cart-1: its sidecar does not count audits: it is older than this version, so restart its workload, or its class lacks the feature Audit",
		"shop/db-0: no answer",
	}
	if diff := cmp.Diff(want, names); diff != "" || count != 3 {
		t.Errorf("%d pods are audited, want 3; unknown (-want +got):\n%s", count, diff)
	}
	if len(unaudited) != 1 || unaudited[0].Name.Name != "late-0" {
		t.Errorf("these pods are not audited, want late-0: %+v", unaudited)
	}
	count, _, unaudited = report.Audited("front", nil)
	if count != 0 || len(unaudited) != 2 {
		t.Errorf("of front %d pods are audited and %d are not, want none and 2", count, len(unaudited))
	}
	object := &traffic.Object{Kind: "deployment", Namespace: "shop", Name: "cart"}
	if count, _, unaudited = report.Audited("", object); count != 2 || len(unaudited) != 0 {
		t.Errorf("of cart %d pods are audited and %d are not, want 2 and none", count, len(unaudited))
	}
}

// TestCountsAudits reads a proxy that has refused nothing, and an older one.
func TestCountsAudits(t *testing.T) {
	for text, want := range map[string]bool{
		"# HELP outrigger_requests_total HTTP requests.\n# HELP outrigger_audit_denied_total What it would refuse.\n": true,
		"# HELP outrigger_requests_total HTTP requests.\n# HELP outrigger_denied_total What it refuses.\n":            false,
	} {
		sample, err := traffic.Parse(strings.NewReader(text))
		if err != nil || sample.CountsAudits() != want {
			t.Errorf("%q: counts audits: %t, %v, want %t", text, sample.CountsAudits(), err, want)
		}
	}
}
