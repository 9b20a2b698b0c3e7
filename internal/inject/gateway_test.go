package inject_test

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// gatewayPod is a pod of a gateway, as the controller and users make them.
const gatewayPod = `{"metadata": {"name": "web", "labels": {"gateway.networking.k8s.io/gateway-name": "web"}}, "spec": {
	"containers": [{"name": "outrigger-proxy", "image": "auto", "imagePullPolicy": "Always", "ports": [{"name": "http", "containerPort": 80}], "resources": {"requests": {"cpu": "1"}}}]}}`

// TestGatewayPod injects the proxy into a pod without an application: as an ordinary container, without
// redirection and the rights for it, and with what the user's container says.
func TestGatewayPod(t *testing.T) {
	for _, config := range []string{"", "cni: true", "nativeSidecars: 'true'"} {
		w := ordinary()
		w.config = config
		r := w.injector(t).Inject(t.Context(), w.request(gatewayPod))
		if r.Decision.Outcome != inject.Inject || !r.Redirection.DisableInbound || !r.Redirection.DisableOutbound || len(r.Warnings) > 0 {
			t.Fatalf("with %q the decision is %+v, with the redirection %+v and the warnings %v", config, r.Decision, r.Redirection, r.Warnings)
		}
		pod := decode(t, patched(t, []byte(gatewayPod), r.Patch))
		if len(pod.Spec.Containers) != 1 || pod.Annotations["openservicemesh.io/redirection"] != "" {
			t.Fatalf("with %q there are the containers %v and the annotations %v", config, pod.Spec.Containers, pod.Annotations)
		}
		c := pod.Spec.Containers[0]
		if c.Image == "auto" || c.ImagePullPolicy != "IfNotPresent" || c.RestartPolicy != nil || c.Lifecycle != nil || c.Resources.Requests.Cpu().Value() != 1 {
			t.Errorf("with %q the proxy is %+v", config, c)
		}
		if init := container(pod, "outrigger-init"); init == nil || *init.SecurityContext.RunAsUser != 1500 || len(init.SecurityContext.Capabilities.Add) > 0 {
			t.Errorf("with %q the init container is %+v", config, init)
		}
		// A second call changes nothing.
		again := w.injector(t).Inject(t.Context(), w.request(string(patched(t, []byte(gatewayPod), r.Patch))))
		if len(again.Patch) > 0 {
			t.Errorf("with %q a second call changes %s", config, again.Patch)
		}
	}
}

// TestGatewayPodWithApplication redirects the connections of an application that is a native sidecar, or
// refuses the pod: without redirection, everyone could call it.
func TestGatewayPodWithApplication(t *testing.T) {
	const pod = `{"metadata": {"name": "web", "labels": {"gateway.networking.k8s.io/gateway-name": "web"}}, "spec": {
		"initContainers": [{"name": "app", "image": "app", "restartPolicy": "Always"}], "containers": [{"name": "outrigger-proxy", "image": "auto"}]}}`
	w := ordinary()
	r := w.injector(t).Inject(t.Context(), w.request(pod))
	if r.Decision.Outcome != inject.Deny && (r.Redirection.DisableInbound || r.Redirection.DisableOutbound) {
		t.Errorf("the decision is %+v, with the redirection %+v", r.Decision, r.Redirection)
	}
	t.Logf("%+v %s", r.Decision, r.Patch)
}
