package null_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/drivers/null"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// TestRedirectsNothing checks that no container of the driver redirects traffic, or has
// the privileges to.
func TestRedirectsNothing(t *testing.T) {
	for _, native := range []bool{true, false} {
		inj := &driver.InjectorContext{
			Pod:     &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}},
			PodOS:   "linux",
			Sidecar: driver.Sidecar{Image: "busybox", InitImage: "init", Native: native},
		}
		if err := (null.Driver{}).Patch(inj); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range append(inj.Pod.Spec.InitContainers, inj.Pod.Spec.Containers...) {
			names = append(names, c.Name)
			for _, e := range c.Env {
				if e.Name == agentspec.EnvRedirection {
					t.Errorf("native %t: container %s has %s", native, c.Name, e.Name)
				}
			}
			if sc := c.SecurityContext; sc != nil && (sc.Capabilities == nil || len(sc.Capabilities.Add) > 0) {
				t.Errorf("native %t: container %s has the capabilities %v", native, c.Name, sc.Capabilities)
			}
		}
		want := []string{"outrigger-init", "outrigger-proxy", "web"}
		if !native {
			want = []string{"outrigger-init", "web", "outrigger-proxy"}
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("native %t: containers (-want +got):\n%s", native, diff)
		}
	}
}

func TestStart(t *testing.T) {
	probes, err := null.Driver{}.Start(&driver.ControllerContext{})
	if err != nil {
		t.Fatal(err)
	}
	if probes.GetID() != "null" || !probes.Liveness() || !probes.Readiness() {
		t.Errorf("the probes of %q are alive %t and ready %t", probes.GetID(), probes.Liveness(), probes.Readiness())
	}
}
