package upgrade

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const podTemplate = `
apiVersion: v1
kind: Pod
metadata: {name: cart, namespace: shop, uid: u1, annotations: {sidecar: "yes"}}
spec:
  initContainers:
  - name: outrigger-proxy
    image: proxy:1
    imagePullPolicy: IfNotPresent
    command: [/outrigger/bin/outrigger-agent, run]
    restartPolicy: Always
    env:
    - {name: POD_NAME, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}
    - {name: OUTRIGGER_CONCURRENCY, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: "1"}}}
    - {name: OUTRIGGER_AGENT, value: '{"command":["proxy"],"upgrade":{"seconds":5}}'}
    ports: [{name: proxy-metrics, containerPort: 15010, protocol: TCP}]
    readinessProbe: {httpGet: {path: /ready, port: 15901}}
    resources: {limits: {cpu: "1", memory: 64Mi}}
    securityContext: {runAsUser: 1500, runAsNonRoot: true, readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
    volumeMounts:
    - {name: outrigger-bin, mountPath: /outrigger/bin, readOnly: true}
    - {name: outrigger-run, mountPath: /run/outrigger}
  containers: [{name: app, image: app}]
  volumes: [{name: outrigger-bin, emptyDir: {}}, {name: outrigger-run, emptyDir: {}}]
status:
  phase: Running
  conditions: [{type: Ready, status: "True"}]
`

func newPod(t *testing.T) *corev1.Pod {
	t.Helper()
	pod := new(corev1.Pod)
	if err := yaml.Unmarshal([]byte(podTemplate), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// withSuccessor adds a container with an image and a state.
func withSuccessor(t *testing.T, pod *corev1.Pod, image string, state corev1.ContainerState) {
	t.Helper()
	c, err := Container(pod, image)
	if err != nil {
		t.Fatal(err)
	}
	pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, *c)
	pod.Status.EphemeralContainerStatuses = append(pod.Status.EphemeralContainerStatuses, corev1.ContainerStatus{Name: c.Name, State: state})
}

var start = time.Date(2026, 11, 26, 2, 0, 0, 0, time.UTC)

func running(since time.Duration) corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(start.Add(-since))}}
}

func ended(code int32, message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message}}
}

func waits(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "no such image"}}
}

func TestState(t *testing.T) {
	type successor struct {
		image string
		state corev1.ContainerState
	}
	for name, tt := range map[string]struct {
		image      string
		injected   string
		successors []successor
		unready    bool
		old        bool
		want       phase
		reason     string
	}{
		"not changed":                {image: "proxy:1", want: current},
		"changed":                    {image: "proxy:2", want: outdated},
		"changed, unready":           {image: "proxy:2", unready: true, want: waiting, reason: "not ready"},
		"injected earlier":           {image: "proxy:2", old: true, want: waiting, reason: "no upgrades"},
		"just added":                 {image: "proxy:2", successors: []successor{{"proxy:2", corev1.ContainerState{}}}, want: upgrading},
		"pulls its image":            {image: "proxy:2", successors: []successor{{"proxy:2", waits("ContainerCreating")}}, want: upgrading},
		"has no image":               {image: "proxy:2", successors: []successor{{"proxy:2", waits("ImagePullBackOff")}}, want: failed, reason: "no such image"},
		"runs briefly":               {image: "proxy:2", successors: []successor{{"proxy:2", running(time.Minute)}}, want: upgrading},
		"runs":                       {image: "proxy:2", successors: []successor{{"proxy:2", running(2 * time.Minute)}}, want: current},
		"runs, unready":              {image: "proxy:2", unready: true, successors: []successor{{"proxy:2", running(2 * time.Minute)}}, want: failed, reason: "not ready"},
		"runs, unready much later":   {image: "proxy:2", unready: true, successors: []successor{{"proxy:2", running(time.Hour)}}, want: current},
		"refused":                    {image: "proxy:2", successors: []successor{{"proxy:2", ended(1, "refused")}}, want: failed, reason: "refused"},
		"refused, then another":      {image: "proxy:3", successors: []successor{{"proxy:2", ended(1, "refused")}}, want: outdated},
		"refused, then the former":   {image: "proxy:1", successors: []successor{{"proxy:2", ended(1, "refused")}}, want: current},
		"the sidecar was restarted":  {image: "proxy:2", successors: []successor{{"proxy:2", ended(0, "")}}, want: outdated},
		"upgraded, then another":     {image: "proxy:3", successors: []successor{{"proxy:2", running(time.Hour)}}, want: outdated},
		"upgraded, then the former":  {image: "proxy:1", successors: []successor{{"proxy:2", running(time.Hour)}}, want: outdated},
		"a second upgrade runs":      {image: "proxy:3", successors: []successor{{"proxy:2", running(time.Hour)}, {"proxy:3", running(time.Second)}}, want: upgrading},
		"a second upgrade is done":   {image: "proxy:3", successors: []successor{{"proxy:2", ended(0, "")}, {"proxy:3", running(time.Hour)}}, want: current},
		"there and back":             {image: "proxy:1", successors: []successor{{"proxy:2", ended(0, "")}, {"proxy:1", running(time.Hour)}}, want: current},
		"an earlier one was refused": {image: "proxy:3", successors: []successor{{"proxy:3", ended(1, "refused")}, {"proxy:2", running(time.Hour)}}, want: outdated},
		"another is being pulled":    {image: "proxy:3", successors: []successor{{"proxy:2", waits("ContainerCreating")}}, want: upgrading},
		"another has no image":       {image: "proxy:3", successors: []successor{{"proxy:2", waits("ImagePullBackOff")}}, want: outdated},
		"another runs briefly":       {image: "proxy:3", successors: []successor{{"proxy:2", running(time.Minute)}}, want: upgrading},
		"on a silent node":           {image: "proxy:2", unready: true, successors: []successor{{"proxy:2", corev1.ContainerState{}}}, want: waiting, reason: "not ready"},
		"of a mirror":                {image: "proxy.example:1", injected: "proxy.example:1", want: current},
		"of a mirror, changed":       {image: "proxy.example:2", injected: "proxy.example:1", want: outdated},
		"too often":                  {image: "proxy:2", successors: slicesOf(successor{"proxy:3", ended(0, "")}, maxSuccessors), want: waiting, reason: "10 times"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(t)
			if tt.unready {
				pod.Status.Conditions[0].Status = corev1.ConditionFalse
			}
			if tt.old {
				pod.Spec.InitContainers[0].Env[2].Value = `{"command":["proxy"]}`
			}
			for _, s := range tt.successors {
				withSuccessor(t, pod, s.image, s.state)
			}
			if got, reason := stateOf(pod, Target{Class: "envoy", Injected: tt.injected, Image: tt.image}, start); got != tt.want || !strings.Contains(reason, tt.reason) {
				t.Errorf("the state is %s (%s), want %s (%s)", got, reason, tt.want, tt.reason)
			}
		})
	}
}

func slicesOf[T any](v T, n int) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = v
	}
	return all
}

// TestStateOfMirror has a webhook that replaces the images of all containers by those of a mirror.
func TestStateOfMirror(t *testing.T) {
	pod := newPod(t)
	withSuccessor(t, pod, "proxy:2", running(time.Hour))
	pod.Spec.InitContainers[0].Image, pod.Spec.EphemeralContainers[0].Image = "mirror/proxy:1", "mirror/proxy:2"
	if got, reason := stateOf(pod, Target{Injected: "proxy:1", Image: "proxy:2"}, start); got != current {
		t.Errorf("the state is %s (%s), want %s", got, reason, current)
	}
}
