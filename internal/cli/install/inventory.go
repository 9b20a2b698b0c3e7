package install

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/page"
	"github.com/outrigger-mesh/outrigger/internal/terminal"
)

const crdKind = "CustomResourceDefinition"

// policyKinds are the kinds of the admission policies that the controller makes, bindings first.
var policyKinds = []schema.GroupVersionKind{
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingAdmissionPolicyBinding"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicyBinding"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingAdmissionPolicy"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"},
}

// ownKinds are the kinds of the chart's objects. A test checks that none is missing.
var ownKinds = []schema.GroupVersionKind{
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"},
	{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"},
	{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"},
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
	{Group: "monitoring.coreos.com", Version: "v1", Kind: "ServiceMonitor"},
	{Group: "monitoring.coreos.com", Version: "v1", Kind: "PodMonitor"},
	{Group: "apps", Version: "v1", Kind: "Deployment"},
	{Group: "apps", Version: "v1", Kind: "DaemonSet"},
	{Version: "v1", Kind: "Service"},
	{Version: "v1", Kind: "ConfigMap"},
	{Version: "v1", Kind: "Secret"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
	{Version: "v1", Kind: "ServiceAccount"},
	{Group: "config.openservicemesh.io", Version: "v1alpha2", Kind: "MeshConfig"},
	{Group: "config.openservicemesh.io", Version: "v1alpha2", Kind: "MeshRootCertificate"},
}

// selector returns the label selector of the mesh's objects.
func (r *removal) selector() string {
	return "app.kubernetes.io/name=outrigger,app.kubernetes.io/instance=" + r.name
}

// list returns the objects of a kind in all namespaces, or none if the kind is not served.
func (t *target) list(ctx context.Context, kind schema.GroupVersionKind, options metav1.ListOptions) ([]unstructured.Unstructured, error) {
	mapping, err := t.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("finding the kind %s: %w", kind.Kind, err)
	}
	found, err := page.All[unstructured.Unstructured](ctx, t.objects.Resource(mapping.Resource).List, options)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing objects of kind %s: %w", kind.Kind, err)
	}
	return found, nil
}

// take finds the objects of the mesh, and decides which to remove.
func (r *removal) take(ctx context.Context) error {
	all, err := r.target.releases()
	if err != nil {
		return err
	}
	of := make(map[string]bool)
	for _, rel := range all {
		if meshOf(rel.Config) != r.name || r.revision != "" && revisionOf(rel.Config) != r.revision {
			continue
		}
		r.releases = append(r.releases, rel)
		for _, obj := range manifestObjects(rel) {
			of[title(obj)] = true
		}
	}
	for _, kind := range slices.Concat(policyKinds, ownKinds) {
		found, err := r.target.list(ctx, kind, metav1.ListOptions{LabelSelector: r.selector()})
		if err != nil {
			return err
		}
		for i := range found {
			obj := &found[i]
			obj.SetGroupVersionKind(kind)
			elsewhere := obj.GetNamespace() != "" && obj.GetNamespace() != r.target.namespace
			gateway := slices.Contains([]string{"Role", "RoleBinding", "Secret"}, kind.Kind)
			if elsewhere && !gateway || r.revision != "" && !r.ofRevision(obj, of) {
				continue
			}
			r.sort(obj)
		}
	}
	if r.revision != "" {
		return nil
	}
	if err := r.takeLeft(ctx); err != nil {
		return err
	}
	return r.takeCRDs(ctx)
}

// ofRevision reports whether an object belongs to the revision to remove.
func (r *removal) ofRevision(obj *unstructured.Unstructured, released map[string]bool) bool {
	name := inject.ObjectName(r.revision)
	return released[title(obj)] || obj.GetName() == name || obj.GetName() == name+"-ca" || strings.HasPrefix(obj.GetName(), name+".")
}

// sort decides in which step an object is removed, or that it is kept.
func (r *removal) sort(obj *unstructured.Unstructured) {
	lasting := obj.GetAnnotations()["helm.sh/resource-policy"] == "keep"
	switch kind := obj.GetKind(); {
	case kind == "MutatingWebhookConfiguration" || slices.Contains(policyKinds, obj.GroupVersionKind()):
		r.webhooks = append(r.webhooks, obj)
	case kind == "Deployment" || kind == "DaemonSet" || kind == "HorizontalPodAutoscaler" || kind == "PodDisruptionBudget":
		r.workloads = append(r.workloads, obj)
	case kind == "MeshConfig" || kind == "MeshRootCertificate" || kind == "Secret" && lasting && !strings.HasPrefix(obj.GetName(), "outrigger-injector"):
		if r.purge {
			r.secrets = append(r.secrets, obj)
			return
		}
		r.kept = append(r.kept, title(obj))
	default:
		r.objects = append(r.objects, obj)
	}
}

// takeLeft finds the objects that the controller created at run time.
func (r *removal) takeLeft(ctx context.Context) error {
	if r.revision != "" {
		return nil
	}
	r.left = nil
	// The controller makes policies again as long as it runs.
	for _, kind := range policyKinds {
		found, err := r.target.list(ctx, kind, metav1.ListOptions{LabelSelector: r.selector()})
		if err != nil {
			return err
		}
		for i := range found {
			obj := &found[i]
			if slices.ContainsFunc(r.webhooks, func(o *unstructured.Unstructured) bool { return o.GetUID() == obj.GetUID() }) {
				continue
			}
			obj.SetGroupVersionKind(kind)
			r.left = append(r.left, obj)
		}
	}
	for _, name := range []string{"outrigger-ca", "outrigger-learned-services"} {
		configMaps, err := r.target.list(ctx, schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, metav1.ListOptions{
			FieldSelector: "metadata.name=" + name,
			LabelSelector: madeByLabel + "=outrigger-controller," + metadata.MonitoredBy + "=" + r.name,
		})
		if err != nil {
			return err
		}
		for i := range configMaps {
			r.left = append(r.left, &configMaps[i])
		}
	}
	lease, err := r.exists(ctx, named("coordination.k8s.io/v1", "Lease", r.target.namespace, "outrigger-controller"))
	if err != nil {
		return err
	}
	if lease != nil {
		r.left = append(r.left, lease)
	}
	return nil
}

// takeCRDs finds the CRDs, and keeps them if another mesh needs them.
func (r *removal) takeCRDs(ctx context.Context) error {
	release, err := chart.Render(ctx, r.target.namespace, nil)
	if err != nil {
		return err
	}
	for _, text := range release.CRDs {
		var crd unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(text), &crd.Object); err != nil {
			return fmt.Errorf("reading a CRD of the chart: %w", err)
		}
		found, err := r.exists(ctx, named("apiextensions.k8s.io/v1", crdKind, "", crd.GetName()))
		if err != nil {
			return err
		}
		if found != nil {
			r.crds = append(r.crds, found)
		}
	}
	if len(r.crds) == 0 {
		return nil
	}
	other, err := r.otherMesh(ctx)
	if err != nil {
		return err
	}
	switch {
	case !r.purge:
		r.kept = append(r.kept, fmt.Sprintf("%d CRDs, and all objects of these kinds", len(r.crds)))
		r.crds = nil
	case other != "":
		r.kept = append(r.kept, fmt.Sprintf("%d CRDs, and all objects of these kinds, because another mesh uses them: %s", len(r.crds), other))
		r.crds = nil
	}
	return nil
}

// otherMesh returns an object of another mesh in the cluster, or "".
func (r *removal) otherMesh(ctx context.Context) (string, error) {
	found, err := r.target.list(ctx, schema.GroupVersionKind{Group: "config.openservicemesh.io", Version: "v1alpha2", Kind: "MeshConfig"}, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for i := range found {
		if found[i].GetNamespace() != r.target.namespace {
			return title(&found[i]), nil
		}
	}
	return "", nil
}

// count returns the number of objects of a CRD's kind.
func (r *removal) count(ctx context.Context, crd *unstructured.Unstructured) (int, error) {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if version["served"] != true {
			continue
		}
		name, _ := version["name"].(string)
		found, err := page.All[unstructured.Unstructured](ctx, r.target.objects.Resource(schema.GroupVersionResource{Group: group, Version: name, Resource: plural}).List, metav1.ListOptions{})
		if err == nil {
			return len(found), nil
		}
		if !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("%s: %w", title(crd), err)
		}
	}
	return 0, nil
}

// listPods prints the consequences for pods with a sidecar.
func (r *removal) listPods(ctx context.Context, stdout io.Writer) error {
	pods, err := page.All[corev1.Pod](ctx, r.kube.CoreV1().Pods("").List, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the pods, to find those that have a sidecar: %w", err)
	}
	namespaces := make(map[string]bool)
	count := 0
	for _, pod := range pods {
		if !inject.Injected(&pod) || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		var status struct{ Revision string }
		_ = json.Unmarshal([]byte(pod.Annotations[inject.StatusAnnotation]), &status)
		if r.revision != "" && status.Revision != r.revision {
			continue
		}
		count++
		namespaces[pod.Namespace] = true
	}
	switch {
	case count == 0:
		terminal.Fprintln(stdout, "No running pod has a sidecar of it.")
		return nil
	case r.revision != "":
		terminal.Fprintf(stdout, "%d pods in %d namespaces have a sidecar that this injector added. They keep it, and the mesh's controller keeps serving it.\n", count, len(namespaces))
		return nil
	}
	terminal.Fprintf(stdout, "%d pods in %d namespaces have a sidecar. The sidecars keep their last configuration: changes of services, endpoints and policies have no effect. When their certificates expire, at most %s after they were issued, these pods can no longer call each other. New pods get no sidecar, and pods with a sidecar reject their requests unless they accept plaintext. To remove the sidecars, restart the pods: kubectl rollout restart deployment -n NAMESPACE\n",
		count, len(namespaces), r.certificateLife(ctx))
	return nil
}

// certificateLife returns the life of certificates in the MeshConfig.
func (r *removal) certificateLife(ctx context.Context) string {
	config, err := r.exists(ctx, named("config.openservicemesh.io/v1alpha2", "MeshConfig", r.target.namespace, meshConfigName))
	if err != nil || config == nil {
		return "24h"
	}
	life, _, _ := unstructured.NestedString(config.Object, "spec", "certificate", "serviceCertValidityDuration")
	return cmp.Or(life, "24h")
}

// unused returns an error if namespaces select the revision, by its name or by one of its tags.
func (r *removal) unused(ctx context.Context) error {
	names := []string{r.revision}
	for _, rel := range r.releases {
		names = append(names, tagsOf(rel.Config)...)
	}
	namespaces, err := page.All[corev1.Namespace](ctx, r.kube.CoreV1().Namespaces().List, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing namespaces: %w", err)
	}
	var using []string
	for _, namespace := range namespaces {
		if slices.Contains(names, namespace.Labels[metadata.Revision]) {
			using = append(using, namespace.Name)
		}
	}
	if len(using) == 0 {
		return nil
	}
	if r.force {
		r.say("namespaces %s use revision %s: their new pods get no sidecar from now on", strings.Join(using, ", "), r.revision)
		return nil
	}
	return usage.Refusalf("namespaces %s use revision %s, or one of its tags, by the label %s: their new pods would get no sidecar. Change their label first, or give --force", strings.Join(using, ", "), r.revision, metadata.Revision)
}

// removeNamespace removes the control plane's namespace if 'outrigger install' has created it
// and it has only the objects that Kubernetes creates in every namespace.
func (r *removal) removeNamespace(ctx context.Context) error {
	namespace, err := r.kube.CoreV1().Namespaces().Get(ctx, r.target.namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading namespace %s: %w", r.target.namespace, err)
	}
	if namespace.Labels[madeByLabel] != madeBy {
		r.say("Namespace %s is kept, because 'outrigger install' did not create it", r.target.namespace)
		return nil
	}
	r.cached.Invalidate()
	lists, err := r.cached.ServerPreferredNamespacedResources()
	if err != nil {
		return fmt.Errorf("reading the kinds of objects that the API server serves: %w", err)
	}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return err
		}
		for _, kind := range list.APIResources {
			if kind.Kind == "Event" || kind.Kind == "PodMetrics" || !slices.Contains(kind.Verbs, "list") || !slices.Contains(kind.Verbs, "delete") {
				continue
			}
			found, err := r.target.objects.Resource(version.WithResource(kind.Name)).Namespace(r.target.namespace).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("looking for %s in namespace %s: %w", kind.Name, r.target.namespace, err)
			}
			for i := range found.Items {
				obj := &found.Items[i]
				if obj.GetName() == "kube-root-ca.crt" || kind.Kind == "ServiceAccount" && obj.GetName() == "default" || obj.GetDeletionTimestamp() != nil {
					continue
				}
				r.say("Namespace %s is kept, because it contains other objects: %s %s", r.target.namespace, kind.Kind, obj.GetName())
				return nil
			}
		}
	}
	background := metav1.DeletePropagationBackground
	if err := r.kube.CoreV1().Namespaces().Delete(ctx, r.target.namespace, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		return fmt.Errorf("deleting namespace %s: %w", r.target.namespace, err)
	}
	if err := r.namespaceGone(ctx); err != nil {
		return err
	}
	r.say("removed Namespace %s", r.target.namespace)
	return nil
}
