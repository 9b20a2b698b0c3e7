package check

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	workload "github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// root returns a root certificate in PEM that expires after a time.
func root(t *testing.T, after time.Duration) string {
	t.Helper()
	certificate, _, err := pki.NewCA("test", after)
	if err != nil {
		t.Fatal(err)
	}
	return string(pki.Encode(certificate))
}

// wantPodCertificates lets the mesh ask for certificates of kubelets, with the result of reading
// the ClusterTrustBundle.
func wantPodCertificates(f *Facts, err error) {
	_ = unstructured.SetNestedField(f.meshConfig.value.Object, true, "spec", "certificate", "podCertificates")
	f.kubeletBundle.err = err
}

// injectBy lets the controller make an admission policy, which is bound.
func injectBy(f *Facts, mode string) {
	f.deployments.value[0].Spec.Template.Spec.Containers = []corev1.Container{{Args: []string{"controller", "--injection-policies=" + mode}}}
	name := metav1.ObjectMeta{Name: "outrigger-injector.envoy.1"}
	f.policies.value = []admissionv1.MutatingAdmissionPolicy{{ObjectMeta: name}}
	f.bindings.value = []admissionv1.MutatingAdmissionPolicyBinding{{ObjectMeta: name, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name.Name}}}
}

// healthy returns the Facts of a mesh in which everything is right: one node, the namespace
// shop with the pods web, which has a sidecar, and job, which should have none.
func healthy(t *testing.T) *Facts {
	t.Helper()
	now := time.Now()
	f := &Facts{
		options: Options{Mesh: "osm", Namespace: "osm-system", MeshConfig: "osm-mesh-config", Webhook: "outrigger-injector", Revision: "default", Version: "0.1.0"},
		now:     now, tried: "shop",
	}
	f.options.Releases = func(class string) *driver.Releases {
		return map[string]*driver.Releases{"envoy": {
			Proxy: "envoy", AsOf: "2026-11-28", Default: "1.40.2", Oldest: "1.37.11", Reason: "it has faults", Newest: []string{"1.40.2"},
			Releases: []driver.Release{{Version: "1.40.0", Tested: "all tests"}},
		}}[class]
	}
	f.version.value = "v1.36.3"
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	node.Status.NodeInfo = corev1.NodeSystemInfo{KernelVersion: "6.1.0-9-amd64", OperatingSystem: "linux", Architecture: "amd64"}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}
	f.nodes.value = []corev1.Node{node}
	for name, versions := range kinds() {
		f.crds.value = append(f.crds.value, unstructured.Unstructured{Object: map[string]any{
			"metadata": map[string]any{"name": name},
			"spec":     map[string]any{"versions": []any{map[string]any{"name": versions[0], "served": true}}},
			"status":   map[string]any{"storedVersions": []any{versions[0]}},
		}})
	}
	f.hooks.value = []admissionv1.MutatingWebhookConfiguration{{
		ObjectMeta: metav1.ObjectMeta{Name: "outrigger-injector"},
		Webhooks:   []admissionv1.MutatingWebhook{{Name: "pods", ClientConfig: admissionv1.WebhookClientConfig{CABundle: []byte(root(t, 365*24*time.Hour))}}},
	}}
	f.home.value = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "osm-system"}}
	for _, app := range []string{controllerName, "outrigger-injector"} {
		f.deployments.value = append(f.deployments.value, appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "osm-system", Name: app, Labels: map[string]string{"app": app}},
			Spec:       appsv1.DeploymentSpec{Replicas: new(int32(2))},
			Status:     appsv1.DeploymentStatus{ReadyReplicas: 2},
		})
	}
	f.renewed.value = now
	f.ready = map[string]error{"controller-1": nil}
	f.versions = map[string]fact[string]{"controller-1": {value: "0.1.0"}, "injector-1": {value: "0.1.0"}}
	f.meshConfig.value = meshConfigWith("Accepted", "True")
	f.members.value = []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}}}}
	f.bundles = map[string]fact[string]{"shop": {value: root(t, 365*24*time.Hour)}}
	old := metav1.NewTime(now.Add(-time.Hour))
	web := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web", UID: "1", CreationTimestamp: old, Annotations: map[string]string{inject.StatusAnnotation: "{}"},
	}}
	web.Spec.NodeName = "node-1"
	web.Spec.InitContainers = []corev1.Container{{Name: driver.InitContainer, Image: "init:0.1.0"}, {Name: driver.ProxyContainer}}
	job := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "job", UID: "2", CreationTimestamp: old}}
	job.Spec.NodeName = "node-1"
	f.pods.value = []corev1.Pod{web, job}
	f.dryRun.value = web.DeepCopy()
	f.proxies.value = []registry.Proxy{{
		Name: mesh.Name{Namespace: "shop", Name: "web"}, UID: "1", Class: "envoy", Version: "envoy 1.40.2", CertificateEnds: now.Add(12 * time.Hour),
		Connected: old.Time, State: registry.Current, Sent: registry.Configuration{Version: "a", Time: old.Time},
	}}
	f.decide.value = func(*corev1.Pod) inject.Result { return inject.Result{Decision: inject.Decision{Outcome: inject.Skip}} }
	f.gateways.value = []unstructured.Unstructured{gatewayWith("shop", "Accepted True", "Programmed True")}
	return f
}

// meshConfigWith returns a MeshConfig with a condition.
func meshConfigWith(condition, status string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"type": condition, "status": status, "reason": "Invalid", "message": "spec.traffic: wrong"},
	}}}}
}

// brokenMesh is a mesh with one thing that is wrong, and the finding about it.
type brokenMesh struct {
	check string
	// what is the part that is wrong, for the name of the test.
	what   string
	change func(t *testing.T, f *Facts)
	want   Finding
}

var broken = []brokenMesh{
	{"kubernetes/version", "too old", func(_ *testing.T, f *Facts) { f.version.value = "v1.29.4" },
		Finding{"", Error, "", "the API server's version is v1.29.4", "upgrade Kubernetes to 1.30"}},
	{"kubernetes/version", "unknown", func(_ *testing.T, f *Facts) { f.version.value = "main" },
		Finding{"", Warning, "", `version "main" cannot be read`, "1.30 or newer"}},
	{"kubernetes/clock", "ahead", func(_ *testing.T, f *Facts) {
		f.skew.value = 3 * time.Minute
		f.renewed.value = f.now.Add(-3 * time.Minute)
	},
		Finding{"", Error, "", "the clock of this machine is 3m0s ahead of the API server's", "NTP"}},
	{"kubernetes/clock", "behind", func(_ *testing.T, f *Facts) {
		f.skew.value = -20 * time.Second
		f.renewed.value = f.now.Add(20 * time.Second)
	},
		Finding{"", Warning, "", "the clock of this machine is 20s behind the API server's", "NTP"}},
	{"kubernetes/clock", "controller", func(_ *testing.T, f *Facts) { f.renewed.value = f.now.Add(time.Minute) },
		Finding{"", Warning, "", "the clock of the controller is 1m0s ahead of the API server's", "NTP"}},
	{"kubernetes/clock", "not sent", func(_ *testing.T, f *Facts) { f.skew.err = errors.New("no Date") },
		Finding{"", Warning, "", "the clocks cannot be compared", "date -u"}},
	{"nodes/kernel", "old", func(_ *testing.T, f *Facts) { f.nodes.value[0].Status.NodeInfo.KernelVersion = "4.18.0-513.el8" },
		Finding{"", Warning, "Node/node-1", "its kernel is 4.18.0-513.el8, older than 5.2", "upgrade this node"}},
	{"nodes/kernel", "Windows", func(_ *testing.T, f *Facts) { f.nodes.value[0].Status.NodeInfo.OperatingSystem = "windows" },
		Finding{"", Warning, "Node/node-1", "it runs windows", "run no pods of the mesh on it"}},
	{"nodes/kernel", "architecture", func(_ *testing.T, f *Facts) { f.nodes.value[0].Status.NodeInfo.Architecture = "s390x" },
		Finding{"", Warning, "Node/node-1", "its architecture is s390x", "run no pods of the mesh on it"}},
	{"nodes/limits", "memory", func(_ *testing.T, f *Facts) {
		f.nodes.value[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue, Message: "full"}}
	},
		Finding{"", Warning, "Node/node-1", "it has MemoryPressure: full", "move pods to other nodes"}},
	{"nodes/limits", "pods", func(_ *testing.T, f *Facts) {
		f.nodes.value[0].Status.Allocatable[corev1.ResourcePods] = resource.MustParse("2")
	},
		Finding{"", Warning, "Node/node-1", "2 pods of the mesh run on it, and it accepts 2 pods", "maxPods"}},
	{"install/rights", "missing", func(_ *testing.T, f *Facts) { f.refused.value = []string{"create namespaces", "create secrets"} },
		Finding{"", Error, "", "you lack the rights: create namespaces, create secrets", "ask an administrator"}},
	{"install/pod-security", "member", func(_ *testing.T, f *Facts) { f.home.value.Labels = map[string]string{metadata.MonitoredBy: "osm"} },
		Finding{"", Error, "Namespace/osm-system", "it belongs to mesh osm", "outrigger namespace remove osm-system"}},
	{"install/other-meshes", "Open Service Mesh", func(_ *testing.T, f *Facts) { f.hooks.value[0].Name = "osm-webhook-osm" },
		Finding{"", Error, "MutatingWebhookConfiguration/osm-webhook-osm", "Open Service Mesh adds sidecars to pods too", "docs/migration.md"}},
	{"install/other-meshes", "Istio", func(_ *testing.T, f *Facts) { f.hooks.value[0].Name = "istio-sidecar-injector" },
		Finding{"", Warning, "MutatingWebhookConfiguration/istio-sidecar-injector", "Istio adds sidecars to pods too", "no namespace belong to both"}},
	{"install/crds", "stored", func(_ *testing.T, f *Facts) {
		f.crds.value[0].Object["status"] = map[string]any{"storedVersions": []any{"v1alpha0"}}
	},
		Finding{"", Error, "CustomResourceDefinition/", "objects are stored in version v1alpha0", "remove v1alpha0 from its status.storedVersions"}},
	{"control-plane/crds", "missing", func(_ *testing.T, f *Facts) { f.crds.value = f.crds.value[1:] },
		Finding{"", Error, "CustomResourceDefinition/", "is not served", "outrigger manifests --crds-only | kubectl apply"}},
	{"control-plane/rbac", "missing", func(_ *testing.T, f *Facts) { f.refused.value = []string{"watch pods"} },
		Finding{"", Error, "ServiceAccount/osm-system/outrigger-controller", "it lacks the rights: watch pods", "outrigger upgrade"}},
	{"control-plane/deployments", "none", func(_ *testing.T, f *Facts) { f.deployments.value = nil },
		Finding{"", Error, "Deployment/osm-system/outrigger-controller", "it does not exist", "outrigger install"}},
	{"control-plane/deployments", "scaled to 0", func(_ *testing.T, f *Facts) { f.deployments.value[1].Spec.Replicas = new(int32(0)) },
		Finding{"", Error, "Deployment/osm-system/outrigger-injector", "it is scaled to 0", "kubectl scale -n osm-system deployment/outrigger-injector --replicas=2"}},
	{"control-plane/deployments", "not ready", func(_ *testing.T, f *Facts) { f.deployments.value[0].Status.ReadyReplicas = 0 },
		Finding{"", Error, "Deployment/osm-system/outrigger-controller", "none of 2 replicas is ready", "kubectl describe pods -n osm-system -l app=outrigger-controller"}},
	{"control-plane/deployments", "some ready", func(_ *testing.T, f *Facts) { f.deployments.value[0].Status.ReadyReplicas = 1 },
		Finding{"", Warning, "Deployment/osm-system/outrigger-controller", "1 of 2 replicas are ready", "kubectl describe pods"}},
	{"control-plane/drivers", "not ready", func(_ *testing.T, f *Facts) { f.ready["controller-1"] = errors.New("driver pipy: not ready") },
		Finding{"", Error, "Pod/osm-system/controller-1", "it is not ready: driver pipy: not ready", "docs/debug.md"}},
	{"control-plane/drivers", "none", func(_ *testing.T, f *Facts) { f.ready = nil },
		Finding{"", Error, "", "no controller is running", "control-plane/deployments"}},
	{"control-plane/versions", "other", func(_ *testing.T, f *Facts) {
		f.versions = map[string]fact[string]{"controller-1": {value: "0.2.0"}}
	},
		Finding{"", Warning, "Pod/osm-system/controller-1", "its version is 0.2.0, but this program's version is 0.1.0", "upgrade the control plane"}},
	{"control-plane/versions", "agents", func(_ *testing.T, f *Facts) { f.pods.value[0].Spec.InitContainers[0].Image = "init:0.0.9" },
		Finding{"", Warning, "", "1 pod has the agent init:0.0.9, for example shop/web, but new pods get init:0.1.0", "kubectl rollout restart"}},
	{"control-plane/mesh-config", "missing", func(_ *testing.T, f *Facts) {
		f.meshConfig.err = apierrors.NewNotFound(schema.GroupResource{Resource: "meshconfigs"}, "osm-mesh-config")
	},
		Finding{"", Error, "MeshConfig/osm-system/osm-mesh-config", "it does not exist", "outrigger upgrade"}},
	{"control-plane/mesh-config", "invalid", func(_ *testing.T, f *Facts) { f.meshConfig.value = meshConfigWith("Accepted", "False") },
		Finding{"", Error, "MeshConfig/osm-system/osm-mesh-config", "Invalid: spec.traffic: wrong", "change the fields"}},
	{"control-plane/mesh-config", "without effect", func(_ *testing.T, f *Facts) { f.meshConfig.value = meshConfigWith("NoEffect", "True") },
		Finding{"", Warning, "MeshConfig/osm-system/osm-mesh-config", "Invalid: spec.traffic: wrong", "change the fields"}},
	{"webhook/ca", "missing", func(_ *testing.T, f *Facts) { f.hooks.value = nil },
		Finding{"", Error, "MutatingWebhookConfiguration/outrigger-injector", "it does not exist, so no pod gets a sidecar", "outrigger upgrade"}},
	{"webhook/ca", "empty", func(_ *testing.T, f *Facts) { f.hooks.value[0].Webhooks[0].ClientConfig.CABundle = nil },
		Finding{"", Error, "MutatingWebhookConfiguration/outrigger-injector", "webhook pods has no caBundle", "the injector's log"}},
	{"webhook/ca", "expired", func(t *testing.T, f *Facts) {
		f.hooks.value[0].Webhooks[0].ClientConfig.CABundle = []byte(root(t, -time.Minute))
	},
		Finding{"", Error, "MutatingWebhookConfiguration/outrigger-injector", "the CA of webhook pods expired at ", "the injector's log"}},
	{"webhook/ca", "expires soon", func(t *testing.T, f *Facts) {
		f.hooks.value[0].Webhooks[0].ClientConfig.CABundle = []byte(root(t, 6*24*time.Hour))
	},
		Finding{"", Warning, "MutatingWebhookConfiguration/outrigger-injector", "the CA of webhook pods expires at ", "the injector's log"}},
	{"webhook/answers", "does not answer", func(_ *testing.T, f *Facts) { f.dryRun.err = errors.New("failed calling webhook: timeout") },
		Finding{"", Error, "Namespace/shop", "no pod can be created: failed calling webhook: timeout", "port 9090 of the injector"}},
	{"webhook/answers", "not called", func(_ *testing.T, f *Facts) { f.dryRun.value = new(corev1.Pod) },
		Finding{"", Error, "Namespace/shop", "a pod that requests a sidecar is created without one", "the selectors of the webhook configuration"}},
	{"webhook/answers", "no right", func(_ *testing.T, f *Facts) {
		f.dryRun.err = apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("exceeded quota"))
	},
		Finding{"", Warning, "Namespace/shop", "is rejected before the webhook is called", "the namespace's quota"}},
	{"webhook/answers", "no namespace", func(_ *testing.T, f *Facts) { f.tried = "" },
		Finding{"", Warning, "", "the webhook is not tested", "outrigger namespace add NAMESPACE"}},
	{"webhook/policies", "none", func(_ *testing.T, f *Facts) { injectBy(f, "both"); f.policies.value = nil },
		Finding{"", Error, "", "there is no admission policy, with which injector.mode: both injects", "the controller's log"}},
	{"webhook/policies", "without a binding", func(_ *testing.T, f *Facts) { injectBy(f, "policy"); f.bindings.value = nil },
		Finding{"", Error, "MutatingAdmissionPolicy/outrigger-injector.envoy.1", "it has no binding", "the controller's log"}},
	{"webhook/policies", "old Kubernetes", func(_ *testing.T, f *Facts) {
		injectBy(f, "policy")
		f.policies.err = apierrors.NewNotFound(schema.GroupResource{Resource: "mutatingadmissionpolicies"}, "")
	},
		Finding{"", Error, "", "the API server has no MutatingAdmissionPolicies", "upgrade Kubernetes to 1.36"}},
	{"webhook/answers", "refused by a policy", func(_ *testing.T, f *Facts) {
		injectBy(f, "policy")
		f.dryRun.err = errors.New("ValidatingAdmissionPolicy 'a' denied request")
	},
		Finding{"", Error, "Namespace/shop", "no pod can be created: ValidatingAdmissionPolicy", "see the check webhook/policies"}},
	{"certificates/kubelet", "not served", func(_ *testing.T, f *Facts) { wantPodCertificates(f, kube.ErrNoPodCertificates) },
		Finding{"", Warning, "MeshConfig/osm-system/osm-mesh-config", "agents request the certificates: the cluster does not serve", "switch the feature gates on"}},
	{"certificates/kubelet", "not published", func(_ *testing.T, f *Facts) {
		wantPodCertificates(f, apierrors.NewNotFound(schema.GroupResource{}, "roots"))
	},
		Finding{"", Error, "ClusterTrustBundle/openservicemesh.io:mesh-osm:roots", "do not start", "the log of the controller"}},
	{"certificates/kubelet", "unknown", func(_ *testing.T, f *Facts) { wantPodCertificates(f, errors.New("no answer")) },
		Finding{"", Error, "", "cannot be read: no answer", "get the right to read it"}},
	{"certificates/trust-bundle", "missing", func(_ *testing.T, f *Facts) {
		f.bundles["shop"] = fact[string]{err: errors.New("not found")}
	},
		Finding{"", Error, "ConfigMap/shop/outrigger-ca", "new pods cannot verify the controller: not found", "the log of the controller that is the leader"}},
	{"certificates/trust-bundle", "not a certificate", func(_ *testing.T, f *Facts) { f.bundles["shop"] = fact[string]{value: "text"} },
		Finding{"", Error, "ConfigMap/shop/outrigger-ca", "its ca.crt cannot be used", "the log of the controller that is the leader"}},
	{"certificates/trust-bundle", "expires soon", func(t *testing.T, f *Facts) { f.bundles["shop"] = fact[string]{value: root(t, 24*time.Hour)} },
		Finding{"", Warning, "ConfigMap/shop/outrigger-ca", "the last root expires at ", "docs/identity.md"}},
	{"certificates/proxies", "expired", func(_ *testing.T, f *Facts) { f.proxies.value[0].CertificateEnds = f.now.Add(-time.Minute) },
		Finding{"", Error, "Pod/shop/web", "its certificate expired at ", "outrigger proxy logs"}},
	{"proxies/connected", "away", func(_ *testing.T, f *Facts) { f.proxies.value = nil },
		Finding{"", Error, "Pod/shop/web", "its sidecar is not connected to a controller", "outrigger proxy logs shop/web"}},
	{"proxies/state", "crashes", func(_ *testing.T, f *Facts) {
		f.proxies.value[0].Failure = &registry.Failure{How: "signal: SIGSEGV"}
	},
		Finding{"", Error, "Pod/shop/web", "the proxy does not stay up: signal: SIGSEGV", "outrigger proxy logs --previous shop/web"}},
	{"proxies/state", "rejects", func(_ *testing.T, f *Facts) {
		f.proxies.value[0].Rejections = []registry.Rejection{{Message: "bad regex", Resources: []string{"Route shop/web"}}}
	},
		Finding{"", Error, "Pod/shop/web", "it rejects Route shop/web: bad regex", "outrigger proxy get shop/web"}},
	{"proxies/state", "behind", func(_ *testing.T, f *Facts) { f.proxies.value[0].State = registry.Waiting },
		Finding{"", Warning, "Pod/shop/web", "it has not acknowledged its configuration since ", "outrigger proxy logs --previous shop/web"}},
	{"proxies/versions", "too old", func(_ *testing.T, f *Facts) { f.proxies.value[0].Version = "envoy 1.37.0" },
		Finding{"", Error, "Pod/shop/web", "this pod runs envoy 1.37.0: envoy 1.37.0 is too old: the oldest supported envoy is 1.37.11, since it has faults", "envoy 1.40.2"}},
	{"proxies/versions", "an image that is too old", func(_ *testing.T, f *Facts) {
		f.proxies.value[0].Version = ""
		f.pods.value[0].Spec.InitContainers[1].Image = "example.com/envoy:v1.36.0"
	},
		Finding{"", Error, "Pod/shop/web", "this pod runs the image example.com/envoy:v1.36.0: ", "openservicemesh.io/sidecar-image"}},
	{"proxies/versions", "not the newest", func(_ *testing.T, f *Facts) {
		f.proxies.value[0].Version = "envoy 1.40.0"
		f.proxies.value = append(f.proxies.value, f.proxies.value[0])
	},
		Finding{"", Warning, "Pod/shop/web", "this pod and 1 more run envoy 1.40.0: 1.40.2 is the newest release", "kubectl rollout restart"}},
	{"proxies/key-exchange", "none that is hybrid", func(_ *testing.T, f *Facts) {
		_ = unstructured.SetNestedStringSlice(f.meshConfig.value.Object, []string{"P-384", "X25519"}, "spec", "sidecar", "ecdhCurves")
	},
		Finding{"", Warning, "MeshConfig/osm-system/osm-mesh-config", "allows only P-384, X25519: ", "add X25519MLKEM768 to spec.sidecar.ecdhCurves"}},
	{"pods/sidecar", "without", func(_ *testing.T, f *Facts) {
		f.decide.value = func(*corev1.Pod) inject.Result {
			return inject.Result{Decision: inject.Decision{Outcome: inject.Inject, Reason: "namespace_annotation_enabled", Message: "shop says so"}}
		}
	},
		Finding{"", Error, "Pod/shop/job", "it should have a sidecar and has none: namespace_annotation_enabled: shop says so", "kubectl rollout restart"}},
	{"pods/security", "refused", func(_ *testing.T, f *Facts) {
		f.decide.value = func(*corev1.Pod) inject.Result {
			return inject.Result{Decision: inject.Decision{Outcome: inject.Skip}, Warnings: []inject.Warning{{Code: "pod_security", Message: "the level baseline refuses NET_ADMIN"}}}
		}
	},
		Finding{"", Error, "Namespace/shop", "the level baseline refuses NET_ADMIN", "kubectl label namespace shop pod-security.kubernetes.io/enforce=privileged"}},
}

// TestChecks breaks one thing of a healthy mesh at a time. The check for it must report the
// severity, the object and a fix, and no other check may report anything.
func TestChecks(t *testing.T) {
	tested := make(map[string]bool)
	for _, test := range slices.Concat(broken, brokenGateways) {
		tested[test.check] = true
		t.Run(test.check+"/"+test.what, func(t *testing.T) {
			f := healthy(t)
			test.change(t, f)
			checks := After()
			if !slices.ContainsFunc(checks, func(c Check) bool { return c.Name == test.check }) {
				checks = Before()
			}
			found := false
			for _, finding := range Run(checks, f) {
				switch {
				case finding.Level == OK:
				case finding.Check != test.check:
					t.Errorf("another check reports it: %+v", finding)
				case finding.Check == test.check:
					found = true
					w := test.want
					if finding.Level != w.Level || !strings.HasPrefix(finding.Object, w.Object) || w.Object == "" && finding.Object != "" ||
						!strings.Contains(finding.Message, w.Message) || !strings.Contains(finding.Fix, w.Fix) {
						t.Errorf("the finding is %+v, want %+v", finding, w)
					}
				}
			}
			if !found {
				t.Errorf("nothing is reported, want %+v", test.want)
			}
		})
	}
	for _, c := range slices.Concat(Before(), After()) {
		if !tested[c.Name] {
			t.Errorf("no test breaks what %s checks", c.Name)
		}
	}
}

// TestHealthy checks that nothing is reported about a mesh in which everything is right.
func TestHealthy(t *testing.T) {
	f := healthy(t)
	for _, checks := range [][]Check{Before(), After()} {
		all := Run(checks, f)
		for _, finding := range all {
			if finding.Level != OK {
				t.Errorf("%+v", finding)
			}
		}
		for _, c := range checks {
			if !slices.ContainsFunc(all, func(f Finding) bool { return f.Check == c.Name }) {
				t.Errorf("%s says nothing", c.Name)
			}
		}
		if Worst(all) != OK {
			t.Errorf("the worst level is %s", Worst(all))
		}
	}
}

// TestKeyExchanges names the key exchange of proxies of several classes and versions.
func TestKeyExchanges(t *testing.T) {
	f := healthy(t)
	f.options.Releases = func(class string) *driver.Releases {
		return map[string]*driver.Releases{
			"envoy": {Hybrid: driver.Hybrid{Since: "1.37.0"}}, "pipy": {Hybrid: driver.Hybrid{Library: "OpenSSL", Since: "3.5.0"}},
		}[class]
	}
	first := f.proxies.value[0]
	first.Version = "envoy 1.40.0"
	f.proxies.value = []registry.Proxy{first, first}
	for _, version := range []string{"1.5.18 OpenSSL 3.2.0", "1.5.17"} {
		other := first
		other.Class, other.Version = "pipy", version
		f.proxies.value = append(f.proxies.value, other)
	}
	const want = "two proxies use the strongest key exchange that both have. an unknown one: 1 of class pipy (1.5.17); X25519MLKEM768: 2 of class envoy (envoy 1.40.0); X25519: 1 of class pipy (1.5.18 OpenSSL 3.2.0)"
	if all := Run([]Check{{"proxies/key-exchange", "", keyExchanges}}, f); len(all) != 1 || all[0].Level != OK || all[0].Message != want {
		t.Errorf("%+v, want %q", all, want)
	}
}

// TestUnreadable checks that a check which could not be made says so, with a fix.
func TestUnreadable(t *testing.T) {
	f, lost := healthy(t), errors.New("forbidden")
	f.version.value, f.versions, f.ready = "", map[string]fact[string]{"controller-1": {err: lost}}, nil
	f.skew.err, f.nodes.err, f.crds.err, f.hooks.err, f.home.err, f.refused.err, f.deployments.err = lost, lost, lost, lost, lost, lost, lost
	f.control.err, f.renewed.err, f.meshConfig.err, f.members.err, f.pods.err, f.proxies.err, f.decide.err, f.dryRun.err, f.gateways.err = lost, lost, lost, lost, lost, lost, lost, lost, lost
	for _, checks := range [][]Check{Before(), After()} {
		for _, c := range checks {
			all := Run([]Check{c}, f)
			if Worst(all) == OK {
				t.Errorf("%s reports %+v", c.Name, all)
			}
			for _, finding := range all {
				if finding.Fix == "" {
					t.Errorf("no fix: %+v", finding)
				}
			}
		}
	}
	// Pods are needed for one half of this check.
	f = healthy(t)
	f.pods.err = lost
	if all := Run([]Check{{"nodes/limits", "", limits}}, f); Worst(all) != Error {
		t.Errorf("without the pods, nodes/limits reports %+v", all)
	}
}

// TestManyFindings checks that a finding about very many objects names the first 20, and the
// number of the others.
func TestManyFindings(t *testing.T) {
	f := healthy(t)
	node := f.nodes.value[0]
	node.Status.NodeInfo.KernelVersion = "4.18.0"
	f.nodes.value = slices.Repeat([]corev1.Node{node}, 1000)
	all := Run([]Check{{"nodes/kernel", "", kernels}}, f)
	if len(all) != 21 || all[19].Object != "Node/node-1" || all[20].Object != "" || all[20].Message != "and 980 more" {
		t.Errorf("%d findings about 1,000 nodes: %+v", len(all), all[len(all)-1])
	}
}

// TestStrict has pods of each inbound TLS mode.
func TestStrict(t *testing.T) {
	pod := func(name string, mode mesh.TLSMode, flows ...traffic.Flow) traffic.Pod {
		return traffic.Pod{
			Name: mesh.Name{Namespace: "shop", Name: name + "-0"}, Owner: workload.Owner{Kind: "deployment", Name: name}, Read: true, InboundTLS: string(mode), Flows: flows,
		}
	}
	received := func(protocol string, n float64, tls string) traffic.Flow {
		return traffic.Flow{Reporter: telemetry.ReporterDestination, Protocol: protocol, Counts: traffic.Counts{TLS: map[string]float64{tls: n}}}
	}
	sent := received(telemetry.HTTP, 9, telemetry.NoTLS)
	sent.Reporter = telemetry.ReporterSource
	unread := pod("slow", mesh.Permissive)
	unread.Read, unread.Problem = false, "no answer"
	keeps := pod("legacy", mesh.Permissive, received(telemetry.HTTP, 5, telemetry.NoTLS))
	keeps.KeepsInboundTLS = true
	keepsUnread := unread
	keepsUnread.KeepsInboundTLS = true
	proxyless := pod("call", mesh.Permissive)
	proxyless.Read, proxyless.Proxyless = false, true
	unreadStrict := pod("strict", mesh.Strict)
	unreadStrict.Read = false
	for name, tt := range map[string]struct {
		pods []traffic.Pod
		err  error
		want []string
	}{
		"ready": {
			pods: []traffic.Pod{
				pod("cart", mesh.Permissive, received(telemetry.HTTP, 5, telemetry.MutualTLS), sent), unreadStrict,
				pod("old", traffic.TLSDisabled, received(telemetry.HTTP, 5, telemetry.NoTLS)),
				keeps, keepsUnread, proxyless,
			},
			want: []string{"ok : all 1 pods", "ok : no plaintext was counted"},
		},
		"plaintext": {
			pods: []traffic.Pod{
				pod("cart", mesh.Permissive, received(telemetry.HTTP, 5, telemetry.NoTLS), received(telemetry.GRPC, 2, telemetry.NoTLS), received(telemetry.TCP, 3, telemetry.NoTLS)),
				pod("db", mesh.Permissive, received(telemetry.TCP, 1, telemetry.NoTLS)),
			},
			want: []string{
				"ok : all 2 pods",
				"error Deployment/shop/cart: it has received 7 requests and 3 TCP connections without mesh TLS",
				"error Deployment/shop/db: it has received 0 requests and 1 TCP connections without mesh TLS",
			},
		},
		"not read":              {pods: []traffic.Pod{unread}, want: []string{"error Pod/shop/slow-0: its proxy was not read: no answer", "ok : no plaintext was counted"}},
		"an older controller":   {pods: []traffic.Pod{pod("cart", "")}, want: []string{"error Pod/shop/cart-0: the controller does not say", "ok : no plaintext was counted"}},
		"no controller answers": {err: errors.New("nobody"), want: []string{"error : the proxies cannot be read", "error : it is not known"}},
	} {
		f := &Facts{traffic: read(&traffic.Report{Pods: tt.pods}, tt.err)}
		all := Run(Strict(), f)
		for i, finding := range all {
			text := string(finding.Level) + " " + finding.Object + ": " + finding.Message
			if i >= len(tt.want) || !strings.HasPrefix(text, tt.want[i]) {
				t.Errorf("%s: finding %d is %q, want those of %q", name, i, text, tt.want)
			}
			if (finding.Fix == "") != (finding.Level == OK) {
				t.Errorf("%s: %q has the fix %q", name, text, finding.Fix)
			}
		}
		if len(all) != len(tt.want) {
			t.Errorf("%s: %d findings, want %q", name, len(all), tt.want)
		}
	}
}
