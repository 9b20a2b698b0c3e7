package redact_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/redact"
)

// places are texts with a secret, which is SECRET in them.
var places = []string{
	"authorization: Bearer SECRET",
	"Authorization: Basic SECRET and=more",
	"'authorization', 'Bearer SECRET'",
	"'cookie', 'a=1; b=SECRET'",
	"\"name\":\"x-api-key\",\"value\":\"SECRET\"",
	"Set-Cookie: session=x; other=SECRET; Path=/",
	"{\"level\":\"info\",\"headers\":{\"Cookie\":\"a=b; c=SECRET\"}}",
	"{\"msg\":\"said {\\\"password\\\":\\\"a\\\\\\\"SECRET\\\"}\"}",
	"map[Authorization:[Digest SECRET] Accept:[*/*]]",
	"password=SECRET",
	"DB_PASSWORD=x,SECRET",
	"password: two words SECRET",
	"password: |\n    first\n    SECRET",
	"password:\n    SECRET",
	"password = 'it''s SECRET'",
	"password: \"a\\\"SECRET\"",
	"client_secret: SECRET",
	"\"clientSecret\" : \"SECRET\"",
	"token: token: SECRET",
	"--token SECRET",
	"--token=SECRET",
	"[\"--db-password\",\"SECRET\"]",
	"X-Auth-Token: SECRET",
	"GET /a/b?x=1&y=SECRET HTTP/1.1",
	"https://user:SECRET@example.com/a",
	"https://user:a/SECRET@example.com/a",
	"https://SECRET@example.com",
	"proxy http://a:b@SECRET@example.com:80",
	"bearer bearer SECRET",
	"{Token:SECRET User:a}",
	"eyJhbGciOiJub25lIn0.SECRET.x",
	"http-request deny if { req.hdr(cookie) -m str SECRET }",
	"http-response set-header X-Token SECRET",
	"-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----",
	"-----BEGIN EC PRIVATE KEY-----\\nSECRET\\n-----END EC PRIVATE KEY-----\\n",
	"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQSECRET\nAAAA\n-----END PRIVATE KEY-----",
	"-----BEGIN RSA PRIVATE KEY-----\nSECRET",
	"vault hvs.SECRET",
	"SMTP_PASS=SECRET",
	"db.pass: SECRET",
	"dbPass = SECRET",
	"PASSCODE: SECRET",
	"DefaultEndpointsProtocol=https;AccountName=a;AccountKey=SECRET==;EndpointSuffix=core.windows.net",
	"Endpoint=sb://a/;SharedAccessKeyName=b;SharedAccessKey=SECRET",
	"SharedAccessSignature sr=a&sig=SECRET&se=1",
	"ENCRYPTION_KEY=SECRET",
	"signingKey: SECRET",
	"sk_live_SECRET",
	"rk_test_SECRET",
	"npm_SECRET",
	"pypi-SECRET",
	"dckr_pat_SECRET",
	"AIzaSECRET",
	"SG.SECRET.abc",
	"ya29.SECRET",
	"whsec_SECRET",
	"glsa_SECRET",
	"user:SECRET@tcp(10.0.0.1:3306)/shop",
	"dsn user:a@SECRET@unix(/run/mysqld.sock)/shop",
	"cart:SECRET@db.shop:5432/carts",
	"mysql -h db -u root -pSECRET carts",
	"curl -s -u cart:SECRET https://example.com",
	"sshpass -p SECRET ssh host",
	"redis-cli -h db -a SECRET ping",
	"AUTH SECRET",
	"PASS SECRET",
	"https://hooks.slack.com/services/T0/B0/SECRET",
	"https://api.telegram.org/bot12345:SECRET/sendMessage",
}

// planted looks like what a random generator would make.
const planted = "Zq7fPlantedR41n"

func TestText(t *testing.T) {
	for _, place := range places {
		if got := redact.Text("before\n" + strings.ReplaceAll(place, "SECRET", planted) + "\n"); strings.Contains(got, planted) || !strings.HasPrefix(got, "before\n") {
			t.Errorf("%q becomes %q", place, got)
		}
	}
	for _, text := range []string{
		"pod shop/cart-7d9f-x2x4z has no sidecar: namespace_annotation_enabled",
		`secrets "db-password" is forbidden: User "a" cannot get resource "secrets" in API group "" in the namespace "shop"`,
		"GET https://example.com:8443/a/b 503",
		"sent 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
		"spiffe://cluster.local/ns/shop/sa/cart until 2026-01-02T03:04:05Z",
		"image registry.example:5000/shop/cart:1.2@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 is pulled",
		"the proxy bypasses port 80, npm_config_cache is set, by git@example.com",
		"tls: failed to verify certificate: x509: certificate signed by unknown authority",
	} {
		if got := redact.Text(text); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	}
	cert := newCertificate(t)
	got := redact.Text("roots:\n" + cert + "end")
	if !strings.Contains(got, "O=planted root") || !strings.Contains(got, "2031-") || !strings.Contains(got, "SHA-256") || strings.Contains(got, "BEGIN") || strings.Contains(got, cert[40:60]) {
		t.Errorf("a certificate becomes %q", got)
	}
}

func newCertificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{Organization: []string{"planted root"}}, NotAfter: time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// object is a pod with a secret, SECRET, wherever a pod may have one, and with text that is to
// be seen, such as KEEP1.
const object = `{
  "kind": "Pod",
  "metadata": {
    "name": "KEEP-name", "managedFields": [{"x": "SECRET"}],
    "labels": {"app": "KEEP-label", "token": "SECRET"},
    "annotations": {
      "kubectl.kubernetes.io/last-applied-configuration": "SECRET", "example.com/x": "SECRET", "openservicemesh.io/sidecar-class": "KEEP-class",
      "openservicemesh.io/rewrite-probes": "{\"probes\":[{\"headers\":[{\"name\":\"x-any\",\"value\":\"SECRET\"}]}]}"
    }
  },
  "spec": {
    "containers": [
      {"name": "KEEP-app", "image": "KEEP-image", "command": ["SECRET"], "args": ["SECRET"], "env": [{"name": "KEEP-variable", "value": "SECRET"}, {"name": "A", "valueFrom": {"secretKeyRef": {"name": "KEEP-secret", "key": "k"}}}],
       "livenessProbe": {"httpGet": {"path": "/KEEP-path?a=SECRET", "httpHeaders": [{"name": "X-Any", "value": "SECRET"}]}}, "readinessProbe": {"exec": {"command": ["SECRET"]}, "periodSeconds": 7},
       "lifecycle": {"preStop": {"exec": {"command": ["SECRET"]}}}, "anythingNew": "SECRET"},
      {"name": "ours", "args": ["--KEEP-flag", "--token", "SECRET", "--password=SECRET"], "env": [{"name": "KEEP", "value": "KEEP-value"}, {"name": "API_TOKEN", "value": "SECRET"}, {"name": "SPEC", "value": "{\"probes\":[{\"headers\":[{\"name\":\"x-any\",\"value\":\"SECRET\"}]}]}"}]}
    ],
    "initContainers": [{"name": "a", "env": [{"name": "A", "value": "SECRET"}]}],
    "ephemeralContainers": [{"name": "a", "command": ["SECRET"]}],
    "imagePullSecrets": [{"name": "KEEP-pull"}],
    "volumes": [{"name": "KEEP-volume", "secret": {"secretName": "KEEP-secretName"}}, {"name": "b", "csi": {"volumeAttributes": {"x": "SECRET"}}}]
  },
  "status": {
    "containerStatuses": [{"name": "KEEP-app", "lastState": {"terminated": {"reason": "KEEP-reason", "message": "SECRET"}}, "state": {"waiting": {"message": "KEEP-waiting"}}}]
  },
  "webhooks": [{"clientConfig": {"caBundle": "CERTIFICATE", "url": "https://a:SECRET@example.com/?x=SECRET"}}],
  "remoteLogging": {"address": "KEEP-address", "authorization": "SECRET"},
  "matches": [{"name": "authorization", "exact": "SECRET"}, {"name": "x-version", "exact": "KEEP-exact"}, {"headers": {"cookie": "SECRET"}}],
  "tls": {"private_key": {"inline_bytes": "SECRET"}, "secretRef": {"namespace": "KEEP-refs"}}
}`

// TestReferences checks that what only refers to secrets is shown: Envoy's references to
// certificates, the life of projected tokens, and the names of volumes that were injected.
func TestReferences(t *testing.T) {
	const document = `{
		"tls_certificate_sds_secret_configs": [{"name": "identity", "sds_config": {"api_config_source": {"api_type": "GRPC"}}}],
		"validation_context_sds_secret_config": {"name": "bundle", "sds_config": {"resource_api_version": "V3"}},
		"serviceAccountToken": {"expirationSeconds": 3600, "path": "token", "key": 1234},
		"volumes": ["outrigger-run", "password=SECRET"]
	}`
	var in map[string]any
	if err := json.Unmarshal([]byte(document), &in); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(redact.Value(in))
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{`"identity"`, `"GRPC"`, `"bundle"`, `"V3"`, "3600", `"token"`, `"outrigger-run"`} {
		if !strings.Contains(string(out), shown) {
			t.Errorf("%s is gone: %s", shown, out)
		}
	}
	for _, secret := range []string{"1234", "SECRET"} {
		if strings.Contains(string(out), secret) {
			t.Errorf("%s is left: %s", secret, out)
		}
	}
}

func TestObject(t *testing.T) {
	text := strings.ReplaceAll(object, "SECRET", planted)
	text = strings.ReplaceAll(text, `"CERTIFICATE"`, `"`+base64.StdEncoding.EncodeToString([]byte(newCertificate(t)))+`"`)
	var in map[string]any
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		t.Fatal(err)
	}
	out, err := json.MarshalIndent(redact.Object(in, "ours"), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), planted) {
		t.Errorf("a secret is left: %s", out)
	}
	for _, shown := range []string{
		"name", "label", "class", "app", "image", "variable", "secret", "path", "flag", "value", "pull", "volume", "secretName", "reason", "waiting", "address", "exact", "refs",
	} {
		if !strings.Contains(string(out), "KEEP-"+shown) {
			t.Errorf("%s is gone", shown)
		}
	}
	if !strings.Contains(string(out), "planted root") || !strings.Contains(string(out), `"periodSeconds": 7`) {
		t.Errorf("a certificate or a number is gone: %s", out)
	}
	for reason, message := range map[string]string{
		"FailedPostStartHook": "Exec lifecycle hook ([" + planted + "]) failed",
		"Unhealthy":           "Readiness probe failed: I say " + planted,
	} {
		event := redact.Object(map[string]any{"involvedObject": map[string]any{}, "reason": reason, "message": message})
		if text, _ := event["message"].(string); strings.Contains(text, planted) {
			t.Errorf("an Event with %s says %q", reason, text)
		}
	}
	if secret := redact.Object(map[string]any{"kind": "Secret", "data": map[string]any{"a": planted}}); secret["data"] != redact.Mark {
		t.Errorf("a Secret has %v", secret["data"])
	}
}

// FuzzText has any text around the secret and any bytes for it.
func FuzzText(f *testing.F) {
	f.Add("", []byte("a"), "", 0)
	f.Add("password=\"", []byte{0xfa}, "\"}", 3)
	f.Add("-----END CERTIFICATE-----\ntoken:", []byte("xyz"), "-----BEGIN", 12)
	f.Add("bearer", []byte("xyz"), "'", 28)
	f.Fuzz(func(t *testing.T, before string, secret []byte, after string, place int) {
		if len(secret) == 0 || len(before)+len(secret)+len(after) > 1<<12 {
			return
		}
		// What is known by its looks has a length.
		hidden := "Zq7fPlanted" + hex.EncodeToString(secret)
		if strings.Contains(before, hidden) || strings.Contains(after, hidden) {
			return
		}
		text := strings.ReplaceAll(places[uint(place)%uint(len(places))], "SECRET", hidden)
		if got := redact.Text(before + "\n" + text + "\n" + after); strings.Contains(got, hidden) {
			t.Errorf("%q is left in %q", text, got)
		}
	})
}

// FuzzObject has any JSON: it neither panics nor shows a secret behind one of the keys.
func FuzzObject(f *testing.F) {
	f.Add(`{"spec":{"containers":[{"name":"a","env":[null,1,{"name":[]}]}],"volumes":{}}}`)
	f.Add(strings.ReplaceAll(object, "CERTIFICATE", "YQ=="))
	f.Fuzz(func(t *testing.T, text string) {
		var in map[string]any
		if json.Unmarshal([]byte(text), &in) != nil {
			return
		}
		const unlikely = "Zq7fUnlikelyR41n"
		if strings.Contains(text, unlikely) {
			return
		}
		in["authorization"] = map[string]any{"deep": in["spec"], "more": unlikely}
		in["spec2"] = map[string]any{"containers": []any{map[string]any{"name": "a", "args": []any{unlikely}, "x": in["spec"]}}}
		out, err := json.Marshal(redact.Object(in, "ours"))
		if err != nil || strings.Contains(string(out), unlikely) {
			t.Errorf("%v: %s", err, out)
		}
	})
}
