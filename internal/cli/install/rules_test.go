package install

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	chart "github.com/outrigger-mesh/outrigger/charts/outrigger"
	"github.com/outrigger-mesh/outrigger/internal/cli/usage"
)

func TestSupported(t *testing.T) {
	for _, test := range []struct{ from, to, want string }{
		{"0.1.0", "0.1.0", ""},
		{"0.1.0", "0.1.9", ""},
		{"0.0.9", "0.1.0", ""},
		{"0.1.0", "0.0.9", ""},
		{"1.4.2", "1.5.0-rc.1", ""},
		{"0.1.0", "0.3.0", "first change to 0.2,"},
		{"0.3.0", "0.1.0", "first change to 0.2,"},
		{"0.9.0", "1.0.0", "major versions"},
		{"1.0.0", "0.9.0", "major versions"},
	} {
		err := supported(test.from, test.to)
		if test.want == "" && err != nil || test.want != "" && (!errors.As(err, &usage.Refusal{}) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("from %s to %s: got %v, want a refusal with %q", test.from, test.to, err, test.want)
		}
	}
}

// TestOwnKinds checks that 'outrigger uninstall' looks for every kind of the chart, and that all
// of the chart's objects have the labels by which it finds them.
func TestOwnKinds(t *testing.T) {
	for _, text := range []string{
		"{networkPolicy: {enabled: true}, monitoring: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}}",
		"{osm: {injector: {enablePodDisruptionBudget: true, autoScale: {enable: true}}, osmController: {enablePodDisruptionBudget: true, autoScale: {enable: true}}}}",
		"{osm: {certificateProvider: {kind: vault}, vault: {host: a, token: b}}}",
		"{revision: canary}", "{cni: {enabled: true}}",
	} {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			t.Fatal(err)
		}
		rendered, err := chart.Render(t.Context(), "osm-system", values)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range rendered.Objects {
			obj := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), &obj.Object); err != nil {
				t.Fatal(err)
			}
			if len(obj.Object) == 0 {
				continue
			}
			if !slices.Contains(ownKinds, obj.GroupVersionKind()) {
				t.Errorf("%s: 'outrigger uninstall' does not look for %s", title(obj), obj.GroupVersionKind())
			}
			if l := obj.GetLabels(); l["app.kubernetes.io/name"] != "outrigger" || l["app.kubernetes.io/instance"] != "osm" {
				t.Errorf("%s has the labels %v", title(obj), l)
			}
		}
	}
}

func TestPodObstacle(t *testing.T) {
	status := func(s corev1.ContainerStatus) corev1.PodStatus {
		s.Name = "outrigger"
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{s}}
	}
	for _, test := range []struct {
		name   string
		status corev1.PodStatus
		want   string
	}{
		{"on its way", status(corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}), ""},
		{"image", status(corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}}), "ErrImagePull: not found"},
		{"crash", status(corev1.ContainerStatus{RestartCount: 2, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}}}),
			"container outrigger ended with exit code 1 (Error), 2 times: it left no message; see 'kubectl logs -n osm-system p --previous'"},
		{"no node", corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes"}}}, "Unschedulable: 0/1 nodes"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "osm-system", Name: "p"}, Status: test.status}
		if got := podObstacle(pod); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}
