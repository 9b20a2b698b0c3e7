package inject_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// filler makes pods with any field of Kubernetes' types set, by reflection, so that fields that
// Kubernetes adds are tested without a change here.
type filler struct{ *rand.Rand }

// chance returns true in one of n cases.
func (f filler) chance(n int) bool { return f.IntN(n) == 0 }

// choices are the values of types for which a random text would only be rejected.
var choices = map[reflect.Type][]string{
	reflect.TypeFor[corev1.URIScheme]():              {"", "HTTP", "HTTPS"},
	reflect.TypeFor[corev1.HTTPProtocol]():           {"HTTP1", "HTTP2"},
	reflect.TypeFor[corev1.GRPCProbeMode]():          {"TLS", "Plaintext"},
	reflect.TypeFor[corev1.OSName]():                 {"linux", "linux", "windows"},
	reflect.TypeFor[corev1.Protocol]():               {"", "TCP", "UDP"},
	reflect.TypeFor[corev1.RestartPolicy]():          {"Always", "Never"},
	reflect.TypeFor[corev1.ContainerRestartPolicy](): {"Always"},
	reflect.TypeFor[corev1.PullPolicy]():             {"", "Always", "IfNotPresent"},
	reflect.TypeFor[corev1.NodeSelectorOperator]():   {"In", "NotIn", "Exists"},
	reflect.TypeFor[corev1.Signal]():                 {"SIGTERM", "SIGUSR1"},
}

var texts = []string{"a", "B-2", "true", "1234", "1e3", "null", "on", "a: b", `"`, "$(A)", "${B}", "ä\n", "{{ . }}", "~/x", " "}

func (f filler) fill(v reflect.Value, depth int) {
	switch v.Type() {
	case reflect.TypeFor[resource.Quantity]():
		v.Set(reflect.ValueOf(resource.MustParse([]string{"1", "100m", "64Mi", "1500m", "1Gi"}[f.IntN(5)])))
		return
	case reflect.TypeFor[intstr.IntOrString]():
		v.Set(reflect.ValueOf([]intstr.IntOrString{intstr.FromInt32(8080), intstr.FromInt32(9000), intstr.FromString("p1"), intstr.FromString("none")}[f.IntN(4)]))
		return
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.ObjectMeta](), reflect.TypeFor[metav1.FieldsV1]():
		return
	}
	if list := choices[v.Type()]; list != nil {
		v.SetString(list[f.IntN(len(list))])
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(texts[f.IntN(len(texts))])
	case reflect.Bool:
		v.SetBool(f.chance(2))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt([]int64{0, 1, 30, 1000, 8080}[f.IntN(5)])
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), depth)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), f.IntN(3), 3))
		for i := range v.Len() {
			f.fill(v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range f.IntN(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(key, depth+1)
			f.fill(value, depth+1)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			// Most fields far below are left out, so that pods stay small.
			if v.Type().Field(i).IsExported() && f.chance(1+depth) {
				f.fill(v.Field(i), depth+1)
			}
		}
	}
}

// pod returns a pod that an API server could accept as far as injection is concerned.
func (f filler) pod() *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name = "filled"
	f.fill(reflect.ValueOf(&pod.Labels).Elem(), 2)
	f.fill(reflect.ValueOf(&pod.Annotations).Elem(), 2)
	spec := &pod.Spec
	f.fill(reflect.ValueOf(spec).Elem(), 0)
	spec.HostNetwork, spec.EphemeralContainers, spec.InitContainers = false, nil, nil
	spec.Volumes = spec.Volumes[:min(len(spec.Volumes), f.IntN(3))]
	for i := range spec.Volumes {
		spec.Volumes[i].Name = fmt.Sprintf("v%d", i)
	}
	spec.Containers = make([]corev1.Container, 1+f.IntN(3))
	for i := range spec.Containers {
		f.container(&spec.Containers[i], spec.Volumes)
		spec.Containers[i].Name, spec.Containers[i].RestartPolicy = fmt.Sprintf("c%d", i), nil
	}
	spec.InitContainers = make([]corev1.Container, f.IntN(3))
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		f.container(c, spec.Volumes)
		c.Name = fmt.Sprintf("i%d", i)
		if c.RestartPolicy == nil {
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		}
	}
	f.budget(pod)
	return pod
}

func (f filler) container(c *corev1.Container, volumes []corev1.Volume) {
	f.fill(reflect.ValueOf(c).Elem(), 1)
	for i := range c.Ports {
		c.Ports[i].Name, c.Ports[i].ContainerPort = fmt.Sprintf("p%d", i), int32(7000+i)
	}
	for i := range c.Env {
		c.Env[i].Name = fmt.Sprintf("E%d", i)
	}
	if len(volumes) == 0 {
		c.VolumeMounts = nil
	}
	for i := range c.VolumeMounts {
		c.VolumeMounts[i].Name, c.VolumeMounts[i].MountPath = volumes[f.IntN(len(volumes))].Name, fmt.Sprintf("/m%d", i)
	}
	c.Resources.Claims = nil
	c.Resources.Limits, c.Resources.Requests = f.amounts(), f.amounts()
	for name, limit := range c.Resources.Limits {
		if request := c.Resources.Requests[name]; request.Cmp(limit) > 0 {
			c.Resources.Requests[name] = limit
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil {
			f.one(reflect.ValueOf(&p.ProbeHandler).Elem())
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				f.one(reflect.ValueOf(h).Elem())
			}
		}
	}
}

// one leaves exactly one handler, as Kubernetes wants it.
func (f filler) one(handlers reflect.Value) {
	handlers.SetZero()
	f.fill(handlers.Field(f.IntN(handlers.NumField())), 1)
	for i := range handlers.NumField() {
		handler := handlers.Field(i)
		switch h := handler.Interface().(type) {
		case *corev1.HTTPGetAction:
			if h != nil && h.Scheme == corev1.URISchemeHTTPS {
				h.Protocol = nil
			}
		case *corev1.GRPCAction:
			if h != nil {
				h.Port = 9000
			}
		}
	}
}

func (f filler) amounts() corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{"cpu", "memory", "ephemeral-storage"} {
		if f.chance(3) {
			amount := reflect.New(reflect.TypeFor[resource.Quantity]()).Elem()
			f.fill(amount, 0)
			list[name] = amount.Interface().(resource.Quantity)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list
}

// budget gives one of three pods resources of its own that are just enough for its containers.
func (f filler) budget(pod *corev1.Pod) {
	pod.Spec.Resources = nil
	if !f.chance(3) {
		return
	}
	budget := &corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for _, name := range []corev1.ResourceName{"cpu", "memory"} {
		var sum, limit resource.Quantity
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			request := c.Resources.Requests[name]
			if most, ok := c.Resources.Limits[name]; ok {
				if request.IsZero() {
					request = most
				}
				if most.Cmp(limit) > 0 {
					limit = most
				}
			}
			sum.Add(request)
		}
		if sum.Cmp(limit) > 0 {
			limit = sum.DeepCopy()
		}
		if !sum.IsZero() {
			budget.Requests[name], budget.Limits[name] = sum, limit
		}
	}
	if len(budget.Requests) > 0 {
		pod.Spec.Resources = budget
	}
}

// future adds fields of another Kubernetes to the objects in a value, but for the handlers of
// probes, which would be refused.
func (f filler) future(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			switch key {
			case "httpGet", "tcpSocket", "grpc", "labels", "annotations", "limits", "requests", "nodeSelector", "overhead":
			default:
				f.future(inner)
			}
		}
		if f.chance(8) {
			v["futureField"] = map[string]any{"deep": []any{"yes", 1.5}}
		}
	case []any:
		for _, inner := range v {
			f.future(inner)
		}
	}
}

// TestFilledPods injects random pods; FuzzFilledPod does so for other seeds.
func TestFilledPods(t *testing.T) {
	for seed := range uint64(40) {
		checkFilled(t, seed)
	}
}

// FuzzFilledPod injects pods of any seed.
func FuzzFilledPod(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(checkFilled)
}

func checkFilled(t *testing.T, seed uint64) {
	f := filler{rand.New(rand.NewPCG(seed, 0))}
	var object any
	if err := json.Unmarshal(encode(t, f.pod()), &object); err != nil {
		t.Fatal(err)
	}
	f.future(object.(map[string]any)["spec"])
	raw := encode(t, object)
	for _, shape := range []shape{{"envoy", false}, {"envoy", true}, {"null", false}} {
		w := withResources(shape.class, shape.classic)
		w.configurator.images = map[string]string{shape.class + "/windows": "shop/proxy:windows"}
		checkPod(t, w, raw)
		if t.Failed() {
			t.Fatalf("%s, seed %d: %s", shape, seed, raw)
		}
	}
}

// checkPod checks all that is due to every pod.
func checkPod(t *testing.T, w *environment, raw []byte) {
	t.Helper()
	i := w.injector(t)
	r := i.Inject(t.Context(), w.request(string(raw)))
	if answer := w.door(t).ask(t, inject.InjectPath, creation(string(raw))); answer.Allowed != (r.Decision.Outcome != inject.Deny) ||
		answer.Allowed && !cmp.Equal(generic(t, patched(t, raw, r.Patch)), generic(t, patchedBy(t, raw, answer.Patch))) {
		t.Errorf("the webhook answers %+v, the injector %+v", answer, r.Decision)
	}
	checkOffline(t, w, i, raw, r.Decision)
	switch r.Decision.Reason {
	case "probe_unsupported", "native_sidecar_needed", "uid_conflict":
		return
	}
	if r.Decision.Outcome != inject.Inject {
		t.Fatalf("the decision is %+v", r.Decision)
	}
	injected := patched(t, raw, r.Patch)
	unchanged(t, i, w, injected)
	back, err := inject.Uninject(injected)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(generic(t, raw), generic(t, patched(t, injected, back))); d != "" {
		t.Errorf("uninject does not restore the pod (-was +is):\n%s", d)
	}
	pod := decode(t, injected)
	checkAmounts(t, pod)
	checkUnique(t, pod)
	checkProbes(t, decode(t, raw), pod)
}

// patchedBy applies the patch of an answer.
func patchedBy(t *testing.T, raw, patch []byte) []byte {
	t.Helper()
	var ops []inject.Operation
	if len(patch) > 0 {
		if err := json.Unmarshal(patch, &ops); err != nil {
			t.Fatal(err)
		}
	}
	return patched(t, raw, ops)
}

// checkOffline checks that offline injection has the same result as the webhook.
func checkOffline(t *testing.T, w *environment, i *inject.Injector, raw []byte, decision inject.Decision) {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	object["apiVersion"], object["kind"] = "v1", "Pod"
	text, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	result, err := offline.Parse([]offline.Source{{Name: "in.yaml", Data: text}}).Inject(t.Context(), i, offline.Options{Namespace: w.namespace.Name})
	if decision.Outcome == inject.Deny {
		if err == nil || result.Rows[0].Reason != decision.Reason {
			t.Errorf("offline the pod is not denied with %s: %v", decision.Reason, err)
		}
		return
	}
	if err != nil {
		t.Errorf("offline: %v\n%s", err, text)
		return
	}
	got, err := yaml.YAMLToJSON(result.Outputs[0].Data)
	if err != nil {
		t.Fatal(err)
	}
	whole := encode(t, object)
	want := patched(t, whole, i.Inject(t.Context(), inject.Request{Namespace: w.namespace.Name, Pod: whole}).Patch)
	if d := cmp.Diff(generic(t, want), generic(t, got)); d != "" {
		t.Errorf("offline injection differs (-webhook +offline):\n%s", d)
	}
}

// checkUnique checks names, mounts and restart policies as an API server does.
func checkUnique(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	names, volumes := make(map[string]bool), make(map[string]bool)
	for _, v := range pod.Spec.Volumes {
		if volumes[v.Name] {
			t.Errorf("volume %s is there twice", v.Name)
		}
		volumes[v.Name] = true
	}
	for n, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if names[c.Name] {
			t.Errorf("container %s is there twice", c.Name)
		}
		names[c.Name] = true
		init := n < len(pod.Spec.InitContainers)
		if native := c.RestartPolicy != nil; native && !init || init && !native && (c.Lifecycle != nil || c.StartupProbe != nil || c.LivenessProbe != nil || c.ReadinessProbe != nil) {
			t.Errorf("container %s has a restart policy or a probe where it may not have one", c.Name)
		}
		paths := make(map[string]bool)
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] || paths[m.MountPath] {
				t.Errorf("container %s mounts %s to %s, which is not there or twice", c.Name, m.Name, m.MountPath)
			}
			paths[m.MountPath] = true
		}
	}
}

// checkProbes checks that every probe and hook either is as it was or goes to the agent, which
// knows it, and that nothing else goes there.
func checkProbes(t *testing.T, before, after *corev1.Pod) {
	t.Helper()
	var spec agentspec.Spec
	if err := json.Unmarshal([]byte(variable(proxy(t, after), agentspec.EnvSpec)), &spec); err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, p := range spec.Probes {
		known[p.Path] = true
	}
	for _, was := range slices.Concat(before.Spec.InitContainers, before.Spec.Containers) {
		is := container(after, was.Name)
		for field, pair := range map[string][2]any{
			"livenessProbe": {was.LivenessProbe, is.LivenessProbe}, "readinessProbe": {was.ReadinessProbe, is.ReadinessProbe},
			"startupProbe": {was.StartupProbe, is.StartupProbe}, "lifecycle": {was.Lifecycle, is.Lifecycle},
		} {
			if cmp.Equal(pair[0], pair[1]) {
				continue
			}
			text := string(encode(t, pair[1]))
			for part := range strings.SplitSeq(text, `"path":"`) {
				path, _, _ := strings.Cut(part, `"`)
				if strings.HasPrefix(path, "/app-") {
					if !known[path] || !strings.Contains(text, fmt.Sprint(driver.AgentPort)) {
						t.Errorf("the %s of container %s goes to %s, which the agent does not know", field, was.Name, path)
					}
					delete(known, path)
				}
			}
		}
	}
	if len(known) > 0 {
		t.Errorf("the agent has the probes %v, which nothing asks for", known)
	}
}
