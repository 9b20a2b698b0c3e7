package explain_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// TestExplainTokens decides with the token that the question has, and names the policy.
func TestExplainTokens(t *testing.T) {
	tokens := drivertest.NewTokens("https://login.example.com")
	manifests := `
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {serviceAccountName: web, containers: [{name: app}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: cart, namespace: shop, labels: {app: cart}}, spec: {serviceAccountName: cart, containers: [{name: app, ports: [{containerPort: 80}]}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: cart, namespace: shop}, spec: {selector: {app: cart}, ports: [{name: http, port: 80}]}}
---
{apiVersion: outrigger.dev/v1alpha1, kind: TokenPolicy, metadata: {name: login, namespace: shop}, spec: {issuers: [{issuer: "https://login.example.com", jwks: '` + tokens.JWKS() + `'}]}}
---
{apiVersion: outrigger.dev/v1alpha1, kind: AccessPolicy, metadata: {name: staff, namespace: shop}, spec: {targetRefs: [{kind: Service, name: cart}], rules: [{token: {audiences: [shop], claims: [{path: [groups], values: [staff]}]}}]}}
---
{apiVersion: outrigger.dev/v1alpha1, kind: AccessPolicy, metadata: {name: guests, namespace: shop}, spec: {targetRefs: [{kind: Service, name: cart}], action: Deny, rules: [{token: {claims: [{path: [guest], values: ["true"]}]}}]}}
`
	facts, problems, err := dir.Load([]string{"-"}, dir.Options{
		Stdin:   strings.NewReader(manifests),
		Mapper:  source.MapperOptions{MeshName: "osm", SidecarClass: func(*corev1.Pod) string { return "" }},
		Sidecar: func(*corev1.Pod, *corev1.Namespace) dir.Sidecar { return dir.Sidecar{Class: "envoy"} },
	})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	snapshot := catalog.Build(facts)
	staff := map[string]any{"aud": "shop", "groups": "staff"}
	with := func(name string, value any) string {
		claims := tokens.Claims(staff)
		claims[name] = value
		return "authorization=Bearer " + tokens.Sign(mesh.TokenES256, claims)
	}
	for name, tt := range map[string]struct {
		header string
		want   explain.Verdict
		says   []string
	}{
		"of staff":         {with("a", "b"), explain.Allowed, []string{"AccessPolicy shop/staff", "a token for shop with groups staff"}},
		"none":             {"", explain.Denied, []string{"the request has no token"}},
		"of another group": {with("groups", "users"), explain.Denied, []string{"the token does not match"}},
		"expired":          {with("exp", time.Now().Add(-time.Hour).Unix()), explain.Denied, []string{"AccessPolicy shop/guests"}},
		"of a guest":       {with("guest", true), explain.Denied, []string{"AccessPolicy shop/guests denies it"}},
	} {
		var headers []string
		if tt.header != "" {
			headers = []string{tt.header}
		}
		q, err := explain.NewQuestion("shop/web", "shop/cart:80", "GET", "/", headers)
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
		for _, says := range tt.says {
			if answer.Verdict != tt.want || !strings.Contains(text.String(), says) {
				t.Errorf("a token %s: %s, want %s and %q:\n%s", name, answer.Verdict, tt.want, says, text.String())
			}
		}
		if strings.Contains(text.String(), "eyJ") {
			t.Errorf("a token %s: it is in the explanation:\n%s", name, text.String())
		}
	}
}
