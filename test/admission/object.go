package main

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// podsOf returns the pods that Kubernetes' controllers would create for a workload.
func podsOf(obj *unstructured.Unstructured) ([]pod, error) {
	from := obj.GetKind() + "/" + obj.GetName()
	path := []string{"spec", "template"}
	switch obj.GetKind() {
	case "Deployment", "Job":
	case "CronJob":
		path = []string{"spec", "jobTemplate", "spec", "template"}
	case "Pod":
		p := &corev1.Pod{}
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, p)
		return []pod{{from: from, created: p}}, err
	default:
		return nil, nil
	}
	template, _, err := unstructured.NestedMap(obj.Object, path...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	replicas, ok, err := unstructured.NestedInt64(obj.Object, "spec", "replicas")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	if !ok {
		replicas = 1
	}
	var pods []pod
	for range replicas {
		p := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, p); err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		p.GenerateName, p.Namespace = obj.GetName()+"-", obj.GetNamespace()
		pods = append(pods, pod{from: from, created: p})
	}
	return pods, nil
}

func containers(p *corev1.Pod) string {
	var names []string
	for _, c := range p.Spec.InitContainers {
		names = append(names, "["+c.Name+"]")
	}
	for _, c := range p.Spec.Containers {
		names = append(names, c.Name)
	}
	return strings.Join(names, " ")
}
