package kube_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/internal/source/kube"
)

// manyPods is the number of pods that testPodMemory measures.
const manyPods = 1000

// testPodMemory limits the memory of pods in the cache.
func (c *cluster) testPodMemory(t *testing.T) {
	c.createOrKeep(t, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "many"}}})
	var group errgroup.Group
	group.SetLimit(8)
	for i := range manyPods {
		group.Go(func() error { return c.Create(t.Context(), realisticPod(i)) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.DeleteAllOf(context.Background(), &corev1.Pod{}, client.InNamespace("many"), client.GracePeriodSeconds(0))
	})
	whole := c.bytesPerPod(t, nil)
	trimmed := c.bytesPerPod(t, kube.Trim)
	t.Logf("bytes of a pod in the cache: %d whole, %d trimmed", whole, trimmed)
	if trimmed > whole/3 || trimmed > 6<<10 {
		t.Errorf("a trimmed pod has %d bytes, a whole one %d", trimmed, whole)
	}
}

// bytesPerPod fills a cache with the pods and returns the growth of the heap.
func (c *cluster) bytesPerPod(t *testing.T, transform toolscache.TransformFunc) int {
	t.Helper()
	pods, err := cache.New(c.config, cache.Options{Scheme: kube.Scheme(), Mapper: kube.Mapper(), DefaultTransform: transform})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	before := heap()
	go func() { done <- pods.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Start: %v", err)
		}
	}()
	informer, err := pods.GetInformer(ctx, &corev1.Pod{})
	if err != nil || !toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the pods are not read", err)
	}
	grown := int(heap()) - int(before)
	var list corev1.PodList
	if err := pods.List(ctx, &list, client.InNamespace("many")); err != nil || len(list.Items) != manyPods {
		t.Fatal(len(list.Items), err)
	}
	return grown / manyPods
}

func heap() uint64 {
	var stats runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// realisticPod has what pods have: an injected sidecar, variables, mounts and probes.
func realisticPod(i int) *corev1.Pod {
	container := func(name string) corev1.Container {
		c := corev1.Container{
			Name: name, Image: "registry.example.com/team/" + name + ":v1.2.3@sha256:" + strings.Repeat("a", 64),
			Ports:          []corev1.ContainerPort{{Name: "web", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}},
			VolumeMounts:   []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
		}
		c.ReadinessProbe.TCPSocket.Port.IntVal = 8080
		for v := range 15 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", v), Value: "postgres://database.example.com:5432/orders"})
		}
		return c
	}
	first := container("outrigger-init")
	first.ReadinessProbe = nil
	sidecar := container("sidecar")
	sidecar.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	sidecar.Ports[0].Name = "metrics"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "many", Name: fmt.Sprintf("orders-5d8f9c7b6d-%05d", i),
			Labels: map[string]string{"app.kubernetes.io/name": "orders", "app.kubernetes.io/part-of": "shop", "pod-template-hash": "5d8f9c7b6d", "version": "v1"},
			Annotations: map[string]string{
				"openservicemesh.io/sidecar-status": `{"version":1,"revision":"default","class":"envoy","templates":["envoy"],"initContainers":[{"name":"outrigger-init"}],"volumes":["a","b"],"changed":{"orders":{"livenessProbe":` + `"` + strings.Repeat("x", 500) + `"}}}`,
				"checksum/config":                   strings.Repeat("f", 64), "prometheus.io/scrape": "true",
			},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: "orders",
			InitContainers:     []corev1.Container{first, sidecar},
			Containers:         []corev1.Container{container("orders"), container("log-shipper")},
			Volumes:            []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
}
