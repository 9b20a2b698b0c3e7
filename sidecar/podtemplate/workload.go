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
// Deployment's name is that of the ReplicaSet without it. For
// a pod that names no owner, kind and owner are those of the object from whose template it will
// be created; they are empty if there is none.
func workload(pod *corev1.Pod, kind, owner string) string {
	if of := metav1.GetControllerOf(pod); of != nil {
		kind, owner = of.Kind, of.Name
	}
	switch {
	case owner == "" && pod.Name == "":
		return strings.TrimSuffix(pod.GenerateName, "-")
	case owner == "":
		return pod.Name
	case kind == "ReplicaSet" && pod.Labels["pod-template-hash"] != "":
		return strings.TrimSuffix(owner, "-"+pod.Labels["pod-template-hash"])
	case kind == "Job":
		return scheduled.ReplaceAllString(owner, "")
	}
	return owner
}
