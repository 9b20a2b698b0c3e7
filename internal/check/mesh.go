package check

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/policy"
	"github.com/outrigger-mesh/outrigger/internal/page"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

// gatherMesh reads the Facts of an installed mesh.
func (f *Facts) gatherMesh(ctx context.Context, client kubernetes.Interface, objects dynamic.Interface, namespaces []corev1.Namespace) {
	home := f.options.Namespace
	f.refused = accountRights(ctx, client, home)
	f.deployments = read(page.All[appsv1.Deployment](ctx, client.AppsV1().Deployments(home).List, metav1.ListOptions{LabelSelector: ours}))
	if f.injection() != policy.ModeWebhook {
		options := metav1.ListOptions{LabelSelector: policy.MeshLabel + "=" + f.options.Mesh}
		f.policies = read(page.All[admissionv1.MutatingAdmissionPolicy](ctx, client.AdmissionregistrationV1().MutatingAdmissionPolicies().List, options))
		f.bindings = read(page.All[admissionv1.MutatingAdmissionPolicyBinding](ctx, client.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().List, options))
	}
	f.control = read(page.All[corev1.Pod](ctx, client.CoreV1().Pods(home).List, metav1.ListOptions{LabelSelector: ours, FieldSelector: "status.phase=Running"}))
	lease, err := client.CoordinationV1().Leases(home).Get(ctx, "outrigger-controller", metav1.GetOptions{})
	if err == nil && lease.Spec.RenewTime == nil {
		err = errors.New("it was never renewed")
	}
	if f.renewed.err = err; err == nil {
		f.renewed.value = lease.Spec.RenewTime.Time
	}
	f.meshConfig = read(objects.Resource(schema.GroupVersionResource{Group: "config.openservicemesh.io", Version: "v1alpha2", Resource: "meshconfigs"}).
		Namespace(home).Get(ctx, f.options.MeshConfig, metav1.GetOptions{}))
	if f.wantsPodCertificates() {
		f.kubeletBundle = read(clusterTrustBundle(ctx, client, objects, f.options.Mesh))
	}
	f.ready, f.versions = make(map[string]error), make(map[string]fact[string])
	for _, pod := range f.control.value {
		answer, err := f.options.Ask(ctx, pod, "/version")
		var answered struct{ Version string }
		if err == nil {
			err = json.Unmarshal(answer, &answered)
		}
		f.versions[pod.Name] = read(answered.Version, err)
		if pod.Labels["app"] == controllerName {
			_, f.ready[pod.Name] = f.options.Ask(ctx, pod, "/health/ready")
		}
	}
	f.gatherMembers(ctx, client, namespaces)
	f.gatherGateways(ctx, objects)
	f.proxies = read(f.options.Proxies(ctx))
	known := make(map[string]*inject.Namespace)
	for i := range namespaces {
		ns := &namespaces[i]
		known[ns.Name] = inject.NamespaceOf(ns)
	}
	f.decide = read(f.options.Decide(ctx, known))
	f.try(ctx, client)
}

// injection says what injects pods, by the controller's command line.
func (f *Facts) injection() policy.Mode {
	for i := range f.deployments.value {
		if d := &f.deployments.value[i]; d.Labels["app"] == controllerName {
			for _, c := range d.Spec.Template.Spec.Containers {
				for _, arg := range c.Args {
					if mode, ok := strings.CutPrefix(arg, "--injection-policies="); ok {
						return policy.Mode(mode)
					}
				}
			}
		}
	}
	return policy.ModeWebhook
}

// wantsPodCertificates reports whether the MeshConfig lets kubelets request certificates.
func (f *Facts) wantsPodCertificates() bool {
	if f.meshConfig.err != nil {
		return false
	}
	wants, _, _ := unstructured.NestedBool(f.meshConfig.value.Object, "spec", "certificate", "podCertificates")
	return wants
}

// clusterTrustBundle returns the mesh's ClusterTrustBundle. The error wraps
// kube.ErrNoPodCertificates if the cluster has none.
func clusterTrustBundle(ctx context.Context, client kubernetes.Interface, objects dynamic.Interface, mesh string) (*unstructured.Unstructured, error) {
	version, err := kube.PodCertificates(ctx, client.Discovery())
	if err != nil {
		return nil, err
	}
	of := schema.GroupVersionResource{Group: "certificates.k8s.io", Version: version, Resource: "clustertrustbundles"}
	return objects.Resource(of).Get(ctx, inject.TrustBundleName(mesh), metav1.GetOptions{})
}

// ours is the label selector of the control plane.
const (
	ours           = "app.kubernetes.io/name=outrigger"
	controllerName = "outrigger-controller"
)

func (f *Facts) gatherMembers(ctx context.Context, client kubernetes.Interface, namespaces []corev1.Namespace) {
	f.bundles = make(map[string]fact[string])
	for _, ns := range namespaces {
		if _, ignored := ns.Labels[metadata.Ignore]; ignored || ns.Labels[metadata.MonitoredBy] != f.options.Mesh || ns.DeletionTimestamp != nil {
			continue
		}
		f.members.value = append(f.members.value, ns)
		pods, err := page.All[corev1.Pod](ctx, client.CoreV1().Pods(ns.Name).List, metav1.ListOptions{})
		f.pods.err = errors.Join(f.pods.err, err)
		f.pods.value = append(f.pods.value, slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !live(&p) })...)
		bundle, err := client.CoreV1().ConfigMaps(ns.Name).Get(ctx, "outrigger-ca", metav1.GetOptions{})
		text := ""
		if err == nil {
			text = bundle.Data["ca.crt"]
		}
		f.bundles[ns.Name] = read(text, err)
	}
}

// try creates a pod as a dry run, to see whether the webhook adds a sidecar. It uses a
// namespace whose Pod Security level admits the pod.
func (f *Facts) try(ctx context.Context, client kubernetes.Interface) {
	for _, ns := range f.members.value {
		level := ns.Labels["pod-security.kubernetes.io/enforce"]
		if level != "" && level != "privileged" {
			continue
		}
		f.tried = ns.Name
		ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				GenerateName: "outrigger-check-", Namespace: ns.Name,
				Labels:      map[string]string{metadata.Revision: f.options.Revision},
				Annotations: map[string]string{metadata.Injection: "enabled"},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "check", Image: "outrigger.dev/check"}}},
		}
		f.dryRun = read(client.CoreV1().Pods(ns.Name).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))
		return
	}
}

func sorted[T any](set map[string]T) []string { return slices.Sorted(maps.Keys(set)) }
