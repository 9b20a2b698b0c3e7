package traffic_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// testPod returns a pod of a Deployment that was read for ten seconds. Its service account is
// that of its workload.
func testPod(namespace, workload string, number int, flows ...traffic.Flow) traffic.Pod {
	p := traffic.Pod{
		Name:  mesh.Name{Namespace: namespace, Name: fmt.Sprintf("%s-%d", workload, number)},
		Owner: fact.Owner{Kind: "deployment", Name: workload}, ServiceAccount: workload, Class: "envoy", Seconds: 10, Read: true, Flows: flows,
	}
	for i := range p.Flows {
		end := &p.Flows[i].Destination
		if p.Flows[i].Reporter == "source" {
			end = &p.Flows[i].Source
		}
		*end = traffic.End{Namespace: namespace, Workload: workload, ServiceAccount: p.ServiceAccount}
	}
	return p
}

func requests(n, failed float64, tls string) traffic.Counts {
	return traffic.Counts{Requests: n, Failed: failed, TLS: map[string]float64{tls: n}}
}

// from is a flow that a server's proxy reports, and to one that a client's proxy reports.
func from(namespace, account string, counts traffic.Counts) traffic.Flow {
	return traffic.Flow{Reporter: "destination", Source: traffic.End{Namespace: namespace, ServiceAccount: account}, Counts: counts}
}

func to(namespace, service, account string, counts traffic.Counts) traffic.Flow {
	return traffic.Flow{Reporter: "source", Destination: traffic.End{Namespace: namespace, ServiceAccount: account}, Service: service, Counts: counts}
}

// shop has desk and robot, which call cart through the service basket, and someone outside of
// the mesh who calls it, too. A StatefulSet db was not read.
func shop() *traffic.Report {
	db := testPod("shop", "db", 0)
	db.Owner.Kind, db.Read, db.Seconds, db.Problem = "statefulset", false, 0, "no answer"
	cart := testPod("shop", "cart", 1, from("front", "robot", requests(20, 5, "mutual")), from("", "", requests(10, 0, "none")))
	cart.Class = "pipy"
	// A third party's proxy may know by which service it was called. Services are what callers
	// have counted nevertheless.
	called := from("front", "desk", requests(100, 10, "mutual"))
	called.Service = "basket"
	return &traffic.Report{
		Services: []mesh.Name{{Namespace: "shop", Name: "basket"}, {Namespace: "shop", Name: "db"}},
		Pods: []traffic.Pod{
			testPod("front", "desk", 0, to("shop", "basket", "cart", requests(100, 10, "mutual"))),
			testPod("front", "robot", 0, to("shop", "basket", "cart", requests(30, 10, "mutual")), to("", "", "", requests(70, 0, "none"))),
			testPod("shop", "cart", 0, called, to("shop", "db", "db", traffic.Counts{Connections: 5, TLS: map[string]float64{"mutual": 5}})),
			cart, db,
		},
	}
}

// describe returns a row as the numbers that matter here.
func describe(r *traffic.Row) string {
	text := fmt.Sprintf("%s: %d/%d pods %s, %g requests, %g connections", r.Object, r.Read, r.Pods, strings.Join(r.Classes, " "), r.PerSecond.Requests, r.PerSecond.Connections)
	if r.Success != nil {
		text += fmt.Sprintf(", %.1f%% success", 100**r.Success)
	}
	if r.MutualTLS != nil {
		text += fmt.Sprintf(", %.1f%% mTLS", 100**r.MutualTLS)
	}
	return text
}

func TestRows(t *testing.T) {
	object := func(kind, namespace, name string) *traffic.Object {
		return &traffic.Object{Kind: kind, Namespace: namespace, Name: name}
	}
	for name, tt := range map[string]struct {
		query traffic.Query
		want  []string
		notes []string
	}{
		"what workloads of a kind receive": {
			query: traffic.Query{Kind: "deployment"},
			want: []string{
				"deployment front/desk: 1/1 pods envoy, 0 requests, 0 connections",
				"deployment front/robot: 1/1 pods envoy, 0 requests, 0 connections",
				"deployment shop/cart: 2/2 pods envoy pipy, 13 requests, 0 connections, 88.5% success, 92.3% mTLS",
			},
		},
		"all workloads of a namespace": {
			query: traffic.Query{Kind: traffic.KindAny, Namespace: "shop"},
			want: []string{
				"deployment shop/cart: 2/2 pods envoy pipy, 13 requests, 0 connections, 88.5% success, 92.3% mTLS",
				"statefulset shop/db: 0/1 pods envoy, 0 requests, 0 connections",
			},
		},
		"a pod": {
			query: traffic.Query{Kind: traffic.KindPod, Namespace: "shop", Names: []string{"cart-1"}},
			want:  []string{"pod shop/cart-1: 1/1 pods pipy, 3 requests, 0 connections, 83.3% success, 66.7% mTLS"},
		},
		"namespaces": {
			query: traffic.Query{Kind: traffic.KindNamespace},
			want: []string{
				"namespace front: 2/2 pods envoy, 0 requests, 0 connections",
				"namespace shop: 2/3 pods envoy pipy, 13 requests, 0 connections, 88.5% success, 92.3% mTLS",
			},
		},
		"services, as their callers see them": {
			query: traffic.Query{Kind: traffic.KindService},
			want: []string{
				"service shop/basket: 0/0 pods envoy, 13 requests, 0 connections, 84.6% success, 100.0% mTLS",
				"service shop/db: 0/0 pods envoy, 0 requests, 0.5 connections, 100.0% mTLS",
			},
		},
		"to a service": {
			query: traffic.Query{Kind: "deployment", Namespace: "front", To: object(traffic.KindService, "shop", "basket")},
			want: []string{
				"deployment front/desk: 1/1 pods envoy, 10 requests, 0 connections, 90.0% success, 100.0% mTLS",
				"deployment front/robot: 1/1 pods envoy, 3 requests, 0 connections, 66.7% success, 100.0% mTLS",
			},
		},
		"to a workload": {
			query: traffic.Query{Kind: "deployment", Namespace: "shop", To: object("statefulset", "shop", "db")},
			want:  []string{"deployment shop/cart: 2/2 pods envoy pipy, 0 requests, 0.5 connections, 100.0% mTLS"},
		},
		"to a namespace": {
			query: traffic.Query{Kind: traffic.KindNamespace, Names: []string{"front"}, To: object(traffic.KindNamespace, "", "shop")},
			want:  []string{"namespace front: 2/2 pods envoy, 13 requests, 0 connections, 84.6% success, 100.0% mTLS"},
		},
		"from a workload": {
			query: traffic.Query{Kind: "deployment", Namespace: "shop", From: object("deployment", "front", "robot")},
			want:  []string{"deployment shop/cart: 2/2 pods envoy pipy, 2 requests, 0 connections, 75.0% success, 100.0% mTLS"},
		},
		"a service, from a pod": {
			query: traffic.Query{Kind: traffic.KindService, Names: []string{"basket"}, From: object(traffic.KindPod, "front", "desk-0")},
			want:  []string{"service shop/basket: 0/0 pods envoy, 10 requests, 0 connections, 90.0% success, 100.0% mTLS"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			rows, notes, err := shop().Rows(&tt.query)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range rows {
				got = append(got, describe(&rows[i]))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.notes, notes); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRowsErrors(t *testing.T) {
	pod, service := &traffic.Object{Kind: traffic.KindPod, Namespace: "shop", Name: "cart-0"}, &traffic.Object{Kind: traffic.KindService, Namespace: "shop", Name: "basket"}
	for want, q := range map[string]traffic.Query{
		"give either --to or --from":                                  {Kind: traffic.KindPod, To: service, From: pod},
		"a Service sends no requests; ask for the workload behind it": {Kind: traffic.KindService, To: service},
		"a Service sends no requests; name the workload behind it":    {Kind: traffic.KindPod, From: service},
		"callers do not count by pod":                                 {Kind: traffic.KindPod, To: pod},
		"the called proxies see only the service account":             {Kind: traffic.KindPod, From: pod},
		"there is no deployment shop/crat with a sidecar":             {Kind: "deployment", Namespace: "shop", Names: []string{"cart", "crat"}},
		"there is no service shop/cart in the mesh":                   {Kind: traffic.KindService, Namespace: "shop", Names: []string{"cart"}},
		"there is no statefulset shop/cart with a sidecar":            {Kind: traffic.KindPod, To: &traffic.Object{Kind: "statefulset", Namespace: "shop", Name: "cart"}},
		"namespace nowhere has no pod with a sidecar":                 {Kind: traffic.KindPod, From: &traffic.Object{Kind: traffic.KindNamespace, Name: "nowhere"}},
		"there is no service front/basket in the mesh":                {Kind: traffic.KindPod, To: &traffic.Object{Kind: traffic.KindService, Namespace: "front", Name: "basket"}},
	} {
		if _, _, err := shop().Rows(&q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		} else if misuse := strings.Contains(want, "there is no") || strings.Contains(want, "no pod"); errors.Is(err, traffic.ErrQuery) == misuse {
			t.Errorf("%v: is it the wrong query? %t", err, errors.Is(err, traffic.ErrQuery))
		}
	}
}

// TestSharedAccount has two workloads with one service account, which servers can't tell
// apart.
func TestSharedAccount(t *testing.T) {
	r := shop()
	r.Pods[1].ServiceAccount = "desk"
	rows, notes, err := r.Rows(&traffic.Query{Kind: "deployment", Namespace: "shop", From: &traffic.Object{Kind: "deployment", Namespace: "front", Name: "desk"}})
	if err != nil || len(rows) != 1 || rows[0].PerSecond.Requests != 10 {
		t.Errorf("got %v and %v", rows, err)
	}
	want := []string{"the numbers include deployment/robot: it has the same service account as deployment front/desk, and other proxies see only the service account"}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

// TestUnread checks whose missing numbers matter.
func TestUnread(t *testing.T) {
	for _, tt := range []struct {
		query traffic.Query
		want  int
	}{
		{traffic.Query{Kind: traffic.KindAny}, 1},
		{traffic.Query{Kind: traffic.KindAny, Namespace: "front"}, 0},
		{traffic.Query{Kind: "deployment"}, 0},
		{traffic.Query{Kind: "statefulset", Names: []string{"db"}}, 1},
		{traffic.Query{Kind: traffic.KindService, Names: []string{"basket"}}, 1},
	} {
		unread := shop().Unread(&tt.query)
		if len(unread) != tt.want || tt.want == 1 && unread[0].Name.Name != "db-0" {
			t.Errorf("%+v: got %v, want %d of them", tt.query, unread, tt.want)
		}
	}
}

func TestSortByRate(t *testing.T) {
	rows, _, err := shop().Rows(&traffic.Query{Kind: traffic.KindAny, To: &traffic.Object{Kind: traffic.KindNamespace, Name: "shop"}})
	if err != nil {
		t.Fatal(err)
	}
	traffic.SortByRate(rows)
	var got []string
	for i := range rows {
		got = append(got, rows[i].Name)
	}
	if want := []string{"desk", "robot", "cart", "db"}; !cmp.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
