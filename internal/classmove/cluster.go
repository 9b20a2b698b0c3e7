package classmove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/page"
)

// restartedAt is the annotation of a template by which 'kubectl rollout restart' has a controller
// replace the pods.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// Cluster is the API server, with the rights of the user.
type Cluster struct {
	Kube kubernetes.Interface
	// MeshConfigs reads and writes MeshConfigs.
	MeshConfigs client.Client
	// MeshName is the name of the mesh, and MeshConfig that of its MeshConfig.
	MeshName   string
	MeshConfig types.NamespacedName
}

// Read reads what a move needs to know. A namespace of the move that does not belong to the mesh is
// an error.
func (c *Cluster) Read(ctx context.Context, move Move) (*Reading, error) {
	r := &Reading{}
	var obj v1alpha2.MeshConfig
	switch err := c.MeshConfigs.Get(ctx, c.MeshConfig, &obj); {
	case err == nil:
		r.MeshConfig = &obj
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("MeshConfig %s: %w", c.MeshConfig, err)
	}
	if err := c.readNamespaces(ctx, move, r); err != nil {
		return nil, err
	}
	for i := range r.Namespaces {
		workloads, others, err := c.readWorkloads(ctx, r.Namespaces[i].Name)
		if err != nil {
			return nil, err
		}
		r.Workloads = append(r.Workloads, workloads...)
		r.Others = append(r.Others, others...)
	}
	slices.SortFunc(r.Workloads, func(a, b *Workload) int { return a.compare(b.Key) })
	return r, nil
}

func (c *Cluster) readNamespaces(ctx context.Context, move Move, r *Reading) error {
	if len(move.Namespaces) == 0 {
		all, err := page.All[corev1.Namespace](ctx, c.Kube.CoreV1().Namespaces().List, metav1.ListOptions{LabelSelector: metadata.MonitoredBy + "=" + c.MeshName})
		if err != nil {
			return fmt.Errorf("listing the namespaces of mesh %s: %w", c.MeshName, err)
		}
		r.Namespaces = slices.DeleteFunc(all, func(ns corev1.Namespace) bool { return !IsMember(&ns, c.MeshName) })
	}
	for _, name := range move.Namespaces {
		ns, err := c.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
		if !IsMember(ns, c.MeshName) {
			return fmt.Errorf("namespace %s is not in mesh %s; 'outrigger namespace list' shows the ones that are", name, c.MeshName)
		}
		r.Namespaces = append(r.Namespaces, *ns)
	}
	slices.SortFunc(r.Namespaces, func(a, b corev1.Namespace) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// readWorkloads reads the workloads of a namespace, with their pods and budgets, and other pods.
func (c *Cluster) readWorkloads(ctx context.Context, namespace string) ([]*Workload, []*corev1.Pod, error) {
	var workloads []*Workload
	var errs []error
	options := metav1.ListOptions{}
	deployments, err := page.All[appsv1.Deployment](ctx, c.Kube.AppsV1().Deployments(namespace).List, options)
	errs = append(errs, err)
	for i := range deployments {
		workloads = append(workloads, ofDeployment(&deployments[i]))
	}
	statefulSets, err := page.All[appsv1.StatefulSet](ctx, c.Kube.AppsV1().StatefulSets(namespace).List, options)
	errs = append(errs, err)
	for i := range statefulSets {
		workloads = append(workloads, ofStatefulSet(&statefulSets[i]))
	}
	daemonSets, err := page.All[appsv1.DaemonSet](ctx, c.Kube.AppsV1().DaemonSets(namespace).List, options)
	errs = append(errs, err)
	for i := range daemonSets {
		workloads = append(workloads, ofDaemonSet(&daemonSets[i]))
	}
	budgets, err := page.All[policyv1.PodDisruptionBudget](ctx, c.Kube.PolicyV1().PodDisruptionBudgets(namespace).List, options)
	errs = append(errs, err)
	// Last, so that no pod is older than its workload's status.
	pods, err := page.All[corev1.Pod](ctx, c.Kube.CoreV1().Pods(namespace).List, options)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, nil, fmt.Errorf("reading the workloads of namespace %s: %w", namespace, err)
	}
	return workloads, assign(workloads, pods, budgets), nil
}

// restart has the controller of a workload replace its pods. Class, if it is not empty, becomes the
// class in its template.
func (c *Cluster) restart(ctx context.Context, key Key, class string, now time.Time) error {
	annotations := map[string]string{restartedAt: now.Format(time.RFC3339Nano)}
	if class != "" {
		annotations[metadata.Class] = class
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": annotations}}}})
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{FieldManager: fieldManager}
	switch key.Kind {
	case kindDeployment:
		_, err = c.Kube.AppsV1().Deployments(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, patch, options)
	case kindStatefulSet:
		_, err = c.Kube.AppsV1().StatefulSets(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, patch, options)
	case kindDaemonSet:
		_, err = c.Kube.AppsV1().DaemonSets(key.Namespace).Patch(ctx, key.Name, types.MergePatchType, patch, options)
	}
	if err != nil {
		return fmt.Errorf("restarting %s: %w", key, err)
	}
	return nil
}

// fieldManager is the name under which the API server records what is changed here.
const fieldManager = "outrigger-class-move"

// setClass sets the class of a namespace, or removes it if it is empty.
func (c *Cluster) setClass(ctx context.Context, namespace, class string) error {
	var value *string
	if class != "" {
		value = &class
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{metadata.Class: value}}})
	if err == nil {
		_, err = c.Kube.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	}
	if err != nil {
		return fmt.Errorf("changing the class of namespace %s: %w", namespace, err)
	}
	return nil
}

// setDefault gives the MeshConfig the class and the images of another one. A conflict is an error:
// somebody else changes it now.
func (c *Cluster) setDefault(ctx context.Context, like *v1alpha2.MeshConfig) error {
	var obj v1alpha2.MeshConfig
	err := c.MeshConfigs.Get(ctx, c.MeshConfig, &obj)
	if err == nil {
		before := obj.DeepCopy()
		spec, wanted := &obj.Spec.Sidecar, &like.Spec.Sidecar
		spec.SidecarClass, spec.SidecarImage, spec.SidecarWindowsImage = wanted.SidecarClass, wanted.SidecarImage, wanted.SidecarWindowsImage
		spec.ProposalWindowsImage, spec.EdgeWindowsImage, spec.EdgeV1alpha1WindowsImage = wanted.ProposalWindowsImage, wanted.EdgeWindowsImage, wanted.EdgeV1alpha1WindowsImage
		spec.SidecarDrivers = wanted.SidecarDrivers
		err = c.MeshConfigs.Patch(ctx, &obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldManager))
	}
	if err != nil {
		return fmt.Errorf("changing the default class in MeshConfig %s: %w", c.MeshConfig, err)
	}
	return nil
}
