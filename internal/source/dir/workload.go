package dir

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

const (
	// maxReplicas limits the pods made for one workload; more would add no information.
	maxReplicas = 100
	// maxPods limits all pods that are made.
	maxPods = 50_000
)

// workload is an object whose controller creates pods.
type workload struct {
	ref      mesh.ObjectRef
	where    string
	owners   []metav1.OwnerReference
	selector *metav1.LabelSelector
	template *corev1.PodTemplateSpec
	replicas int
	// labels returns the labels that the controller adds to the pod with that name and
	// number.
	labels func(pod string, number int) map[string]string
	// subdomain is the service that gives the pods their own DNS names.
	subdomain string
	// first is the number of the first pod.
	first int
}

// newWorkload returns the workload for an object, if it is one.
func newWorkload(o object) (workload, bool) {
	w := workload{ref: o.ref, where: o.where, owners: o.GetOwnerReferences(), replicas: 1}
	replicas := func(n *int32) {
		if n != nil {
			w.replicas = int(max(*n, 0))
		}
	}
	switch obj := o.Object.(type) {
	case *appsv1.Deployment:
		w.selector, w.template = obj.Spec.Selector, &obj.Spec.Template
		replicas(obj.Spec.Replicas)
	case *appsv1.ReplicaSet:
		w.selector, w.template = obj.Spec.Selector, &obj.Spec.Template
		replicas(obj.Spec.Replicas)
	case *appsv1.StatefulSet:
		w.selector, w.template, w.subdomain = obj.Spec.Selector, &obj.Spec.Template, obj.Spec.ServiceName
		replicas(obj.Spec.Replicas)
		if obj.Spec.Ordinals != nil {
			w.first = int(max(obj.Spec.Ordinals.Start, 0))
		}
		w.labels = func(pod string, number int) map[string]string {
			return map[string]string{appsv1.StatefulSetPodNameLabel: pod, appsv1.PodIndexLabel: strconv.Itoa(number)}
		}
	case *appsv1.DaemonSet:
		// One node is enough to show what the pods may do.
		w.selector, w.template = obj.Spec.Selector, &obj.Spec.Template
	case *batchv1.Job:
		w.selector, w.template = obj.Spec.Selector, &obj.Spec.Template
		replicas(obj.Spec.Parallelism)
		if isSuspended(obj.Spec.Suspend) || hasEnded(obj) {
			w.replicas = 0
		}
		w.ofJob(o.GetName())
	case *batchv1.CronJob:
		w.template = &obj.Spec.JobTemplate.Spec.Template
		replicas(obj.Spec.JobTemplate.Spec.Parallelism)
		if isSuspended(obj.Spec.Suspend) {
			w.replicas = 0
		}
	default:
		return workload{}, false
	}
	return w, true
}

// ofJob adds the label of a Job's pods.
func (w *workload) ofJob(name string) {
	own := map[string]string{batchv1.JobNameLabel: name}
	if w.selector == nil {
		w.selector = &metav1.LabelSelector{MatchLabels: own}
	}
	w.labels = func(string, int) map[string]string { return own }
}

func isSuspended(suspend *bool) bool { return suspend != nil && *suspend }

func hasEnded(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
	})
}

// addPods makes pods for workloads that have none.
func (c *cluster) addPods() {
	slices.SortFunc(c.workloads, func(a, b workload) int { return compareRefs(a.ref, b.ref) })
	known := make(map[string]bool, len(c.workloads))
	owned := make(map[string]bool)
	for i := range c.workloads {
		ref := c.workloads[i].ref
		known[ownerKey(ref.Namespace, ref.Kind, ref.Name)] = true
	}
	index := newPodIndex(c.pods)
	for _, pod := range c.pods {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			owned[ownerKey(pod.Namespace, owner.Kind, owner.Name)] = true
		}
	}
	for i := range c.workloads {
		w := &c.workloads[i]
		if owner := w.controller(); owner != nil && owned[ownerKey(w.ref.Namespace, w.ref.Kind, w.ref.Name)] {
			owned[ownerKey(w.ref.Namespace, owner.Kind, owner.Name)] = true
		}
	}
	made := 0
	for i := range c.workloads {
		w := &c.workloads[i]
		ref := w.ref
		// The owner's pods include those of workloads that it controls.
		if owner := w.controller(); owner != nil && known[ownerKey(ref.Namespace, owner.Kind, owner.Name)] {
			continue
		}
		if owned[ownerKey(ref.Namespace, ref.Kind, ref.Name)] || len(index.matching(ref.Namespace, w.selector)) > 0 {
			continue
		}
		number := w.replicas
		if number > maxReplicas {
			c.add(ref, ReasonTooMany, "%s: only %d of its %d pods are made, the maximum for one object", w.where, maxReplicas, number)
			number = maxReplicas
		}
		if made+number > maxPods {
			c.add(ref, ReasonTooMany, "%s: its pods are not made, because there are already %d; read fewer manifests", w.where, made)
			continue
		}
		made += number
		c.makePods(w, number)
	}
}

// controller returns the owner that controls the workload, or nil.
func (w *workload) controller() *metav1.OwnerReference {
	return metav1.GetControllerOfNoCopy(&metav1.ObjectMeta{OwnerReferences: w.owners})
}

func ownerKey(namespace, kind, name string) string { return namespace + "|" + kind + "|" + name }

// makePods makes the pods of a workload. If a name is taken, all names get the kind as an
// infix.
func (c *cluster) makePods(w *workload, number int) {
	prefix := w.ref.Name + "-"
	name := func(i int) types.NamespacedName {
		return types.NamespacedName{Namespace: w.ref.Namespace, Name: prefix + strconv.Itoa(w.first+i)}
	}
	taken := func() bool {
		for i := range number {
			if c.pods[name(i)] != nil {
				return true
			}
		}
		return false
	}
	if taken() {
		prefix += strings.ToLower(w.ref.Kind) + "-"
	}
	if taken() {
		c.add(w.ref, source.ReasonDuplicate, "%s: its pods are not made, because other pods have the same names, such as %s", w.where, name(0).Name)
		return
	}
	template := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.ref.Namespace, Labels: w.template.Labels, Annotations: w.template.Annotations,
		OwnerReferences: []metav1.OwnerReference{{Kind: w.ref.Kind, Name: w.ref.Name, Controller: new(true)}},
	}, Spec: w.template.Spec}
	template.Name = name(0).Name
	sidecar := c.futureSidecar(template)
	for i := range number {
		pod := *template
		pod.Name = name(i).Name
		pod.UID = uid("Pod", name(i))
		if w.labels != nil {
			pod.Labels = maps.Clone(w.template.Labels)
			if pod.Labels == nil {
				pod.Labels = make(map[string]string)
			}
			maps.Copy(pod.Labels, w.labels(pod.Name, w.first+i))
		}
		if w.subdomain != "" {
			pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, w.subdomain
		}
		c.pods[name(i)] = &pod
		c.sidecars[name(i)] = sidecar
	}
}

// addUIDs adds UIDs to pods of the manifests that have none, and determines the sidecars
// that they would get.
func (c *cluster) addUIDs() {
	for _, name := range byName(c.pods) {
		if pod := c.pods[name]; pod.UID == "" {
			c.sidecars[name] = c.futureSidecar(pod)
			pod.UID = uid("Pod", name)
		}
	}
}

// futureSidecar returns the sidecar that a pod has or would get.
func (c *cluster) futureSidecar(pod *corev1.Pod) Sidecar {
	if class := c.opts.Mapper.SidecarClass(pod); class != "" || c.opts.Sidecar == nil {
		return Sidecar{Class: class, Redirection: source.RedirectionOf(pod)}
	}
	return c.opts.Sidecar(pod, c.namespaces[pod.Namespace])
}

// sidecarClass is the Mapper's option.
func (c *cluster) sidecarClass(pod *corev1.Pod) string {
	if sidecar, ok := c.sidecars[client.ObjectKeyFromObject(pod)]; ok {
		return sidecar.Class
	}
	return c.opts.Mapper.SidecarClass(pod)
}

// redirection is the Mapper's option.
func (c *cluster) redirection(pod *corev1.Pod) agentspec.Redirection {
	if sidecar, ok := c.sidecars[client.ObjectKeyFromObject(pod)]; ok {
		return sidecar.Redirection
	}
	return source.RedirectionOf(pod)
}

// podIndex finds pods by their labels.
type podIndex struct {
	pods map[types.NamespacedName]*corev1.Pod
	// byLabel has the sorted names of the pods with a label, by namespace and label.
	byLabel map[string][]types.NamespacedName
	// inNamespace has the sorted names of all pods of a namespace.
	inNamespace map[string][]types.NamespacedName
}

func newPodIndex(pods map[types.NamespacedName]*corev1.Pod) *podIndex {
	index := &podIndex{pods, make(map[string][]types.NamespacedName), make(map[string][]types.NamespacedName)}
	for _, name := range byName(pods) {
		index.inNamespace[name.Namespace] = append(index.inNamespace[name.Namespace], name)
		for key, value := range pods[name].Labels {
			index.byLabel[labelKey(name.Namespace, key, value)] = append(index.byLabel[labelKey(name.Namespace, key, value)], name)
		}
	}
	return index
}

func labelKey(namespace, key, value string) string { return namespace + "|" + key + "=" + value }

// matching returns the pods that match a selector, sorted by name. An empty or invalid
// selector matches none.
func (index *podIndex) matching(namespace string, wanted *metav1.LabelSelector) []*corev1.Pod {
	selector, err := metav1.LabelSelectorAsSelector(wanted)
	if err != nil || wanted == nil || selector.Empty() {
		return nil
	}
	// Start with the label that the fewest pods have.
	candidates := index.inNamespace[namespace]
	for key, value := range wanted.MatchLabels {
		if with := index.byLabel[labelKey(namespace, key, value)]; len(with) < len(candidates) {
			candidates = with
		}
	}
	var found []*corev1.Pod
	for _, name := range candidates {
		if pod := index.pods[name]; selector.Matches(labels.Set(pod.Labels)) {
			found = append(found, pod)
		}
	}
	return found
}
