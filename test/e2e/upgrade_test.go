//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// testUpgrade upgrades the proxies of running pods of each class, clients and servers, under
// load. The next version is an image with the same program. Then it does so with an image
// that does not exist.
func (c *cluster) testUpgrade(t *testing.T) {
	c.needsNode(t)
	c.permissive(t, true)
	t.Cleanup(func() {
		// The test's context has ended.
		_, err := c.output(context.Background(), "", c.outrigger, "upgrade", "--set", "proxyUpgrades.enabled=false")
		_, unset := c.output(context.Background(), "", c.kubectl, "patch", "meshconfig", "osm-mesh-config", "-n", "osm-system", "--type=merge", "-p", `{"spec":{"sidecar":{"sidecarDrivers":null}}}`)
		if err := errors.Join(err, unset); err != nil {
			t.Error(err)
		}
	})
	classes := c.classes(t)
	for _, class := range classes {
		c.apply(t, manifest(t, values{Namespace: "upgrade-" + class, Class: class, Replicas: 2}, "namespace", "service", "server"))
	}
	loads, images := make(map[string]func(int) int), make(map[string]string)
	for _, class := range classes {
		c.rolledOut(t, "upgrade-"+class+"/web")
		loads[class] = c.load(t, "upgrade-"+class)
		images[class] = c.must(t, "", c.kubectl, "get", "pod", "load", "-n", "upgrade-"+class, "-o", `jsonpath={.spec.initContainers[?(@.name=="outrigger-proxy")].image}`)
	}
	before := c.must(t, "", c.kubectl, "get", "pods", "-A", "-l", "app in (load, web)", "-o", `jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {end}`)
	c.upgrade(t, "--set", "proxyUpgrades.enabled=true", "--set", "proxyUpgrades.atOnce=20")
	use := func(suffix string) {
		t.Helper()
		var drivers []map[string]string
		for _, class := range classes {
			drivers = append(drivers, map[string]string{"sidecarName": class, "sidecarImage": images[class] + suffix})
		}
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"sidecar": map[string]any{"sidecarDrivers": drivers}}})
		if err != nil {
			t.Fatal(err)
		}
		c.must(t, "", c.kubectl, "patch", "meshconfig", "osm-mesh-config", "-n", "osm-system", "--type=merge", "-p", string(patch))
	}
	use("-next")
	for _, class := range classes {
		c.eventually(t, 4*time.Minute, "the proxies of class "+class+" are upgraded", func(ctx context.Context) error {
			return c.upgraded(ctx, "upgrade-"+class)
		})
		loads[class](loads[class](1) + 200)
	}
	if after := c.must(t, "", c.kubectl, "get", "pods", "-A", "-l", "app in (load, web)", "-o", `jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {end}`); after != before {
		t.Errorf("the pods were %s, and are %s", before, after)
	}
	if restarts := c.must(t, "", c.kubectl, "get", "pods", "-A", "-l", "app in (load, web)", "-o", `jsonpath={range .items[*]}{.status.initContainerStatuses[*].restartCount} {.status.containerStatuses[*].restartCount} {end}`); strings.Trim(restarts, "0 ") != "" {
		t.Errorf("containers were restarted: %s", restarts)
	}

	use("-missing")
	c.eventually(t, 4*time.Minute, "the upgrade to an image that does not exist has stopped", func(ctx context.Context) error {
		found, err := c.output(ctx, "", c.kubectl, "get", "meshconfig", "osm-mesh-config", "-n", "osm-system", "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")].message}`)
		for _, class := range classes {
			if err == nil && !strings.Contains(found, images[class]+"-missing") {
				err = fmt.Errorf("the MeshConfig says %q", found)
			}
		}
		return err
	})
	for _, class := range classes {
		loads[class](loads[class](1) + 200)
	}
}

// upgraded returns an error unless the next version has taken over in all pods of a namespace.
func (c *cluster) upgraded(ctx context.Context, namespace string) error {
	text, err := c.output(ctx, "", c.kubectl, "get", "pods", "-n", namespace, "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.ephemeralContainers[*].image} {.status.ephemeralContainerStatuses[*].state}{"\n"}{end}`)
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		name, state, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.Contains(state, "-next") || !strings.Contains(state, `"running"`) {
			return fmt.Errorf("pod %s has the container %q", name, state)
		}
		log, err := c.output(ctx, "", c.kubectl, "logs", "-n", namespace, name, "-c", "outrigger-proxy-2")
		if err != nil {
			return err
		}
		if !strings.Contains(log, "has taken over") {
			return fmt.Errorf("the new container of pod %s says %q", name, log)
		}
	}
	return nil
}
