package inject_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8sjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// once injects a pod that must not be denied, and returns the injected one.
func once(t testing.TB, i *inject.Injector, w *environment, raw []byte) []byte {
	t.Helper()
	r := i.Inject(t.Context(), w.request(string(raw)))
	if r.Decision.Outcome != inject.Inject {
		t.Fatalf("the pod is not injected: %s: %s", r.Decision.Reason, r.Decision.Message)
	}
	return patched(t, raw, r.Patch)
}

// unchanged fails unless injecting the pod changes nothing.
func unchanged(t *testing.T, i *inject.Injector, w *environment, raw []byte) {
	t.Helper()
	r := i.Inject(t.Context(), w.request(string(raw)))
	if r.Decision.Outcome != inject.Inject || len(r.Patch) != 0 {
		t.Errorf("another injection gives %s %s with the patch %s", r.Decision.Outcome, r.Decision.Reason, encode(t, r.Patch))
	}
}

func TestResultDecodesStrictly(t *testing.T) {
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		injected := once(t, i, w, s.raw)
		if d := cmp.Diff(strictly(s.raw), strictly(injected)); d != "" {
			t.Errorf("injection brings (+) or takes (-) faults:\n%s", d)
		}
	})
}

// strictly returns a strict decoder's error for a pod.
func strictly(raw []byte) []string {
	serializer := k8sjson.NewSerializerWithOptions(k8sjson.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, k8sjson.SerializerOptions{Strict: true})
	_, _, err := serializer.Decode(raw, nil, &corev1.Pod{})
	if err == nil {
		return nil
	}
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		return []string{err.Error()}
	}
	var faults []string
	for _, fault := range strict.Errors() {
		// Injection may move a container.
		faults = append(faults, fault.Error()[strings.LastIndex(fault.Error(), ".")+1:])
	}
	slices.Sort(faults)
	return faults
}

func TestNamesTwiceAreDenied(t *testing.T) {
	w := ordinary()
	i := w.injector(t)
	for _, s := range samples(t) {
		if !s.denied() {
			continue
		}
		r := i.Inject(t.Context(), w.request(string(s.raw)))
		if r.Decision.Outcome != inject.Deny || r.Decision.Reason != "pod_invalid" || len(r.Patch) != 0 {
			t.Errorf("%s: the decision is %+v", s.name, r.Decision)
		}
	}
}

func TestSecondInjectionChangesNothing(t *testing.T) {
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		unchanged(t, i, w, once(t, i, w, s.raw))
	})
}

func TestUninjectRestores(t *testing.T) {
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		injected := once(t, i, w, s.raw)
		back, err := inject.Uninject(injected)
		if err != nil {
			t.Fatal(err)
		}
		restored := patched(t, injected, back)
		if d := cmp.Diff(generic(t, s.raw), generic(t, restored)); d != "" {
			t.Errorf("uninject does not restore the pod (-was +is):\n%s", d)
		}
		again, err := inject.Uninject(restored)
		if err != nil || len(again) != 0 {
			t.Errorf("uninject of a pod without sidecar gives %v, %v", again, err)
		}
	})
}

// TestUsersPartSurvives compares the pod before and after injection without the fields
// that injection may change.
func TestUsersPartSurvives(t *testing.T) {
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		injected := once(t, i, w, s.raw)
		before, after := generic(t, s.raw).(map[string]any), generic(t, injected).(map[string]any)
		for _, name := range []string{driver.InitContainer, driver.ProxyContainer} {
			user, _ := takeNamed(before, name)
			merged, list := takeNamed(after, name)
			if user == nil {
				continue
			}
			delete(user.(map[string]any), "restartPolicy")
			if user.(map[string]any)["image"] == "auto" {
				// A container that sets fields of the sidecar.
				delete(user.(map[string]any), "image")
				if image := merged.(map[string]any)["image"]; image == "auto" || image == nil {
					t.Errorf("the image of %s is still %v", name, image)
				}
			}
			if err := contains(merged, user); err != nil {
				t.Errorf("the user's %s is not in the one of %s: %v", name, list, err)
			}
		}
		keepOnly(before, after)
		dropHandlers(before)
		dropHandlers(after)
		if d := cmp.Diff(withoutEmpty(before), withoutEmpty(after)); d != "" {
			t.Errorf("injection changes what is the user's (-was +is):\n%s", d)
		}
	})
}

// takeNamed removes a container from the pod and returns it.
func takeNamed(pod map[string]any, name string) (any, string) {
	spec := pod["spec"].(map[string]any)
	for _, list := range []string{"initContainers", "containers"} {
		containers, _ := spec[list].([]any)
		at := slices.IndexFunc(containers, func(c any) bool {
			m, _ := c.(map[string]any)
			return m["name"] == name
		})
		if at >= 0 {
			c := containers[at]
			spec[list] = slices.Delete(containers, at, at+1)
			return c, list
		}
	}
	return nil, ""
}

// keepOnly removes the labels, annotations and volumes that the original pod does not
// have, and the values of the label that injection sets.
func keepOnly(before, after map[string]any) {
	at := func(pod map[string]any, path ...string) map[string]any {
		for _, key := range path {
			pod, _ = pod[key].(map[string]any)
		}
		return pod
	}
	for _, key := range []string{"labels", "annotations"} {
		was, is := at(before, "metadata", key), at(after, "metadata", key)
		for name := range is {
			if _, ok := was[name]; !ok {
				delete(is, name)
			}
		}
	}
	delete(at(before, "metadata", "labels"), inject.ProxyUUIDLabel)
	delete(at(after, "metadata", "labels"), inject.ProxyUUIDLabel)
	was, _ := before["spec"].(map[string]any)["volumes"].([]any)
	is, _ := after["spec"].(map[string]any)["volumes"].([]any)
	if len(is) >= len(was) {
		after["spec"].(map[string]any)["volumes"] = is[:len(was)]
	}
}

// dropHandlers removes the actions of probes and hooks.
func dropHandlers(pod map[string]any) {
	spec := pod["spec"].(map[string]any)
	for _, list := range []string{"initContainers", "containers"} {
		containers, _ := spec[list].([]any)
		for _, c := range containers {
			m, _ := c.(map[string]any)
			lifecycle, _ := m["lifecycle"].(map[string]any)
			for _, parent := range []any{m["livenessProbe"], m["readinessProbe"], m["startupProbe"], lifecycle["postStart"], lifecycle["preStop"]} {
				handler, _ := parent.(map[string]any)
				for _, kind := range []string{"httpGet", "tcpSocket", "grpc"} {
					delete(handler, kind)
				}
			}
		}
	}
}

// contains returns an error for a part that is not in whole. Elements of lists are matched
// by their names, or in any order if they have none.
func contains(whole, part any) error {
	switch part := part.(type) {
	case map[string]any:
		m, ok := whole.(map[string]any)
		if !ok {
			return fmt.Errorf("%v is not %v", whole, part)
		}
		for key, value := range part {
			if err := contains(m[key], value); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
	case []any:
		list, _ := whole.([]any)
		for _, value := range part {
			if !slices.ContainsFunc(list, func(v any) bool { return contains(v, value) == nil }) {
				return fmt.Errorf("%v is not in %v", value, list)
			}
		}
	default:
		if whole != part {
			return fmt.Errorf("%v is not %v", whole, part)
		}
	}
	return nil
}

func TestNamesAreUniqueAndMountsResolve(t *testing.T) {
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		pod := decode(t, once(t, i, w, s.raw))
		volumes := make(map[string]bool)
		for _, v := range pod.Spec.Volumes {
			if volumes[v.Name] {
				t.Errorf("volume %s is there twice", v.Name)
			}
			volumes[v.Name] = true
		}
		names := make(map[string]bool)
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if names[c.Name] {
				t.Errorf("container %s is there twice", c.Name)
			}
			names[c.Name] = true
			paths := make(map[string]bool)
			for _, m := range c.VolumeMounts {
				if !volumes[m.Name] {
					t.Errorf("container %s mounts volume %s, which is not there", c.Name, m.Name)
				}
				if paths[m.MountPath] {
					t.Errorf("container %s has two mounts at %s", c.Name, m.MountPath)
				}
				paths[m.MountPath] = true
			}
		}
	})
}

func TestSkipIsNoPatch(t *testing.T) {
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		was := w.namespace.Annotations
		w.namespace.Annotations = map[string]string{metadata.Injection: "disabled"}
		defer func() { w.namespace.Annotations = was }()
		r := i.Inject(t.Context(), w.request(string(s.raw)))
		if r.Decision.Outcome != inject.Skip || r.Patch != nil || r.Added != nil || r.Class != "" {
			t.Errorf("the result is %+v", r)
		}
	})
}

func TestInjectionIsDeterministic(t *testing.T) {
	// An injector with empty template caches.
	others := make(map[shape]*inject.Injector)
	for _, shape := range shapes {
		others[shape] = shape.environment().injector(t)
	}
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		other := others[shape{w.configurator.class, w.classic}]
		first := encode(t, other.Inject(t.Context(), w.request(string(s.raw))).Patch)
		runs := 100
		if w.configurator.class != "envoy" {
			runs = 10
		}
		for range runs {
			if patch := encode(t, i.Inject(t.Context(), w.request(string(s.raw))).Patch); !bytes.Equal(patch, first) {
				t.Fatalf("two runs give %s and %s", first, patch)
			}
		}
	})
}

// TestInjectionDuringReload checks that an injection uses one configuration from beginning
// to end while others are loaded.
func TestInjectionDuringReload(t *testing.T) {
	w := ordinary()
	const text = "injectedAnnotations: {a: %[1]q, b: %[1]q}\nimagePullPolicy: %[2]s"
	var configs []*inject.Config
	for _, c := range [][2]string{{"one", "Always"}, {"two", "Never"}} {
		config, err := inject.NewConfig(fmt.Sprintf(text, c[0], c[1]), "")
		if err != nil {
			t.Fatal(err)
		}
		configs = append(configs, config)
	}
	i := inject.New(w.options(), configs[0])
	want := make(map[string]string)
	for _, config := range configs {
		i.Use(config)
		injected := once(t, i, w, []byte(smallPod))
		want[decode(t, injected).Annotations["a"]] = string(injected)
	}
	done := make(chan struct{})
	var reloads, injections sync.WaitGroup
	reloads.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
				i.Use(configs[n%2])
			}
		}
	})
	for range 8 {
		injections.Go(func() {
			for range 50 {
				r := i.Inject(t.Context(), w.request(smallPod))
				got := patched(t, []byte(smallPod), r.Patch)
				if a := decode(t, got).Annotations["a"]; !jsonpatch.Equal(got, []byte(want[a])) {
					t.Errorf("an injection gives %s, want that of one configuration, %s", got, want[a])
					return
				}
			}
		})
	}
	injections.Wait()
	close(done)
	reloads.Wait()
}
