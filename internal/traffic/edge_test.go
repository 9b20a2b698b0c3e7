package traffic_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/traffic"
)

func describeEdge(e *traffic.Edge) string {
	end := func(of traffic.EdgeEnd) string {
		return fmt.Sprintf("%s/%s (%s)", of.Namespace, of.ServiceAccount, strings.Join(of.Workloads, " "))
	}
	text := fmt.Sprintf("%s -> %s by %s: %g requests, %g connections, %g retries", end(e.Source), end(e.Destination), strings.Join(e.Services, " "), e.Requests, e.Connections, e.Retries)
	if e.MutualTLS != nil {
		text += fmt.Sprintf(", %.0f%% mTLS", 100**e.MutualTLS)
	}
	if len(e.Denied) > 0 {
		text += fmt.Sprintf(", denied %v, %g by the source", e.Denied, e.DeniedBySource)
	}
	return text
}

func TestEdges(t *testing.T) {
	denied := func(by traffic.Flow, reason string, n float64) traffic.Flow {
		by.Denied = map[string]float64{reason: n}
		return by
	}
	report := func() *traffic.Report {
		r := shop()
		// Both ends deny some of robot's requests. Another workload with its service account
		// calls a service behind which nothing was reached.
		r.Pods[1].Flows[0] = denied(r.Pods[1].Flows[0], "no_route", 20)
		r.Pods[1].Flows[0].Retries = 40
		r.Pods[3].Flows[0] = denied(r.Pods[3].Flows[0], "access", 30)
		crawler := testPod("front", "crawler", 0, denied(to("shop", "db", "", traffic.Counts{}), "access", 10))
		crawler.ServiceAccount, crawler.Flows[0].Source.ServiceAccount = "robot", "robot"
		r.Pods = append(r.Pods, crawler)
		return r
	}
	const (
		anybody = "/ () -> shop/cart (cart) by : 1 requests, 0 connections, 0 retries, 0% mTLS"
		desk    = "front/desk (desk) -> shop/cart (cart) by basket: 10 requests, 0 connections, 0 retries, 100% mTLS"
		outside = "front/robot (robot) -> / () by : 7 requests, 0 connections, 0 retries, 0% mTLS"
		refused = "front/robot (crawler) -> shop/ () by db: 0 requests, 0 connections, 0 retries, denied map[access:1], 1 by the source"
		robot   = "front/robot (robot) -> shop/cart (cart) by basket: 2 requests, 0 connections, 4 retries, 100% mTLS, denied map[access:3 no_route:2], 2 by the source"
		db      = "shop/cart (cart) -> shop/db (db) by db: 0 requests, 0.5 connections, 0 retries, 100% mTLS"
	)
	for name, tt := range map[string]struct {
		namespace string
		object    *traffic.Object
		want      []string
	}{
		"all":                   {"", nil, []string{anybody, desk, refused, outside, robot, db}},
		"of a namespace":        {"shop", nil, []string{anybody, desk, refused, robot, db}},
		"of a workload":         {"", &traffic.Object{Kind: "deployment", Namespace: "shop", Name: "cart"}, []string{anybody, desk, robot, db}},
		"of a service":          {"", &traffic.Object{Kind: traffic.KindService, Namespace: "shop", Name: "db"}, []string{refused, db}},
		"of a calling workload": {"", &traffic.Object{Kind: "deployment", Namespace: "front", Name: "desk"}, []string{desk}},
	} {
		t.Run(name, func(t *testing.T) {
			edges, err := report().Edges(tt.namespace, tt.object)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range edges {
				got = append(got, describeEdge(&edges[i]))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if _, err := report().Edges("", &traffic.Object{Kind: "deployment", Namespace: "shop", Name: "nothing"}); err == nil {
		t.Error("an unknown workload has edges")
	}
}

// TestEdgesSinceStart has reports without a period.
func TestEdgesSinceStart(t *testing.T) {
	r := shop()
	for i := range r.Pods {
		r.Pods[i].Seconds = 0
	}
	edges, err := r.Edges("", &traffic.Object{Kind: "deployment", Namespace: "front", Name: "desk"})
	if err != nil || len(edges) != 1 || edges[0].Requests != 100 {
		t.Errorf("got %v and %v, want one edge with all 100 requests", edges, err)
	}
}
