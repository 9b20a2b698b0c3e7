package explain_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// estate has names of all kinds: db is a StatefulSet behind a headless service, whose
// port 80 is 8080 at its pods; alias, again and one are other names.
const estate = `
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {serviceAccountName: web, containers: [{name: app}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: ops, namespace: shop}, spec: {serviceAccountName: ops, containers: [{name: app}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: cart, namespace: shop, labels: {app: cart}}, spec: {serviceAccountName: cart, containers: [{name: app, ports: [{containerPort: 8080}]}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {selector: {app: cart}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp-raw, port: 9000}, {name: http-admin, port: 8081}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {serviceAccountName: db, containers: [{name: app}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp-db, port: 5432}, {name: http, port: 80, targetPort: 8080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: alias, namespace: shop}, spec: {type: ExternalName, externalName: cart.shop.svc.cluster.local, ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: again, namespace: shop}, spec: {type: ExternalName, externalName: alias.shop.svc.cluster.local.}}
---
{apiVersion: v1, kind: Service, metadata: {name: one, namespace: shop}, spec: {type: ExternalName, externalName: db-0.db.shop.svc.cluster.local, ports: [{name: tcp-db, port: 5432}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: loop, namespace: shop}, spec: {type: ExternalName, externalName: loop.shop.svc.cluster.local, ports: [{name: http, port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: mail, namespace: shop}, spec: {type: ExternalName, externalName: mail.example.com, ports: [{name: http, port: 80}]}}
`

// estateFacts reads the estate, in which the pod ops excludes and cart excludes the port
// 8081.
func estateFacts(t *testing.T, ops agentspec.Redirection) []fact.Fact {
	t.Helper()
	facts, problems, err := dir.Load([]string{"-"}, dir.Options{
		Stdin:  strings.NewReader(estate),
		Mapper: source.MapperOptions{MeshName: "osm", SidecarClass: func(*corev1.Pod) string { return "" }},
		Sidecar: func(pod *corev1.Pod, _ *corev1.Namespace) dir.Sidecar {
			s := dir.Sidecar{Class: "envoy"}
			switch pod.Name {
			case "ops":
				s.Redirection = ops
			case "cart":
				s.Redirection.ExcludeInboundPorts = []int{8081}
			}
			return s
		},
	})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	settings := mesh.Seal(&mesh.Settings{TrustDomain: "cluster.local", PermissivePolicy: true, InboundTLS: mesh.Strict, TLS: mesh.TLS{Min: "1.3", Max: "1.3"}})
	return append(facts, fact.Fact{Object: mesh.ObjectRef{Kind: "MeshConfig", Name: "config"}, Content: settings})
}

func addressOf(t *testing.T, facts []fact.Fact, pod string) string {
	t.Helper()
	for _, f := range facts {
		if w, ok := f.Content.(*fact.Workload); ok && w.Name.Name == pod {
			return w.Addresses[0].String()
		}
	}
	t.Fatalf("there is no pod %s", pod)
	return ""
}

func TestNames(t *testing.T) {
	facts := estateFacts(t, agentspec.Redirection{
		ExcludeOutboundPorts: []int{9000, 25}, ExcludeOutboundRanges: []string{"192.0.2.0/24"},
	})
	cart := addressOf(t, facts, "cart")
	snapshot := catalog.Build(facts)
	for _, tt := range []struct {
		from, to string
		want     explain.Verdict
		// says is a part of the text.
		says string
	}{
		{"web", "db-0.db.shop:5432", explain.Allowed, "one endpoint"},
		{"web", "db-0.db.shop", explain.Allowed, "one endpoint"},
		{"web", "db-1.db:5432", explain.Allowed, "one endpoint"},
		{"web", "db-1.db.shop.svc:8080", explain.Allowed, "one endpoint"},
		{"web", "db-1.db.shop.svc.cluster.local:8080", explain.Allowed, "one endpoint"},
		{"web", "db-1.db.shop.svc.cluster.local:80", explain.Denied, "no Egress"},
		{"web", "db-1.db.shop.svc.cluster.local:9", explain.Denied, "no Egress"},
		{"web", "db.shop:8080", explain.Allowed, "2 endpoints"},
		{"web", "shop/db:80", explain.Denied, "port 80 is not translated: the endpoints use 8080"},
		{"web", "shop/db:http", explain.Allowed, "2 endpoints"},
		{"web", "alias.shop:80", explain.Allowed, "is an alias for cart.shop.svc.cluster.local"},
		{"web", "shop/again:80", explain.Allowed, "is an alias for alias.shop"},
		{"web", "alias.shop:9", explain.Unreachable, "has no port 9"},
		{"web", "one:5432", explain.Allowed, "one endpoint"},
		{"web", "shop/loop:80", explain.Unreachable, "chain of ExternalName services is too long"},
		{"web", "mail.shop:80", explain.Denied, "no Egress"},

		{"web", "shop/cart:9000", explain.Allowed, "mesh TLS"},
		{"ops", "shop/cart:9000", explain.Denied, "bypass its sidecar"},
		{"ops", cart + ":9000", explain.Denied, "bypass its sidecar"},
		{"ops", cart + ":8080", explain.Denied, "no Egress"},
		{"ops", "shop/cart:80", explain.Allowed, "mesh TLS"},
		{"ops", "192.0.2.7:443", explain.Allowed, "bypass its sidecar"},
		{"ops", "192.0.3.7:443", explain.Denied, "no Egress"},
		{"ops", "mail.example.com:25", explain.Allowed, "bypass its sidecar"},
		{"ops", "mail.shop:25", explain.Allowed, "bypass its sidecar"},
		{"ops", "mail.example.com:443", explain.Mixed, "depends on the address"},
		{"web", "shop/cart:8081", explain.Unreachable, "which it does not support"},
		{"ops", "shop/cart:8081", explain.Unreachable, "which it does not support"},
		{"cart", cart + ":8080", explain.Allowed, "stays in the pod"},
	} {
		t.Run(tt.from+" to "+tt.to, func(t *testing.T) {
			q, err := explain.NewQuestion("shop/"+tt.from, tt.to, "GET", "/", nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := explain.Explain(snapshot, facts, source.Policies(), q)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			if err := answer.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if answer.Verdict != tt.want || !strings.Contains(text.String(), tt.says) {
				t.Errorf("it is %s, want %s and %q:\n%s", answer.Verdict, tt.want, tt.says, text.String())
			}
			for _, p := range answer.Problems {
				if p.Reason == catalog.ReasonOutsideMesh && p.Object.Name != "mail" && p.Object.Name != "loop" {
					t.Errorf("a host in the mesh is reported as outside: %s", p)
				}
			}
		})
	}
}

// TestDisabledRedirection has a pod of which nothing is redirected.
func TestDisabledRedirection(t *testing.T) {
	facts := estateFacts(t, agentspec.Redirection{DisableInbound: true, DisableOutbound: true})
	snapshot := catalog.Build(facts)
	for _, tt := range []struct {
		from, to string
		want     explain.Verdict
	}{
		{"shop/ops", "shop/cart", explain.Denied},
		{"shop/ops", "www.example.com:443", explain.Allowed},
		{"shop/web", addressOf(t, facts, "ops") + ":8080", explain.Denied},
	} {
		q, err := explain.NewQuestion(tt.from, tt.to, "GET", "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := explain.Explain(snapshot, facts, source.Policies(), q)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Verdict != tt.want {
			t.Errorf("%s to %s is %s, want %s: %v", tt.from, tt.to, answer.Verdict, tt.want, answer.Steps)
		}
	}
}
