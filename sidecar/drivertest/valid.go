package drivertest

import (
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

func patchValid(s subject) error {
	return s.each(situations(), func(_ *driver.InjectorContext, before, after *corev1.Pod) error {
		return errors.Join(checkPod(before, after)...)
	})
}

// checkPod applies Kubernetes' validation rules to what was added, as far as libraries
// allow.
func checkPod(before, after *corev1.Pod) []error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	for _, list := range []field.ErrorList{
		metavalidation.ValidateLabels(after.Labels, field.NewPath("metadata", "labels")),
		apivalidation.ValidateAnnotations(after.Annotations, field.NewPath("metadata", "annotations")),
	} {
		for _, err := range list {
			errs = append(errs, err)
		}
	}
	names := make(map[string]bool)
	for _, c := range allContainers(after) {
		if names[c.Name] {
			fail("there are two containers with the name %s", c.Name)
		}
		names[c.Name] = true
	}
	volumes := make(map[string]bool)
	for i := range after.Spec.Volumes {
		if volumes[after.Spec.Volumes[i].Name] {
			fail("there are two volumes with the name %s", after.Spec.Volumes[i].Name)
		}
		volumes[after.Spec.Volumes[i].Name] = true
	}

	inits, containers, newVolumes := added(before, after)
	for i := range newVolumes {
		errs = append(errs, checkVolume(&newVolumes[i])...)
	}
	for i := range inits {
		c := &inits[i]
		if c.RestartPolicy != nil && !isNative(c) {
			fail("init container %s has the restartPolicy %s, only Always is allowed", c.Name, *c.RestartPolicy)
		}
		if !isNative(c) && (c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil || c.Lifecycle != nil) {
			fail("init container %s is not a sidecar, but has a probe or a lifecycle hook", c.Name)
		}
	}
	for i := range containers {
		if containers[i].RestartPolicy != nil {
			fail("container %s has a restartPolicy, which is for init containers", containers[i].Name)
		}
	}
	for _, c := range append(inits, containers...) {
		errs = append(errs, checkContainer(&c, after)...)
	}
	return errs
}

func checkVolume(v *corev1.Volume) []error {
	var errs []error
	for _, problem := range validation.IsDNS1123Label(v.Name) {
		errs = append(errs, fmt.Errorf("volume %q: name: %s", v.Name, problem))
	}
	if n := countSet(v.VolumeSource); n != 1 {
		errs = append(errs, fmt.Errorf("volume %q has %d sources, want 1", v.Name, n))
	}
	if v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && v.EmptyDir.SizeLimit.Sign() < 0 {
		errs = append(errs, fmt.Errorf("volume %q has a negative size", v.Name))
	}
	if v.Projected != nil {
		for i, source := range v.Projected.Sources {
			if n := countSet(source); n != 1 {
				errs = append(errs, fmt.Errorf("volume %q: source %d has %d sources, want 1", v.Name, i, n))
			}
			if token := source.ServiceAccountToken; token != nil && (token.Path == "" || token.ExpirationSeconds != nil && *token.ExpirationSeconds < 600) {
				errs = append(errs, fmt.Errorf("volume %q: a token needs a path and at least 600 seconds", v.Name))
			}
		}
	}
	if v.ConfigMap != nil && v.ConfigMap.Name == "" {
		errs = append(errs, fmt.Errorf("volume %q: the ConfigMap has no name", v.Name))
	}
	return errs
}

// checkContainer applies the rules for one container of the pod.
func checkContainer(c *corev1.Container, pod *corev1.Pod) []error {
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("container %q: "+format, append([]any{c.Name}, args...)...))
	}
	for _, problem := range validation.IsDNS1123Label(c.Name) {
		fail("name: %s", problem)
	}
	if c.Image == "" || c.Image != strings.TrimSpace(c.Image) {
		fail("image %q is empty or has blanks around it", c.Image)
	}
	if !slices.Contains([]corev1.PullPolicy{"", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}, c.ImagePullPolicy) {
		fail("imagePullPolicy %q is not known", c.ImagePullPolicy)
	}
	checkEnv(c, fail)
	checkMounts(c, pod, fail)
	checkContainerPorts(c, fail)
	for name, request := range c.Resources.Requests {
		if request.Sign() < 0 {
			fail("the request of %s is negative", name)
		}
		if limit, ok := c.Resources.Limits[name]; ok && request.Cmp(limit) > 0 {
			fail("the request of %s, %s, is more than its limit, %s", name, request.String(), limit.String())
		}
	}
	checkProbe("livenessProbe", c.LivenessProbe, fail)
	checkProbe("readinessProbe", c.ReadinessProbe, fail)
	checkProbe("startupProbe", c.StartupProbe, fail)
	if c.Lifecycle != nil {
		checkHook("postStart", c.Lifecycle.PostStart, fail)
		checkHook("preStop", c.Lifecycle.PreStop, fail)
	}
	if sc := c.SecurityContext; sc != nil && sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if sc.Privileged != nil && *sc.Privileged {
			fail("a privileged container cannot have allowPrivilegeEscalation false")
		}
		if sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, "SYS_ADMIN") {
			fail("a container with SYS_ADMIN cannot have allowPrivilegeEscalation false")
		}
	}
	return errs
}

func checkEnv(c *corev1.Container, fail func(string, ...any)) {
	seen := make(map[string]bool)
	for _, e := range c.Env {
		for _, problem := range validation.IsEnvVarName(e.Name) {
			fail("env %q: %s", e.Name, problem)
		}
		if seen[e.Name] {
			fail("env %s is there twice", e.Name)
		}
		seen[e.Name] = true
		switch {
		case e.ValueFrom == nil:
		case e.Value != "":
			fail("env %s has a value and a valueFrom", e.Name)
		case countSet(*e.ValueFrom) != 1:
			fail("env %s has %d sources, want 1", e.Name, countSet(*e.ValueFrom))
		case e.ValueFrom.FieldRef != nil && !knownField(e.ValueFrom.FieldRef.FieldPath):
			fail("env %s refers to the field %q, which is not one that a container can see", e.Name, e.ValueFrom.FieldRef.FieldPath)
		}
	}
}

// knownField reports whether an env var can be set from the field of the pod.
func knownField(fieldPath string) bool {
	if strings.HasPrefix(fieldPath, "metadata.labels['") || strings.HasPrefix(fieldPath, "metadata.annotations['") {
		return strings.HasSuffix(fieldPath, "']")
	}
	return slices.Contains([]string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}, fieldPath)
}

func checkMounts(c *corev1.Container, pod *corev1.Pod, fail func(string, ...any)) {
	seen := make(map[string]bool)
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
			fail("the mount at %s refers to the volume %q, which does not exist", m.MountPath, m.Name)
		}
		if !path.IsAbs(m.MountPath) || strings.Contains(m.MountPath, ":") {
			fail("the mount path %q is not an absolute path without a colon", m.MountPath)
		}
		if seen[path.Clean(m.MountPath)] {
			fail("two volumes are mounted at %s", m.MountPath)
		}
		seen[path.Clean(m.MountPath)] = true
	}
}

func checkContainerPorts(c *corev1.Container, fail func(string, ...any)) {
	type key struct {
		port     int32
		protocol corev1.Protocol
	}
	ports, names := make(map[key]bool), make(map[string]bool)
	for _, p := range c.Ports {
		for _, problem := range validation.IsValidPortNum(int(p.ContainerPort)) {
			fail("port %d: %s", p.ContainerPort, problem)
		}
		protocol := p.Protocol
		setIfZero(&protocol, corev1.ProtocolTCP)
		if !slices.Contains([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, protocol) {
			fail("port %d: the protocol %q is not known", p.ContainerPort, p.Protocol)
		}
		if ports[key{p.ContainerPort, protocol}] {
			fail("port %d/%s is there twice", p.ContainerPort, protocol)
		}
		ports[key{p.ContainerPort, protocol}] = true
		if p.Name == "" {
			continue
		}
		for _, problem := range validation.IsValidPortName(p.Name) {
			fail("port name %q: %s", p.Name, problem)
		}
		if names[p.Name] {
			fail("two ports have the name %s", p.Name)
		}
		names[p.Name] = true
	}
}

func checkHook(kind string, hook *corev1.LifecycleHandler, fail func(string, ...any)) {
	if hook != nil && countSet(*hook) != 1 {
		fail("the hook %s has %d handlers, want 1", kind, countSet(*hook))
	}
}

func checkProbe(kind string, p *corev1.Probe, fail func(string, ...any)) {
	if p == nil {
		return
	}
	if n := countSet(p.ProbeHandler); n != 1 {
		fail("%s has %d handlers, want 1", kind, n)
	}
	if kind != "readinessProbe" && p.SuccessThreshold > 1 {
		fail("%s has a successThreshold of %d, only 1 is allowed", kind, p.SuccessThreshold)
	}
	var port intstr.IntOrString
	switch {
	case p.HTTPGet != nil:
		port = p.HTTPGet.Port
	case p.TCPSocket != nil:
		port = p.TCPSocket.Port
	default:
		return
	}
	if port.Type == intstr.Int && len(validation.IsValidPortNum(port.IntValue())) > 0 {
		fail("%s has the invalid port %d", kind, port.IntValue())
	}
}

// countSet returns the number of non-nil pointers in a struct, of which exactly one
// should be set.
func countSet(oneOf any) int {
	v := reflect.ValueOf(oneOf)
	n := 0
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			n++
		}
	}
	return n
}
