//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testGateway makes a gateway of each class, and calls a server through it from a pod outside the mesh,
// while the gateway is replaced and scaled, and its certificate is. No request may fail.
func (c *cluster) testGateway(t *testing.T) {
	c.must(t, "", c.kubectl, "apply", "--server-side", "-f", c.gatewayAPI(t))
	classes := c.classes(t)
	for _, class := range classes {
		c.apply(t, manifest(t, values{Namespace: "gateway-" + class, Class: class}, "namespace"))
	}
	namespaces := "gateway-" + strings.Join(classes, ",gateway-")
	c.upgrade(t, "--set", "gateways.enabled=true", "--set", "gateways.classes={"+strings.Join(classes, ",")+"}", "--set", "gateways.certificateNamespaces={"+namespaces+"}")
	c.permissive(t, true)
	for _, class := range classes {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			c.testGatewayOf(t, class)
		})
	}
}

// gatewayAPI returns the folder of Gateway API's kinds.
func (c *cluster) gatewayAPI(t *testing.T) string {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(module)), "config", "crd", "standard")
}

// gatewayManifest is a gateway of a class in a namespace, with a route to its service web.
const gatewayManifest = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: %[2]s}
spec:
  gatewayClassName: outrigger-%[1]s
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: door}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: %[2]s}
spec:
  parentRefs: [{name: door}]
  rules: [{backendRefs: [{name: web, port: 80}]}]
`

func (c *cluster) testGatewayOf(t *testing.T, class string) {
	namespace := "gateway-" + class
	c.apply(t, manifest(t, values{Namespace: namespace, Class: class, Replicas: 2}, "service", "server"))
	former := c.makeCertificate(t, namespace)
	c.apply(t, fmt.Sprintf(gatewayManifest, class, namespace))
	c.rolledOut(t, namespace+"/web")
	deployment := "door-outrigger-" + class
	c.must(t, "", c.kubectl, "wait", "-n", namespace, "gateway/door", "--for=condition=Programmed", "--timeout=120s")
	c.rolledOut(t, namespace+"/"+deployment)
	var g struct {
		Status struct {
			Addresses []struct{ Value string }
			Listeners []struct{ AttachedRoutes int }
		}
	}
	c.eventually(t, time.Minute, "the status of the gateway", func(ctx context.Context) error {
		text, err := c.output(ctx, "", c.kubectl, "get", "-n", namespace, "gateway/door", "-o", "json")
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(text), &g); err != nil {
			return err
		}
		if len(g.Status.Addresses) == 0 || len(g.Status.Listeners) != 2 || g.Status.Listeners[1].AttachedRoutes != 1 {
			return errors.New(text)
		}
		return nil
	})
	accepted := c.must(t, "", c.kubectl, "get", "-n", namespace, "httproute/web", "-o", "jsonpath={.status.parents[0].conditions[?(@.type=='Accepted')].status}")
	if accepted != "True" {
		t.Errorf("the route is accepted: %q", accepted)
	}
	outside := "outside-" + class
	c.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+outside+"}\n")
	requests := c.loadFrom(t, outside, "http://"+g.Status.Addresses[0].Value+"/")
	secure := func(pin string) {
		t.Helper()
		c.eventually(t, time.Minute, "a request by HTTPS", func(ctx context.Context) error {
			_, err := c.output(ctx, "", c.kubectl, "exec", "-n", outside, "load", "--", "/app", "once", "-url", "https://"+g.Status.Addresses[0].Value+"/", "-pin", pin)
			return err
		})
	}
	secure(former)
	secure(c.makeCertificate(t, namespace))
	for _, replicas := range []string{"2", "1"} {
		c.must(t, "", c.kubectl, "scale", "-n", namespace, "deployment/"+deployment, "--replicas="+replicas)
		c.rolledOut(t, namespace+"/"+deployment)
		c.restart(t, namespace+"/"+deployment)
	}
	t.Logf("%d requests from outside the mesh", requests(100))
}

// makeCertificate makes or replaces the Secret door of a namespace with a new certificate, and returns the
// certificate's SHA-256 in hex.
func (c *cluster) makeCertificate(t *testing.T, namespace string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{"door.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, content []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}))
	}
	c.apply(t, fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: door, namespace: %s}\ntype: kubernetes.io/tls\ndata: {tls.crt: %s, tls.key: %s}\n",
		namespace, encode("CERTIFICATE", der), encode("PRIVATE KEY", pkcs8)))
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}
