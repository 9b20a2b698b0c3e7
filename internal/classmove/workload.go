package classmove

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// The kinds of workloads whose controllers replace pods when the template changes.
const (
	kindDeployment  = "deployment"
	kindStatefulSet = "statefulset"
	kindDaemonSet   = "daemonset"
)

// Workload is an object whose controller replaces its pods.
type Workload struct {
	Key
	// Template is that of its pods. It must not be changed.
	Template *corev1.PodTemplateSpec
	// Rolling reports whether its controller has not finished the last change of the template,
	// and Progress is a text that changes while it goes on.
	Rolling  bool
	Progress string
	// Takes is how many pods a rollout may make unavailable at a time.
	Takes int
	// Manual is the reason why its controller does not replace pods, or "".
	Manual string
	// Pods are those that have not ended.
	Pods []*corev1.Pod
	// Budgets are the disruption budgets of its pods.
	Budgets []Budget
}

// Budget is a PodDisruptionBudget of the workload's namespace.
type Budget struct {
	Name string
	// Allowed is how many more pods may become unavailable now.
	Allowed int
}

// pod returns a pod of the workload as its controller would create it.
func (w *Workload) pod() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: *w.Template.ObjectMeta.DeepCopy(), Spec: *w.Template.Spec.DeepCopy()}
	pod.Namespace, pod.GenerateName = w.Namespace, w.Name+"-"
	return pod
}

// count returns how many pods have sidecars of a class, and how many of these are being deleted.
func (w *Workload) count(class string) (alive, ending int) {
	for _, pod := range w.Pods {
		switch {
		case inject.ClassOf(pod) != class:
		case pod.DeletionTimestamp != nil:
			ending++
		default:
			alive++
		}
	}
	return alive, ending
}

// ended reports whether a pod will not run any more.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// imagesOf returns the images of a pod's sidecar: as it was injected, as the API server has it, as
// the kubelet runs it and, after upgrades, those of the ephemeral containers.
func imagesOf(pod *corev1.Pod) []string {
	images := []string{inject.ImageOf(pod)}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == driver.ProxyContainer {
				images = append(images, list[i].Image)
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if c := &pod.Spec.EphemeralContainers[i]; strings.HasPrefix(c.Name, driver.ProxyContainer+"-") {
			images = append(images, c.Image)
		}
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if list[i].Name == driver.ProxyContainer {
				images = append(images, list[i].Image)
			}
		}
	}
	slices.Sort(images)
	return slices.DeleteFunc(slices.Compact(images), func(image string) bool { return image == "" })
}

func ofDeployment(d *appsv1.Deployment) *Workload {
	replicas := int(orOne(d.Spec.Replicas))
	s := &d.Status
	w := &Workload{
		Key: Key{d.Namespace, kindDeployment, d.Name}, Template: &d.Spec.Template,
		Rolling: s.ObservedGeneration < d.Generation || int(s.UpdatedReplicas) < replicas ||
			s.Replicas > s.UpdatedReplicas || s.AvailableReplicas < s.UpdatedReplicas,
		Progress: fmt.Sprintf("%d of %d pods are new, %d are available", s.UpdatedReplicas, replicas, s.AvailableReplicas),
	}
	switch rolling := d.Spec.Strategy.RollingUpdate; {
	case d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		w.Takes = replicas
	case rolling != nil:
		w.Takes = scaled(rolling.MaxUnavailable, replicas, false)
		if w.Takes == 0 && scaled(rolling.MaxSurge, replicas, true) == 0 {
			w.Takes = 1
		}
	default:
		w.Takes = replicas / 4
	}
	if d.Spec.Paused {
		w.Manual = "its rollouts are paused: kubectl rollout resume"
	}
	return w
}

func ofStatefulSet(set *appsv1.StatefulSet) *Workload {
	replicas := int(orOne(set.Spec.Replicas))
	s := &set.Status
	w := &Workload{
		Key: Key{set.Namespace, kindStatefulSet, set.Name}, Template: &set.Spec.Template, Takes: 1,
		Rolling:  s.ObservedGeneration < set.Generation || int(s.ReadyReplicas) < replicas || s.UpdateRevision != s.CurrentRevision && int(s.UpdatedReplicas) < replicas,
		Progress: fmt.Sprintf("%d of %d pods are new, %d are ready", s.UpdatedReplicas, replicas, s.ReadyReplicas),
	}
	if rolling := set.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
		if rolling.MaxUnavailable != nil {
			w.Takes = max(1, scaled(rolling.MaxUnavailable, replicas, true))
		}
		if rolling.Partition != nil && *rolling.Partition > 0 {
			w.Manual = fmt.Sprintf("spec.updateStrategy.rollingUpdate.partition is %d, so not all pods are replaced", *rolling.Partition)
		}
	}
	if set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		w.Manual = "its update strategy is OnDelete: delete its pods one by one"
	}
	return w
}

func ofDaemonSet(set *appsv1.DaemonSet) *Workload {
	s := &set.Status
	desired := int(s.DesiredNumberScheduled)
	w := &Workload{
		Key: Key{set.Namespace, kindDaemonSet, set.Name}, Template: &set.Spec.Template, Takes: 1,
		Rolling:  s.ObservedGeneration < set.Generation || s.UpdatedNumberScheduled < s.DesiredNumberScheduled || s.NumberAvailable < s.DesiredNumberScheduled,
		Progress: fmt.Sprintf("%d of %d pods are new, %d are available", s.UpdatedNumberScheduled, desired, s.NumberAvailable),
	}
	if rolling := set.Spec.UpdateStrategy.RollingUpdate; rolling != nil && rolling.MaxUnavailable != nil {
		w.Takes = scaled(rolling.MaxUnavailable, desired, true)
		if scaled(rolling.MaxSurge, desired, true) == 0 {
			w.Takes = max(1, w.Takes)
		}
	}
	if set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		w.Manual = "its update strategy is OnDelete: delete its pods one by one"
	}
	return w
}

func orOne(replicas *int32) int32 {
	if replicas == nil {
		return 1
	}
	return *replicas
}

// scaled returns a number or a percentage of the replicas. What can't be read counts as all of
// them.
func scaled(value *intstr.IntOrString, replicas int, up bool) int {
	if value == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(value, replicas, up)
	if err != nil {
		return replicas
	}
	return n
}

// assign gives the pods and budgets of a namespace to its workloads, and returns the pods of
// others.
func assign(workloads []*Workload, pods []corev1.Pod, budgets []policyv1.PodDisruptionBudget) (others []*corev1.Pod) {
	byKey := make(map[Key]*Workload, len(workloads))
	for _, w := range workloads {
		byKey[w.Key] = w
	}
	for i := range pods {
		pod := &pods[i]
		if ended(pod) {
			continue
		}
		owner := source.OwnerOf(pod)
		if w := byKey[Key{pod.Namespace, owner.Kind, owner.Name}]; w != nil {
			w.Pods = append(w.Pods, pod)
		} else {
			others = append(others, pod)
		}
	}
	for i := range budgets {
		b := &budgets[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		for _, w := range workloads {
			if err == nil && w.Namespace == b.Namespace && selector.Matches(labels.Set(w.Template.Labels)) {
				w.Budgets = append(w.Budgets, Budget{b.Name, int(b.Status.DisruptionsAllowed)})
			}
		}
	}
	return others
}
