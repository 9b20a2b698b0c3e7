package kube_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	split "github.com/outrigger-mesh/outrigger/apis/split/v1alpha4"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// mapper returns a Mapper that reads a pod's class from the injector's annotation.
func mapper() *source.Mapper {
	return source.NewMapper(mapperOptions())
}

func mapperOptions() source.MapperOptions {
	return source.MapperOptions{
		MeshName: "osm",
		Resolver: source.NewResolver(source.ConfigOptions{
			Classes:      []string{"envoy", "pipy"},
			BuiltinImage: func(string, string) string { return "" },
			Env:          func(string) string { return "" },
		}),
		SidecarClass: func(pod *corev1.Pod) string {
			var status struct{ Class string }
			_ = json.Unmarshal([]byte(pod.Annotations["openservicemesh.io/sidecar-status"]), &status)
			return status.Class
		},
	}
}

// fullMeta returns metadata with all fields that need much memory.
func fullMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "shop", Name: name, UID: "u", ResourceVersion: "7", Generation: 3, GenerateName: "g", Finalizers: []string{"f"},
		CreationTimestamp: metav1.Unix(1000, 0),
		Labels:            map[string]string{"app": "cart", corev1.LabelTopologyZone: "z", discoveryv1.LabelServiceName: "cart"},
		Annotations: map[string]string{
			corev1.LastAppliedConfigAnnotation: "{}", "other": "x", corev1.AnnotationTopologyMode: "Auto",
			"openservicemesh.io/sidecar-status":   `{"version":1,"revision":"blue","class":"envoy","templates":["a"],"containers":[{"name":"b"}]}`,
			"openservicemesh.io/inbound-tls-mode": "Permissive",
		},
		OwnerReferences: []metav1.OwnerReference{{Name: "o"}},
		ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
	}
}

func fullPod() *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	container := func(name string, ports ...corev1.ContainerPort) corev1.Container {
		return corev1.Container{Name: name, Image: "i", Env: []corev1.EnvVar{{Name: "E", Value: "v"}}, Ports: ports, LivenessProbe: &corev1.Probe{}}
	}
	native := container("native", corev1.ContainerPort{Name: "native", ContainerPort: 7000})
	native.RestartPolicy = &always
	redirecting := container(driver.InitContainer)
	redirecting.Env = append(redirecting.Env, corev1.EnvVar{Name: agentspec.EnvRedirection, Value: `{"excludeOutboundPorts":[25],"excludeOutboundRanges":["192.0.2.0/24"]}`})
	of := fullMeta("cart")
	of.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = "abc"
	of.OwnerReferences = append(of.OwnerReferences, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cart-abc", UID: "r", Controller: new(true), BlockOwnerDeletion: new(true)})
	return &corev1.Pod{
		ObjectMeta: of,
		Spec: corev1.PodSpec{
			ServiceAccountName: "carts", DeprecatedServiceAccount: "carts", NodeName: "n", ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "gate"}},
			Volumes:        []corev1.Volume{{Name: "v"}},
			InitContainers: []corev1.Container{container("init"), native, container("last"), redirecting, container("other")},
			Containers: []corev1.Container{
				container("first"), container("web", corev1.ContainerPort{Name: "web", ContainerPort: 8080, Protocol: "TCP"}), container("log"),
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "2001:db8::1"}},
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionFalse}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue, Message: "m"},
				{Type: "gate", Status: corev1.ConditionTrue},
			}, ContainerStatuses: []corev1.ContainerStatus{{Name: "web"}},
		},
	}
}

// objects returns one object of each kind with its own rules for trimming, and some others.
func objects() []client.Object {
	host := fullPod()
	host.Spec.HostNetwork = true
	host.Annotations["openservicemesh.io/sidecar-status"] = "not JSON"
	return []client.Object{
		fullPod(), host,
		&corev1.Service{
			ObjectMeta: fullMeta("cart"),
			Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.2", SessionAffinity: corev1.ServiceAffinityClientIP,
				Selector: map[string]string{"app": "cart"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
			Status: corev1.ServiceStatus{Conditions: []metav1.Condition{{Type: "a"}}},
		},
		&discoveryv1.EndpointSlice{
			ObjectMeta: fullMeta("cart-1"), AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(80))}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{"10.0.0.1"}, Hostname: new("cart"), Zone: new("z"), NodeName: new("n"),
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true)},
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "cart", UID: "u"},
				Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}},
			}},
		},
		&corev1.Namespace{ObjectMeta: fullMeta("shop")},
		&split.TrafficSplit{ObjectMeta: fullMeta("cart"), Spec: split.TrafficSplitSpec{Service: "cart", Backends: []split.TrafficSplitBackend{{Service: "cart-v1", Weight: 1}}}},
		&v1alpha2.MeshConfig{ObjectMeta: fullMeta("osm-mesh-config")},
	}
}

// TestTrimKeepsFacts checks that trimming does not change the fact of an object, does not change
// the object itself, and has no effect the second time.
func TestTrimKeepsFacts(t *testing.T) {
	for _, obj := range objects() {
		before := obj.DeepCopyObject()
		want, ok := mapper().Fact(obj)
		if !ok {
			t.Fatalf("%T has no facts", obj)
		}
		trimmed, err := kube.Trim(obj)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := mapper().Fact(trimmed.(runtime.Object))
		if got.Content.Digest() != want.Content.Digest() || !slices.Equal(got.Problems, want.Problems) {
			t.Errorf("%T: the fact of the trimmed object is %+v, want %+v", obj, got, want)
		}
		switch obj.(type) {
		case *corev1.Pod, *corev1.Service, *discoveryv1.EndpointSlice:
			if diff := cmp.Diff(before, runtime.Object(obj)); diff != "" {
				t.Errorf("%T was changed (-before +after):\n%s", obj, diff)
			}
		}
		again, _ := kube.Trim(trimmed)
		if diff := cmp.Diff(trimmed, again); diff != "" {
			t.Errorf("%T trimmed twice (-once +twice):\n%s", obj, diff)
		}
		accessor := trimmed.(metav1.Object)
		if len(accessor.GetManagedFields()) > 0 || accessor.GetAnnotations()[corev1.LastAppliedConfigAnnotation] != "" {
			t.Errorf("%T keeps what only kubectl reads", obj)
		}
		if accessor.GetResourceVersion() != "7" || accessor.GetUID() != "u" {
			t.Errorf("%T lost its version or UID", obj)
		}
	}
}

func TestTrimPod(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	got, err := kube.Trim(fullPod())
	if err != nil {
		t.Fatal(err)
	}
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart", UID: "u", ResourceVersion: "7", CreationTimestamp: metav1.Unix(1000, 0),
			Labels: map[string]string{"app": "cart", "kubernetes.io/service-name": "cart", "pod-template-hash": "abc", corev1.LabelTopologyZone: "z"},
			Annotations: map[string]string{
				"openservicemesh.io/sidecar-status":   `{"version":1,"revision":"blue","class":"envoy"}`,
				"openservicemesh.io/inbound-tls-mode": "Permissive",
			},
			OwnerReferences: []metav1.OwnerReference{{Kind: "deployment", Name: "cart", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: "carts", DeprecatedServiceAccount: "carts",
			InitContainers: []corev1.Container{
				{Name: "init"}, {Name: "native", RestartPolicy: &always, Ports: []corev1.ContainerPort{{Name: "native", ContainerPort: 7000}}}, {Name: "last"},
				{Name: driver.InitContainer, Env: []corev1.EnvVar{{Name: agentspec.EnvRedirection, Value: `{"excludeOutboundPorts":[25],"excludeOutboundRanges":["192.0.2.0/24"]}`}}},
			},
			Containers: []corev1.Container{{Name: "first"}, {Name: "web", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080, Protocol: "TCP"}}}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "2001:db8::1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTrimOthers checks that other values are returned unchanged.
func TestTrimOthers(t *testing.T) {
	for _, obj := range []any{nil, "text", &metav1.PartialObjectMetadata{ObjectMeta: fullMeta("a")}} {
		if _, err := kube.Trim(obj); err != nil {
			t.Errorf("%T: %v", obj, err)
		}
	}
}
