package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/source/kube"
	"github.com/outrigger-mesh/outrigger/test/apiserver"
)

const controlPlane = "osm-system"

// controllerTest is one API server, and a user with the rights of the controller.
type controllerTest struct {
	client.Client
	server     *apiserver.Server
	kubeconfig string
	chart      *chart.Release
}

// TestController is one test, since it starts one API server. Its parts depend on the parts
// before.
func TestController(t *testing.T) {
	c := newControllerTest(t)
	t.Run("without rights", c.testWithoutRights)
	c.allow(t, "")
	t.Run("pods", c.testPods)
	t.Run("MeshConfig", c.testMeshConfig)
	t.Run("fatal failures", c.testFatal)
}

// newControllerTest starts an API server, at which the controller has no rights yet.
func newControllerTest(t *testing.T) *controllerTest {
	t.Helper()
	server := apiserver.StartServer(t)
	admin, err := client.New(server.Config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := server.Kubeconfig("system:serviceaccount:" + controlPlane + ":outrigger-controller")
	if err != nil {
		t.Fatal(err)
	}
	c := &controllerTest{Client: admin, server: server, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := os.WriteFile(c.kubeconfig, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	if c.chart, err = chart.Render(t.Context(), controlPlane, nil); err != nil {
		t.Fatal(err)
	}
	c.createNamespace(t, controlPlane, nil)
	return c
}

// allow gives the controller the chart's rights and empty Secrets, except the rule with that
// resource.
func (c *controllerTest) allow(t *testing.T, but string) {
	t.Helper()
	for _, text := range c.chart.Objects {
		for _, obj := range decode(t, text) {
			if obj.GetKind() == "Secret" || obj.GetName() == "outrigger-viewer" {
				c.apply(t, obj)
			}
			if obj.GetName() != "outrigger-controller" || obj.GroupVersionKind().Group != rbacv1.GroupName {
				continue
			}
			if rules, ok := obj.Object["rules"].([]any); ok {
				obj.Object["rules"] = slices.DeleteFunc(rules, func(rule any) bool {
					resources, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "resources")
					return slices.Contains(resources, but)
				})
			}
			c.apply(t, obj)
		}
	}
}

func decode(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := apiserver.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func (c *controllerTest) apply(t *testing.T, objects ...*unstructured.Unstructured) {
	t.Helper()
	for _, obj := range objects {
		if err := apiserver.Apply(t.Context(), c, obj); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *controllerTest) create(t *testing.T, obj client.Object) {
	t.Helper()
	if err := c.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

func (c *controllerTest) createNamespace(t *testing.T, name string, labels map[string]string) *corev1.Namespace {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: labels, Annotations: map[string]string{"openservicemesh.io/sidecar-injection": "enabled"},
	}}
	c.create(t, namespace)
	return namespace
}

func (c *controllerTest) createPod(t *testing.T, namespace, name string, change func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}
	if change != nil {
		change(pod)
	}
	c.create(t, pod)
	return pod
}

// same returns an error that shows how two values differ, or nil.
func same(want, got any) error {
	if diff := cmp.Diff(want, got); diff != "" {
		return errors.New("(-want +got):\n" + diff)
	}
	return nil
}

func expectMetrics(t *testing.T, r *running, want string) {
	t.Helper()
	eventually(t, "metrics", func() error { return same(want, r.metrics()) })
}

// events returns the controller's Events in a namespace, sorted, without those of the leader
// election and of the API server.
func (c *controllerTest) events(t *testing.T, namespace string) []string {
	t.Helper()
	var list corev1.EventList
	if err := c.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	events := []string{}
	for _, e := range list.Items {
		if e.InvolvedObject.Kind != "Lease" && e.Source.Component == "outrigger-controller" {
			events = append(events, fmt.Sprintf("%s %s %s %s", e.Type, e.Reason, e.InvolvedObject.Kind+"/"+e.InvolvedObject.Name, e.Message))
		}
	}
	slices.Sort(events)
	return events
}

// expectEvents waits for Events that begin with the wanted ones.
func (c *controllerTest) expectEvents(t *testing.T, namespace string, want ...string) {
	t.Helper()
	eventually(t, "Events in "+namespace, func() error {
		got := c.events(t, namespace)
		for i := range got {
			if i < len(want) && strings.HasPrefix(got[i], want[i]) {
				got[i] = want[i]
			}
		}
		return same(append([]string{}, want...), got)
	})
}

// testWithoutRights runs a controller that waits for objects that it may not read. It must still
// end when it is stopped.
func (c *controllerTest) testWithoutRights(t *testing.T) {
	unready := func(r *running, want string) {
		t.Helper()
		eventually(t, "what is not ready", func() error {
			_, err := r.get("/health/ready")
			if err == nil {
				return errors.New("all is ready")
			}
			_, body, _ := strings.Cut(err.Error(), "Unavailable: ")
			return same(want, body)
		})
	}
	r := c.begin(t)
	unready(r, "objects of the mesh\nsnapshot of the mesh\ncertificates of the mesh\nsidecar drivers\n")
	r.stop()

	c.allow(t, "endpointslices")
	r = c.begin(t)
	unready(r, "snapshot of the mesh\nsidecar drivers\n")
	r.stop()
}

func (c *controllerTest) testPods(t *testing.T) {
	monitored := map[string]string{"openservicemesh.io/monitored-by": "osm"}
	c.createNamespace(t, "shop", monitored)
	c.createNamespace(t, "other-mesh", map[string]string{"openservicemesh.io/monitored-by": "another"})
	late := c.createNamespace(t, "late", nil)

	c.createPod(t, "shop", "missed", nil)
	c.createPod(t, "shop", "injected", func(p *corev1.Pod) { p.Annotations = map[string]string{"openservicemesh.io/sidecar-status": "{}"} })
	c.createPod(t, "shop", "opted-out", func(p *corev1.Pod) {
		p.Annotations = map[string]string{"openservicemesh.io/sidecar-injection": "disabled"}
	})
	c.createPod(t, "shop", "host-network", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	finished := c.createPod(t, "shop", "finished", nil)
	finished.Status.Phase = corev1.PodSucceeded
	if err := c.Status().Update(t.Context(), finished); err != nil {
		t.Fatal(err)
	}
	c.createPod(t, "shop", "refused", func(p *corev1.Pod) {
		p.Annotations = map[string]string{"openservicemesh.io/sidecar-injection": "perhaps"}
	})
	c.createPod(t, "other-mesh", "pod", nil)
	c.createPod(t, "late", "early", nil)

	const (
		missedEvent = "Warning NotInjected Pod/missed the pod runs without the sidecar that it should have: namespace_annotation_enabled: "
		refusedOne  = "Warning NotInjected Pod/refused the pod runs without the sidecar that it should have: annotation_invalid: "
	)
	r := c.start(t)
	c.expectEvents(t, "shop", missedEvent, refusedOne)
	expectMetrics(t, r, "outrigger_uninjected_pods{namespace=\"shop\"} 2\n")

	// When a namespace joins the mesh, its existing pods are checked.
	late.Labels = monitored
	if err := c.Update(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	c.expectEvents(t, "late", "Warning NotInjected Pod/early ")
	expectMetrics(t, r, "outrigger_uninjected_pods{namespace=\"late\"} 1\noutrigger_uninjected_pods{namespace=\"shop\"} 2\n")

	// Neither a change of the pod nor a restart of the controller repeats the Event.
	var pod corev1.Pod
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "missed"}, &pod); err != nil {
		t.Fatal(err)
	}
	pod.Labels = map[string]string{"changed": "yes"}
	if err := c.Update(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r = c.start(t)
	expectMetrics(t, r, "outrigger_uninjected_pods{namespace=\"late\"} 1\noutrigger_uninjected_pods{namespace=\"shop\"} 2\n")
	c.expectEvents(t, "shop", missedEvent, refusedOne)

	// A new pod of the same name is another pod.
	if err := c.Delete(t.Context(), &pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	c.createPod(t, "shop", "missed", nil)
	c.expectEvents(t, "shop", missedEvent, missedEvent, refusedOne)

	// Deleted pods are not counted.
	if err := c.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace("shop"), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	late.Labels = nil
	if err := c.Update(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	expectMetrics(t, r, "")
	if got := c.events(t, "other-mesh"); len(got) > 0 {
		t.Errorf("Events in a namespace of another mesh: %q", got)
	}
}

func (c *controllerTest) testMeshConfig(t *testing.T) {
	r := c.start(t)
	config := &v1alpha2.MeshConfig{ObjectMeta: metav1.ObjectMeta{Namespace: controlPlane, Name: "osm-mesh-config"}}
	config.Spec.Sidecar.SidecarClass = "nginx"
	config.Spec.Sidecar.SidecarDrivers = []v1alpha2.SidecarDriverSpec{{SidecarName: "Null", SidecarDisabledMTLS: true}}
	config.Spec.Sidecar.SidecarTimeout = 5
	c.create(t, config)

	const (
		mtlsEvent    = "Warning MTLSDisabled MeshConfig/osm-mesh-config spec.sidecar.sidecarDrivers[0].sidecarDisabledMTLS: mesh TLS is off"
		timeoutEvent = "Warning NoEffect MeshConfig/osm-mesh-config spec.sidecar.sidecarTimeout: accepted, has no effect: "
		classEvent   = "Warning UnknownClass MeshConfig/osm-mesh-config spec.sidecar.sidecarClass: no driver is registered for the default class"
		fatalEvent   = `Warning InitializationError MeshConfig/osm-mesh-config Error creating sidecar driver: sidecar: unknown driver "nginx" (forgotten import?); registered are: envoy, grpc, haproxy, null, pipy`

		known = `outrigger_mtls_disabled{class="null"} 1
outrigger_problems{kind="MeshConfig",name="osm-mesh-config",namespace="osm-system",reason="MTLSDisabled"} 1
outrigger_problems{kind="MeshConfig",name="osm-mesh-config",namespace="osm-system",reason="NoEffect"} 1
`
		unknown = known + `outrigger_problems{kind="MeshConfig",name="osm-mesh-config",namespace="osm-system",reason="UnknownClass"} 1
`
	)
	c.expectConditions(t, config, "Accepted=False UnknownClass", "Degraded=True MTLSDisabled", "NoEffect=True NoEffect")
	c.expectEvents(t, controlPlane, mtlsEvent, timeoutEvent, classEvent)
	expectMetrics(t, r, unknown)

	// Solved Problems disappear, and the others are not reported again.
	degraded := config.Status.Conditions[1].LastTransitionTime
	c.updateSpec(t, config, func(s *v1alpha2.SidecarSpec) { s.SidecarClass = "null" })
	c.expectConditions(t, config, "Accepted=True Accepted", "Degraded=True MTLSDisabled", "NoEffect=True NoEffect")
	if config.Status.ObservedGeneration != config.Generation || !config.Status.Conditions[1].LastTransitionTime.Equal(&degraded) {
		t.Errorf("status %+v of generation %d; a condition that stays keeps its time %v", config.Status, config.Generation, degraded)
	}
	c.expectEvents(t, controlPlane, mtlsEvent, timeoutEvent, classEvent)

	// The status is written once, and a restart does not write it again.
	version := config.ResourceVersion
	r.stop()
	r = c.start(t)
	expectMetrics(t, r, known)
	time.Sleep(1200 * time.Millisecond)
	c.read(t, config)
	if config.ResourceVersion != version {
		t.Errorf("the MeshConfig was written although nothing changed: %+v", config.Status)
	}
	c.expectEvents(t, controlPlane, mtlsEvent, timeoutEvent, classEvent)

	// A Problem that returns is reported again. A running controller continues.
	c.updateSpec(t, config, func(s *v1alpha2.SidecarSpec) { s.SidecarClass = "nginx" })
	c.expectEvents(t, controlPlane, mtlsEvent, timeoutEvent, classEvent, classEvent)
	if _, err := r.get("/health/ready"); err != nil {
		t.Error(err)
	}

	// A controller that starts with such a MeshConfig ends.
	r.stop()
	err := c.flags("127.0.0.1:0").run(t.Context(), slog.New(slog.DiscardHandler))
	if err == nil || !strings.HasPrefix(err.Error(), "Error creating sidecar driver: ") {
		t.Errorf("with an unknown class: error %v", err)
	}
	c.expectEvents(t, controlPlane, fatalEvent, mtlsEvent, timeoutEvent, classEvent, classEvent)

	c.updateSpec(t, config, func(s *v1alpha2.SidecarSpec) { *s = v1alpha2.SidecarSpec{} })
	r = c.start(t)
	c.expectConditions(t, config, "Accepted=True Accepted", "Degraded=False NotDegraded", "NoEffect=False AllInEffect")
	expectMetrics(t, r, "")
}

func (c *controllerTest) read(t *testing.T, config *v1alpha2.MeshConfig) {
	t.Helper()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil {
		t.Fatal(err)
	}
}

// updateSpec changes the spec, also while the controller writes the status.
func (c *controllerTest) updateSpec(t *testing.T, config *v1alpha2.MeshConfig, change func(*v1alpha2.SidecarSpec)) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		c.read(t, config)
		change(&config.Spec.Sidecar)
		return c.Update(t.Context(), config)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (c *controllerTest) expectConditions(t *testing.T, config *v1alpha2.MeshConfig, want ...string) {
	t.Helper()
	eventually(t, "conditions", func() error {
		c.read(t, config)
		var got []string
		for _, condition := range config.Status.Conditions {
			got = append(got, fmt.Sprintf("%s=%s %s", condition.Type, condition.Status, condition.Reason))
		}
		return same(want, got)
	})
}

// testFatal continues with the MeshConfig of the part before.
func (c *controllerTest) testFatal(t *testing.T) {
	if err := c.DeleteAllOf(t.Context(), &corev1.Event{}, client.InNamespace(controlPlane)); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	fail := func() {
		t.Helper()
		err := c.flags(listener.Addr().String()).run(t.Context(), slog.New(slog.DiscardHandler))
		if err == nil || !strings.HasPrefix(err.Error(), "listening for health checks: ") || strings.Contains(err.Error(), "Event") {
			t.Errorf("on a port that is taken: error %v", err)
		}
	}
	const event = "Warning InitializationError %s listening for health checks: "

	fail()
	fail()
	about := []string{fmt.Sprintf(event, "MeshConfig/osm-mesh-config")}
	c.expectEvents(t, controlPlane, about...)

	if err := c.Delete(t.Context(), &v1alpha2.MeshConfig{ObjectMeta: metav1.ObjectMeta{Namespace: controlPlane, Name: "osm-mesh-config"}}); err != nil {
		t.Fatal(err)
	}
	fail()
	about = append(about, fmt.Sprintf(event, "Namespace/osm-system"))
	c.expectEvents(t, controlPlane, about...)

	c.createPod(t, controlPlane, "outrigger-controller-1", nil)
	t.Setenv("POD_NAME", "outrigger-controller-1")
	fail()
	about = append(about, fmt.Sprintf(event, "Pod/outrigger-controller-1"))
	c.expectEvents(t, controlPlane, about...)
}
