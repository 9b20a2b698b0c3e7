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

// AutoImage, as the image of a container in the pod, means the image of the template's
// container of the same name.
const AutoImage = "auto"

// Merge merges the overlay, a partial pod, into the pod by Kubernetes' strategic merge.
// The pod's own fields win:
//
//   - labels, annotations and other fields of the spec are set unless the pod sets
//     them; only supplemental groups are added to the pod's own;
//   - a container of the pod with the name of one of the overlay is merged over it and
//     takes its position, as an init container or not, and its restartPolicy. The image
//     "auto" is replaced by the overlay's: the API server rejects workloads with a
//     container that has no image. With it goes the pull policy Always, which is the API
//     server's default for such an image;
//   - a container of the overlay without an image only adds fields: the pod's container
//     keeps its position;
//   - the overlay's other init containers come first if one of them is a native sidecar,
//     so that the app's init containers have a proxy; otherwise they come last, so that
//     the app's run before traffic is redirected;
//   - the overlay's other containers come first if one of them has a postStart hook,
//     which delays the app; otherwise they come last;
//   - a volume of the pod with the name of one of the overlay must be equal to it;
//     otherwise Merge returns an error.
//
// Merge is idempotent.
func Merge(pod *corev1.Pod, overlay *corev1.Pod) error {
	pod.Spec.Volumes = slices.Grow(pod.Spec.Volumes, len(overlay.Spec.Volumes))
	for _, v := range overlay.Spec.Volumes {
		at := slices.IndexFunc(pod.Spec.Volumes, func(u corev1.Volume) bool { return u.Name == v.Name })
		if at < 0 {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v)
		} else if !equality.Semantic.DeepEqual(pod.Spec.Volumes[at], v) {
			return fmt.Errorf("the pod has its own volume %q; rename it, the sidecar needs a volume of that name", v.Name)
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

// own merges the pod's containers over those of the same names. It returns the
// containers that must be placed, and removes them from the pod.
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
			// The API server's default for an image without a tag.
			if user.ImagePullPolicy == corev1.PullAlways {
				user.ImagePullPolicy = ""
			}
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

// find returns the list that has the container and its index, or nil.
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

// MergeContainer returns base with over merged over it by Kubernetes' strategic merge:
// lists such as env and volumeMounts are merged by their keys, with the elements of over
// first; other fields of over replace those of base. Where Kubernetes allows only one of
// several fields, as in a probe, that of over replaces any of base.
func MergeContainer(base, over corev1.Container) (corev1.Container, error) {
	// A strategic merge takes quadratic time for lists, and merges port 53 of TCP with
	// that of UDP.
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
			// A missing protocol is taken from the other port.
			p.Protocol = cmp.Or(p.Protocol, merged[i].Protocol)
			merged[i] = p
			continue
		}
		at[keyOf(p)] = len(merged)
		merged = append(merged, p)
	}
	return merged
}

// mergeList merges two lists by the keys of their elements; elements of over replace
// those of base. As in Kubernetes' strategic merge, the elements of over keep their
// order, and elements only in base come before those that they precede in base. Equal
// keys within a list are matched in order: the first with the first, and so on.
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

// numberedKey is a key and the number of its earlier occurrences in the list.
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

// fill adds the entries of more whose keys are missing in base.
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

// mergeRest merges the fields of the spec other than containers and volumes. Few
// templates set any.
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
	if sc := overlay.SecurityContext; sc != nil {
		addGroups(merged.SecurityContext, sc.SupplementalGroups)
	}
	*spec = merged
	return nil
}

// addGroups adds the supplemental groups that are missing.
func addGroups(context *corev1.PodSecurityContext, groups []int64) {
	for _, group := range groups {
		if !slices.Contains(context.SupplementalGroups, group) {
			context.SupplementalGroups = append(slices.Clip(context.SupplementalGroups), group)
		}
	}
}
