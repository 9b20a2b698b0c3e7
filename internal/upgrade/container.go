// Package upgrade replaces the proxies of running pods by those of another image, without a
// restart of the pods. It adds an ephemeral container with the new image; the agent in the
// sidecar container then hands the pod's connections over to the proxy there. It depends on
// neither a driver nor the mesh.
package upgrade

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// prefix is what the names of the ephemeral containers begin with. A number follows.
const prefix = driver.ProxyContainer + "-"

// envImage is the variable of an added container with the image that it was given. Another webhook
// may change that of the container.
const envImage = "OUTRIGGER_UPGRADE_IMAGE"

// sidecarOf returns the pod's sidecar container, or nil.
func sidecarOf(pod *corev1.Pod) *corev1.Container {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if containers[i].Name == driver.ProxyContainer {
				return &containers[i]
			}
		}
	}
	return nil
}

// Successors returns the pod's ephemeral containers with other versions of its proxy, the
// newest last.
func Successors(pod *corev1.Pod) []corev1.EphemeralContainer {
	return slices.DeleteFunc(slices.Clone(pod.Spec.EphemeralContainers), func(c corev1.EphemeralContainer) bool {
		_, err := strconv.Atoi(strings.TrimPrefix(c.Name, prefix))
		return err != nil || !strings.HasPrefix(c.Name, prefix)
	})
}

// imageOf returns the image that an added container was given.
func imageOf(c *corev1.EphemeralContainer) string {
	for _, e := range c.Env {
		if e.Name == envImage {
			return e.Value
		}
	}
	return c.Image
}

// errNoSidecar is returned for pods without a sidecar.
var errNoSidecar = errors.New("the pod has no sidecar")

// Container returns an ephemeral container for the pod, in which the proxy of the image takes
// over. It has the user, the privileges, the volumes and the variables of the sidecar.
func Container(pod *corev1.Pod, image string) (*corev1.EphemeralContainer, error) {
	sidecar := sidecarOf(pod)
	if sidecar == nil {
		return nil, errNoSidecar
	}
	if len(sidecar.Command) == 0 {
		return nil, fmt.Errorf("the container %s has no command", driver.ProxyContainer)
	}
	if slices.ContainsFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool { return m.SubPath != "" || m.SubPathExpr != "" }) {
		return nil, fmt.Errorf("the container %s mounts a part of a volume (subPath), which an ephemeral container must not", driver.ProxyContainer)
	}
	c := &corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name:            prefix + strconv.Itoa(len(Successors(pod))+2),
		Image:           image,
		ImagePullPolicy: sidecar.ImagePullPolicy,
		Command:         []string{sidecar.Command[0], "successor"},
		WorkingDir:      sidecar.WorkingDir,
		SecurityContext: sidecar.SecurityContext.DeepCopy(),
		// So that the pod's status says why it has ended.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}}
	for _, m := range sidecar.VolumeMounts {
		c.VolumeMounts = append(c.VolumeMounts, *m.DeepCopy())
	}
	for _, e := range sidecar.Env {
		// It is the agent's, and long.
		if e.Name == agentspec.EnvSpec {
			continue
		}
		e = *e.DeepCopy()
		if e.ValueFrom != nil && e.ValueFrom.ResourceFieldRef != nil && e.ValueFrom.ResourceFieldRef.ContainerName == "" {
			// An ephemeral container has no resources of its own.
			e.ValueFrom.ResourceFieldRef.ContainerName = driver.ProxyContainer
		}
		c.Env = append(c.Env, e)
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: envImage, Value: image})
	for _, from := range sidecar.EnvFrom {
		c.EnvFrom = append(c.EnvFrom, *from.DeepCopy())
	}
	return c, nil
}
