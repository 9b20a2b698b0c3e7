package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// sidecarVolumes are the names of the volumes that injection adds.
var sidecarVolumes = []string{"outrigger-bin", "outrigger-run", "outrigger-identity", "outrigger-token", "outrigger-ca", "outrigger-certificate"}

// undoCopy removes an injection from a pod that has its containers but not its status
// annotation, such as a copy by kubectl debug or an exported pod. It reports whether
// there was one. It fails if a probe or hook points at the agent and the sidecar that
// records the original is missing.
func undoCopy(pod *corev1.Pod) (bool, error) {
	sidecar := injectedSidecar(pod)
	var spec agentspec.Spec
	if sidecar != nil {
		if err := json.Unmarshal([]byte(environment(sidecar, agentspec.EnvSpec)), &spec); err != nil {
			return false, fmt.Errorf("the pod is a copy of an injected one, whose variable %s in container %s cannot be read (%w); remove the containers %s and %s",
				agentspec.EnvSpec, sidecar.Name, err, driver.InitContainer, driver.ProxyContainer)
		}
	}
	original := make(map[string]*agentspec.Probe, len(spec.Probes))
	for i := range spec.Probes {
		original[spec.Probes[i].Path] = &spec.Probes[i]
	}
	for c := range containersOf(pod) {
		if err := undoProbes(c, original); err != nil {
			return false, err
		}
	}
	if sidecar == nil {
		return false, nil
	}
	delete(pod.Annotations, agentspec.RedirectionAnnotation)
	ours := func(c corev1.Container) bool { return isOurs(c.Name) }
	pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, ours)
	pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, ours)
	mounted := make(map[string]bool)
	for c := range containersOf(pod) {
		for _, m := range c.VolumeMounts {
			mounted[m.Name] = true
		}
	}
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return slices.Contains(sidecarVolumes, v.Name) && !mounted[v.Name]
	})
	return true, nil
}

// injectedSidecar returns the pod's injected sidecar, or nil. A container of the same
// name by which the user only sets fields has neither the variable nor the mount.
func injectedSidecar(pod *corev1.Pod) *corev1.Container {
	for c := range containersOf(pod) {
		if c.Name == driver.ProxyContainer && environment(c, agentspec.EnvSpec) != "" &&
			slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == agentspec.IdentityDir }) {
			return c
		}
	}
	return nil
}

func environment(c *corev1.Container, name string) string {
	for i := range c.Env {
		if c.Env[i].Name == name {
			return c.Env[i].Value
		}
	}
	return ""
}

// undoProbes restores the probes and hooks of a container that point at the agent.
func undoProbes(c *corev1.Container, original map[string]*agentspec.Probe) error {
	find := func(field string, get *corev1.HTTPGetAction) (*agentspec.Probe, error) {
		if isOurs(c.Name) || get == nil || get.Port != intstr.FromInt32(driver.AgentPort) ||
			!strings.HasPrefix(get.Path, healthPathPrefix) && !strings.HasPrefix(get.Path, lifecyclePathPrefix) {
			return nil, nil
		}
		if p, ok := original[get.Path]; ok {
			return p, nil
		}
		return nil, fmt.Errorf("the %s of container %s asks the mesh's agent for %s: the pod is a copy of an injected one, without the sidecar that records the original; write it as it was before injection",
			field, c.Name, get.Path)
	}
	for field, probe := range probesOf(c) {
		was, err := find(field, probe.HTTPGet)
		if err != nil {
			return err
		}
		if was != nil {
			probe.ProbeHandler = handlerOf(was)
		}
	}
	if c.Lifecycle == nil {
		return nil
	}
	for _, hook := range []struct {
		field string
		*corev1.LifecycleHandler
	}{{"postStart", c.Lifecycle.PostStart}, {"preStop", c.Lifecycle.PreStop}} {
		if hook.LifecycleHandler == nil {
			continue
		}
		was, err := find(hook.field, hook.HTTPGet)
		if err != nil {
			return err
		}
		if was != nil {
			hook.HTTPGet = handlerOf(was).HTTPGet
		}
	}
	return nil
}

// handlerOf returns the original Kubernetes probe of an agent probe.
func handlerOf(p *agentspec.Probe) corev1.ProbeHandler {
	port := intstr.FromInt32(p.Port)
	switch p.Kind {
	case agentspec.TCP:
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port, Host: p.Host}}
	case agentspec.GRPC:
		grpc := &corev1.GRPCAction{Port: p.Port}
		if p.Service != "" {
			grpc.Service = &p.Service
		}
		if p.Mode != "" {
			grpc.Mode = (*corev1.GRPCProbeMode)(&p.Mode)
		}
		return corev1.ProbeHandler{GRPC: grpc}
	}
	get := &corev1.HTTPGetAction{Path: p.URL, Port: port, Host: p.Host, Scheme: corev1.URIScheme(p.Scheme)}
	if p.Protocol != "" {
		get.Protocol = (*corev1.HTTPProtocol)(&p.Protocol)
	}
	for _, h := range p.Headers {
		get.HTTPHeaders = append(get.HTTPHeaders, corev1.HTTPHeader{Name: h.Name, Value: h.Value})
	}
	return corev1.ProbeHandler{HTTPGet: get}
}
