package drivertest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	psaapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

func patchRestricted(s subject) error {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return fmt.Errorf("preparing the Pod Security checks: %w", err)
	}
	restricted := psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}
	return s.each(situations(), func(inj *driver.InjectorContext, before, after *corev1.Pod) error {
		inits, containers, volumes := added(before, after)
		// The containers must not depend on the pod's own securityContext, which is
		// the user's.
		spec := after.Spec.DeepCopy()
		spec.SecurityContext = nil
		spec.InitContainers, spec.Containers, spec.Volumes = nil, containers, volumes
		for _, c := range inits {
			switch {
			case isNative(&c), inj.Sidecar.CNI:
				spec.InitContainers = append(spec.InitContainers, c)
			case !inj.Sidecar.PrivilegedInit:
				spec.InitContainers = append(spec.InitContainers, *withoutExceptions(&c))
			}
		}
		result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &after.ObjectMeta, spec))
		if !result.Allowed {
			return fmt.Errorf("level restricted of Pod Security forbids it: %s: %s", result.ForbiddenReason(), result.ForbiddenDetail())
		}
		return nil
	})
}

// withoutExceptions returns the init container without its permitted exceptions from
// restricted: root and NET_ADMIN.
func withoutExceptions(c *corev1.Container) *corev1.Container {
	c = c.DeepCopy()
	if c.SecurityContext == nil {
		return c
	}
	c.SecurityContext.RunAsUser, c.SecurityContext.RunAsNonRoot = nil, new(true)
	if caps := c.SecurityContext.Capabilities; caps != nil {
		caps.Add = slices.DeleteFunc(caps.Add, func(name corev1.Capability) bool { return name == "NET_ADMIN" })
	}
	return c
}

func patchNoSecret(s subject) error {
	return s.each(situations(), func(_ *driver.InjectorContext, before, after *corev1.Pod) error {
		inits, containers, volumes := added(before, after)
		return errors.Join(secretsIn("", tree(map[string]any{
			"labels": after.Labels, "annotations": after.Annotations,
			"initContainers": inits, "containers": containers, "volumes": volumes,
		}))...)
	})
}

// secretsIn returns errors for private keys and references to Secrets.
func secretsIn(path string, v any) []error {
	var errs []error
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if strings.HasPrefix(key, "secret") && v[key] != nil {
				errs = append(errs, fmt.Errorf("%s.%s refers to a Secret", path, key))
			}
			errs = append(errs, secretsIn(path+"."+key, v[key])...)
		}
	case []any:
		for i := range v {
			errs = append(errs, secretsIn(fmt.Sprintf("%s[%s]", path, cmp.Or(nameOf(v[i]), strconv.Itoa(i))), v[i])...)
		}
	case string:
		if strings.Contains(v, "PRIVATE KEY-----") {
			errs = append(errs, fmt.Errorf("%s holds a private key", path))
		}
	}
	return errs
}

func patchPorts(s subject) error {
	return s.each(situations(), func(_ *driver.InjectorContext, before, after *corev1.Pod) error {
		numbers, names := make(map[int32]string), make(map[string]string)
		for i := range before.Spec.Containers {
			for _, p := range before.Spec.Containers[i].Ports {
				numbers[p.ContainerPort] = before.Spec.Containers[i].Name
				names[p.Name] = before.Spec.Containers[i].Name
			}
		}
		var errs []error
		for _, c := range addedContainers(before, after) {
			for _, p := range c.Ports {
				if owner, taken := numbers[p.ContainerPort]; taken {
					errs = append(errs, fmt.Errorf("container %s declares port %d, which %s has", c.Name, p.ContainerPort, owner))
				}
				if owner, taken := names[p.Name]; taken && p.Name != "" {
					errs = append(errs, fmt.Errorf("container %s declares a port %q, which %s has", c.Name, p.Name, owner))
				}
				if p.HostPort != 0 {
					errs = append(errs, fmt.Errorf("container %s uses host port %d", c.Name, p.HostPort))
				}
				if p.ContainerPort == driver.AdminPort {
					errs = append(errs, fmt.Errorf("container %s declares the admin port %d", c.Name, p.ContainerPort))
				}
				numbers[p.ContainerPort], names[p.Name] = c.Name, c.Name
			}
		}
		return errors.Join(errs...)
	})
}

func patchWindows(s subject) error {
	return s.each(forms("Windows pod", windowsPod()), func(_ *driver.InjectorContext, before, after *corev1.Pod) error {
		var errs []error
		for _, c := range addedContainers(before, after) {
			fields, _ := tree(c.SecurityContext).(map[string]any)
			for _, field := range slices.Sorted(maps.Keys(fields)) {
				if field != "runAsNonRoot" && field != "windowsOptions" {
					errs = append(errs, fmt.Errorf("container %s sets securityContext.%s", c.Name, field))
				}
			}
			if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == agentspec.EnvRedirection }) {
				errs = append(errs, fmt.Errorf("container %s sets %s", c.Name, agentspec.EnvRedirection))
			}
		}
		_, _, volumes := added(before, after)
		for _, v := range volumes {
			if v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumDefault {
				errs = append(errs, fmt.Errorf("volume %s has the medium %s", v.Name, v.EmptyDir.Medium))
			}
		}
		return errors.Join(errs...)
	})
}
