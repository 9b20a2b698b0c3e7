package inject

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// status is the value of StatusAnnotation. It records what injection added and
// changed, so that undo can restore the original pod.
type status struct {
	// Version is the version of this format.
	Version int `json:"version"`
	// Revision is the injector's revision.
	Revision  string   `json:"revision"`
	Class     string   `json:"class,omitempty"`
	Templates []string `json:"templates"`
	// Image is that of the sidecar container. Another webhook may change it afterwards.
	Image string `json:"image,omitempty"`

	InitContainers []added  `json:"initContainers,omitempty"`
	Containers     []added  `json:"containers,omitempty"`
	Volumes        []string `json:"volumes,omitempty"`
	Labels         []string `json:"labels,omitempty"`
	Annotations    []string `json:"annotations,omitempty"`
	// Merged are the user's containers to whose env or volumeMounts injection added
	// entries.
	Merged []added `json:"merged,omitempty"`
	// Empty names the maps of the metadata, labels or annotations, that were present
	// but empty.
	Empty []string `json:"empty,omitempty"`
	// ReplacedLabels holds the original values of the user's labels that were
	// replaced.
	ReplacedLabels map[string]string `json:"replacedLabels,omitempty"`
	// Changed holds the original values of changed fields of the user's containers,
	// by container name and field; null for a field that was not set.
	Changed map[string]map[string]json.RawMessage `json:"changed,omitempty"`
	// Moved holds the original positions of the user's containers that were moved.
	Moved map[string]place `json:"moved,omitempty"`
	// Spec holds the original values of the other changed fields of the pod's spec,
	// as Changed does for containers.
	Spec map[string]json.RawMessage `json:"spec,omitempty"`
	// Text holds parts of the file as they were written, for uninject of files.
	Text map[string]Text `json:"text,omitempty"`
}

// Injected reports whether a pod or pod template has been injected, by the webhook or
// offline.
func Injected(pod metav1.Object) bool {
	_, ok := pod.GetAnnotations()[StatusAnnotation]
	return ok
}

const (
	statusVersion = 1
	// maxStatus is Kubernetes' limit on the total size of an object's annotations,
	// in bytes.
	maxStatus = 256 << 10
	// maxMoved is far above the number of containers of a real pod. It bounds
	// reordering them, which takes quadratic time.
	maxMoved = 1000
)

// added is a container and the entries that injection put into it. Others may add
// entries later.
type added struct {
	Name         string   `json:"name"`
	Env          []string `json:"env,omitempty"`
	VolumeMounts []string `json:"volumeMounts,omitempty"`
}

// place is a container's position in the pod's spec.
type place struct {
	// Init says that the index is one of spec.initContainers.
	Init  bool `json:"init,omitempty"`
	Index int  `json:"index"`
}

// ClassOf returns the class of a pod's injected sidecar, or "" if it has none or its
// status annotation cannot be read.
func ClassOf(pod *corev1.Pod) string { return summaryOf(pod).Class }

// ImageOf returns the image with which a pod's sidecar was injected, or "" if it is not
// recorded. That of the container may be another one, of a mirror for example.
func ImageOf(pod *corev1.Pod) string { return summaryOf(pod).Image }

// PolicyOf returns the name of the admission policy that has injected a pod, or "" if none has.
func PolicyOf(pod *corev1.Pod) string { return summaryOf(pod).Policy }

// summary are the fields of a status that others read. Caches may strip the annotation down
// to the class.
type summary struct {
	Class string `json:"class"`
	Image string `json:"image"`
	// Policy is written by the policies of package policy.
	Policy string `json:"policy"`
}

// summaryOf is empty if the annotation is missing or cannot be read.
func summaryOf(pod *corev1.Pod) summary {
	var s summary
	if err := json.Unmarshal([]byte(pod.Annotations[StatusAnnotation]), &s); err != nil {
		return summary{}
	}
	return s
}

func parseStatus(value string) (*status, error) {
	var s status
	err := json.Unmarshal([]byte(value), &s)
	if err == nil && (len(value) > maxStatus || len(s.Moved) > maxMoved) {
		err = errors.New("it is too long")
	}
	if err != nil {
		return nil, fmt.Errorf("pod annotation %s cannot be read (%v); remove the annotation and what was injected", StatusAnnotation, err)
	}
	if s.Version != statusVersion {
		return nil, fmt.Errorf("pod annotation %s is of version %d, not %d; inject with the version of Outrigger that wrote it", StatusAnnotation, s.Version, statusVersion)
	}
	return &s, nil
}

// record compares the pod before and after injection and returns the status.
func record(before, after *corev1.Pod) (*status, error) {
	s := &status{Version: statusVersion}
	for key, value := range after.Labels {
		switch was, ok := before.Labels[key]; {
		case !ok:
			s.Labels = append(s.Labels, key)
		case was != value:
			setAnnotation(&s.ReplacedLabels, key, was)
		}
	}
	for key := range after.Annotations {
		if _, ok := before.Annotations[key]; !ok {
			s.Annotations = append(s.Annotations, key)
		}
	}
	slices.Sort(s.Labels)
	slices.Sort(s.Annotations)
	if before.Labels != nil && len(before.Labels) == 0 {
		s.Empty = append(s.Empty, "labels")
	}
	if before.Annotations != nil && len(before.Annotations) == 0 {
		s.Empty = append(s.Empty, "annotations")
	}
	volumes := make(map[string]bool, len(before.Spec.Volumes))
	for i := range before.Spec.Volumes {
		volumes[before.Spec.Volumes[i].Name] = true
	}
	for i := range after.Spec.Volumes {
		if name := after.Spec.Volumes[i].Name; !volumes[name] {
			s.Volumes = append(s.Volumes, name)
		}
	}
	var err error
	was := locate(before)
	if s.InitContainers, err = s.containers(was, after.Spec.InitContainers, true); err != nil {
		return nil, err
	}
	if s.Containers, err = s.containers(was, after.Spec.Containers, false); err != nil {
		return nil, err
	}
	if len(was) > 0 {
		return nil, fmt.Errorf("the injected pod lacks containers of the original pod: %s", strings.Join(slices.Sorted(maps.Keys(was)), ", "))
	}
	s.Spec, err = changed(reflect.ValueOf(&before.Spec).Elem(), reflect.ValueOf(&after.Spec).Elem(), "initContainers", "containers", "volumes")
	return s, err
}

// containers records the changes to one list of containers, and returns those that
// were added. It deletes the others from was.
func (s *status) containers(was map[string]located, after []corev1.Container, init bool) ([]added, error) {
	var list []added
	last := -1
	for i := range after {
		c := &after[i]
		old, ok := was[c.Name]
		if !ok {
			list = append(list, newAdded(c))
			continue
		}
		delete(was, c.Name)
		// Containers that did not move keep their relative order; undo inserts the
		// moved ones between them.
		if old.at.Init == init && old.at.Index > last {
			last = old.at.Index
		} else {
			if s.Moved == nil {
				s.Moved = make(map[string]place)
			}
			s.Moved[c.Name] = old.at
		}
		fields, err := changed(reflect.ValueOf(old.container).Elem(), reflect.ValueOf(c).Elem())
		if err != nil {
			return nil, fmt.Errorf("container %s: %w", c.Name, err)
		}
		if fields == nil {
			continue
		}
		if s.Changed == nil {
			s.Changed = make(map[string]map[string]json.RawMessage)
		}
		s.Changed[c.Name] = fields
		merged := newAdded(c)
		if fields["env"] == nil {
			merged.Env = nil
		}
		if fields["volumeMounts"] == nil {
			merged.VolumeMounts = nil
		}
		if merged.Env != nil || merged.VolumeMounts != nil {
			s.Merged = append(s.Merged, merged)
		}
	}
	return list, nil
}

func newAdded(c *corev1.Container) added {
	a := added{Name: c.Name}
	for i := range c.Env {
		a.Env = append(a.Env, c.Env[i].Name)
	}
	for i := range c.VolumeMounts {
		a.VolumeMounts = append(a.VolumeMounts, c.VolumeMounts[i].MountPath)
	}
	return a
}

// located is a container and its position.
type located struct {
	container *corev1.Container
	at        place
}

// byName returns the added and merged containers by their names.
func (s *status) byName() map[string]*added {
	all := make(map[string]*added)
	for _, list := range [][]added{s.InitContainers, s.Containers, s.Merged} {
		for i := range list {
			all[list[i].Name] = &list[i]
		}
	}
	return all
}

// containersOf visits the pod's init containers, then its containers. The second value
// says that it is an init container.
func containersOf(pod *corev1.Pod) iter.Seq2[*corev1.Container, bool] {
	return func(yield func(*corev1.Container, bool) bool) {
		for i := range pod.Spec.InitContainers {
			if !yield(&pod.Spec.InitContainers[i], true) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i], false) {
				return
			}
		}
	}
}

// locate returns the containers of the pod by their names.
func locate(pod *corev1.Pod) map[string]located {
	all := make(map[string]located, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		all[pod.Spec.InitContainers[i].Name] = located{&pod.Spec.InitContainers[i], place{Init: true, Index: i}}
	}
	for i := range pod.Spec.Containers {
		all[pod.Spec.Containers[i].Name] = located{&pod.Spec.Containers[i], place{Index: i}}
	}
	return all
}

// changed returns the original JSON of the fields that differ in after, by their path
// of one or two names; nil if none do. Subfields of a struct are recorded one by one,
// so that undo leaves changes by others to its other subfields in place.
func changed(before, after reflect.Value, except ...string) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	err := addChanged(&fields, "", shapes[before.Type()], before, after, except)
	return fields, err
}

// addChanged makes the map when there is something for it.
func addChanged(fields *map[string]json.RawMessage, prefix string, s *shape, before, after reflect.Value, except []string) error {
	for i := range s.fields {
		f := &s.fields[i]
		was, is := before.Field(f.index), after.Field(f.index)
		if f.inline {
			if err := addChanged(fields, prefix, f.shape, was, is, nil); err != nil {
				return err
			}
			continue
		}
		if prefix == "" && slices.Contains(except, f.path[1:]) {
			continue
		}
		d := differ{asks: true}
		if d.field("", f, was, is); !d.differs {
			continue
		}
		name, inner := prefix+f.path[1:], f.shape
		if prefix == "" && !empty(was) && !empty(is) {
			switch inner.kind {
			case kindPointer:
				was, is, inner = was.Elem(), is.Elem(), inner.elem
				fallthrough
			case kindStruct:
				if err := addChanged(fields, name+"/", inner, was, is, nil); err != nil {
					return err
				}
				continue
			}
		}
		value := json.RawMessage("null")
		if !empty(was) {
			var err error
			if value, err = json.Marshal(was.Interface()); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if *fields == nil {
			*fields = make(map[string]json.RawMessage)
		}
		(*fields)[name] = value
	}
	return nil
}

// undo removes the injection from a pod, which is changed in place.
func (s *status) undo(pod *corev1.Pod) error {
	volumes := setOf(s.Volumes, nil)
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return volumes[v.Name] })
	all := locate(pod)
	for _, name := range slices.Sorted(maps.Keys(s.Changed)) {
		if c, ok := all[name]; ok {
			if err := restore(reflect.ValueOf(c.container).Elem(), s.Changed[name]); err != nil {
				return fmt.Errorf("container %s: %w", name, err)
			}
		}
	}
	s.rearrange(pod)
	for _, key := range s.Labels {
		delete(pod.Labels, key)
	}
	for key, value := range s.ReplacedLabels {
		setAnnotation(&pod.Labels, key, value)
	}
	for _, key := range s.Annotations {
		delete(pod.Annotations, key)
	}
	delete(pod.Annotations, StatusAnnotation)
	// A map that injection created is removed together with its last entry.
	if len(pod.Labels) == 0 && !slices.Contains(s.Empty, "labels") {
		pod.Labels = nil
	}
	if len(pod.Annotations) == 0 && !slices.Contains(s.Empty, "annotations") {
		pod.Annotations = nil
	}
	return restore(reflect.ValueOf(&pod.Spec).Elem(), s.Spec)
}

// rearrange removes the added containers and returns the moved ones to their original
// positions.
func (s *status) rearrange(pod *corev1.Pod) {
	type move struct {
		container corev1.Container
		index     int
	}
	moves := make(map[bool][]move)
	take := func(containers []corev1.Container, list []added) []corev1.Container {
		drop := make(map[string]bool, len(list))
		for _, a := range list {
			drop[a.Name] = true
		}
		return slices.DeleteFunc(containers, func(c corev1.Container) bool {
			to, moved := s.Moved[c.Name]
			if moved && !drop[c.Name] {
				moves[to.Init] = append(moves[to.Init], move{c, to.Index})
			}
			return moved || drop[c.Name]
		})
	}
	pod.Spec.InitContainers = take(pod.Spec.InitContainers, s.InitContainers)
	pod.Spec.Containers = take(pod.Spec.Containers, s.Containers)
	for init, list := range map[bool]*[]corev1.Container{true: &pod.Spec.InitContainers, false: &pod.Spec.Containers} {
		back := moves[init]
		if len(back) == 0 {
			continue
		}
		slices.SortStableFunc(back, func(a, b move) int { return cmp.Compare(a.index, b.index) })
		stay := *list
		woven := make([]corev1.Container, 0, len(stay)+len(back))
		for _, m := range back {
			before := max(0, min(m.index-len(woven), len(stay)))
			woven = append(append(woven, stay[:before]...), m.container)
			stay = stay[before:]
		}
		*list = append(woven, stay...)
	}
}

// restore sets fields by the paths of their JSON names. Unknown fields are an error.
func restore(v reflect.Value, fields map[string]json.RawMessage) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		outer, inner, deep := strings.Cut(name, "/")
		field, ok := fieldByJSON(v, outer)
		if ok && deep {
			if field.Kind() == reflect.Pointer {
				if field.IsNil() {
					// Something else has removed the struct since.
					continue
				}
				field = field.Elem()
			}
			field, ok = fieldByJSON(field, inner)
		}
		if !ok {
			return fmt.Errorf("pod annotation %s names the unknown field %q", StatusAnnotation, name)
		}
		value := reflect.New(field.Type())
		if err := json.Unmarshal(fields[name], value.Interface()); err != nil {
			return fmt.Errorf("pod annotation %s: field %q: %w", StatusAnnotation, name, err)
		}
		field.Set(value.Elem())
	}
	return nil
}

// fieldByJSON returns the field of a struct with the given JSON name.
func fieldByJSON(v reflect.Value, name string) (reflect.Value, bool) {
	s := shapes[v.Type()]
	if s == nil || s.kind != kindStruct {
		return reflect.Value{}, false
	}
	for _, f := range s.fields {
		if f.inline {
			if field, ok := fieldByJSON(v.Field(f.index), name); ok {
				return field, true
			}
		} else if f.path[1:] == name {
			return v.Field(f.index), true
		}
	}
	return reflect.Value{}, false
}

// Uninject returns the operations that remove the injection from a pod, given as JSON;
// none for a pod that was not injected. The pod may be a copy of an injected one that
// has lost its annotations.
func Uninject(pod []byte) ([]Operation, error) {
	before, err := decodePod(pod)
	if err != nil {
		return nil, err
	}
	after := before.DeepCopy()
	value, ok := before.Annotations[StatusAnnotation]
	if !ok {
		if _, err := undoCopy(after); err != nil {
			return nil, err
		}
		return diff(before, after), nil
	}
	s, err := parseStatus(value)
	if err != nil {
		return nil, err
	}
	if err := s.undo(after); err != nil {
		return nil, err
	}
	return diff(before, after), nil
}
