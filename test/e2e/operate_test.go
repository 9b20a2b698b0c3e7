//go:build e2e

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// testOperate inspects the mesh like an operator, without the debug pages, and breaks things
// that 'outrigger check' must find.
func (c *cluster) testOperate(t *testing.T) {
	debug := func(on string) {
		c.must(t, "", c.kubectl, "patch", "meshconfig", "osm-mesh-config", "-n", "osm-system", "--type=merge", "-p", `{"spec":{"observability":{"enableDebugServer":`+on+`}}}`)
	}
	debug("false")
	c.must(t, "", c.kubectl, "create", "namespace", "operate")
	t.Cleanup(func() {
		if _, err := c.output(context.Background(), "", c.kubectl, "delete", "namespace", "operate", "--wait", "--timeout=60s"); err != nil {
			t.Error(err)
		}
	})
	c.must(t, "", c.outrigger, "namespace", "add", "operate", "--class", c.classes(t)[0])
	c.must(t, "", c.kubectl, "create", "deployment", "web", "-n", "operate", "--image=docker.io/outriggermesh/bookstore:0.2.0")
	c.must(t, "", c.outrigger, "check", "--wait", "60s")
	c.eventually(t, time.Minute, "the proxy is listed", func(ctx context.Context) error {
		list, err := c.output(ctx, "", c.outrigger, "proxy", "list", "deploy/web", "-n", "operate")
		if err == nil && !strings.Contains(list, "Current") {
			err = errors.New(list)
		}
		return err
	})
	if page := c.must(t, "", c.outrigger, "proxy", "get", "deploy/web", "-n", "operate"); !strings.Contains(page, "/ns/operate/sa/default") {
		t.Errorf("'proxy get' prints %s", page)
	}
	// The agent logs this after the proxy has acknowledged its configuration.
	c.eventually(t, time.Minute, "'proxy logs' prints that the proxy is ready", func(ctx context.Context) error {
		log, err := c.output(ctx, "", c.outrigger, "proxy", "logs", "deploy/web", "-n", "operate")
		if err == nil && !strings.Contains(log, "proxy ready") {
			err = errors.New(log)
		}
		return err
	})

	finds := func(check, object string) {
		t.Helper()
		c.eventually(t, 30*time.Second, check, func(ctx context.Context) error {
			out, err := c.output(ctx, "", c.outrigger, "check")
			for line := range strings.Lines(out) {
				if strings.Contains(line, "error    "+check+": "+object) {
					if err == nil {
						return errors.New("the check finds it but succeeds")
					}
					return nil
				}
			}
			return errors.New(out)
		})
	}
	c.must(t, "", c.kubectl, "label", "namespace", "operate", "pod-security.kubernetes.io/enforce=restricted")
	finds("security", "Namespace/operate")
	c.must(t, "", c.kubectl, "label", "namespace", "operate", "pod-security.kubernetes.io/enforce-")
	c.must(t, "", c.kubectl, "scale", "-n", "osm-system", "deployment/outrigger-injector", "--replicas=0")
	finds("deployments", "Deployment/osm-system/outrigger-injector")
	c.must(t, "", c.kubectl, "patch", "mutatingwebhookconfiguration", "outrigger-injector", "--type=json", "-p", `[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`)
	finds("ca", "MutatingWebhookConfiguration/outrigger-injector")
	finds("answers", "Namespace/operate")
	c.must(t, "", c.kubectl, "scale", "-n", "osm-system", "deployment/outrigger-injector", "--replicas=1")
	c.rolledOut(t, "osm-system/outrigger-injector")
	c.must(t, "", c.outrigger, "check", "--wait", "60s")
	debug("true")
}
