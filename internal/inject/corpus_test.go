package inject_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// sample is one pod of testdata/pods.txtar.
type sample struct {
	name string
	raw  []byte
}

// refused says that an API server rejects the pod, injected or not.
func (s sample) refused() bool { return strings.HasPrefix(s.name, "refused-") }

// denied says that the injector denies the pod.
func (s sample) denied() bool { return strings.HasPrefix(s.name, "denied-") }

// samples returns every pod of testdata/pods.txtar as JSON.
func samples(t testing.TB) []sample {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/pods.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var list []sample
	for _, f := range archive.Files {
		raw, err := yaml.YAMLToJSON(f.Data)
		if err != nil {
			t.Fatalf("testdata/pods.txtar: %s: %v", f.Name, err)
		}
		list = append(list, sample{strings.TrimSuffix(f.Name, ".yaml"), raw})
	}
	return list
}

// shape is a way to inject a sidecar.
type shape struct {
	class   string
	classic bool
}

func (s shape) String() string {
	if s.classic {
		return s.class + "/classic"
	}
	return s.class + "/native"
}

var shapes = []shape{
	{"envoy", false},
	{"envoy", true},
	{"pipy", false},
	{"pipy", true},
	{"null", false},
	{"null", true},
}

// environment returns an ordinary environment for sidecars of that shape, including Windows.
func (s shape) environment() *environment {
	w := ordinary()
	w.classic = s.classic
	w.configurator.class = s.class
	w.configurator.images = map[string]string{s.class + "/windows": "shop/proxy:windows"}
	return w
}

// everySample runs the test for every sample that can be injected, in every
// shape, with an injector for that shape.
func everySample(t *testing.T, test func(t *testing.T, w *environment, i *inject.Injector, s sample)) {
	t.Helper()
	all := samples(t)
	for _, shape := range shapes {
		w := shape.environment()
		i := w.injector(t)
		for _, s := range all {
			if !s.denied() {
				t.Run(shape.String()+"/"+s.name, func(t *testing.T) { test(t, w, i, s) })
			}
		}
	}
}

func decode(t testing.TB, raw []byte) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := json.Unmarshal(raw, pod); err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	return pod
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// generic decodes JSON without null, {} and [].
func generic(t testing.TB, raw []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	return withoutEmpty(v)
}

func withoutEmpty(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if value = withoutEmpty(value); value == nil {
				delete(v, key)
			} else {
				v[key] = value
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		for i := range v {
			v[i] = withoutEmpty(v[i])
		}
		if len(v) == 0 {
			return nil
		}
	}
	return v
}

// container returns the container or init container of that name.
func container(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// proxy returns the sidecar, which must be there.
func proxy(t testing.TB, pod *corev1.Pod) *corev1.Container {
	t.Helper()
	c := container(pod, driver.ProxyContainer)
	if c == nil {
		t.Fatal("the pod has no sidecar")
	}
	return c
}

// variable returns the value of an environment variable of the container.
func variable(c *corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}
