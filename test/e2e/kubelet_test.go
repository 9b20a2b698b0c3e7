//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// testKubelet lets the kubelet issue certificates for new pods, under load from a pod with such
// a certificate: to servers whose agents have asked for theirs, then to servers like itself, and
// while the kubelet, which forgets its keys when it is restarted, issues all of them again.
func (c *cluster) testKubelet(t *testing.T) {
	c.needsNode(t)
	c.permissive(t, true)
	const setting = "meshConfig.spec.certificate.podCertificates="
	t.Cleanup(func() {
		// The test's context has ended.
		if _, err := c.output(context.Background(), "", c.outrigger, "upgrade", "--set", setting+"false"); err != nil {
			t.Error(err)
		}
	})
	classes := c.classes(t)
	for _, class := range classes {
		c.apply(t, manifest(t, values{Namespace: "kubelet-" + class, Class: class, Replicas: 2}, "namespace", "service", "server"))
	}
	for _, class := range classes {
		c.rolledOut(t, "kubelet-"+class+"/web")
	}
	c.upgrade(t, "--set", setting+"true")
	c.eventually(t, time.Minute, "the controller has published the roots for kubelets", func(ctx context.Context) error {
		_, err := c.output(ctx, "", c.kubectl, "get", "clustertrustbundle", "openservicemesh.io:mesh-osm:roots")
		return err
	})
	// The injector asks at most every ten seconds.
	time.Sleep(11 * time.Second)
	loads := make(map[string]func(int) int)
	for _, class := range classes {
		loads[class] = c.load(t, "kubelet-"+class)
	}
	for _, class := range classes {
		c.restart(t, "kubelet-"+class+"/web")
	}
	for _, class := range classes {
		c.rolledOut(t, "kubelet-"+class+"/web")
	}
	c.node(t, "restart", "kubelet")
	for _, class := range classes {
		namespace := "kubelet-" + class
		for _, app := range []string{"load", "web"} {
			c.eventually(t, 4*time.Minute, "the pods "+app+" in "+namespace+" have a second certificate of the kubelet", func(ctx context.Context) error {
				return c.issuedByKubelet(ctx, namespace, app)
			})
		}
		// Requests with the new certificates.
		loads[class](loads[class](1) + 100)
	}
}

// issuedByKubelet returns an error unless each pod of an app has received two certificates from
// the kubelet or more, and has asked for none.
func (c *cluster) issuedByKubelet(ctx context.Context, namespace, app string) error {
	pods, err := c.output(ctx, "", c.kubectl, "get", "pods", "-n", namespace, "-l", "app="+app, "--field-selector=status.phase=Running", "-o", "name")
	if err != nil {
		return err
	}
	for pod := range strings.FieldsSeq(pods) {
		log, err := c.output(ctx, "", c.kubectl, "logs", "-n", namespace, pod, "-c", "outrigger-proxy")
		if err != nil {
			return err
		}
		received, asked := strings.Count(log, `"received a certificate from the kubelet"`), strings.Count(log, `"certificate issued"`)
		if received < 2 || asked > 0 {
			return fmt.Errorf("%s has received %d certificates, and has asked for %d", pod, received, asked)
		}
	}
	return nil
}
