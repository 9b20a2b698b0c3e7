package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/page"
	"github.com/outrigger-mesh/outrigger/internal/source"
)

// podKinds are the kinds that can stand for their pods, by all of kubectl's names.
var podKinds = map[string]string{
	"po": "pod", "pod": "pod", "pods": "pod",
	"deploy": "deployment", "deployment": "deployment", "deployments": "deployment",
	"sts": "statefulset", "statefulset": "statefulset", "statefulsets": "statefulset",
	"ds": "daemonset", "daemonset": "daemonset", "daemonsets": "daemonset",
	"rs": "replicaset", "replicaset": "replicaset", "replicasets": "replicaset",
	"job": "job", "jobs": "job",
	"svc": "service", "service": "service", "services": "service",
}

// podTarget is an argument that names pods: deploy/web, svc/web, pod/web-0, web-0, or
// shop/web-0, which is NAMESPACE/POD as this program prints it.
type podTarget struct{ kind, namespace, name string }

// parseTarget parses an argument. The namespace, which may be empty, applies unless the
// argument has one.
func parseTarget(text, namespace string) (podTarget, error) {
	before, after, found := strings.Cut(text, "/")
	switch kind, ok := podKinds[strings.ToLower(before)]; {
	case strings.Contains(after, "/") || found && (before == "" || after == "") || text == "":
		return podTarget{}, usage.Errorf("%q: name a pod or a workload, as TYPE/NAME, POD or NAMESPACE/POD", text)
	case !found:
		return podTarget{"pod", namespace, text}, nil
	case ok:
		return podTarget{kind, namespace, after}, nil
	case namespace != "" && namespace != before:
		return podTarget{}, usage.Errorf("%q: -n names the namespace %s, and there is no type %q%s", text, namespace, before, suggestion(before, slices.Collect(maps.Keys(podKinds))))
	}
	return podTarget{"pod", before, after}, nil
}

// String returns the target as a user would write it, without its namespace.
func (t podTarget) String() string { return t.kind + "/" + t.name }

// pods returns the target's pods, sorted by name. Those of a workload or Service are the pods
// that its selector matches, as for 'kubectl logs'.
func (t podTarget) pods(ctx context.Context, client kubernetes.Interface) ([]corev1.Pod, error) {
	if t.kind == "pod" {
		pod, err := client.CoreV1().Pods(t.namespace).Get(ctx, t.name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("%s in namespace %s: %w", t, t.namespace, err)
		}
		return []corev1.Pod{*pod}, nil
	}
	selector, err := t.selector(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("%s in namespace %s: %w", t, t.namespace, err)
	}
	if selector.Empty() {
		return nil, fmt.Errorf("%s in namespace %s selects no pods", t, t.namespace)
	}
	pods, err := page.All[corev1.Pod](ctx, client.CoreV1().Pods(t.namespace).List, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("the pods of %s in namespace %s: %w", t, t.namespace, err)
	}
	return pods, nil
}

// selector returns the selector of a target that is not a pod.
func (t podTarget) selector(ctx context.Context, client kubernetes.Interface) (labels.Selector, error) {
	var (
		of  *metav1.LabelSelector
		err error
	)
	get := metav1.GetOptions{}
	switch t.kind {
	case "deployment":
		obj, failed := client.AppsV1().Deployments(t.namespace).Get(ctx, t.name, get)
		of, err = obj.Spec.Selector, failed
	case "statefulset":
		obj, failed := client.AppsV1().StatefulSets(t.namespace).Get(ctx, t.name, get)
		of, err = obj.Spec.Selector, failed
	case "daemonset":
		obj, failed := client.AppsV1().DaemonSets(t.namespace).Get(ctx, t.name, get)
		of, err = obj.Spec.Selector, failed
	case "replicaset":
		obj, failed := client.AppsV1().ReplicaSets(t.namespace).Get(ctx, t.name, get)
		of, err = obj.Spec.Selector, failed
	case "job":
		obj, failed := client.BatchV1().Jobs(t.namespace).Get(ctx, t.name, get)
		of, err = obj.Spec.Selector, failed
	case "service":
		obj, failed := client.CoreV1().Services(t.namespace).Get(ctx, t.name, get)
		return labels.SelectorFromSet(obj.Spec.Selector), failed
	}
	if err != nil || of == nil {
		return labels.Nothing(), err
	}
	return metav1.LabelSelectorAsSelector(of)
}

// chosen returns the first pod with a sidecar that runs or, if none runs, the first pod with a
// sidecar.
func (t podTarget) chosen(pods []corev1.Pod) (*corev1.Pod, error) {
	var best *corev1.Pod
	for i := range pods {
		pod := &pods[i]
		if inject.Injected(pod) && (best == nil || pod.Status.Phase == corev1.PodRunning && best.Status.Phase != corev1.PodRunning) {
			best = pod
		}
	}
	switch {
	case best != nil:
		return best, nil
	case len(pods) == 0:
		return nil, fmt.Errorf("%s in namespace %s has no pods", t, t.namespace)
	}
	return nil, fmt.Errorf("%s in namespace %s has no sidecar; to find out why: outrigger check-inject %s -n %s", t, t.namespace, pods[0].Name, t.namespace)
}

// ended reports whether a pod has ended or is being deleted.
func ended(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// workload returns the object to restart in order to replace a pod, as kubectl names it.
func workload(pod *corev1.Pod) string {
	if owner := source.OwnerOf(pod); owner.Name != "" {
		return owner.Kind + "/" + owner.Name
	}
	return "pod/" + pod.Name
}

// suggestion returns the end of an error message that suggests the most similar name, or "" if
// none is similar.
func suggestion(wrong string, names []string) string {
	best, least := "", 3
	for _, name := range slices.Sorted(slices.Values(names)) {
		if d := distance(strings.ToLower(wrong), strings.ToLower(name)); d < least && d < len(name) {
			best, least = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance returns the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
