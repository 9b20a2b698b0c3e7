package upgrade

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

// cluster is a real API server with pods in one namespace. The test is the kubelet.
type cluster struct {
	*testing.T
	client  kubernetes.Interface
	rollout *Rollout
	metrics *Metrics
	image   string
	stops   []Stop
}

func newCluster(t *testing.T, pods int) *cluster {
	t.Helper()
	client, err := kubernetes.NewForConfig(apiserver.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	w := &cluster{T: t, client: client, metrics: NewMetrics(prometheus.NewRegistry()), image: "proxy:1"}
	// The pods satisfy the strictest Pod Security level, and so must what is added.
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		w.create(fmt.Sprintf("cart-%d", i), func(pod *corev1.Pod) {
			pod.Spec.Containers[0].SecurityContext = pod.Spec.InitContainers[0].SecurityContext.DeepCopy()
		})
	}
	w.rollout = New(Options{
		Client: client, AtOnce: 2,
		Namespaces: func(context.Context) ([]string, error) { return []string{"shop"}, nil },
		Desired:    func(context.Context, *corev1.Pod) Target { return Target{Class: "envoy", Image: w.image} },
		Stopped:    func(s []Stop) { w.stops = s },
	}, w.metrics)
	return w
}

// create creates a pod that runs.
func (w *cluster) create(name string, change func(*corev1.Pod)) {
	w.Helper()
	pod := newPod(w.T)
	pod.Name, pod.UID = name, ""
	change(pod)
	status := pod.Status
	created, err := w.client.CoreV1().Pods("shop").Create(w.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	created.Status = status
	if _, err := w.client.CoreV1().Pods("shop").UpdateStatus(w.Context(), created, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// pass is a look of the rollout at the pods after a change of the image.
func (w *cluster) pass(image string) bool {
	w.Helper()
	if image != w.image {
		w.image, w.rollout.fresh = image, time.Time{}
	}
	next, err := w.rollout.pass(w.Context(), start)
	if err != nil {
		w.Fatal(err)
	}
	return next == interval
}

func (w *cluster) pods() []corev1.Pod {
	w.Helper()
	list, err := w.client.CoreV1().Pods("shop").List(w.Context(), metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

// images returns the images of the containers that were added to the pods.
func (w *cluster) images() string {
	w.Helper()
	var all []string
	for _, pod := range w.pods() {
		var images []string
		for _, c := range pod.Spec.EphemeralContainers {
			images = append(images, c.Image)
		}
		all = append(all, pod.Name+"="+strings.Join(images, ","))
	}
	return strings.Join(all, " ")
}

// become sets the state of all added containers that have none, as a kubelet does.
func (w *cluster) become(state corev1.ContainerState) {
	w.Helper()
	for _, pod := range w.pods() {
		for _, c := range pod.Spec.EphemeralContainers {
			if !slices.ContainsFunc(pod.Status.EphemeralContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name }) {
				pod.Status.EphemeralContainerStatuses = append(pod.Status.EphemeralContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: state})
			}
		}
		if _, err := w.client.CoreV1().Pods("shop").UpdateStatus(w.Context(), &pod, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *cluster) expect(images string, stops int, counts string) {
	w.Helper()
	if got := w.images(); got != images {
		w.Errorf("the pods have %s, want %s", got, images)
	}
	if len(w.stops) != stops {
		w.Errorf("the rollout has stopped for %v, want %d", w.stops, stops)
	}
	var got []string
	for _, p := range phases {
		if n := testutil.ToFloat64(w.metrics.pods.WithLabelValues("envoy", string(p))); n > 0 {
			got = append(got, fmt.Sprintf("%d %s", int(n), p))
		}
	}
	if text := strings.Join(got, ", "); text != counts {
		w.Errorf("the metrics count %s, want %s", text, counts)
	}
}

// TestRollout upgrades pods two at a time, each once its predecessors work.
func TestRollout(t *testing.T) {
	w := newCluster(t, 3)
	if w.pass("proxy:1") {
		t.Error("the rollout is busy although nothing has changed")
	}
	w.expect("cart-0= cart-1= cart-2=", 0, "3 current")
	w.pass("proxy:2")
	w.expect("cart-0=proxy:2 cart-1=proxy:2 cart-2=", 0, "3 outdated")
	added := w.pods()[0].Spec.EphemeralContainers[0]
	if added.Name != "outrigger-proxy-2" || strings.Join(added.Command, " ") != "/outrigger/bin/outrigger-agent successor" || *added.SecurityContext.RunAsUser != 1500 || len(added.VolumeMounts) != 2 {
		t.Errorf("the added container is %+v", added)
	}
	w.become(running(time.Minute))
	w.pass("proxy:2")
	w.expect("cart-0=proxy:2 cart-1=proxy:2 cart-2=", 0, "1 outdated, 2 upgrading")

	// Now they have run for long enough.
	for _, pod := range w.pods() {
		for i := range pod.Status.EphemeralContainerStatuses {
			pod.Status.EphemeralContainerStatuses[i].State = running(time.Hour)
		}
		if _, err := w.client.CoreV1().Pods("shop").UpdateStatus(t.Context(), &pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.pass("proxy:2")
	w.expect("cart-0=proxy:2 cart-1=proxy:2 cart-2=proxy:2", 0, "2 current, 1 outdated")
	w.become(running(time.Hour))
	if w.pass("proxy:2") {
		t.Error("the rollout is busy although all pods are upgraded")
	}
	w.expect("cart-0=proxy:2 cart-1=proxy:2 cart-2=proxy:2", 0, "3 current")
}

// TestRolloutStops has an image whose proxy can't take over.
func TestRolloutStops(t *testing.T) {
	w := newCluster(t, 3)
	w.pass("proxy:bad")
	w.become(ended(1, "error: the agent refuses this container: it does not listen"))
	w.pass("proxy:bad")
	w.expect("cart-0=proxy:bad cart-1=proxy:bad cart-2=", 1, "1 outdated, 2 failed")
	if got := w.stops[0]; got.Class != "envoy" || got.Image != "proxy:bad" || got.Pod != "cart-0" || !strings.Contains(got.Reason, "does not listen") {
		t.Errorf("the rollout has stopped for %+v", got)
	}
	// With another image it goes on.
	w.pass("proxy:2")
	w.expect("cart-0=proxy:bad,proxy:2 cart-1=proxy:bad,proxy:2 cart-2=", 0, "3 outdated")
	w.become(running(time.Hour))
	w.pass("proxy:2")
	w.expect("cart-0=proxy:bad,proxy:2 cart-1=proxy:bad,proxy:2 cart-2=proxy:2", 0, "2 current, 1 outdated")
}

// TestRolloutRefused has pods to which the API server adds no container, because of a policy.
func TestRolloutRefused(t *testing.T) {
	w := newCluster(t, 0)
	enforce := func(level string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":%q}}}`, level)
		if _, err := w.client.CoreV1().Namespaces().Patch(t.Context(), "shop", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	enforce("privileged")
	for i := range 3 {
		w.create(fmt.Sprintf("cart-%d", i), func(pod *corev1.Pod) { pod.Spec.InitContainers[0].SecurityContext = nil })
	}
	enforce("restricted")
	w.pass("proxy:2")
	w.expect("cart-0= cart-1= cart-2=", 1, "3 outdated")
	if got := w.stops[0]; got.Pod != "cart-0" || !strings.Contains(got.Reason, "PodSecurity") {
		t.Errorf("the rollout has stopped for %+v", got)
	}
	// It goes on by itself.
	enforce("privileged")
	w.pass("proxy:2")
	w.expect("cart-0=proxy:2 cart-1=proxy:2 cart-2=", 0, "3 outdated")
}

// TestRolloutOfOwner upgrades a quarter of a controller's pods at a time, at least one.
func TestRolloutOfOwner(t *testing.T) {
	w := newCluster(t, 0)
	w.rollout.options.AtOnce = 20
	for i := range 9 {
		owner := "a"
		if i == 8 {
			owner = "b"
		}
		w.create(fmt.Sprintf("cart-%d", i), func(pod *corev1.Pod) {
			pod.Spec.Containers[0].SecurityContext = pod.Spec.InitContainers[0].SecurityContext.DeepCopy()
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: new(true)}}
		})
	}
	w.pass("proxy:2")
	w.expect("cart-0=proxy:2 cart-1=proxy:2 cart-2= cart-3= cart-4= cart-5= cart-6= cart-7= cart-8=proxy:2", 0, "9 outdated")
	w.pass("proxy:2")
	w.expect("cart-0=proxy:2 cart-1=proxy:2 cart-2= cart-3= cart-4= cart-5= cart-6= cart-7= cart-8=proxy:2", 0, "6 outdated, 3 upgrading")
}

// TestRolloutWaitsNotForever has a node that never starts an added container.
func TestRolloutWaitsNotForever(t *testing.T) {
	w := newCluster(t, 3)
	w.pass("proxy:2")
	w.pass("proxy:2")
	w.expect("cart-0=proxy:2 cart-1=proxy:2 cart-2=", 0, "1 outdated, 2 upgrading")
	if _, err := w.rollout.pass(t.Context(), start.Add(patience+time.Second)); err != nil {
		t.Fatal(err)
	}
	w.expect("cart-0=proxy:2 cart-1=proxy:2 cart-2=proxy:2", 0, "1 outdated, 2 waiting")
}
