package podtemplate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// AutoImage is the image of a container of the pod's that stands for that of the
// template's container of the same name.
const AutoImage = "auto"

// Merge puts the overlay, a part of a pod, into the pod. What the pod says
// itself wins, by Kubernetes' strategic merge:
//
//   - labels, annotations and other fields of the spec are set where the pod
//     leaves them open;
//   - a container of the pod with the name of one of the overlay is merged over
//     it, and stands where the overlay's does, be it an init container or not, so
//     its restartPolicy is the overlay's too. Its image "auto" stands for the overlay's,
//     since the API server takes no workload with a container that has none;
//   - a container of the overlay without an image is only a part of one, so that
//     of the pod stays where it is;
//   - the overlay's other init containers come first if a native sidecar is
//     among them, so that the app's have a proxy; else last, so that the app's
//     run before traffic is redirected;
//   - the overlay's other containers come first if one of them has a postStart
//     hook, which holds the app back; else last;
//   - a volume of the pod with the name of one of the overlay must be equal to
//     it, else Merge returns an error.
//
// Merging twice is merging once.
func Merge(pod *corev1.Pod, overlay *corev1.Pod) error {
	for _, v := range overlay.Spec.Volumes {
		at := slices.IndexFunc(pod.Spec.Volumes, func(u corev1.Volume) bool { return u.Name == v.Name })
		if at < 0 {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v)
		} else if !equality.Semantic.DeepEqual(pod.Spec.Volumes[at], v) {
			return fmt.Errorf("volume %q is the pod's own; rename it, the sidecar needs a volume of that name", v.Name)
		}
	}

	initFirst := slices.ContainsFunc(overlay.Spec.InitContainers, func(c corev1.Container) bool {
		return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	})
	first := slices.ContainsFunc(overlay.Spec.Containers, func(c corev1.Container) bool {
		return c.Lifecycle != nil && c.Lifecycle.PostStart != nil
	})
	pod.Spec.InitContainers, pod.Spec.Containers = slices.Clone(pod.Spec.InitContainers), slices.Clone(pod.Spec.Containers)
	inits, err := own(pod, overlay.Spec.InitContainers)
	if err != nil {
		return err
	}
	containers, err := own(pod, overlay.Spec.Containers)
	if err != nil {
		return err
	}
	place(&pod.Spec.InitContainers, inits, initFirst)
	place(&pod.Spec.Containers, containers, first)

	pod.Labels = fill(pod.Labels, overlay.Labels)
	pod.Annotations = fill(pod.Annotations, overlay.Annotations)
	return mergeRest(&pod.Spec, overlay.Spec)
}

// own merges the pod's containers of the same names over the given ones. It
// returns those that have to be placed, which it takes from the pod.
func own(pod *corev1.Pod, containers []corev1.Container) ([]corev1.Container, error) {
	placed := make([]corev1.Container, 0, len(containers))
	for _, c := range containers {
		list, at := find(pod, c.Name)
		if list == nil {
			placed = append(placed, c)
			continue
		}
		user := (*list)[at]
		if c.Image != "" && user.Image == AutoImage {
			user.Image = ""
		}
		both, err := MergeContainer(c, user)
		if err != nil {
			return nil, err
		}
		if c.Image == "" {
			both.RestartPolicy = user.RestartPolicy
			(*list)[at] = both
			continue
		}
		both.RestartPolicy = c.RestartPolicy
		*list = slices.Delete(*list, at, at+1)
		placed = append(placed, both)
	}
	return placed, nil
}

// find returns the list that has the container, and where; or nil.
func find(pod *corev1.Pod, name string) (*[]corev1.Container, int) {
	for _, list := range []*[]corev1.Container{&pod.Spec.InitContainers, &pod.Spec.Containers} {
		if at := slices.IndexFunc(*list, func(c corev1.Container) bool { return c.Name == name }); at >= 0 {
			return list, at
		}
	}
	return nil, 0
}

func place(list *[]corev1.Container, containers []corev1.Container, first bool) {
	if len(containers) == 0 {
		return
	}
	if first {
		*list = append(containers, *list...)
	} else {
		*list = append(*list, containers...)
	}
}

// MergeContainer returns base with over merged over it, by Kubernetes' strategic
// merge: lists such as env and volumeMounts are joined by their keys, those of
// over first; other fields of over replace those of base. Where Kubernetes wants
// one of several fields, as in a probe, that of over replaces any of base.
func MergeContainer(base, over corev1.Container) (corev1.Container, error) {
	// The time of a strategic merge grows with the square of a list's length, and
	// it takes port 53 of TCP and of UDP for one.
	env := mergeList(base.Env, over.Env, func(e *corev1.EnvVar) string { return e.Name })
	mounts := mergeList(base.VolumeMounts, over.VolumeMounts, func(m *corev1.VolumeMount) string { return m.MountPath })
	ports := mergePorts(base.Ports, over.Ports)
	var merged corev1.Container
	if err := strategicMerge(withoutLists(base), withoutLists(over), &merged); err != nil {
		return corev1.Container{}, fmt.Errorf("merging container %q: %w", base.Name, err)
	}
	merged.Env, merged.VolumeMounts, merged.Ports = env, mounts, ports
	for _, probe := range []struct{ merged, over *corev1.Probe }{
		{merged.LivenessProbe, over.LivenessProbe},
		{merged.ReadinessProbe, over.ReadinessProbe},
		{merged.StartupProbe, over.StartupProbe},
	} {
		if probe.over != nil && probe.over.ProbeHandler != (corev1.ProbeHandler{}) {
			probe.merged.ProbeHandler = probe.over.ProbeHandler
		}
	}
	if over.Lifecycle != nil && over.Lifecycle.PostStart != nil {
		merged.Lifecycle.PostStart = over.Lifecycle.PostStart
	}
	if over.Lifecycle != nil && over.Lifecycle.PreStop != nil {
		merged.Lifecycle.PreStop = over.Lifecycle.PreStop
	}
	return merged, nil
}

func withoutLists(c corev1.Container) corev1.Container {
	c.Env, c.VolumeMounts, c.Ports = nil, nil, nil
	return c
}

func mergePorts(base, over []corev1.ContainerPort) []corev1.ContainerPort {
	type key struct {
		port     int32
		protocol corev1.Protocol
	}
	keyOf := func(p corev1.ContainerPort) key {
		return key{p.ContainerPort, cmp.Or(p.Protocol, corev1.ProtocolTCP)}
	}
	merged := slices.Clone(base)
	at := make(map[key]int, len(base)+len(over))
	for i, p := range merged {
		at[keyOf(p)] = i
	}
	for _, p := range over {
		if i, ok := at[keyOf(p)]; ok {
			// A protocol that is left out is the one of the other.
			p.Protocol = cmp.Or(p.Protocol, merged[i].Protocol)
			merged[i] = p
			continue
		}
		at[keyOf(p)] = len(merged)
		merged = append(merged, p)
	}
	return merged
}

// mergeList joins two lists by the keys of their elements; of those that are in
// both it takes over's. As in Kubernetes' strategic merge, the elements of over
// are in their order, and those of base alone are before the ones that they are
// before in base. Where a key stands several times, the first stands for the
// first, the second for the second.
func mergeList[E any, K comparable](base, over []E, keyOf func(*E) K) []E {
	if len(over) == 0 {
		return base
	}
	baseKeys, overKeys := numbered(base, keyOf), numbered(over, keyOf)
	at := make(map[numberedKey[K]]int, len(base))
	for i, key := range baseKeys {
		at[key] = i
	}
	inOver := make(map[numberedKey[K]]bool, len(over))
	for _, key := range overKeys {
		inOver[key] = true
	}
	merged := make([]E, 0, len(base)+len(over))
	next := 0
	addBase := func(before int) {
		for ; next < before; next++ {
			if !inOver[baseKeys[next]] {
				merged = append(merged, base[next])
			}
		}
	}
	for i := range over {
		addBase(at[overKeys[i]])
		merged = append(merged, over[i])
	}
	addBase(len(base))
	return merged
}

// numberedKey is a key and how often it stood in the list before.
type numberedKey[K comparable] struct {
	key    K
	number int
}

func numbered[E any, K comparable](list []E, keyOf func(*E) K) []numberedKey[K] {
	seen := make(map[K]int, len(list))
	keys := make([]numberedKey[K], len(list))
	for i := range list {
		key := keyOf(&list[i])
		keys[i] = numberedKey[K]{key, seen[key]}
		seen[key]++
	}
	return keys
}

// MergeVolume returns base with over merged over it, as MergeContainer does.
func MergeVolume(base, over corev1.Volume) (corev1.Volume, error) {
	var merged corev1.Volume
	if err := strategicMerge(base, over, &merged); err != nil {
		return corev1.Volume{}, fmt.Errorf("merging volume %q: %w", base.Name, err)
	}
	if over.VolumeSource == (corev1.VolumeSource{}) {
		return merged, nil
	}
	source, overSource := reflect.ValueOf(&merged.VolumeSource).Elem(), reflect.ValueOf(over.VolumeSource)
	for i := range source.NumField() {
		if overSource.Field(i).IsNil() {
			source.Field(i).SetZero()
		}
	}
	return merged, nil
}

func strategicMerge(base, over, merged any) error {
	baseJSON, err := json.Marshal(base)
	if err != nil {
		return err
	}
	overJSON, err := json.Marshal(over)
	if err != nil {
		return err
	}
	mergedJSON, err := strategicpatch.StrategicMergePatch(baseJSON, overJSON, base)
	if err != nil {
		return err
	}
	return json.Unmarshal(mergedJSON, merged)
}

// fill returns base with those entries of more whose keys it lacks.
func fill(base, more map[string]string) map[string]string {
	for key, value := range more {
		if _, ok := base[key]; ok {
			continue
		}
		if base == nil {
			base = make(map[string]string, len(more))
		}
		base[key] = value
	}
	return base
}

// mergeRest merges the fields of the spec that are not lists of containers or
// volumes. Few templates have any.
func mergeRest(spec *corev1.PodSpec, overlay corev1.PodSpec) error {
	overlay.InitContainers, overlay.Containers, overlay.Volumes = nil, nil, nil
	if reflect.ValueOf(overlay).IsZero() {
		return nil
	}
	rest := *spec
	rest.InitContainers, rest.Containers, rest.Volumes = nil, nil, nil
	var merged corev1.PodSpec
	if err := strategicMerge(overlay, rest, &merged); err != nil {
		return fmt.Errorf("merging the pod's spec: %w", err)
	}
	merged.InitContainers, merged.Containers, merged.Volumes = spec.InitContainers, spec.Containers, spec.Volumes
	*spec = merged
	return nil
}
