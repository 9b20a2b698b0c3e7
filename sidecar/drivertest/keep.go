package drivertest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

func patchKeeps(s subject) error {
	return s.each(situations(), func(_ *driver.InjectorContext, before, after *corev1.Pod) error {
		return errors.Join(kept(before, after)...)
	})
}

// kept returns errors for everything of before that after lacks or has reordered.
func kept(before, after *corev1.Pod) []error {
	return keptIn("", tree(before), tree(after))
}

// keptIn compares values at a path such as "spec.containers[web].env".
func keptIn(path string, before, after any) []error {
	switch before := before.(type) {
	case map[string]any:
		after, ok := after.(map[string]any)
		if !ok {
			return []error{fmt.Errorf("%s is gone", path)}
		}
		return keptInMap(path, before, after)
	case []any:
		after, ok := after.([]any)
		if !ok {
			return []error{fmt.Errorf("%s is gone", path)}
		}
		return keptInList(path, before, after)
	}
	if !reflect.DeepEqual(before, after) {
		return []error{fmt.Errorf("%s was %v and is %v", path, before, after)}
	}
	return nil
}

func keptInMap(path string, before, after map[string]any) []error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(before)) {
		at := strings.TrimPrefix(path+"."+key, ".")
		if _, ok := after[key]; !ok {
			errs = append(errs, fmt.Errorf("%s is gone", at))
			continue
		}
		errs = append(errs, keptIn(at, before[key], after[key])...)
	}
	// Outside of the user's containers, the driver may set fields that the user did not.
	if strings.Contains(path, "]") {
		for _, key := range slices.Sorted(maps.Keys(after)) {
			if _, ok := before[key]; !ok && !slices.Contains(growing, key) {
				errs = append(errs, fmt.Errorf("%s.%s belongs to the user, but was set", path, key))
			}
		}
	}
	return errs
}

// growing are the lists in the user's containers to which a driver may add.
var growing = []string{"env", "envFrom", "volumeMounts"}

func keptInList(path string, before, after []any) []error {
	field := path[strings.LastIndexByte(path, '.')+1:]
	switch {
	case slices.Contains([]string{"spec.containers", "spec.initContainers", "spec.volumes"}, path):
		return keptByName(path, before, after)
	case strings.Contains(path, "]") && !slices.Contains(growing, field):
		if !reflect.DeepEqual(before, after) {
			return []error{fmt.Errorf("%s was %s and is %s", path, toJSON(before), toJSON(after))}
		}
		return nil
	}
	at := 0
	for i, element := range before {
		for at < len(after) && !reflect.DeepEqual(element, after[at]) {
			at++
		}
		if at == len(after) {
			return []error{fmt.Errorf("%s[%d], which was %s, is gone, changed or out of order", path, i, toJSON(element))}
		}
		at++
	}
	return nil
}

func keptByName(path string, before, after []any) []error {
	var errs []error
	last := -1
	for _, element := range before {
		name := element.(map[string]any)["name"]
		at := slices.IndexFunc(after, func(a any) bool { return a.(map[string]any)["name"] == name })
		here := fmt.Sprintf("%s[%v]", path, name)
		if at < 0 {
			errs = append(errs, fmt.Errorf("%s is gone", here))
			continue
		}
		if at < last {
			errs = append(errs, fmt.Errorf("%s is out of order", here))
		}
		last = at
		errs = append(errs, keptIn(here, element, after[at])...)
	}
	return errs
}

func patchUserWins(s subject) error {
	inits, containers, err := s.sidecars()
	if err != nil {
		return err
	}
	var all []situation
	for _, form := range []struct {
		name   string
		native bool
	}{{"native", true}, {"classic", false}} {
		names := containers
		if form.native {
			names = inits
		}
		for _, sidecar := range names {
			for _, place := range []string{"containers", "initContainers"} {
				pod := richPod()
				user := usersContainer(sidecar)
				pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "mine", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
				if place == "containers" {
					pod.Spec.Containers = append(pod.Spec.Containers, user)
				} else {
					user.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
					pod.Spec.InitContainers = append(pod.Spec.InitContainers, user)
				}
				all = append(all, situation{
					name:   fmt.Sprintf("%s, with %s in the pod's own %s", form.name, sidecar.Name, place),
					pod:    pod,
					change: func(inj *driver.InjectorContext) { inj.Sidecar.Native = form.native },
				})
			}
		}
	}
	return s.each(all, func(inj *driver.InjectorContext, before, after *corev1.Pod) error {
		names := containers
		if inj.Sidecar.Native {
			names = inits
		}
		errs := []error{s.merged(names, before, after)}
		second := *inj
		second.Pod = after.DeepCopy()
		if again, err := s.patch(&second); err != nil {
			errs = append(errs, fmt.Errorf("a second Patch: %w", err))
		} else if !reflect.DeepEqual(tree(after), tree(again)) {
			errs = append(errs, errors.New("a second Patch changed the pod"))
		}
		return errors.Join(errs...)
	})
}

// sidecars returns the sidecar containers that Patch adds, native and classic.
func (s subject) sidecars() (native, classic []corev1.Container, err error) {
	err = s.each(forms("", richPod())[:2], func(inj *driver.InjectorContext, before, after *corev1.Pod) error {
		inits, containers, _ := added(before, after)
		if !inj.Sidecar.Native {
			classic = containers
			return wantSidecar(inj, before, after)
		}
		native = slices.DeleteFunc(inits, func(c corev1.Container) bool { return !isNative(&c) })
		return wantSidecar(inj, before, after)
	})
	if err == nil && (len(native) == 0 || len(classic) == 0) {
		err = errors.New("no sidecar container was added")
	}
	return native, classic, err
}

// usersContainer is a container with which a user might change a sidecar.
func usersContainer(sidecar corev1.Container) corev1.Container {
	c := corev1.Container{
		Name:  sidecar.Name,
		Image: "example.com/mine:1",
		Env:   []corev1.EnvVar{{Name: "MINE", Value: "1"}},
		Ports: []corev1.ContainerPort{
			{Name: "mine", ContainerPort: 5353, Protocol: corev1.ProtocolTCP},
			{Name: "mine-udp", ContainerPort: 5353, Protocol: corev1.ProtocolUDP},
		},
		Resources:    corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
		VolumeMounts: []corev1.VolumeMount{{Name: "mine", MountPath: "/mine"}},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(5353)}}, PeriodSeconds: 3,
		},
		Lifecycle:       &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sleep", "3"}}}},
		SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(1234))},
	}
	for _, e := range sidecar.Env {
		if e.ValueFrom != nil {
			c.Env = append(c.Env, corev1.EnvVar{Name: e.Name, Value: "mine"})
			break
		}
	}
	return c
}

// merged returns an error unless the user's container in before is merged correctly
// with the driver's sidecar in after.
func (s subject) merged(sidecars []corev1.Container, before, after *corev1.Pod) error {
	for _, sidecar := range sidecars {
		user := containersNamed(before, sidecar.Name)
		if len(user) == 0 {
			continue
		}
		got := containersNamed(after, sidecar.Name)
		if len(got) != 1 {
			return fmt.Errorf("there are %d containers with the name %s, want 1", len(got), sidecar.Name)
		}
		got[0].RestartPolicy, user[0].RestartPolicy = nil, nil
		var errs []error
		for _, path := range overruled(sidecar.Name, tree(user[0]), tree(got[0])) {
			errs = append(errs, fmt.Errorf("the user set %s, but it is gone or changed", path))
		}
		for _, e := range sidecar.Env {
			if !slices.ContainsFunc(got[0].Env, func(g corev1.EnvVar) bool { return g.Name == e.Name }) {
				errs = append(errs, fmt.Errorf("the driver's env var %s is gone", e.Name))
			}
		}
		if len(got[0].Command) == 0 && len(sidecar.Command) > 0 {
			errs = append(errs, errors.New("the driver's command is gone, though the user set none"))
		}
		errs = append(errs, checkContainer(&got[0], after)...)
		return errors.Join(errs...)
	}
	return nil
}

func containersNamed(pod *corev1.Pod, name string) []corev1.Container {
	return slices.DeleteFunc(allContainers(pod.DeepCopy()), func(c corev1.Container) bool { return c.Name != name })
}

// overruled returns the paths in user whose values got lacks.
func overruled(path string, user, got any) []string {
	switch user := user.(type) {
	case map[string]any:
		got, _ := got.(map[string]any)
		var paths []string
		for _, key := range slices.Sorted(maps.Keys(user)) {
			paths = append(paths, overruled(path+"."+key, user[key], got[key])...)
		}
		return paths
	case []any:
		got, _ := got.([]any)
		var paths []string
		for i, element := range user {
			if !slices.ContainsFunc(got, func(g any) bool { return reflect.DeepEqual(element, g) }) {
				paths = append(paths, fmt.Sprintf("%s[%s]", path, cmp.Or(nameOf(element), strconv.Itoa(i))))
			}
		}
		return paths
	}
	if !reflect.DeepEqual(user, got) {
		return []string{path}
	}
	return nil
}

func nameOf(v any) string {
	m, _ := v.(map[string]any)
	name, _ := m["name"].(string)
	return name
}
