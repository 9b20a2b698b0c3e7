package kube

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const (
	// ourPrefix is the prefix of our annotations.
	ourPrefix = "openservicemesh.io/"
	// statusAnnotation is written by the injector: the pod's class and all changes to it.
	statusAnnotation = ourPrefix + "sidecar-status"
)

// reportedReady stands for the conditions and readiness gates of all pods that were
// reported as ready. It is shared, since nobody changes cached objects.
var reportedReady = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}

// isController is shared by the owners of all pods.
var isController = true

// Trim is the transform function of a Source's cache. Of frequent kinds it keeps only the
// parts that facts depend on, and of others everything except what only kubectl and the
// API server use. Cached objects must therefore not be written back, except for their
// status. Trim never fails.
func Trim(obj any) (any, error) {
	// An informer may pass an object that is already in its cache and read by others,
	// so objects must not be changed in place.
	switch obj := obj.(type) {
	case *corev1.Pod:
		return trimPod(obj), nil
	case *corev1.Service:
		return &corev1.Service{
			ObjectMeta: trimMeta(&obj.ObjectMeta, nil, corev1.AnnotationTopologyMode, corev1.DeprecatedAnnotationTopologyAwareHints),
			Spec:       obj.Spec,
			Status:     corev1.ServiceStatus{LoadBalancer: obj.Status.LoadBalancer},
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

// trimPod keeps what a Workload depends on, and whether the pod was injected, for the
// audit.
func trimPod(pod *corev1.Pod) *corev1.Pod {
	trimmed := &corev1.Pod{
		ObjectMeta: trimMeta(&pod.ObjectMeta, nil),
		Spec: corev1.PodSpec{
			ServiceAccountName:       pod.Spec.ServiceAccountName,
			DeprecatedServiceAccount: pod.Spec.DeprecatedServiceAccount,
			HostNetwork:              pod.Spec.HostNetwork,
			Containers:               trimContainers(pod.Spec.Containers),
			InitContainers:           trimContainers(pod.Spec.InitContainers),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs},
	}
	// Policies select pods by any label.
	trimmed.Labels = pod.Labels
	if owner := source.OwnerOf(pod); owner.Name != "" {
		trimmed.OwnerReferences = []metav1.OwnerReference{{Kind: owner.Kind, Name: owner.Name, Controller: &isController}}
	}
	if source.ReportedReady(pod) {
		trimmed.Status.Conditions = reportedReady
	}
	if status, ok := trimmed.Annotations[statusAnnotation]; ok {
		trimmed.Annotations[statusAnnotation] = trimStatus(status)
	}
	return trimmed
}

// trimContainers drops irrelevant containers at the end, so that the indexes of others
// stay the same.
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

// redirectionOf keeps the redirection variable of the mesh's own init container, unless
// it redirects everything.
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

// trimStatus keeps what identifies the sidecar. Values that it can't parse are kept.
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

// trimMeta keeps the identifying fields, the given labels and annotations, and all our
// annotations.
func trimMeta(meta *metav1.ObjectMeta, labels []string, annotations ...string) metav1.ObjectMeta {
	trimmed := metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID,
		ResourceVersion: meta.ResourceVersion, CreationTimestamp: meta.CreationTimestamp,
	}
	for _, key := range labels {
		if value, ok := meta.Labels[key]; ok {
			set(&trimmed.Labels, key, value)
		}
	}
	for _, key := range annotations {
		if value, ok := meta.Annotations[key]; ok {
			set(&trimmed.Annotations, key, value)
		}
	}
	for key, value := range meta.Annotations {
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
