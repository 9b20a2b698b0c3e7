package inject

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// diff returns the JSON patch that turns the JSON from which before was decoded into
// JSON that decodes to after. It changes single fields, so that fields unknown to this
// program's Kubernetes types are preserved; for the same reason it compares typed
// values and not maps.
func diff(before, after *corev1.Pod) []Operation {
	var d differ
	before = d.between(before, after)
	d.structs("", podShape, reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem())
	return d.ops
}

// between moves the containers that change from one list of the pod to the other, and
// returns the pod with them moved. Removing and adding them would lose unknown fields.
func (d *differ) between(before, after *corev1.Pod) *corev1.Pod {
	goal := locate(after)
	changes := func(init bool) func(corev1.Container) bool {
		return func(c corev1.Container) bool {
			g, ok := goal[c.Name]
			return ok && g.at.Init != init
		}
	}
	if !slices.ContainsFunc(before.Spec.InitContainers, changes(true)) && !slices.ContainsFunc(before.Spec.Containers, changes(false)) {
		return before
	}
	pod := *before
	// Appending to them must not change before.
	pod.Spec.InitContainers, pod.Spec.Containers = slices.Clip(pod.Spec.InitContainers), slices.Clip(pod.Spec.Containers)
	inits, containers := &pod.Spec.InitContainers, &pod.Spec.Containers
	d.moveAll(inits, "/spec/initContainers", containers, "/spec/containers", changes(true))
	d.moveAll(containers, "/spec/containers", inits, "/spec/initContainers", changes(false))
	return &pod
}

func (d *differ) moveAll(from *[]corev1.Container, fromPath string, to *[]corev1.Container, toPath string, which func(corev1.Container) bool) {
	stay := make([]corev1.Container, 0, len(*from))
	for _, c := range *from {
		if !which(c) {
			stay = append(stay, c)
			continue
		}
		if len(*to) == 0 {
			d.add(toPath, reflect.ValueOf([]corev1.Container{}))
		}
		d.ops = append(d.ops, Operation{Op: "move", From: fromPath + "/" + strconv.Itoa(len(stay)), Path: toPath + "/" + strconv.Itoa(len(*to))})
		*to = append(*to, c)
	}
	*from = stay
}

type differ struct {
	ops []Operation
	// asks is set if only differs is wanted and no operations.
	asks, differs bool
}

func (d *differ) add(path string, v reflect.Value) {
	if d.asks {
		d.differs = true
		return
	}
	value := v.Interface()
	// GRPCAction.Service has no omitempty: unset it would be written as null.
	if grpc, ok := value.(*corev1.GRPCAction); ok && grpc.Service == nil {
		fields := map[string]any{"port": grpc.Port}
		if grpc.Mode != nil {
			fields["mode"] = *grpc.Mode
		}
		value = fields
	}
	d.ops = append(d.ops, Operation{Op: "add", Path: path, Value: value})
}

func (d *differ) replace(path string, v reflect.Value) {
	if d.asks {
		d.differs = true
		return
	}
	d.ops = append(d.ops, Operation{Op: "replace", Path: path, Value: v.Interface()})
}

func (d *differ) remove(path string) {
	if d.asks {
		d.differs = true
		return
	}
	d.ops = append(d.ops, Operation{Op: "remove", Path: path})
}

func (d *differ) structs(path string, s *shape, a, b reflect.Value) {
	for i := range s.fields {
		f := &s.fields[i]
		d.field(path, f, a.Field(f.index), b.Field(f.index))
		if d.differs {
			return
		}
	}
}

func (d *differ) field(path string, f *field, a, b reflect.Value) {
	if f.inline {
		d.structs(path, f.shape, a, b)
		return
	}
	aEmpty, bEmpty := empty(a), empty(b)
	switch {
	case aEmpty && bEmpty:
	case aEmpty:
		// Adding also replaces an explicit null, {} or [].
		d.add(path+f.path, b)
	case bEmpty && f.shape.kind == kindStringMap && !b.IsNil():
		// The map stays in the JSON and loses all entries.
		d.values(path, f.path, f.shape, a, b)
	case bEmpty:
		d.remove(path + f.path)
	default:
		d.values(path, f.path, f.shape, a, b)
	}
}

// values compares two values that are both set. The path is passed in two parts so
// that it is joined only if needed.
func (d *differ) values(parent, name string, s *shape, a, b reflect.Value) {
	switch s.kind {
	case kindPointer:
		d.values(parent, name, s.elem, a.Elem(), b.Elem())
	case kindStruct:
		d.structs(parent+name, s, a, b)
	case kindNamedList:
		d.list(parent+name, s, a, b)
	case kindStringMap:
		d.stringMap(parent+name, a, b)
	default:
		if !equal(a, b) {
			d.replace(parent+name, b)
		}
	}
}

func (d *differ) stringMap(path string, a, b reflect.Value) {
	before, after := a.Interface().(map[string]string), b.Interface().(map[string]string)
	if maps.Equal(before, after) {
		return
	}
	keys := slices.AppendSeq(make([]string, 0, len(before)+len(after)), maps.Keys(before))
	keys = sortedSet(slices.AppendSeq(keys, maps.Keys(after)))
	for _, key := range keys {
		old, had := before[key]
		value, has := after[key]
		switch at := path + "/" + escape(key); {
		case !has:
			d.remove(at)
		case !had:
			d.add(at, reflect.ValueOf(value))
		case old != value:
			d.replace(at, reflect.ValueOf(value))
		}
	}
}

// list compares lists of named elements. It removes, moves and adds whole elements
// until the names agree, and compares the elements that are in both.
func (d *differ) list(path string, s *shape, a, b reflect.Value) {
	elem, nameOf := s.elem, s.nameOf
	if s.variables && sameVariables(a.Interface().([]corev1.EnvVar), b.Interface().([]corev1.EnvVar)) {
		return
	}
	if s.sameNames(a, b) {
		for i := range b.Len() {
			d.element(path, i, elem, a.Index(i), b.Index(i))
		}
		return
	}
	after, unique := s.names(b)
	current := make([]reflect.Value, a.Len())
	for i := range a.Len() {
		current[i] = a.Index(i)
	}
	_, uniqueBefore := s.names(a)
	if !unique || !uniqueBefore {
		d.replace(path, b)
		return
	}
	for i := len(current) - 1; i >= 0; i-- {
		if !after[nameOf(current[i])] {
			d.remove(path + "/" + strconv.Itoa(i))
			current = slices.Delete(current, i, i+1)
		}
	}
	for i := range b.Len() {
		name := nameOf(b.Index(i))
		if i < len(current) && nameOf(current[i]) == name {
			d.element(path, i, elem, current[i], b.Index(i))
			continue
		}
		at := path + "/" + strconv.Itoa(i)
		from := slices.IndexFunc(current, func(v reflect.Value) bool { return nameOf(v) == name })
		if from < 0 {
			d.add(at, b.Index(i))
			current = slices.Insert(current, i, b.Index(i))
			continue
		}
		if d.asks {
			d.differs = true
			return
		}
		d.ops = append(d.ops, Operation{Op: "move", From: path + "/" + strconv.Itoa(from), Path: at})
		moved := current[from]
		current = slices.Insert(slices.Delete(current, from, from+1), i, moved)
		d.element(path, i, elem, moved, b.Index(i))
	}
}

// sameVariables reports whether the lists are equal and without references, as the longest ones
// are. Others are compared like any list.
func sameVariables(a, b []corev1.EnvVar) bool {
	return slices.EqualFunc(a, b, func(a, b corev1.EnvVar) bool {
		return a.ValueFrom == nil && b.ValueFrom == nil && a.Name == b.Name && a.Value == b.Value
	})
}

func (d *differ) element(path string, i int, elem *shape, a, b reflect.Value) {
	// Most elements of long lists are equal: their path is never built.
	e := differ{asks: d.asks}
	e.structs("", elem, a, b)
	d.differs = d.differs || e.differs
	for _, op := range e.ops {
		at := path + "/" + strconv.Itoa(i)
		op.Path = at + op.Path
		if op.From != "" {
			op.From = at + op.From
		}
		d.ops = append(d.ops, op)
	}
}

// nameOf returns the name of an element of the list.
func (s *shape) nameOf(element reflect.Value) string { return element.FieldByIndex(s.name).String() }

func (s *shape) sameNames(a, b reflect.Value) bool {
	if a.Len() != b.Len() {
		return false
	}
	for i := range a.Len() {
		if s.nameOf(a.Index(i)) != s.nameOf(b.Index(i)) {
			return false
		}
	}
	return true
}

func (s *shape) names(list reflect.Value) (map[string]bool, bool) {
	set := make(map[string]bool, list.Len())
	for i := range list.Len() {
		set[s.nameOf(list.Index(i))] = true
	}
	return set, len(set) == list.Len()
}

// escape returns a key as a token of a JSON pointer (RFC 6901).
func escape(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}

// empty reports whether the value may be omitted from JSON.
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

func equal(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.String:
		return a.String() == b.String()
	case reflect.Bool:
		return a.Bool() == b.Bool()
	case reflect.Int, reflect.Int32, reflect.Int64:
		return a.Int() == b.Int()
	}
	switch x := a.Interface().(type) {
	case resource.Quantity:
		return x.Equal(b.Interface().(resource.Quantity))
	case corev1.ResourceList:
		y := b.Interface().(corev1.ResourceList)
		if len(x) != len(y) {
			return false
		}
		for name, amount := range x {
			if other, ok := y[name]; !ok || !amount.Equal(other) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// shape describes a type for the differ. Each is computed once.
type shape struct {
	kind   shapeKind
	fields []field
	elem   *shape
	// name is the index of the name field of a list's elements.
	name []int
	// variables is set for lists of variables.
	variables bool
}

type shapeKind int

const (
	kindLeaf shapeKind = iota
	kindStruct
	kindPointer
	kindNamedList
	kindStringMap
)

type field struct {
	index  int
	path   string
	inline bool
	shape  *shape
}

// shapes are those of corev1.Pod and the types in it. The map never changes after
// initialization.
var shapes = make(map[reflect.Type]*shape)

var podShape = shapeOf(reflect.TypeFor[corev1.Pod](), shapes)

func shapeOf(t reflect.Type, seen map[reflect.Type]*shape) *shape {
	if s, ok := seen[t]; ok {
		return s
	}
	s := &shape{}
	seen[t] = s
	switch {
	case t == reflect.TypeFor[resource.Quantity](), t == reflect.TypeFor[metav1.Time]():
	case t.Kind() == reflect.Struct:
		if strings.HasSuffix(t.PkgPath(), "/intstr") {
			break
		}
		s.kind = kindStruct
		for i := range t.NumField() {
			f := t.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "-" || !f.IsExported() {
				continue
			}
			s.fields = append(s.fields, field{
				index:  i,
				path:   "/" + name,
				inline: name == "" && (f.Anonymous || strings.Contains(options, "inline")),
				shape:  shapeOf(f.Type, seen),
			})
		}
	case t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct:
		s.kind, s.elem = kindPointer, shapeOf(t.Elem(), seen)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		if f, ok := t.Elem().FieldByName("Name"); ok && f.Type.Kind() == reflect.String {
			s.kind, s.elem, s.name = kindNamedList, shapeOf(t.Elem(), seen), f.Index
			s.variables = t == reflect.TypeFor[[]corev1.EnvVar]()
		}
	case t == reflect.TypeFor[map[string]string]():
		s.kind = kindStringMap
	}
	return s
}
