package cli

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	outriggerapi "github.com/outrigger-mesh/outrigger/apis/outrigger/v1alpha1"
)

// testKeys reads the keys of tokens from a ConfigMap and from an issuer, with the chart's rights.
func (c *controllerTest) testKeys(t *testing.T) {
	const keys = `{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`
	issuer := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, keys) }))
	defer issuer.Close()
	allow := func(spec v1alpha2.TokenKeysSpec) {
		t.Helper()
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			var config v1alpha2.MeshConfig
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: controlPlane, Name: "osm-mesh-config"}, &config); err != nil {
				return err
			}
			config.Spec.Traffic.TokenKeys = spec
			return c.Update(t.Context(), &config)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, obj := range decode(t, `
apiVersion: outrigger.dev/v1alpha1
kind: TokenPolicy
metadata: {name: login, namespace: shop}
spec:
  issuers:
  - {issuer: "https://a", jwksFrom: {configMapKey: a.json}}
  - {issuer: "https://b", jwksFrom: {url: "`+issuer.URL+`/keys"}}
---
apiVersion: outrigger.dev/v1alpha1
kind: AccessPolicy
metadata: {name: staff, namespace: shop}
spec:
  targetRefs: [{kind: Pod, selector: {}}]
  rules: [{token: {}}]
`) {
		if err := c.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Delete(t.Context(), obj) }()
	}
	// wants waits until the conditions of the policy name these texts and not those.
	wants := func(want, not string) {
		t.Helper()
		eventually(t, "the status of the policy", func() error {
			var policy outriggerapi.TokenPolicy
			if err := c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "login"}, &policy); err != nil {
				return err
			}
			if len(policy.Status.Conditions) == 0 {
				return errors.New("there is no condition")
			}
			text := fmt.Sprint(policy.Status.Conditions)
			if slices.ContainsFunc(strings.Fields(want), func(s string) bool { return !strings.Contains(text, s) }) ||
				slices.ContainsFunc(strings.Fields(not), func(s string) bool { return strings.Contains(text, s) }) {
				return fmt.Errorf("it is %s, want %q and not %q", text, want, not)
			}
			return nil
		})
	}
	wants("issuers[0].jwksFrom.configMapKey issuers[1].jwksFrom.url tokenKeys.hosts", "")

	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "outrigger-token-keys"}, Data: map[string]string{"a.json": keys}}
	c.create(t, configMap)
	wants("issuers[1].jwksFrom.url", "configMapKey")

	host := strings.TrimPrefix(issuer.URL, "https://")
	bundle := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw}))
	allow(v1alpha2.TokenKeysSpec{Hosts: []string{host}, CABundle: bundle})
	wants("insideHosts", "")
	allow(v1alpha2.TokenKeysSpec{InsideHosts: []string{host}})
	wants("caBundle", "")
	allow(v1alpha2.TokenKeysSpec{InsideHosts: []string{host}, CABundle: bundle})
	wants("", "jwksFrom")

	configMap.Data["a.json"] = keys[:40]
	if err := c.Update(t.Context(), configMap); err != nil {
		t.Fatal(err)
	}
	wants("issuers[0].jwksFrom.configMapKey", "issuers[1]")
	if err := c.Delete(t.Context(), configMap); err != nil {
		t.Fatal(err)
	}
	wants("NotFound", "issuers[1]")
	allow(v1alpha2.TokenKeysSpec{})
	wants("tokenKeys.hosts", "")
}
