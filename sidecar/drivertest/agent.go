package drivertest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// patchSidecar checks what users configure by MeshConfig and annotations.
func patchSidecar(s subject) error {
	return s.each(situations(), func(inj *driver.InjectorContext, before, after *corev1.Pod) error {
		var errs []error
		found := false
		for _, c := range addedContainers(before, after) {
			if c.ImagePullPolicy != inj.ContainerPullPolicy {
				errs = append(errs, fmt.Errorf("container %s has the pull policy %q, want %q", c.Name, c.ImagePullPolicy, inj.ContainerPullPolicy))
			}
			if c.Image != inj.Sidecar.Image {
				continue
			}
			found = true
			if c.Name != driver.ProxyContainer {
				errs = append(errs, fmt.Errorf("the sidecar container has the name %s, want %s", c.Name, driver.ProxyContainer))
			}
			if !equality.Semantic.DeepEqual(c.Resources, inj.Sidecar.Resources) {
				errs = append(errs, fmt.Errorf("container %s has the resources %s, want %s", c.Name, toJSON(c.Resources), toJSON(inj.Sidecar.Resources)))
			}
		}
		if !found {
			errs = append(errs, fmt.Errorf("no container was added with the image %q", inj.Sidecar.Image))
		}
		return errors.Join(errs...)
	})
}

func patchForm(s subject) error {
	return s.each(situations(), func(inj *driver.InjectorContext, before, after *corev1.Pod) error {
		inits, containers, _ := added(before, after)
		native := slices.ContainsFunc(inits, func(c corev1.Container) bool { return isNative(&c) })
		switch {
		case inj.Sidecar.Native && (!native || len(containers) > 0):
			return fmt.Errorf("a native sidecar was requested, but %d ordinary containers were added", len(containers))
		case inj.Sidecar.Native:
			return nil
		case native || len(containers) == 0:
			return errors.New("an ordinary container was requested, but there is none, or there is a native sidecar")
		case inj.Sidecar.HoldApplication && inj.PodOS != "windows":
			first := after.Spec.Containers[0]
			if first.Name != containers[0].Name || first.Lifecycle == nil || first.Lifecycle.PostStart == nil {
				return fmt.Errorf("the sidecar must hold the app, but the first container, %s, is not the sidecar or has no postStart hook", first.Name)
			}
		}
		return nil
	})
}

func patchAgent(s subject) error {
	all := append(situations(), situation{
		name: "plain pod, without mTLS", pod: plainPod(),
		change: func(inj *driver.InjectorContext) { inj.Sidecar.DisabledMTLS = true },
	})
	return s.each(all, func(inj *driver.InjectorContext, before, after *corev1.Pod) error {
		var (
			errs  []error
			specs int
		)
		for _, c := range addedContainers(before, after) {
			for _, e := range c.Env {
				switch e.Name {
				case agentspec.EnvSpec:
					specs++
					errs = append(errs, s.checkSpec(inj, &c, after, e.Value)...)
				case agentspec.EnvRedirection:
					var got agentspec.Redirection
					if err := decode(e.Value, &got); err != nil {
						errs = append(errs, fmt.Errorf("%s: %w", e.Name, err))
					} else if !equality.Semantic.DeepEqual(got, inj.Redirection) {
						errs = append(errs, fmt.Errorf("%s says %s, want %s", e.Name, toJSON(got), toJSON(inj.Redirection)))
					}
				}
			}
		}
		if specs != 1 {
			errs = append(errs, fmt.Errorf("%d containers set %s, want 1", specs, agentspec.EnvSpec))
		}
		return errors.Join(errs...)
	})
}

// decode decodes an env var's value as the container will see it.
func decode(value string, into any) error {
	if strings.Contains(value, "$(") || strings.Contains(value, "$$") {
		return errors.New("the kubelet would expand $( or $$ in it; use agentspec.EnvValue")
	}
	d := json.NewDecoder(bytes.NewReader([]byte(value)))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

var envReference = regexp.MustCompile(`\$\{([^}]*)\}`)

// checkSpec returns the errors in the agent's Spec in container c.
func (s subject) checkSpec(inj *driver.InjectorContext, c *corev1.Container, pod *corev1.Pod, value string) []error {
	var spec agentspec.Spec
	if err := decode(value, &spec); err != nil {
		return []error{fmt.Errorf("%s: %w", agentspec.EnvSpec, err)}
	}
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(agentspec.EnvSpec+": "+format, args...))
	}
	switch {
	case s.proxyless() && (len(spec.Command) > 0 || !spec.ShareIdentity):
		fail("the driver is proxyless, so there must be no command, and the identity must be shared")
	case !s.proxyless() && (len(spec.Command) == 0 || spec.Command[0] == ""):
		fail("there is no command")
	case !s.proxyless() && spec.ShareIdentity:
		fail("the identity is shared with the application, although there is a proxy")
	}
	if !equality.Semantic.DeepEqual(spec.Probes, inj.AppProbes) {
		fail("the probes are %s, want those of InjectorContext.AppProbes, %s", toJSON(spec.Probes), toJSON(inj.AppProbes))
	}
	if spec.DisabledMTLS != inj.Sidecar.DisabledMTLS {
		fail("disabledMTLS is %t, want %t", spec.DisabledMTLS, inj.Sidecar.DisabledMTLS)
	}
	references := slices.Clone(spec.Command)
	for _, f := range spec.Files {
		references = append(references, f.Content)
		if !writable(c, f.Path) {
			fail("the file %q is on no volume that the container can write to", f.Path)
		}
	}
	if m := spec.Mirror; m != nil {
		references = append(references, m.URL)
		if !strings.HasPrefix(m.URL, "https://") {
			fail("the mirror's URL %q is not https", m.URL)
		}
		if !writable(c, m.Dir) {
			fail("the mirror's folder %q is on no volume that the container can write to", m.Dir)
		}
	}
	if to := spec.Spans; to != nil && (spec.Mirror == nil || !filepath.IsLocal(to.Collector)) {
		fail("the spans' collector %q is not the name of a file in the mirror's folder", to.Collector)
	}
	if r := spec.Reload; r != nil && (r.Signal == "") == (len(r.Command) == 0) {
		fail("reload must have a signal or a command")
	}
	if d := spec.Drain; d != nil {
		references = append(references, d.URL)
		if d.Seconds < 0 {
			fail("drain takes %d seconds", d.Seconds)
		}
	}
	if u := spec.Upgrade; u != nil {
		references = append(references, u.URL)
		if u.Seconds < 0 {
			fail("an upgrade takes %d seconds", u.Seconds)
		}
	}
	references = append(references, spec.ReadyURL)
	if u, err := url.Parse(envReference.ReplaceAllString(spec.ReadyURL, "x")); err != nil || spec.ReadyURL != "" && u.Host == "" {
		fail("the ready URL %q is not a URL", spec.ReadyURL)
	}
	for _, text := range references {
		for _, name := range envReference.FindAllStringSubmatch(text, -1) {
			if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name[1] }) {
				fail("${%s} is used, but the container has no such env var", name[1])
			}
		}
	}
	if inj.PodOS != "windows" && !inMemory(c, pod, driver.IdentityDir) {
		fail("%s is not on an emptyDir in memory", driver.IdentityDir)
	}
	return errs
}

// mountOf returns the mount that contains a path of the container, or nil.
func mountOf(c *corev1.Container, file string) *corev1.VolumeMount {
	var best *corev1.VolumeMount
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		if (file == m.MountPath || strings.HasPrefix(file, m.MountPath+"/")) && (best == nil || len(m.MountPath) > len(best.MountPath)) {
			best = m
		}
	}
	return best
}

func writable(c *corev1.Container, file string) bool {
	m := mountOf(c, file)
	return path.Clean(file) == file && m != nil && !m.ReadOnly
}

func inMemory(c *corev1.Container, pod *corev1.Pod, dir string) bool {
	m := mountOf(c, dir)
	return m != nil && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == m.Name && v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory
	})
}
