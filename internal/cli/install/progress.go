package install

import (
	"cmp"
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// progress is the progress of a Deployment.
type progress struct {
	name      string
	ready     bool
	got, want int32
	// why says why one of its pods is not ready, "" if unknown.
	why string
}

// String returns the progress as one line.
func (p progress) String() string {
	if p.ready {
		return fmt.Sprintf("Deployment %s: ready", p.name)
	}
	line := fmt.Sprintf("Deployment %s: %d of %d pods are ready", p.name, p.got, p.want)
	if p.why != "" {
		line += "; " + p.why
	}
	return line
}

// watch prints changes of the progress until ctx ends.
func (a *application) watch(ctx context.Context) {
	printed := make(map[string]string)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		for _, p := range a.progress(ctx) {
			if line := p.String(); line != printed[p.name] && ctx.Err() == nil {
				printed[p.name] = line
				a.say("%s", line)
			}
		}
	}
}

// progress returns the progress of the release's Deployments. It leaves out those that cannot
// be read, since Helm's wait reports permanent errors.
func (a *application) progress(ctx context.Context) []progress {
	var all []progress
	for _, obj := range a.deployments() {
		deployment, err := a.kube.AppsV1().Deployments(a.namespace).Get(ctx, obj, metav1.GetOptions{})
		if err != nil {
			continue
		}
		p := progress{name: obj, got: deployment.Status.UpdatedReplicas, want: 1}
		if deployment.Spec.Replicas != nil {
			p.want = *deployment.Spec.Replicas
		}
		p.got = min(p.got, deployment.Status.ReadyReplicas)
		p.ready = deployment.Status.ObservedGeneration >= deployment.Generation && p.got >= p.want &&
			deployment.Status.Replicas == deployment.Status.UpdatedReplicas
		if !p.ready {
			p.why = a.obstacle(ctx, deployment)
		}
		all = append(all, p)
	}
	return all
}

// deployments returns the names of the Deployments.
func (a *application) deployments() []string {
	var names []string
	for _, obj := range a.objects {
		if obj.GetKind() == "Deployment" {
			names = append(names, obj.GetName())
		}
	}
	return names
}

// obstacle returns why the newest unready pod is not ready or, without such a pod, why the
// Deployment cannot create pods. It returns "" if the reason is unknown.
func (a *application) obstacle(ctx context.Context, deployment *appsv1.Deployment) string {
	pods, err := a.kube.CoreV1().Pods(a.namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(deployment.Spec.Selector)})
	if err != nil {
		return ""
	}
	var newest *corev1.Pod
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.DeletionTimestamp == nil && !isReady(pod) && (newest == nil || newest.CreationTimestamp.Before(&pod.CreationTimestamp)) {
			newest = pod
		}
	}
	if newest != nil {
		if why := podObstacle(newest); why != "" {
			return "pod " + newest.Name + ": " + why
		}
		return ""
	}
	for _, c := range deployment.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podObstacle returns the kubelet's or the scheduler's reason why a pod is not ready, or "" while
// it starts normally.
func podObstacle(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if ended := c.LastTerminationState.Terminated; ended != nil && !c.Ready {
			return fmt.Sprintf("container %s ended with exit code %d (%s), %d times: %s; see 'kubectl logs -n %s %s --previous'",
				c.Name, ended.ExitCode, ended.Reason, c.RestartCount, cmp.Or(ended.Message, "it left no message"), pod.Namespace, pod.Name)
		}
		if waiting := c.State.Waiting; waiting != nil && waiting.Message != "" {
			return fmt.Sprintf("%s: %s", waiting.Reason, waiting.Message)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return fmt.Sprintf("%s: %s", c.Reason, c.Message)
		}
	}
	return ""
}
