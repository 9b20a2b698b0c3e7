package drivertest

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// proxyless reports whether the driver's pods run no proxy.
func (s subject) proxyless() bool {
	p, ok := s.driver.(driver.Proxyless)
	return ok && p.Proxyless()
}

// patchProxyless checks what a driver without a proxy adds.
func patchProxyless(s subject) error {
	if !s.proxyless() {
		return nil
	}
	return s.each(situations(), func(_ *driver.InjectorContext, before, after *corev1.Pod) error {
		var errs []error
		for _, c := range addedContainers(before, after) {
			if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == agentspec.EnvRedirection }) {
				errs = append(errs, fmt.Errorf("container %s sets %s", c.Name, agentspec.EnvRedirection))
			}
			if sc := c.SecurityContext; sc != nil && sc.Capabilities != nil && len(sc.Capabilities.Add) > 0 {
				errs = append(errs, fmt.Errorf("container %s has the capabilities %v", c.Name, sc.Capabilities.Add))
			}
		}
		for _, c := range containersNamed(after, "web") {
			if m := mountOf(&c, driver.IdentityDir); m == nil || !m.ReadOnly {
				errs = append(errs, fmt.Errorf("the app's container does not mount %s read-only", driver.IdentityDir))
			}
		}
		return errors.Join(errs...)
	})
}
