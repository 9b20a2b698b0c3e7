package inject

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

// checkPod rejects pods that cannot work with a mesh sidecar, and warns of settings
// that are probably mistakes.
func checkPod(pod *corev1.Pod) ([]Warning, error) {
	var warnings []Warning
	for c, init := range containersOf(pod) {
		if isOurs(c.Name) {
			continue
		}
		if runsAs(pod, c) == driver.ProxyUID {
			native := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
			message := fmt.Sprintf("container %s runs as user %d, which is the proxy's: its traffic would bypass the mesh; choose another runAsUser", c.Name, driver.ProxyUID)
			if !init || native {
				return nil, deny("uid_conflict", errors.New(message))
			}
			warnings = append(warnings, Warning{"uid_conflict", "init " + message})
		}
		for _, port := range c.Ports {
			if reservedPorts[port.ContainerPort] {
				warnings = append(warnings, Warning{"port_conflict", fmt.Sprintf(
					"container %s declares port %d, which the sidecar listens on", c.Name, port.ContainerPort)})
			}
		}
	}
	return warnings, nil
}

// checkImages rejects sidecar containers that no template gave an image.
func checkImages(pod *corev1.Pod) error {
	for c := range containersOf(pod) {
		if isOurs(c.Name) && c.Image == podtemplate.AutoImage {
			return fmt.Errorf("container %s has the image %s, and no template of the pod has a container of that name with an image", c.Name, c.Image)
		}
	}
	return nil
}

// podSecurity warns if the namespace enforces a Pod Security level that forbids the
// init container's privileges.
func podSecurity(ns *Namespace, pod *corev1.Pod, s *status) []Warning {
	level := ns.Labels[enforceLabel]
	if level != "baseline" && level != "restricted" {
		return nil
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		_, changed := s.Changed[c.Name]
		added := slices.ContainsFunc(s.InitContainers, func(a added) bool { return a.Name == c.Name })
		if !changed && !added || c.SecurityContext == nil {
			continue
		}
		privileged := c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
		admin := c.SecurityContext.Capabilities != nil && slices.Contains(c.SecurityContext.Capabilities.Add, "NET_ADMIN")
		if privileged || admin {
			return []Warning{{"pod_security", fmt.Sprintf(
				"namespace %s enforces the Pod Security level %s, which rejects container %s because it needs NET_ADMIN; the namespace needs the level privileged, or an exemption",
				ns.Name, level, c.Name)}}
		}
	}
	return nil
}

var reservedPorts = map[int32]bool{
	driver.AdminPort: true, driver.OutboundPort: true, driver.InboundPort: true,
	driver.MetricsPort: true, driver.AgentPort: true,
}

// runsAs returns the user of a container, or -1 if the image decides.
func runsAs(pod *corev1.Pod, c *corev1.Container) int64 {
	if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
		return *c.SecurityContext.RunAsUser
	}
	if pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.RunAsUser != nil {
		return *pod.Spec.SecurityContext.RunAsUser
	}
	return -1
}
