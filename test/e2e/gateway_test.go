//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testGateway makes a gateway of each class, and calls a server through it from a pod outside the mesh,
// while the gateway is replaced and scaled. No request may fail.
func (c *cluster) testGateway(t *testing.T) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	c.must(t, "", c.kubectl, "apply", "--server-side", "-f", filepath.Join(strings.TrimSpace(string(module)), "config", "crd", "standard"))
	classes := c.classes(t)
	c.upgrade(t, "--set", "gateways.enabled=true", "--set", "gateways.classes={"+strings.Join(classes, ",")+"}")
	c.permissive(t, true)
	for _, class := range classes {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			c.testGatewayOf(t, class)
		})
	}
}

// gatewayManifest is a gateway of a class in a namespace, with a route to its service web.
const gatewayManifest = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: door, namespace: %[2]s}
spec:
  gatewayClassName: outrigger-%[1]s
  listeners: [{name: http, port: 80, protocol: HTTP}]
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
	c.apply(t, manifest(t, values{Namespace: namespace, Class: class, Replicas: 2}, "namespace", "service", "server"))
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
		if len(g.Status.Addresses) == 0 || len(g.Status.Listeners) != 1 || g.Status.Listeners[0].AttachedRoutes != 1 {
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
	for _, replicas := range []string{"2", "1"} {
		c.must(t, "", c.kubectl, "scale", "-n", namespace, "deployment/"+deployment, "--replicas="+replicas)
		c.rolledOut(t, namespace+"/"+deployment)
		c.restart(t, namespace+"/"+deployment)
	}
	t.Logf("%d requests from outside the mesh", requests(100))
}
