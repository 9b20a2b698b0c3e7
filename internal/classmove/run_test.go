package classmove

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/registry"
	"github.com/outrigger-mesh/outrigger/internal/traffic"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// world is a cluster of the fake client, in which a Deployment's pods are replaced in the moment in
// which its template is patched.
type world struct {
	t       *testing.T
	kube    *fake.Clientset
	configs client.Client
	// broken are the Deployments, NAMESPACE/NAME, whose pods of class haproxy never get ready.
	broken map[string]bool
	// failing is the share of requests that pods of class haproxy fail.
	failing float64
	serial  int
	// patched is called after each patch of a Deployment, if it is not nil.
	patched func()
}

func newWorld(t *testing.T, spec v1alpha2.SidecarSpec) *world {
	scheme := runtime.NewScheme()
	if err := v1alpha2.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	obj := &v1alpha2.MeshConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "osm-system", Name: "osm-mesh-config"}}
	obj.Spec.Sidecar = spec
	w := &world{t: t, kube: fake.NewClientset(), broken: make(map[string]bool)}
	w.configs = ctrlfake.NewClientBuilder().WithScheme(scheme).WithObjects(obj).Build()
	w.kube.PrependReactor("patch", "deployments", func(action clienttesting.Action) (bool, runtime.Object, error) {
		handled, obj, err := clienttesting.ObjectReaction(w.kube.Tracker())(action)
		if d, ok := obj.(*appsv1.Deployment); ok && err == nil {
			w.roll(d)
		}
		if w.patched != nil {
			w.patched()
		}
		return handled, obj, err
	})
	return w
}

func (w *world) create(obj runtime.Object) {
	w.t.Helper()
	if err := w.kube.Tracker().Add(obj); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) namespace(name, class string) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{metadata.MonitoredBy: "osm"}}}
	if class != "" {
		ns.Annotations = map[string]string{metadata.Class: class}
	}
	w.create(ns)
}

// deployment creates a Deployment with its pods, whose template has annotations.
func (w *world) deployment(namespace, name string, replicas int32, annotations map[string]string) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	d.Spec.Replicas = &replicas
	d.Spec.Template.Labels = map[string]string{"app": name}
	d.Spec.Template.Annotations = annotations
	w.create(d)
	w.roll(d)
}

// meshConfig returns the MeshConfig.
func (w *world) meshConfig() *v1alpha2.MeshConfig {
	var obj v1alpha2.MeshConfig
	if err := w.configs.Get(context.Background(), types.NamespacedName{Namespace: "osm-system", Name: "osm-mesh-config"}, &obj); err != nil {
		w.t.Fatal(err)
	}
	return &obj
}

func (w *world) namespaces() []corev1.Namespace {
	return list[*corev1.NamespaceList](w, "namespaces", "Namespace").Items
}

// roll replaces the pods of a Deployment.
func (w *world) roll(d *appsv1.Deployment) {
	pods := w.kube.Tracker()
	resource := corev1.SchemeGroupVersion.WithResource("pods")
	for _, pod := range w.pods() {
		if pod.Namespace == d.Namespace && pod.Labels["app"] == d.Name {
			if err := pods.Delete(resource, pod.Namespace, pod.Name); err != nil {
				w.t.Error(err)
			}
		}
	}
	decide, _ := w.deciding(w.meshConfig(), w.namespaces())
	class := ""
	for range *d.Spec.Replicas {
		w.serial++
		pod := &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy()}
		pod.Namespace, pod.Name, pod.UID = d.Namespace, fmt.Sprintf("%s-%d", d.Name, w.serial), types.UID(fmt.Sprint(w.serial))
		pod.Labels["pod-template-hash"] = "hash"
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: d.Name + "-hash", Controller: new(true)}}
		decision := decide(pod)
		class = decision.Class
		w.inject(pod, class, decision.Image)
		w.create(pod)
	}
	d.Status = appsv1.DeploymentStatus{Replicas: *d.Spec.Replicas, UpdatedReplicas: *d.Spec.Replicas, AvailableReplicas: *d.Spec.Replicas}
	if class == "haproxy" && w.broken[d.Namespace+"/"+d.Name] {
		d.Status.AvailableReplicas = 0
	}
	if err := pods.Update(appsv1.SchemeGroupVersion.WithResource("deployments"), d, d.Namespace); err != nil {
		w.t.Error(err)
	}
}

func (w *world) inject(pod *corev1.Pod, class, image string) {
	if pod.Annotations == nil {
		pod.Annotations = make(map[string]string)
	}
	pod.Annotations[inject.StatusAnnotation] = fmt.Sprintf(`{"version":1,"class":%q,"image":%q}`, class, image)
	pod.Spec.InitContainers = []corev1.Container{{Name: "outrigger-proxy", Image: image}}
}

func (w *world) pods() []corev1.Pod {
	return list[*corev1.PodList](w, "pods", "Pod").Items
}

// list lists objects without the client, whose reactors must not call it.
func list[L runtime.Object](w *world, resource, kind string) L {
	w.t.Helper()
	all, err := w.kube.Tracker().List(corev1.SchemeGroupVersion.WithResource(resource), corev1.SchemeGroupVersion.WithKind(kind), "")
	if err != nil {
		w.t.Fatal(err)
	}
	return all.(L)
}

// deciding is a small injector.
func (w *world) deciding(obj *v1alpha2.MeshConfig, namespaces []corev1.Namespace) (Decide, error) {
	return func(pod *corev1.Pod) Decision {
		if classIn(pod.Annotations) == "nginx" {
			return Decision{Denied: true, Reason: "no driver is called nginx"}
		}
		d := Decision{Class: classIn(pod.Annotations)}
		for i := range namespaces {
			if d.Class == "" && namespaces[i].Name == pod.Namespace {
				d.Class = classIn(namespaces[i].Annotations)
			}
		}
		if d.Class == "" {
			d.Class = classOfMesh(obj)
			d.Image = obj.Spec.Sidecar.SidecarImage
		}
		for _, entry := range obj.Spec.Sidecar.SidecarDrivers {
			if d.Image == "" && entry.SidecarName == d.Class {
				d.Image = entry.SidecarImage
			}
		}
		if d.Image == "" {
			d.Image = d.Class + ":1"
		}
		if image := pod.Annotations[metadata.Image]; image != "" {
			d.Image = image
		}
		return d
	}, nil
}

// traffic has 100 requests to each namespace.
func (w *world) traffic(context.Context) (*traffic.Report, error) {
	report := &traffic.Report{}
	time.Sleep(2 * time.Millisecond)
	for _, pod := range w.pods() {
		f := traffic.Flow{Reporter: telemetry.ReporterDestination}
		f.Requests = 100
		if inject.ClassOf(&pod) == "haproxy" {
			f.Failed = 100 * w.failing
		}
		report.Pods = append(report.Pods, traffic.Pod{Name: mesh.Name{Namespace: pod.Namespace, Name: pod.Name}, Seconds: 10, Flows: []traffic.Flow{f}})
	}
	return report, nil
}

func (w *world) proxies(context.Context) ([]registry.Proxy, error) {
	var proxies []registry.Proxy
	for _, pod := range w.pods() {
		proxies = append(proxies, registry.Proxy{
			Name: mesh.Name{Namespace: pod.Namespace, Name: pod.Name}, UID: string(pod.UID), Class: inject.ClassOf(&pod), Connected: time.Now(),
		})
	}
	return proxies, nil
}

// move runs a move, and returns its result and what it has told.
func (w *world) move(ctx context.Context, move Move, change func(*Options)) (*Result, string, error) {
	var told strings.Builder
	options := Options{
		Move: move, Limits: Limits{Pace: 2, Patience: 300 * time.Millisecond, Failed: 0.01, Slower: 3},
		Cluster:  &Cluster{Kube: w.kube, MeshConfigs: w.configs, MeshName: "osm", MeshConfig: types.NamespacedName{Namespace: "osm-system", Name: "osm-mesh-config"}},
		Deciding: w.deciding, Proxies: w.proxies, Traffic: w.traffic,
		Interval: 5 * time.Millisecond, Settle: 100 * time.Millisecond,
		Progress: func(text string) { fmt.Fprintln(&told, text) },
	}
	if change != nil {
		change(&options)
	}
	result, err := Run(ctx, options)
	return result, told.String(), err
}

// classes counts the pods by namespace and class.
func (w *world) classes() map[string]int {
	counts := make(map[string]int)
	for _, pod := range w.pods() {
		counts[pod.Namespace+" "+inject.ClassOf(&pod)]++
	}
	return counts
}

func (w *world) expect(want map[string]int) {
	w.t.Helper()
	if got := w.classes(); !maps.Equal(got, want) {
		w.t.Errorf("the pods are %v, want %v", got, want)
	}
}

var forth, back = Move{From: "envoy", To: "haproxy"}, Move{From: "haproxy", To: "envoy"}

// TestRun moves a mesh whose classes come from everywhere, twice, and back.
func TestRun(t *testing.T) {
	w := newWorld(t, v1alpha2.SidecarSpec{SidecarImage: "mirror/envoy:2"})
	w.namespace("shop", "")
	w.namespace("bank", "Envoy")
	w.namespace("labs", "pipy")
	w.deployment("shop", "web", 3, nil)
	w.deployment("shop", "zero", 0, map[string]string{metadata.Class: "envoy"})
	w.deployment("bank", "vault", 2, nil)
	w.deployment("labs", "own", 1, map[string]string{metadata.Class: "envoy"})
	w.deployment("labs", "pipy", 1, nil)
	before := map[string]int{"shop envoy": 3, "bank envoy": 2, "labs envoy": 1, "labs pipy": 1}
	w.expect(before)

	planned, _, err := w.move(t.Context(), forth, func(o *Options) { o.DryRun = true })
	if err != nil || planned.Outcome != Planned || len(planned.Workloads) != 4 || len(planned.Changes) != 4 {
		t.Errorf("the plan is %+v, %v", planned, err)
	}
	w.expect(before)
	if class := w.meshConfig().Spec.Sidecar.SidecarClass; class != "" {
		t.Errorf("the plan has changed the default class to %s", class)
	}

	result, told, err := w.move(t.Context(), forth, nil)
	if err != nil || result.Outcome != Complete {
		t.Fatalf("the move ends with %+v, %v; %s", result, err, told)
	}
	w.expect(map[string]int{"shop haproxy": 3, "bank haproxy": 2, "labs haproxy": 1, "labs pipy": 1})
	if p := result.Proof; p.Pods != 7 || p.Classes["haproxy"] != 6 || p.Connected["haproxy"] != 6 || p.Images["haproxy:1"] != 6 {
		t.Errorf("the proof is %+v", p)
	}
	spec := w.meshConfig().Spec.Sidecar
	if spec.SidecarClass != "haproxy" || spec.SidecarImage != "" || len(spec.SidecarDrivers) != 1 || spec.SidecarDrivers[0].SidecarImage != "mirror/envoy:2" {
		t.Errorf("the MeshConfig has %+v", spec)
	}
	if !strings.Contains(told, "deployment labs/own: moved") || !strings.HasPrefix(told, "measuring the traffic") {
		t.Errorf("it tells %s", told)
	}

	patches := 0
	w.patched = func() { patches++ }
	if result, told, err := w.move(t.Context(), forth, nil); err != nil || result.Outcome != Complete || told != "" || patches > 0 {
		t.Errorf("a second move ends with %+v, %v; it changes %d workloads and tells %q", result, err, patches, told)
	}
	w.patched = nil
	if result, told, err := w.move(t.Context(), back, nil); err != nil || result.Outcome != Complete {
		t.Errorf("the way back ends with %+v, %v; %s", result, err, told)
	}
	w.expect(before)
	for _, pod := range w.pods() {
		if image := inject.ImageOf(&pod); inject.ClassOf(&pod) == "envoy" && pod.Namespace != "shop" && image != "mirror/envoy:2" {
			t.Errorf("back in class envoy, a pod of namespace %s has the image %s", pod.Namespace, image)
		}
	}
}

// TestRunNamespace moves one of two namespaces.
func TestRunNamespace(t *testing.T) {
	w := newWorld(t, v1alpha2.SidecarSpec{})
	for _, name := range []string{"shop", "bank"} {
		w.namespace(name, "")
		w.deployment(name, "web", 2, nil)
	}
	only := Move{From: "envoy", To: "haproxy", Namespaces: []string{"shop"}}
	if result, told, err := w.move(t.Context(), only, nil); err != nil || result.Outcome != Complete || result.Proof.Pods != 2 {
		t.Errorf("it ends with %+v, %v; %s", result, err, told)
	}
	w.expect(map[string]int{"shop haproxy": 2, "bank envoy": 2})
	only.Namespaces = []string{"kitchen"}
	if result, _, err := w.move(t.Context(), only, nil); err == nil || result != nil {
		t.Errorf("a namespace that does not exist: %+v, %v", result, err)
	}
}

// TestRunStuck has a namespace whose pods do not get ready.
func TestRunStuck(t *testing.T) {
	w := newWorld(t, v1alpha2.SidecarSpec{})
	for _, name := range []string{"bank", "shop"} {
		w.namespace(name, "")
		w.deployment(name, "web", 2, nil)
	}
	w.broken["bank/web"] = true
	result, told, err := w.move(t.Context(), forth, nil)
	if err != nil || result.Outcome != Partly || len(result.Namespaces) != 1 || !strings.Contains(result.Namespaces[0].Reason, "has made no progress") {
		t.Errorf("it ends with %+v, %v; %s", result, err, told)
	}
	w.expect(map[string]int{"shop haproxy": 2, "bank envoy": 2})

	delete(w.broken, "bank/web")
	if result, told, err := w.move(t.Context(), forth, nil); err != nil || result.Outcome != Complete {
		t.Errorf("once it is mended, it ends with %+v, %v; %s", result, err, told)
	}
}

// TestRunWorse has pods of the other class fail requests.
func TestRunWorse(t *testing.T) {
	w := newWorld(t, v1alpha2.SidecarSpec{SidecarImage: "mirror/envoy:2"})
	w.namespace("shop", "")
	w.namespace("bank", "envoy")
	w.deployment("shop", "web", 1, nil)
	w.deployment("bank", "web", 2, nil)
	w.failing = 0.5
	result, told, err := w.move(t.Context(), forth, nil)
	if err != nil || result.Outcome != WentBack || !strings.Contains(result.Reason, "50.0% of 100 failed, 0.0% before") {
		t.Errorf("it ends with %+v, %v; %s", result, err, told)
	}
	w.expect(map[string]int{"shop envoy": 1, "bank envoy": 2})
	if spec := w.meshConfig().Spec.Sidecar; spec.SidecarClass != "" || spec.SidecarImage != "mirror/envoy:2" || len(spec.SidecarDrivers) > 0 {
		t.Errorf("the MeshConfig has %+v", spec)
	}
	for _, ns := range w.namespaces() {
		if got, want := ns.Annotations[metadata.Class], map[string]string{"bank": "envoy"}[ns.Name]; got != want {
			t.Errorf("namespace %s has the class %q, want %q", ns.Name, got, want)
		}
	}
}

// TestRunInterrupted ends a move at each of its restarts, and continues it.
func TestRunInterrupted(t *testing.T) {
	for at := 1; at <= 3; at++ {
		w := newWorld(t, v1alpha2.SidecarSpec{})
		w.namespace("shop", "")
		for i := range 3 {
			w.deployment("shop", fmt.Sprintf("web-%d", i), 1, nil)
		}
		ctx, cancel := context.WithCancel(t.Context())
		patches := 0
		w.patched = func() {
			if patches++; patches == at {
				cancel()
			}
		}
		result, told, err := w.move(ctx, forth, nil)
		if !errors.Is(err, context.Canceled) || result.Outcome != Interrupted {
			t.Errorf("ended at restart %d: %+v, %v; %s", at, result, err, told)
		}
		cancel()
		if result, told, err := w.move(t.Context(), forth, nil); err != nil || result.Outcome != Complete || patches != 3 {
			t.Errorf("continued after restart %d, after %d restarts: %+v, %v; %s", at, patches, result, err, told)
		}
	}
}

// TestPlanKeeps has objects of users that must not end in broken pods, and hostile names.
func TestPlanKeeps(t *testing.T) {
	w := newWorld(t, v1alpha2.SidecarSpec{})
	for _, name := range []string{"image", "denied", "bare", "paused", "good"} {
		w.namespace(name, "")
	}
	w.deployment("image", "own", 1, map[string]string{metadata.Image: "mirror/envoy:3"})
	w.deployment("image", "other", 1, nil)
	w.deployment("denied", "own", 1, nil)
	w.deployment("good", "web", 1, nil)
	hostile := "a\x1b[31mb\n{{.}} $(reboot) " + strings.Repeat("x", 200)
	w.deployment("good", hostile, 1, nil)
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bare", Name: "alone", UID: "bare"}}
	w.inject(bare, "envoy", "envoy:1")
	w.create(bare)
	job := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bare", Name: "job-1", UID: "job", OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: "job", Controller: new(true)}}}}
	w.inject(job, "envoy", "envoy:1")
	w.create(job)
	rollout := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bare", Name: "a-1", UID: "a", Labels: map[string]string{"pod-template-hash": "1"}, OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "argo-1", Controller: new(true)}}}}
	w.inject(rollout, "envoy", "envoy:1")
	w.create(rollout)
	w.deployment("paused", "web", 1, nil)
	d, err := w.kube.AppsV1().Deployments("paused").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.Spec.Paused = true
	if err := w.kube.Tracker().Update(appsv1.SchemeGroupVersion.WithResource("deployments"), d, "paused"); err != nil {
		t.Fatal(err)
	}
	denying := func(o *Options) {
		o.Deciding = func(obj *v1alpha2.MeshConfig, namespaces []corev1.Namespace) (Decide, error) {
			decide, err := w.deciding(obj, namespaces)
			return func(pod *corev1.Pod) Decision {
				d := decide(pod)
				if pod.Namespace == "denied" && d.Class == "haproxy" {
					return Decision{Denied: true, Reason: "its annotations are not for this class"}
				}
				return d
			}, err
		}
	}
	result, told, err := w.move(t.Context(), forth, denying)
	if err != nil || result.Outcome != Partly {
		t.Fatalf("it ends with %+v, %v; %s", result, err, told)
	}
	w.expect(map[string]int{"image envoy": 2, "denied envoy": 1, "bare envoy": 3, "paused envoy": 1, "good haproxy": 2})
	var left []string
	for _, l := range append(slices.Clone(result.Left), result.Namespaces...) {
		left = append(left, l.Object+": "+l.Reason)
	}
	for _, want := range []string{
		"pod bare/alone: it has no controller", "pod bare/job-1: it belongs to job job", "pod bare/a-1: it belongs to deployment argo, which this command does not know",
		"deployment paused/web: its rollouts are paused", "namespace image: the sidecars of deployment image/own would be of class haproxy but have the image mirror/envoy:3",
		"namespace denied: deployment denied/own would get no pods: its annotations are not for this class",
	} {
		if !slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(l, want) }) {
			t.Errorf("it says nothing like %q, but %q", want, left)
		}
	}
	// New pods of these namespaces start with the class that works.
	for _, ns := range w.namespaces() {
		want := map[string]string{"image": "envoy", "denied": "envoy"}[ns.Name]
		if got := ns.Annotations[metadata.Class]; got != want {
			t.Errorf("namespace %s has the class %q, want %q", ns.Name, got, want)
		}
	}
}

// TestRunLacks has Problems that the other class causes.
func TestRunLacks(t *testing.T) {
	w := newWorld(t, v1alpha2.SidecarSpec{SidecarDrivers: []v1alpha2.SidecarDriverSpec{{SidecarName: "haproxy", SidecarDisabledMTLS: true}}})
	w.namespace("shop", "")
	w.deployment("shop", "web", 1, nil)
	result, _, err := w.move(t.Context(), forth, nil)
	if err != nil || result.Outcome != Refused || len(result.Lacks) != 1 || !strings.Contains(result.Lacks[0].Message, "plaintext") {
		t.Errorf("mesh TLS would be off, and it ends with %+v, %v", result, err)
	}
	w.expect(map[string]int{"shop envoy": 1})
	result, _, err = w.move(t.Context(), forth, func(o *Options) { o.AcceptLacks = true })
	if err != nil || result.Outcome != Complete {
		t.Errorf("accepted, it ends with %+v, %v", result, err)
	}
}
