package podtemplate

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// scheduled is the end of a Job's name that a CronJob has created: the minute since 1970.
var scheduled = regexp.MustCompile(`-[0-9]{8,}$`)

// workload returns the name of the object that a user has created for the pod, so that pods
// that replace each other have the same. A ReplicaSet's pods have its hash as a label, and a
// Deployment's name is that of the ReplicaSet without it.
func workload(pod *corev1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	switch {
	case owner == nil && pod.Name == "":
		return strings.TrimSuffix(pod.GenerateName, "-")
	case owner == nil:
		return pod.Name
	case owner.Kind == "ReplicaSet" && pod.Labels["pod-template-hash"] != "":
		return strings.TrimSuffix(owner.Name, "-"+pod.Labels["pod-template-hash"])
	case owner.Kind == "Job":
		return scheduled.ReplaceAllString(owner.Name, "")
	}
	return owner.Name
}
