package upgrade

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// phase is where a pod is in the rollout of an image.
type phase string

const (
	// current: the pod's proxy has the image.
	current phase = "current"
	// outdated: the pod could be upgraded.
	outdated phase = "outdated"
	// waiting: the pod is outdated, but can't be upgraded now or at all.
	waiting phase = "waiting"
	// upgrading: the container was added, and has not shown yet that it works.
	upgrading phase = "upgrading"
	// failed: the container ended, or does not start. The former proxy goes on.
	failed phase = "failed"
)

var phases = []phase{current, outdated, waiting, upgrading, failed}

const (
	// settle is how long a container must run to count as upgraded. The agent of the sidecar
	// container ends it earlier if its proxy does not get ready within a minute.
	settle = 75 * time.Second
	// watch is for how long after that it counts as failed if the pod is not ready. Later
	// there are other reasons.
	watch = 5 * time.Minute
	// patience is how long a container may take to start.
	patience = 10 * time.Minute
	// maxSuccessors is how many ephemeral containers a pod gets. Kubernetes never removes
	// them.
	maxSuccessors = 10
)

// stateOf returns the phase of an injected pod in a rollout, and for some phases the reason.
func stateOf(pod *corev1.Pod, t Target, now time.Time) (phase, string) {
	sidecar := sidecarOf(pod)
	if sidecar == nil {
		return waiting, errNoSidecar.Error()
	}
	running := cmp.Or(t.Injected, sidecar.Image)
	successors := Successors(pod)
	for i := range successors {
		c := &successors[i]
		state := statusOf(pod, c.Name).State
		if state.Running != nil {
			running = imageOf(c)
		}
		if i < len(successors)-1 {
			continue
		}
		if p, reason := lastState(pod, c, state, imageOf(c) == t.Image, now); p != "" {
			return p, reason
		}
	}
	switch {
	case running == t.Image:
		return current, ""
	case !isUpgradable(sidecar):
		return waiting, "its sidecar was injected by a version or for a class that has no upgrades"
	case len(successors) >= maxSuccessors:
		return waiting, fmt.Sprintf("it has been upgraded %d times already", len(successors))
	case !isReady(pod):
		return waiting, "it is not ready"
	}
	if _, err := Container(pod, t.Image); err != nil {
		return waiting, err.Error()
	}
	return outdated, ""
}

// lastState returns the phase that follows from the state of the container that was added last,
// which is or is not of the image that the pod should have; "" if none does. Until it has shown
// whether it works, no other container is added, whatever its image is.
func lastState(pod *corev1.Pod, c *corev1.EphemeralContainer, state corev1.ContainerState, isWanted bool, now time.Time) (phase, string) {
	switch {
	case state.Running != nil:
		switch since := now.Sub(state.Running.StartedAt.Time); {
		case since < settle:
			return upgrading, ""
		case isWanted && since < settle+watch && !isReady(pod):
			return failed, "the pod is not ready"
		}
	case state.Terminated == nil && isStuck(state.Waiting):
		if isWanted {
			return failed, fmt.Sprintf("container %s does not start, and the former version goes on: %s: %s", c.Name, state.Waiting.Reason, state.Waiting.Message)
		}
	case state.Terminated == nil && !isReady(pod):
		return waiting, "it is not ready"
	case state.Terminated == nil:
		return upgrading, ""
	case isWanted && state.Terminated.ExitCode != 0:
		return failed, fmt.Sprintf("container %s ended with exit code %d: %s", c.Name, state.Terminated.ExitCode, strings.TrimSpace(state.Terminated.Message))
	}
	return "", ""
}

// isStuck reports whether a container waits for something that is unlikely to come by itself.
func isStuck(w *corev1.ContainerStateWaiting) bool {
	return w != nil && slices.Contains([]string{
		"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
	}, w.Reason)
}

func statusOf(pod *corev1.Pod, container string) corev1.ContainerStatus {
	for _, s := range pod.Status.EphemeralContainerStatuses {
		if s.Name == container {
			return s
		}
	}
	return corev1.ContainerStatus{}
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// isUpgradable reports whether the sidecar's agent lets other versions of the proxy take over.
func isUpgradable(sidecar *corev1.Container) bool {
	for _, e := range sidecar.Env {
		if e.Name != agentspec.EnvSpec {
			continue
		}
		var spec struct {
			Upgrade *agentspec.Upgrade `json:"upgrade"`
		}
		return json.Unmarshal([]byte(e.Value), &spec) == nil && spec.Upgrade != nil
	}
	return false
}
