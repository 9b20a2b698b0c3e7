package source_test

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

const tokenKind = "apiVersion: outrigger.dev/v1alpha1\nkind: TokenPolicy"

// TestTokenPolicy reads sets of keys. A key that cannot be read verifies no token, and neither does one
// with which whoever reads the object could sign.
func TestTokenPolicy(t *testing.T) {
	const ed = `"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"`
	const edKey = `"algorithm":"EdDSA","public":"MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="`
	const ec = `"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"`
	const ecKey = `"algorithm":"ES256","public":"MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEf83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEXH8UTNG72bfocs3+257rn0s2ldbqkLJK2KRiMohYjlrQ=="`
	one := func(keys string) string {
		return `{issuers: [{issuer: "https://a", jwks: '{"keys": [` + keys + `]}'}]}`
	}
	read := func(keys string) string {
		if keys != "" {
			keys = `,"keys":[` + keys + `]`
		}
		return `{"issuers":[{"field":"spec.issuers[0]","issuer":"https://a"` + keys + `}]}`
	}
	refused := []string{"Invalid spec.issuers[0].jwks", "Missing spec.issuers[0].jwks"}
	for _, bad := range []string{
		"http://a", "file:///a", "https:a", "https://", "https://a:b@c/", "https://a/#b", "//a", "https://a:0/", "https://a:65536/", "https://a:/", "https://a_b c/", "https://[fe80::1%25eth0]/", "https://a%2f/", "https://a./", "HTTPS://a b",
	} {
		check(t, tokenKind, []row{
			{"keys of " + bad, `{issuers: [{issuer: "https://a", jwksFrom: {url: "` + bad + `"}}]}`, read(""), []string{"Invalid spec.issuers[0].jwksFrom.url"}},
			{"keys of issuer " + bad, `{issuers: [{issuer: "` + bad + `", jwksFrom: {discovery: {}}}]}`, strings.Replace(read(""), "https://a", bad, 1), []string{"Invalid spec.issuers[0].jwksFrom.discovery"}},
		})
	}
	check(t, tokenKind, []row{
		{"keys", one(`{` + ed + `, "kid": "1", "use": "sig"}, {` + ec + `, "alg": "ES256"}`), read(`{"id":"1",` + edKey + `},{` + ecKey + `}`), nil},
		{"a key for encryption and one of another kind are left out", one(`{` + ed + `}, {` + ec + `, "use": "enc"}, {"kty": "X"}, {` + ec + `, "key_ops": ["sign"]}`), read(`{` + edKey + `}`), nil},
		{"no issuer", `{issuers: []}`, `{"issuers":null}`, []string{"Missing spec.issuers"}},
		{"an issuer without a name", `{issuers: [{jwks: "{}"}]}`, `{"issuers":null}`, []string{"Missing spec.issuers[0].issuer"}},
		{"no JSON", `{issuers: [{issuer: "https://a", jwks: "-----BEGIN PUBLIC KEY-----"}]}`, read(""), refused[:1]},
		{"no keys", one(""), read(""), refused[1:]},
		{"a text as key", one(`"a"`), read(""), refused},
		{"a private key", one(`{` + ed + `, "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}, {` + ec + `}`), read(`{` + ecKey + `}`), refused[:1]},
		{"a secret key", one(`{"kty": "oct", "k": "c2VjcmV0"}`), read(""), refused},
		{"an algorithm of secret keys", one(`{` + ec + `, "alg": "HS256"}`), read(""), refused},
		{"no algorithm", one(`{` + ec + `, "alg": "none"}`), read(""), refused},
		{"the algorithm of another curve", one(`{` + ec + `, "alg": "ES384"}`), read(""), refused},
		{"a point that is not on the curve", one(`{"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5b0"}`), read(""), refused},
		{"another curve", one(`{"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}`), read(""), refused},
		{"a short key", one(`{"kty": "RSA", "n": "AQAB", "e": "AQAB"}`), read(""), refused},
		{"an RSA key without a number", one(`{"kty": "RSA", "e": "AQAB"}`), read(""), refused},
		{"a short point", one(`{"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}`), read(""), refused},
		{"keys of a ConfigMap", `{issuers: [{issuer: "https://a", jwksFrom: {configMapKey: a.json}}]}`, `{"issuers":[{"field":"spec.issuers[0]","issuer":"https://a","configMapKey":"a.json"}]}`, nil},
		{"keys of a ConfigMap beside others", `{issuers: [{issuer: "https://a", jwks: '{"keys": [{` + ed + `}]}', jwksFrom: {configMapKey: a.json}}]}`, read(""), []string{"Conflict spec.issuers[0].jwksFrom"}},
		{"keys of a place of a later version", `{issuers: [{issuer: "https://a", jwksFrom: {}}]}`, read(""), []string{"Missing spec.issuers[0].jwksFrom"}},
		{"keys of an address", `{issuers: [{issuer: "https://a", jwksFrom: {url: "https://b.example.com:8443/keys?x=y"}}]}`, `{"issuers":[{"field":"spec.issuers[0]","issuer":"https://a","fetched":{"url":"https://b.example.com:8443/keys?x=y"}}]}`, nil},
		{"keys that are discovered", `{issuers: [{issuer: "https://a/b/", jwksFrom: {discovery: {}}}]}`,
			`{"issuers":[{"field":"spec.issuers[0]","issuer":"https://a/b/","fetched":{"url":"https://a/b/.well-known/openid-configuration","issuer":"https://a/b/"}}]}`, nil},
		{"keys of two places", `{issuers: [{issuer: "https://a", jwksFrom: {url: "https://a", configMapKey: a}}]}`, read(""), []string{"Conflict spec.issuers[0].jwksFrom"}},
		{"keys of three places", `{issuers: [{issuer: "https://a", jwksFrom: {url: "https://a", discovery: {}}}]}`, read(""), []string{"Conflict spec.issuers[0].jwksFrom"}},
		{"too long", `{issuers: [{issuer: "https://a", jwks: '{"keys": [{` + ed + `}]}` + strings.Repeat(" ", 64<<10) + `'}]}`, read(""), []string{"NotSupported spec.issuers[0].jwks"}},
		{"a key for agreement", one(`{"kty": "OKP", "crv": "X25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`), read(""), refused},
	})
}

// TestTokenKeys reads a ConfigMap with sets of keys, of which some are bad. A bad one has no keys, and
// says so without a part of its text, which could be a secret.
func TestTokenKeys(t *testing.T) {
	const ed = `{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	whole := `{"keys": [` + ed + `]}`
	data := map[string]string{
		"good": whole, "cut": whole[:len(whole)-5], "long": strings.Repeat(" ", 1<<20) + whole, "empty": "", "list": "[" + ed + "]", "null": "null",
		"deep": `{"keys": ` + strings.Repeat("[", 20000) + `}`, "secret": `{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}`,
		"private": `{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}, ` + ed + `]}`,
		"many":    `{"keys": [` + strings.Repeat(ed+",", 4000/len(ed)*16) + ed + `]}`,
	}
	f, ok := source.TokenKeys(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "outrigger-token-keys"}, Data: data})
	keys, _ := f.Content.(*fact.TokenKeys)
	if !ok || keys == nil || f.Object.String() != "ConfigMap shop/outrigger-token-keys" || len(f.Problems) > 0 {
		t.Fatalf("the fact is %+v", f)
	}
	for name, want := range map[string]struct {
		keys    int
		reasons string
	}{
		"good": {1, ""}, "cut": {0, "Invalid"}, "long": {0, "NotSupported"}, "empty": {0, "Invalid"}, "list": {0, "Invalid"}, "null": {0, "Missing"},
		"deep": {0, "Invalid"}, "secret": {0, "Invalid Missing"}, "private": {1, "Invalid"}, "many": {16, "NotSupported"},
	} {
		set := keys.Sets[name]
		var reasons []string
		for _, flaw := range set.Flaws {
			reasons = append(reasons, flaw.Reason)
		}
		if len(set.Keys) != want.keys || strings.Join(reasons, " ") != want.reasons {
			t.Errorf("%s: %d keys and %v, want %d and %s", name, len(set.Keys), set.Flaws, want.keys, want.reasons)
		}
	}
	text, err := json.Marshal(keys)
	if err != nil || strings.Contains(string(text), "c2VjcmV0") || strings.Contains(string(text), "nWGxne") {
		t.Errorf("the fact contains a secret: %s, %v", text, err)
	}
	if _, ok := source.TokenKeys(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other"}, Data: data}); ok {
		t.Error("a ConfigMap of another name has a fact")
	}
}

// TestAccessToken reads conditions on tokens. Lists follow the rule of all lists, and what cannot be
// read allows nothing, and takes the condition from a denial.
func TestAccessToken(t *testing.T) {
	const pods = `targetRefs: [{kind: Pod, selector: {}}]`
	base := func(action, requests string) string {
		if requests != "" {
			requests = `,"requests":[` + requests + `]`
		}
		return `{"action":"` + action + `","targets":[{"pods":"="}],"rules":[{"field":"spec.rules[0]","everyone":true,"anyPort":true` + requests + `,"onlyRequests":true}]}`
	}
	rule := func(action, token string) string {
		return `{` + pods + `, action: ` + action + `, rules: [{token: ` + token + `}]}`
	}
	var rows []row
	for _, action := range []string{"Allow", "Deny", "Audit"} {
		everything := ""
		if action == "Deny" {
			everything = `{}`
		}
		rows = append(rows,
			row{"any token", rule(action, `{}`), base(action, `{"token":{}}`), nil},
			row{"all of a condition", rule(action, `{issuer: "https://a", audiences: [b], claims: [{path: [c, d.e], values: [f]}, {path: [g]}]}`),
				base(action, `{"token":{"issuer":"https://a","audiences":["b"],"claims":[{"path":["c","d.e"],"values":["f"]},{"path":["g"]}]}}`), nil},
			row{"no audience", rule(action, `{audiences: []}`), base(action, ""), nil},
			row{"no claim", rule(action, `{claims: []}`), base(action, ""), nil},
			row{"no value", rule(action, `{claims: [{path: [a]}, {path: [b], values: []}]}`), base(action, ""), nil},
			row{"a claim without a name", rule(action, `{claims: [{values: [a]}]}`), base(action, everything), []string{"Invalid spec.rules[0].token.claims[0].path"}},
			row{"empty texts", rule(action, `{audiences: [""], claims: [{path: [""], values: [""]}]}`), base(action, everything),
				[]string{"Invalid spec.rules[0].token.audiences[0]", "Invalid spec.rules[0].token.claims[0].path[0]", "Invalid spec.rules[0].token.claims[0].values[0]"}},
		)
	}
	rows = append(rows, row{"with requests", `{` + pods + `, rules: [{http: [{method: GET}, {path: {value: /a}}], token: {issuer: a}}]}`,
		base("Allow", `{"methods":["GET"],"token":{"issuer":"a"}},{"path":{"prefix":"/a"},"token":{"issuer":"a"}}`), nil},
		row{"with no requests", `{` + pods + `, rules: [{http: [], token: {}}]}`, base("Allow", ""), nil})
	check(t, policyKind, rows)
	const cluster = "apiVersion: outrigger.dev/v1alpha1\nkind: ClusterAccessPolicy"
	check(t, cluster, []row{
		{"of the cluster", `{namespaceSelector: {}, action: Allow, rules: [{token: {}}]}`, `{"namespace":"","name":"x","namespaces":"=","action":"Allow","targets":[{"pods":"="}],"rules":[{"field":"spec.rules[0]","everyone":true,"anyPort":true,"onlyRequests":true}]}`, []string{"Invalid spec.rules[0].token"}},
		{"of the cluster, denied", `{namespaceSelector: {}, action: Deny, rules: [{token: {}}]}`, `{"namespace":"","name":"x","namespaces":"=","action":"Deny","targets":[{"pods":"="}],"rules":[{"field":"spec.rules[0]","everyone":true,"anyPort":true,"requests":[{}],"onlyRequests":true}]}`, []string{"Invalid spec.rules[0].token"}},
	})
}
