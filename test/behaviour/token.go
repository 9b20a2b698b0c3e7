package behaviour

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// testTokens asks for users' tokens, of which some are good, and denies some of them. A server whose
// proxy verifies none allows nothing by such a rule, and denies everything that it could deny.
func testTokens(t *testing.T, w *testMesh) {
	const shelf = "http://cart-v1.shop/shelf"
	tokens := drivertest.NewTokens("https://login.example.com")
	verifies := w.has(w.Server, mesh.FeatureTokens)
	asks := func(token string, want bool) {
		t.Helper()
		status := http.StatusForbidden
		if want && verifies {
			status = http.StatusOK
		}
		header := http.Header{}
		if token != "" {
			header.Set("Authorization", token)
		}
		w.ask(t, "users/web", request{url: shelf, header: header}, isStatus(status))
	}
	issuer := fmt.Sprintf(`---
apiVersion: outrigger.dev/v1alpha1
kind: TokenPolicy
metadata: {name: login, namespace: shop}
spec:
  issuers: [{issuer: "https://login.example.com", jwks: '%s'}]
`, tokens.JWKS())
	w.apply(t, "issuer.yaml", issuer)
	w.apply(t, "token.yaml", accessPolicy("token", "v1", "Allow",
		`[{sources: [{serviceAccount: {namespace: users, name: web}}], http: [{path: {value: /shelf}}], token: {issuer: "https://login.example.com", audiences: [shop], claims: [{path: [groups], values: [staff]}]}}]`))
	staff := map[string]any{"aud": "shop", "groups": []string{"users", "staff"}}
	claims := func(more map[string]any) map[string]any {
		all := tokens.Claims(staff)
		for name, value := range more {
			all[name] = value
		}
		return all
	}
	good := tokens.Sign(mesh.TokenRS256, claims(nil))
	asks("Bearer "+good, true)
	asks("bearer "+tokens.Sign(mesh.TokenES256, claims(nil)), true)
	asks("", false)
	for name, token := range map[string]string{
		"expired": tokens.Sign(mesh.TokenRS256, claims(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})), "for others": tokens.Sign(mesh.TokenES256, claims(map[string]any{"aud": "bank"})),
		"of another issuer": tokens.Sign(mesh.TokenRS256, claims(map[string]any{"iss": "https://other.example.com"})), "of a user": tokens.Sign(mesh.TokenRS256, claims(map[string]any{"groups": "users"})),
		"forged": drivertest.NewTokens("https://login.example.com").Sign(mesh.TokenRS256, claims(nil)), "of no algorithm": tokens.SignAs(mesh.TokenRS256, map[string]any{"alg": "none"}, claims(nil)),
		"with the key as secret": tokens.HMAC("pem", claims(nil)), "cut off": good[:len(good)-8], "twice": good + ", Bearer " + good, "no text": good + "\xff", "garbage": strings.Repeat("garbage.", 3), "large": strings.Repeat("YWFh", 2500) + ".YQ.YQ",
	} {
		t.Log(name)
		asks("Bearer "+token, false)
	}
	// The former rules go on, and need no token.
	w.get(t, "users/web", cartV1, isFrom("cart-v1"))

	w.apply(t, "guests.yaml", accessPolicy("guests", "v1", "Deny", `[{http: [{path: {value: /cart}}], token: {claims: [{path: [groups], values: [guests]}]}}]`))
	denied := func(token string, want bool) {
		t.Helper()
		status := http.StatusOK
		if want || !verifies {
			status = http.StatusForbidden
		}
		header := http.Header{}
		if token != "" {
			header.Set("Authorization", "Bearer "+token)
		}
		w.ask(t, "users/web", request{url: cartV1, header: header}, isStatus(status))
	}
	denied(tokens.Sign(mesh.TokenRS256, claims(map[string]any{"groups": "guests"})), true)
	denied(good, false)
	denied("", false)
	denied(tokens.Sign(mesh.TokenRS256, claims(map[string]any{"groups": "guests", "exp": time.Now().Add(-time.Hour).Unix()})), true)
	denied("garbage", true)
	w.forget(t, "guests.yaml")

	// Without its key no token is verified.
	w.set(t, "issuer.yaml", strings.Replace(issuer, `"rs256"`, `"other"`, 1))
	asks("Bearer "+good, false)
	asks("Bearer "+tokens.Sign(mesh.TokenES256, claims(nil)), true)
	w.forget(t, "issuer.yaml")
	asks("Bearer "+tokens.Sign(mesh.TokenES256, claims(nil)), false)

	// Keys in a ConfigMap are followed, and no token is verified by a text that is no set of keys.
	keys := func(jwks string) string {
		return fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: outrigger-token-keys, namespace: shop}\ndata: {login.json: '%s'}\n", jwks)
	}
	next := drivertest.NewTokens("https://login.example.com")
	w.apply(t, "keys.yaml", keys(tokens.JWKS()))
	w.apply(t, "issuer.yaml", strings.Replace(issuer, "jwks: '"+tokens.JWKS()+"'", "jwksFrom: {configMapKey: login.json}", 1))
	asks("Bearer "+good, true)
	w.set(t, "keys.yaml", keys(next.JWKS()))
	asks("Bearer "+next.Sign(mesh.TokenRS256, claims(nil)), true)
	asks("Bearer "+good, false)
	w.set(t, "keys.yaml", keys(next.JWKS()[:200]))
	asks("Bearer "+next.Sign(mesh.TokenRS256, claims(nil)), false)
	w.set(t, "keys.yaml", keys(next.JWKS()))
	asks("Bearer "+next.Sign(mesh.TokenRS256, claims(nil)), true)
	w.forget(t, "keys.yaml")
	asks("Bearer "+next.Sign(mesh.TokenRS256, claims(nil)), false)
}
