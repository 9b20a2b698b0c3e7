package inject

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// filler fills values with random content. Maps and lists have at most two elements, and
// pointers deeper than some types deep are nil.
type filler struct{ *rand.Rand }

func (f filler) fill(v reflect.Value, depth int) {
	switch v.Type() {
	case reflect.TypeFor[resource.Quantity]():
		v.Set(reflect.ValueOf(resource.MustParse([]string{"0", "1", "100m", "64Mi", "1e3"}[f.IntN(5)])))
		return
	case reflect.TypeFor[metav1.Time]():
		return
	case reflect.TypeFor[intstr.IntOrString]():
		v.Set(reflect.ValueOf([]intstr.IntOrString{intstr.FromInt32(0), intstr.FromInt32(80), intstr.FromString("http"), intstr.FromString("")}[f.IntN(4)]))
		return
	}
	// Most fields of a pod are not set.
	if depth > 9 || v.Kind() != reflect.Struct && f.IntN(3) > 0 {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString([]string{"", "a", "X", `"env":[{"name":"X"}]`, "<&>\n\t\\", "ü\u2028", "{}", strings.Repeat("long ", 5000),
			strings.Repeat(`"text"`+string(rune('a'+f.IntN(26))), 200+f.IntN(9))}[f.IntN(9)])
	case reflect.Bool:
		v.SetBool(f.IntN(2) == 0)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(f.Int64N(3))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				f.fill(v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), f.IntN(3), 2))
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
	}
}

// TestEncoderIsExact compares the encoder with encoding/json, for random containers, volumes and
// other values.
func TestEncoderIsExact(t *testing.T) {
	e := newEncoder()
	for seed := range uint64(3000) {
		f := filler{rand.New(rand.NewPCG(seed, 1))}
		containers, volume, probe := make([]corev1.Container, 2), corev1.Volume{}, &corev1.Probe{}
		f.fill(reflect.ValueOf(&containers).Elem(), 0)
		f.fill(reflect.ValueOf(&volume).Elem(), 0)
		f.fill(reflect.ValueOf(probe).Elem(), 0)
		single := corev1.Container{Env: []corev1.EnvVar{{Name: "A", Value: "b"}, {}}}
		f.fill(reflect.ValueOf(&single).Elem(), 0)
		ops := []Operation{
			{Op: "add", Path: "/spec/initContainers", Value: containers},
			{Op: "add", Path: "/spec/containers/0", Value: single},
			{Op: "add", Path: "/spec/volumes/3", Value: volume},
			{Op: "replace", Path: `/metadata/annotations/"<ü>~1`, Value: "\x00<&>ü\u2028\\"},
			{Op: "add", Path: "/spec/containers/0/livenessProbe", Value: probe},
			{Op: "add", Path: "/spec/os", Value: map[string]string{}},
			{Op: "add", Path: "/spec/priority", Value: int32(3)},
			{Op: "move", From: "/spec/containers/1", Path: "/spec/containers/0"},
			{Op: "remove", Path: "/spec/nodeName"},
			{Op: "add", Path: "/x", Value: ""},
		}
		for range 2 {
			got, err := e.patch([]byte("before "), ops)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			want, err := MarshalPatch(ops)
			if err != nil {
				t.Fatal(err)
			}
			if got = bytes.TrimPrefix(got, []byte("before ")); !sameText(got, want) {
				t.Fatalf("seed %d: %s", seed, cmp.Diff(string(want), string(got)))
			}
		}
		if len(e.parts) > maxParts || len(e.texts) > maxTexts {
			t.Fatalf("%d parts and %d texts are remembered, want at most %d and %d", len(e.parts), len(e.texts), maxParts, maxTexts)
		}
	}
}

// TestEncoderKeepsNothingOfAPod encodes two containers that differ in one way, in turn.
func TestEncoderKeepsNothingOfAPod(t *testing.T) {
	e := newEncoder()
	base := corev1.Container{Name: "a", Env: []corev1.EnvVar{{Name: "V", Value: "1"}}, Ports: []corev1.ContainerPort{{Name: "p", ContainerPort: 1}}}
	for seed := range uint64(300) {
		other := base.DeepCopy()
		fields := reflect.ValueOf(other).Elem()
		filler{rand.New(rand.NewPCG(seed, 2))}.fill(fields.Field(int(seed)%fields.NumField()), 0)
		for _, c := range []*corev1.Container{&base, other, &base} {
			got, err := e.value(nil, *c)
			if err != nil {
				t.Fatal(err)
			}
			want, err := appendJSON(nil, c)
			if err != nil {
				t.Fatal(err)
			}
			if !sameText(got, want) {
				t.Fatalf("seed %d: %s", seed, cmp.Diff(string(want), string(got)))
			}
		}
	}
}

// sameText reports whether two JSON texts are equal but for U+2028, which JSON can write in two
// ways.
func sameText(a, b []byte) bool {
	plain := func(text []byte) []byte { return bytes.ReplaceAll(text, []byte(`\u2028`), []byte("\u2028")) }
	return bytes.Equal(plain(a), plain(b))
}
