package behaviour

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// accessPolicy returns an AccessPolicy of the namespace shop for the pods of a version of the cart.
func accessPolicy(name, version, action, rules string) string {
	return fmt.Sprintf(`---
apiVersion: outrigger.dev/v1alpha1
kind: AccessPolicy
metadata: {name: %s, namespace: shop}
spec:
  targetRefs: [{kind: Pod, selector: {matchLabels: {app: cart, version: %s}}}]
  action: %s
  rules: %s
`, name, version, action, rules)
}

// testAccessPolicies allows, denies and closes, beside TrafficTargets and without them.
func testAccessPolicies(t *testing.T, w *testMesh) {
	const window, tools = "http://cart-v1.shop/window", "http://cart-v1.shop/tools"
	w.get(t, "users/thief", window, isFrom("cart-v1"))
	w.get(t, "users/web", tools, isStatus(http.StatusForbidden))
	w.apply(t, "allow.yaml", accessPolicy("tools", "v1", "Allow",
		`[{sources: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: users}}}], notSources: [{serviceAccount: {namespace: users, name: thief}}], http: [{path: {value: /tools}}]}]`))
	w.get(t, "users/web", tools, isFrom("cart-v1"))
	w.get(t, "users/thief", tools, isStatus(http.StatusForbidden))
	// The former rules go on.
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))

	w.apply(t, "deny.yaml", accessPolicy("no-tools", "v1", "Deny", `[{notSources: [{serviceAccount: {name: cart-v1}}], http: [{path: {value: /tools/saw}}, {path: {value: /window}}]}, {ports: [9000]}]`))
	w.get(t, "users/thief", window, isStatus(http.StatusForbidden))
	w.get(t, "users/web", tools+"/saw", isStatus(http.StatusForbidden))
	for _, path := range []string{"/tools/%2e/saw", "/tools/x%2fsaw", "/tools/s%61w"} {
		w.denies(t, "users/web", "http://cart-v1.shop"+path)
	}
	w.get(t, "users/web", tools+"/plane", isFrom("cart-v1"))
	w.closes(t, "users/web", "cart-v1.shop:9000", "echo\n")
	w.forget(t, "deny.yaml")
	w.get(t, "users/thief", window, isFrom("cart-v1"))
	w.reads(t, w.pod(t, "users/web"), "cart-v1.shop:9000", "echo\n", "echo\n")

	w.configure(t, "", "")
	w.set(t, "mesh.yaml", strings.Replace(meshConfig("", ""), "PolicyMode: false", "PolicyMode: true", 1))
	w.get(t, "users/thief", cartV2, isFrom("cart-v2"))
	w.apply(t, "closed.yaml", accessPolicy("closed", "v2", "Allow", "[]"))
	w.get(t, "users/thief", cartV2, isStatus(http.StatusForbidden))
	// A TrafficTarget adds to it.
	w.get(t, "users/web", cartV2, isFrom("cart-v2"))
}

// testClusterAccess has the last word for the cluster, and another default for a namespace.
func testClusterAccess(t *testing.T, w *testMesh) {
	policy := func(action, rules string) string {
		return fmt.Sprintf(`---
apiVersion: outrigger.dev/v1alpha1
kind: ClusterAccessPolicy
metadata: {name: %s}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
  podSelector: {matchLabels: {version: v1}}
  action: %s
  rules: %s
`, strings.ToLower(action), action, rules)
	}
	const port = "cart-v1.shop:9000"
	web := w.pod(t, "users/web")
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))
	w.apply(t, "deny.yaml", policy("Deny", "[{sources: [{serviceAccount: {namespace: users, name: web}}], ports: [8080]}]"))
	w.get(t, "users/web", cartV1, isStatus(http.StatusForbidden))
	w.reads(t, web, port, "echo\n", "echo\n")
	w.forget(t, "deny.yaml")
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))

	w.apply(t, "closed.yaml", accessPolicy("closed", "v1", "Deny", "[{}]"))
	w.get(t, "users/web", cartV1, isStatus(http.StatusForbidden))
	w.closes(t, "users/web", port, "echo\n")
	w.apply(t, "allow.yaml", policy("Allow", "[{sources: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: users}}}], ports: [9000]}]"))
	w.reads(t, web, port, "echo\n", "echo\n")
	w.get(t, "users/web", cartV1, isStatus(http.StatusForbidden))
	w.forget(t, "closed.yaml")
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))

	town := fmt.Sprintf(meshTemplate, w.Client, w.Server, longAccount)
	stance := func(value string) string {
		return strings.Replace(town, "sidecar-class: "+w.Server+"}", "sidecar-class: "+w.Server+", openservicemesh.io/default-access: "+value+"}", 2)
	}
	defer w.set(t, "town.yaml", town)
	w.denies(t, "users/thief", cartV2)
	w.set(t, "town.yaml", stance("allow"))
	w.get(t, "users/thief", cartV2, isFrom("cart-v2"))
	w.configure(t, "", "")
	w.set(t, "town.yaml", stance("deny"))
	w.set(t, "mesh.yaml", strings.Replace(meshConfig("", ""), "PolicyMode: false", "PolicyMode: true", 1))
	w.get(t, "users/thief", cartV2, isStatus(http.StatusForbidden))
	w.get(t, "users/web", cartV2, isFrom("cart-v2"))
	w.set(t, "town.yaml", town)
	w.get(t, "users/thief", cartV2, isFrom("cart-v2"))
}
