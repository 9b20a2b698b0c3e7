package inject

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
)

// hasBudget reports whether the pod as a whole has resources (spec.resources). The API server
// rejects it if its containers request more, or if one of them may use more.
func hasBudget(pod *corev1.Pod) bool {
	r := pod.Spec.Resources
	return r != nil && len(r.Limits)+len(r.Requests) > 0
}

// inBudget reports whether a pod as a whole can have a resource.
func inBudget(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// outsideBudget returns the resources without those that a pod as a whole can have: a container
// without them shares the pod's.
func outsideBudget(r corev1.ResourceRequirements) corev1.ResourceRequirements {
	outside := func(list corev1.ResourceList) corev1.ResourceList {
		var kept corev1.ResourceList
		for name, amount := range list {
			if inBudget(name) {
				continue
			}
			if kept == nil {
				kept = corev1.ResourceList{}
			}
			kept[name] = amount
		}
		return kept
	}
	r.Limits, r.Requests = outside(r.Limits), outside(r.Requests)
	return r
}

// checkBudget rejects amounts of the sidecar that do not fit into the pod's own resources, in
// place of the API server, whose message does not say which setting is meant.
func checkBudget(before, after *corev1.Pod) error {
	if !hasBudget(before) {
		return nil
	}
	for name, budget := range before.Spec.Resources.Requests {
		was, is := requested(before, name), requested(after, name)
		if inBudget(name) && was.Cmp(budget) <= 0 && is.Cmp(budget) > 0 {
			return invalid(fmt.Errorf("the containers request %s of %s with the sidecar and %s without, but spec.resources.requests of the pod has %s; increase that, or remove the annotation %s%s, so that the sidecar shares the pod's",
				is.String(), name, was.String(), budget.String(), metadata.RequestPrefix, name))
		}
	}
	for name, budget := range before.Spec.Resources.Limits {
		for c := range containersOf(after) {
			if limit, ok := c.Resources.Limits[name]; ok && isOurs(c.Name) && limit.Cmp(budget) > 0 {
				return invalid(fmt.Errorf("the limit of %s of container %s, %s, is more than that in spec.resources.limits of the pod, %s; see the annotation %s%s",
					name, c.Name, limit.String(), budget.String(), metadata.LimitPrefix, name))
			}
		}
	}
	return nil
}

// requested returns how much of a resource a pod's containers need at a time: the most of any init
// container with the native sidecars before it, or all others together.
func requested(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	var always, most resource.Quantity
	for c, init := range containersOf(pod) {
		amount := requestOf(c, name)
		if init && !isNative(c) {
			amount.Add(always)
			if amount.Cmp(most) > 0 {
				most = amount
			}
			continue
		}
		always.Add(amount)
	}
	if always.Cmp(most) > 0 {
		return always
	}
	return most
}

// requestOf returns a container's request. Like Kubernetes it takes the limit for a missing one.
func requestOf(c *corev1.Container, name corev1.ResourceName) resource.Quantity {
	if amount, ok := c.Resources.Requests[name]; ok {
		return amount.DeepCopy()
	}
	return c.Resources.Limits[name].DeepCopy()
}

// isGuaranteed reports whether a pod is of Kubernetes' quality of service class Guaranteed.
func isGuaranteed(pod *corev1.Pod) bool {
	equal := func(limits, requests corev1.ResourceList) bool {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit := limits[name]
			request, ok := requests[name]
			if limit.Sign() <= 0 || ok && request.Cmp(limit) != 0 {
				return false
			}
		}
		return true
	}
	if hasBudget(pod) {
		return equal(pod.Spec.Resources.Limits, pod.Spec.Resources.Requests)
	}
	if len(pod.Spec.Containers) == 0 {
		return false
	}
	for c := range containersOf(pod) {
		if !equal(c.Resources.Limits, c.Resources.Requests) {
			return false
		}
	}
	return true
}

// serviceClass warns of a pod that loses the class Guaranteed.
func serviceClass(before, after *corev1.Pod) []Warning {
	if !isGuaranteed(before) || isGuaranteed(after) {
		return nil
	}
	return []Warning{{"not_guaranteed", fmt.Sprintf(
		"the pod loses the quality of service class Guaranteed, since its sidecar has no equal requests and limits of cpu and memory; set them by the annotations %scpu, %smemory and the same of requests",
		metadata.LimitPrefix, metadata.LimitPrefix)}}
}
