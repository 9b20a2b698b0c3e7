package kube

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const (
	// ourPrefix begins the names of our annotations.
	ourPrefix = "openservicemesh.io/"
	// statusAnnotation is what injection writes on a pod: its class, and all that it
	// did.
	statusAnnotation = ourPrefix + "sidecar-status"
)

// Trim is the transform of a Source's cache. Of the objects that there are many of it
// leaves what facts are made of, and of others all but what only kubectl and the API
// server look at. So objects of the cache must not be written back, but for their
// status: a pod in it has no volumes. Trim never fails.
func Trim(obj any) (any, error) {
	// An informer may hand us an object that is in its cache already, which others
	// read, so what is there is not written to.
	switch obj := obj.(type) {
	case *corev1.Pod:
		return trimPod(obj), nil
	case *corev1.Service:
		return &corev1.Service{
			ObjectMeta: trimMeta(&obj.ObjectMeta, nil, corev1.AnnotationTopologyMode, corev1.DeprecatedAnnotationTopologyAwareHints),
			Spec:       obj.Spec,
		}, nil
	case *discoveryv1.EndpointSlice:
		return trimEndpointSlice(obj), nil
	}
	if accessor, err := meta.Accessor(obj); err == nil {
		if accessor.GetManagedFields() != nil {
			accessor.SetManagedFields(nil)
		}
		if annotations := accessor.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
			delete(annotations, corev1.LastAppliedConfigAnnotation)
		}
	}
	return obj, nil
}

// trimPod leaves what a Workload is made of, and whether the pod was injected, which
// the audit asks.
func trimPod(pod *corev1.Pod) *corev1.Pod {
	trimmed := &corev1.Pod{
		ObjectMeta: trimMeta(&pod.ObjectMeta, []string{corev1.LabelTopologyZone}),
		Spec: corev1.PodSpec{
			ServiceAccountName:       pod.Spec.ServiceAccountName,
			DeprecatedServiceAccount: pod.Spec.DeprecatedServiceAccount,
			HostNetwork:              pod.Spec.HostNetwork,
			Containers:               trimContainers(pod.Spec.Containers),
			InitContainers:           trimContainers(pod.Spec.InitContainers),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs},
	}
	if status, ok := trimmed.Annotations[statusAnnotation]; ok {
		trimmed.Annotations[statusAnnotation] = trimStatus(status)
	}
	return trimmed
}

// trimContainers leaves out those behind the last one that says anything, so that the
// others keep their places.
func trimContainers(containers []corev1.Container) []corev1.Container {
	trimmed, last := make([]corev1.Container, len(containers)), 0
	for i := range containers {
		c := &containers[i]
		trimmed[i] = corev1.Container{Name: c.Name, Ports: c.Ports, RestartPolicy: c.RestartPolicy, Env: redirectionOf(c)}
		if len(trimmed[i].Ports)+len(trimmed[i].Env) > 0 {
			last = i + 1
		}
	}
	return slices.Clone(trimmed[:last])
}

// redirectionOf leaves of the variables of the mesh's own init container the one that
// says what is redirected, where that is not everything.
func redirectionOf(c *corev1.Container) []corev1.EnvVar {
	if c.Name != driver.InitContainer {
		return nil
	}
	for _, variable := range c.Env {
		if variable.Name == agentspec.EnvRedirection && variable.Value != "{}" {
			return []corev1.EnvVar{{Name: variable.Name, Value: variable.Value}}
		}
	}
	return nil
}

// trimStatus leaves what says which sidecar a pod has. What it cannot read stays.
func trimStatus(status string) string {
	var short struct {
		Version  int    `json:"version"`
		Revision string `json:"revision"`
		Class    string `json:"class,omitempty"`
	}
	if json.Unmarshal([]byte(status), &short) != nil {
		return status
	}
	trimmed, err := json.Marshal(short)
	if err != nil {
		return status
	}
	return string(trimmed)
}

func trimEndpointSlice(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	trimmed := &discoveryv1.EndpointSlice{
		ObjectMeta:  trimMeta(&slice.ObjectMeta, []string{discoveryv1.LabelServiceName}),
		AddressType: slice.AddressType,
		Ports:       slice.Ports,
		Endpoints:   make([]discoveryv1.Endpoint, 0, len(slice.Endpoints)),
	}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		endpoint := discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, Hostname: e.Hostname, Zone: e.Zone}
		if ref := e.TargetRef; ref != nil {
			endpoint.TargetRef = &corev1.ObjectReference{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name}
		}
		trimmed.Endpoints = append(trimmed.Endpoints, endpoint)
	}
	return trimmed
}

// trimMeta leaves what tells objects apart, and those labels and annotations, with
// all annotations of ours.
func trimMeta(from *metav1.ObjectMeta, labels []string, annotations ...string) metav1.ObjectMeta {
	trimmed := metav1.ObjectMeta{
		Namespace: from.Namespace, Name: from.Name, UID: from.UID,
		ResourceVersion: from.ResourceVersion, CreationTimestamp: from.CreationTimestamp,
	}
	for _, key := range labels {
		if value, ok := from.Labels[key]; ok {
			set(&trimmed.Labels, key, value)
		}
	}
	for _, key := range annotations {
		if value, ok := from.Annotations[key]; ok {
			set(&trimmed.Annotations, key, value)
		}
	}
	for key, value := range from.Annotations {
		if strings.HasPrefix(key, ourPrefix) {
			set(&trimmed.Annotations, key, value)
		}
	}
	return trimmed
}

func set(m *map[string]string, key, value string) {
	if *m == nil {
		*m = make(map[string]string)
	}
	(*m)[key] = value
}
