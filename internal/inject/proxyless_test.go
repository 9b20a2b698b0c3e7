package inject_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// proxyless is a environment of the class grpc, whose pods have no proxy.
func proxyless() *environment {
	w := ordinary()
	w.configurator.class, w.configurator.images = "grpc", map[string]string{"grpc": ""}
	return w
}

// TestWithoutProxy injects a pod of a class without a proxy: its traffic and its probes are
// unchanged, whatever the mesh redirects otherwise.
func TestWithoutProxy(t *testing.T) {
	for _, config := range []string{"", "cni: true"} {
		w := proxyless()
		w.config = config
		w.namespace.Annotations["openservicemesh.io/metrics"] = "enabled"
		r := w.injector(t).Inject(t.Context(), w.request(smallPod))
		if r.Decision.Outcome != inject.Inject || !r.Redirection.DisableInbound || !r.Redirection.DisableOutbound || len(r.Warnings) > 0 {
			t.Fatalf("with %q the decision is %+v, with the redirection %+v and the warnings %v", config, r.Decision, r.Redirection, r.Warnings)
		}
		before, pod := decode(t, []byte(smallPod)), decode(t, patched(t, []byte(smallPod), r.Patch))
		if init := container(pod, "outrigger-init"); init != nil {
			t.Errorf("with %q there is the init container %v", config, init)
		}
		if image := proxy(t, pod).Image; image != "outrigger/init:test" {
			t.Errorf("with %q the sidecar has the image %s, want that of the init container", config, image)
		}
		app := container(pod, "cart")
		if app.ReadinessProbe.HTTPGet.Port != before.Spec.Containers[0].ReadinessProbe.HTTPGet.Port {
			t.Errorf("with %q the readiness probe is %+v", config, app.ReadinessProbe)
		}
		for key, want := range map[string]string{"prometheus.io/port": "15901", "prometheus.io/path": "/metrics", "openservicemesh.io/redirection": ""} {
			if got := pod.Annotations[key]; got != want {
				t.Errorf("with %q the annotation %s is %q, want %q", config, key, got, want)
			}
		}
		if bootstrap := variable(app, "GRPC_XDS_BOOTSTRAP_CONFIG"); !strings.Contains(bootstrap, `"outrigger-controller.osm-system.svc:15130"`) {
			t.Errorf("with %q gRPC's configuration is %s", config, bootstrap)
		}
		if groups := pod.Spec.SecurityContext.SupplementalGroups; !slices.Equal(groups, []int64{1500}) {
			t.Errorf("with %q the supplemental groups are %v", config, groups)
		}
	}
}

// TestOwnGroupsAndVariables keeps what the user has set, and says so where the application
// is then not in the mesh.
func TestOwnGroupsAndVariables(t *testing.T) {
	w := proxyless()
	own := decode(t, []byte(smallPod))
	own.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroups: []int64{7, 9}}
	own.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "GRPC_XDS_BOOTSTRAP", Value: "/own.json"}, {Name: "GRPC_EXPERIMENTAL_XDS_SNI", Value: "false"},
	}
	raw := encode(t, own)
	i := w.injector(t)
	r := i.Inject(t.Context(), w.request(string(raw)))
	once := patched(t, raw, r.Patch)
	pod := decode(t, once)
	if groups := pod.Spec.SecurityContext.SupplementalGroups; !slices.Equal(groups, []int64{7, 9, 1500}) {
		t.Errorf("the supplemental groups are %v", groups)
	}
	if got := variable(container(pod, "cart"), "GRPC_EXPERIMENTAL_XDS_SNI"); got != "false" {
		t.Errorf("the user's variable is %q", got)
	}
	warned := func(r inject.Result) bool {
		return len(r.Warnings) == 2 && r.Warnings[0].Code == "driver_warning" && strings.Contains(r.Warnings[0].Message, "GRPC_XDS_BOOTSTRAP ") &&
			strings.Contains(r.Warnings[1].Message, "GRPC_EXPERIMENTAL_XDS_SNI")
	}
	again := i.Inject(t.Context(), w.request(string(once)))
	if !warned(r) || !warned(again) || len(again.Patch) > 0 {
		t.Errorf("the warnings are %v, and for the injected pod %v with the patch %v", r.Warnings, again.Warnings, again.Patch)
	}
}

// TestNoWindows refuses Windows pods, for which there is no agent's image.
func TestNoWindows(t *testing.T) {
	w := proxyless()
	r := w.injector(t).Inject(t.Context(), w.request(strings.Replace(smallPod, `"spec":{`, `"spec":{"os":{"name":"windows"},`, 1)))
	if r.Decision.Outcome != inject.Deny || r.Decision.Reason != "image_missing" {
		t.Errorf("the decision is %+v", r.Decision)
	}
}
