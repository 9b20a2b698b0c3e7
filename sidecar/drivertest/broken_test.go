package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/podtemplate"
)

// broken is a driver whose Patch is a function.
type broken struct {
	good
	patch func(context.Context) error
}

func (b broken) Patch(ctx context.Context) error { return b.patch(ctx) }

// after returns a driver that changes the result of the good Patch.
func after(change func(inj *driver.InjectorContext, pod *corev1.Pod)) driver.Driver {
	return broken{patch: func(ctx context.Context) error {
		if err := (good{}).Patch(ctx); err != nil {
			return err
		}
		inj, err := driver.InjectorFrom(ctx)
		if err != nil {
			return err
		}
		change(inj, inj.Pod)
		return nil
	}}
}

// sidecarOf returns the container that the good Patch adds.
func sidecarOf(pod *corev1.Pod) *corev1.Container { return namedIn(pod, "outrigger-proxy") }

func initOf(pod *corev1.Pod) *corev1.Container { return namedIn(pod, "outrigger-init") }

func namedIn(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	// The pod lacks the container; changing a new one is harmless.
	return &corev1.Container{SecurityContext: &corev1.SecurityContext{}}
}

// sidecarChange returns a driver that changes the container of the good Patch.
func sidecarChange(change func(c *corev1.Container)) driver.Driver {
	return after(func(_ *driver.InjectorContext, pod *corev1.Pod) { change(sidecarOf(pod)) })
}

// template returns a driver with another template.
func template(text string) driver.Driver {
	return specOf(text, &agentspec.Spec{Command: []string{"/proxy"}})
}

func specOf(text string, spec *agentspec.Spec) driver.Driver {
	return broken{patch: func(ctx context.Context) error { return podtemplate.Apply(ctx, "bad", text, spec) }}
}

// setEnv replaces the value of an env var.
func setEnv(c *corev1.Container, name, value string) {
	for i := range c.Env {
		if c.Env[i].Name == name {
			c.Env[i].Value = value
		}
	}
}

type brokenDriver struct {
	name   string
	driver driver.Driver
	// want is a part of the rule's error.
	want string
}

// brokenDrivers are drivers that break a rule, by rule.
func brokenDrivers() map[string][]brokenDriver {
	var calls atomic.Int64
	pod := func(change func(pod *corev1.Pod)) driver.Driver {
		return after(func(_ *driver.InjectorContext, p *corev1.Pod) { change(p) })
	}
	app := func(change func(c *corev1.Container)) driver.Driver {
		return pod(func(p *corev1.Pod) { change(namedIn(p, "web")) })
	}
	agent := func(spec *agentspec.Spec) driver.Driver { return specOf(goodTemplate, spec) }
	return map[string][]brokenDriver{
		"proxyless": {
			{"redirects", proxyless(func(p *corev1.Pod) {
				c := sidecarOf(p)
				c.Env = append(c.Env, corev1.EnvVar{Name: agentspec.EnvRedirection, Value: "{}"})
			}), "sets OUTRIGGER_REDIRECTION"},
			{"privileges", proxyless(func(p *corev1.Pod) {
				sidecarOf(p).SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
			}), "has the capabilities [NET_ADMIN]"},
			{"writable identity", proxyless(func(p *corev1.Pod) { namedIn(p, "web").VolumeMounts[0].ReadOnly = false }), "does not mount /run/outrigger-identity read-only"},
			{"no identity", proxyless(func(p *corev1.Pod) { namedIn(p, "web").VolumeMounts = nil }), "does not mount /run/outrigger-identity read-only"},
		},
		"missing_context": {
			{"no error", broken{patch: func(context.Context) error { return nil }}, "returned no error"},
			{"panic", broken{patch: func(ctx context.Context) error {
				ctx.Value(&driver.InjectorCtxKey).(*driver.InjectorContext).Pod = nil
				return nil
			}}, "panicked"},
		},
		"cancelled": {
			{"ignores all", broken{patch: func(context.Context) error { return nil }}, "the deadline has passed: it returned no error"},
			{"asks the InjectorContext only", broken{patch: func(ctx context.Context) error {
				inj, err := driver.InjectorFrom(ctx)
				if err != nil {
					return err
				}
				return inj.Err()
			}}, "the ctx derived from the InjectorContext is cancelled: it returned no error"},
		},
		"sidecar": {
			{"does nothing", broken{patch: func(context.Context) error { return nil }}, "no container was added with the image"},
			{"image", sidecarChange(func(c *corev1.Container) { c.Image = "x" }), "no container was added with the image"},
			{"name", sidecarChange(func(c *corev1.Container) { c.Name = "my-proxy" }), "has the name my-proxy, want outrigger-proxy"},
			{"pull policy", sidecarChange(func(c *corev1.Container) { c.ImagePullPolicy = "Never" }), `pull policy "Never"`},
			{"resources", sidecarChange(func(c *corev1.Container) { c.Resources.Limits = nil }), "has the resources"},
			{"error", broken{patch: func(context.Context) error { return errors.New("I will not") }}, "patching: I will not"},
		},
		"form": {
			{"always classic", after(func(_ *driver.InjectorContext, p *corev1.Pod) {
				for i := range p.Spec.InitContainers {
					if c := p.Spec.InitContainers[i]; c.Name == "outrigger-proxy" {
						c.RestartPolicy = nil
						p.Spec.Containers = append(p.Spec.Containers, c)
						p.Spec.InitContainers = slices.Delete(p.Spec.InitContainers, i, i+1)
						return
					}
				}
			}), "a native sidecar was requested"},
			{"always native", after(func(_ *driver.InjectorContext, p *corev1.Pod) {
				for i := range p.Spec.Containers {
					if c := p.Spec.Containers[i]; c.Name == "outrigger-proxy" {
						c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
						p.Spec.InitContainers = append(p.Spec.InitContainers, c)
						p.Spec.Containers = slices.Delete(p.Spec.Containers, i, i+1)
						return
					}
				}
			}), "an ordinary container was requested"},
			{"does not hold", sidecarChange(func(c *corev1.Container) { c.Lifecycle = nil }), "the sidecar must hold the app"},
			{"holds in the second place", pod(func(p *corev1.Pod) { slices.Reverse(p.Spec.Containers) }), "the sidecar must hold the app"},
		},
		"idempotent": {
			{"grows", pod(func(p *corev1.Pod) {
				c := sidecarOf(p)
				c.Args = append(c.Args, "-v")
			}), "a second Patch changed the pod"},
			{"undoes defaults", sidecarChange(func(c *corev1.Container) { c.TerminationMessagePath = "" }), "after the API server's defaults changed the pod"},
			{"refuses", broken{patch: func(ctx context.Context) error {
				if inj, err := driver.InjectorFrom(ctx); err == nil && sidecarOf(inj.Pod).Name != "" {
					return errors.New("there is a sidecar already")
				}
				return good{}.Patch(ctx)
			}}, "there is a sidecar already"},
		},
		"deterministic": {
			{"ranges over a map", sidecarChange(func(c *corev1.Container) {
				for key := range map[string]bool{"a": true, "b": true, "c": true, "d": true} {
					c.Args = append(c.Args, key)
				}
			}), "another run gave another pod"},
			{"counts", sidecarChange(func(c *corev1.Container) {
				// Only the later, concurrent runs see the change.
				if calls.Add(1) > 110 {
					c.Args = []string{"late"}
				}
			}), "from 8 goroutines at once: another run gave another pod"},
		},
		"user_kept": {
			{"container", pod(func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{*sidecarOf(p)} }), "spec.containers[web] is gone"},
			{"order of containers", pod(func(p *corev1.Pod) { slices.Reverse(p.Spec.Containers) }), "is out of order"},
			{"order of init containers", pod(func(p *corev1.Pod) { slices.Reverse(p.Spec.InitContainers) }), "spec.initContainers[logs] is out of order"},
			{"volume", pod(func(p *corev1.Pod) { p.Spec.Volumes = p.Spec.Volumes[1:] }), "spec.volumes[data] is gone"},
			{"volume's source", pod(func(p *corev1.Pod) {
				p.Spec.Volumes[0].EmptyDir = &corev1.EmptyDirVolumeSource{Medium: "Memory"}
			}), "spec.volumes[data].emptyDir.medium belongs to the user"},
			{"label", pod(func(p *corev1.Pod) { p.Labels = map[string]string{"sidecar": "yes"} }), "metadata.labels.app is gone"},
			{"label's value", pod(func(p *corev1.Pod) { p.Labels = map[string]string{"app": "sidecar"} }), "metadata.labels.app was cart and is sidecar"},
			{"annotation", pod(func(p *corev1.Pod) { delete(p.Annotations, "example.com/empty") }), "example.com/empty is gone"},
			{"finalizers", pod(func(p *corev1.Pod) { slices.Sort(p.Finalizers) }), `metadata.finalizers[1], which was "example.com/a", is gone, changed or out of order`},
			{"env", app(func(c *corev1.Container) { c.Env = c.Env[:max(0, len(c.Env)-1)] }), "spec.containers[web].env"},
			{"order of env", app(func(c *corev1.Container) { slices.Reverse(c.Env) }), "spec.containers[web].env[1]"},
			{"mounts", app(func(c *corev1.Container) { c.VolumeMounts = nil }), "spec.containers[web].volumeMounts is gone"},
			{"args", app(func(c *corev1.Container) { c.Args = append(c.Args, "x") }), "spec.containers[web].args"},
			{"command of the image", app(func(c *corev1.Container) { c.Command = []string{"x"} }), "spec.containers[web].command belongs to the user"},
			{"probe", app(func(c *corev1.Container) { c.ReadinessProbe = nil }), "spec.containers[web].readinessProbe is gone"},
			{"ports", app(func(c *corev1.Container) { c.Ports = c.Ports[:min(1, len(c.Ports))] }), "spec.containers[web].ports"},
			{"security context", app(func(c *corev1.Container) {
				if c.SecurityContext != nil {
					c.SecurityContext.ReadOnlyRootFilesystem = new(true)
				}
			}), "securityContext.readOnlyRootFilesystem belongs to the user"},
			{"restart policy", pod(func(p *corev1.Pod) { p.Spec.RestartPolicy = "Always" }), "spec.restartPolicy was Never and is Always"},
			{"tolerations", pod(func(p *corev1.Pod) { slices.Reverse(p.Spec.Tolerations) }), "spec.tolerations[1]"},
			{"topology", pod(func(p *corev1.Pod) {
				p.Spec.TopologySpreadConstraints = p.Spec.TopologySpreadConstraints[:min(1, len(p.Spec.TopologySpreadConstraints))]
			}), "spec.topologySpreadConstraints[1]"},
		},
		"user_wins": {
			{"replaces", sidecarChange(func(c *corev1.Container) {
				if c.Image == "example.com/mine:1" {
					*c = corev1.Container{Name: c.Name, Image: "x"}
				}
			}), "the user set outrigger-proxy.env[MINE]"},
			{"second of the name", broken{patch: func(ctx context.Context) error {
				inj, err := driver.InjectorFrom(ctx)
				if err != nil {
					return err
				}
				user := sidecarOf(inj.Pod)
				if user.Image != "example.com/mine:1" {
					return good{}.Patch(ctx)
				}
				user.Name = "put-aside"
				err = good{}.Patch(ctx)
				user.Name = "outrigger-proxy"
				for _, list := range [][]corev1.Container{inj.Pod.Spec.InitContainers, inj.Pod.Spec.Containers} {
					for i := range list {
						if list[i].Name == "put-aside" {
							list[i].Name = "outrigger-proxy"
						}
					}
				}
				return err
			}}, "there are 2 containers with the name outrigger-proxy"},
			{"driver wins", sidecarChange(func(c *corev1.Container) { c.Image = "example.com/proxy:1" }), "the user set outrigger-proxy.image"},
			{"user's alone", broken{patch: func(ctx context.Context) error {
				inj, err := driver.InjectorFrom(ctx)
				if err != nil || sidecarOf(inj.Pod).Name != "" {
					return err
				}
				return good{}.Patch(ctx)
			}}, "the driver's env var OUTRIGGER_AGENT is gone"},
			{"two handlers", sidecarChange(func(c *corev1.Container) {
				if p := c.ReadinessProbe; p != nil {
					p.HTTPGet = &corev1.HTTPGetAction{Path: "/ready"}
				}
			}), "readinessProbe has 2 handlers"},
			{"not twice", sidecarChange(func(c *corev1.Container) {
				if c.Image == "example.com/mine:1" {
					c.Args = append(c.Args, "-v")
				}
			}), "a second Patch changed the pod"},
		},
		"valid": {
			{"name", sidecarChange(func(c *corev1.Container) { c.Name = "Outrigger_Proxy" }), "name: a lowercase RFC 1123 label"},
			{"name twice", pod(func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, *sidecarOf(p)) }), "two containers with the name outrigger-proxy"},
			{"no volume", pod(func(p *corev1.Pod) { p.Spec.Volumes = p.Spec.Volumes[:len(p.Spec.Volumes)-1] }), `the volume "outrigger-ca", which does not exist`},
			{"volume twice", pod(func(p *corev1.Pod) {
				p.Spec.Volumes = append(p.Spec.Volumes, p.Spec.Volumes[len(p.Spec.Volumes)-1])
			}), "two volumes with the name"},
			{"volume without a source", pod(func(p *corev1.Pod) { p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "x"}) }), `volume "x" has 0 sources`},
			{"mount twice", sidecarChange(func(c *corev1.Container) {
				c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "outrigger-run", MountPath: "/run/outrigger/"})
			}), "two volumes are mounted at /run/outrigger/"},
			{"relative mount", sidecarChange(func(c *corev1.Container) { c.VolumeMounts[0].MountPath = "bin" }), "not an absolute path"},
			{"env name", sidecarChange(func(c *corev1.Container) { c.Env[0].Name = "A B" }), `env "A B"`},
			{"env twice", sidecarChange(func(c *corev1.Container) { c.Env = append(c.Env, c.Env[0]) }), "is there twice"},
			{"env from two places", sidecarChange(func(c *corev1.Container) { c.Env[0].Value = "x" }), "has a value and a valueFrom"},
			{"env from an unknown field", sidecarChange(func(c *corev1.Container) { c.Env[0].ValueFrom.FieldRef.FieldPath = "spec.x" }), "not one that a container can see"},
			{"port number", sidecarChange(func(c *corev1.Container) { c.Ports[0].ContainerPort = 70000 }), "port 70000"},
			{"port name", sidecarChange(func(c *corev1.Container) { c.Ports[0].Name = "much-too-long-a-name" }), `port name "much-too-long-a-name"`},
			{"port twice", sidecarChange(func(c *corev1.Container) { c.Ports = append(c.Ports, c.Ports[0]) }), "port 15010/TCP is there twice"},
			{"request over limit", sidecarChange(func(c *corev1.Container) {
				c.Resources.Requests, c.Resources.Limits = c.Resources.Limits, c.Resources.Requests
			}), "is more than its limit"},
			{"probe with two handlers", sidecarChange(func(c *corev1.Container) { c.ReadinessProbe.Exec = &corev1.ExecAction{} }), "readinessProbe has 2 handlers"},
			{"hook with none", sidecarChange(func(c *corev1.Container) {
				c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{}}
			}), "the hook preStop has 0 handlers"},
			{"probe of an init container", pod(func(p *corev1.Pod) { initOf(p).ReadinessProbe = &corev1.Probe{} }), "is not a sidecar, but has a probe"},
			{"restart policy", pod(func(p *corev1.Pod) { initOf(p).RestartPolicy = new(corev1.ContainerRestartPolicy("Never")) }), "only Always is allowed"},
			{"label's value", pod(func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b c"} }), "metadata.labels"},
			{"annotation's name", pod(func(p *corev1.Pod) { p.Annotations = map[string]string{"a b": "c"} }), "metadata.annotations"},
			{"image", sidecarChange(func(c *corev1.Container) { c.Image = "" }), `image "" is empty`},
			{"pull policy", sidecarChange(func(c *corev1.Container) { c.ImagePullPolicy = "Often" }), `imagePullPolicy "Often"`},
			{"escalation", sidecarChange(func(c *corev1.Container) {
				c.SecurityContext.Privileged, c.SecurityContext.AllowPrivilegeEscalation = new(true), new(false)
			}), "cannot have allowPrivilegeEscalation false"},
		},
		"restricted": {
			{"none", sidecarChange(func(c *corev1.Container) { c.SecurityContext = nil }), "allowPrivilegeEscalation != false"},
			{"root", sidecarChange(func(c *corev1.Container) { c.SecurityContext.RunAsUser = new(int64(0)) }), "runAsUser=0"},
			{"capability", sidecarChange(func(c *corev1.Container) {
				c.SecurityContext.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}}
			}), "unrestricted capabilities"},
			{"init container's capability", pod(func(p *corev1.Pod) {
				if caps := initOf(p).SecurityContext.Capabilities; caps != nil {
					caps.Add = append(caps.Add, "NET_RAW")
				}
			}), "NET_RAW"},
			{"NET_ADMIN where the node redirects", pod(func(p *corev1.Pod) {
				if caps := initOf(p).SecurityContext.Capabilities; caps != nil {
					caps.Add = []corev1.Capability{"NET_ADMIN"}
				}
			}), "NET_ADMIN"},
			{"privileged init container unasked", pod(func(p *corev1.Pod) { initOf(p).SecurityContext.Privileged = new(true) }), "privileged"},
			{"host path", pod(func(p *corev1.Pod) {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
			}), "hostPath"},
			{"host network", pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), "host namespaces"},
		},
		"no_secret": {
			{"key in a file", agent(&agentspec.Spec{
				Command: []string{"/proxy"}, Files: []agentspec.File{{Path: "/run/outrigger/key.pem", Content: "-----BEGIN EC PRIVATE KEY-----"}},
			}), ".containers[outrigger-proxy].env[OUTRIGGER_AGENT].value holds a private key"},
			{"key in an annotation", pod(func(p *corev1.Pod) {
				p.Annotations = map[string]string{"key": "-----BEGIN PRIVATE KEY-----"}
			}), ".annotations.key holds a private key"},
			{"Secret as a volume", pod(func(p *corev1.Pod) {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}})
			}), ".secret refers to a Secret"},
			{"Secret in env", sidecarChange(func(c *corev1.Container) {
				c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}}
			}), ".secretRef refers to a Secret"},
		},
		"ports": {
			{"app's number", sidecarChange(func(c *corev1.Container) { c.Ports[0].ContainerPort = 8080 }), "declares port 8080, which web has"},
			{"app's name", sidecarChange(func(c *corev1.Container) { c.Ports[0].Name = "http" }), `declares a port "http", which web has`},
			{"node's", sidecarChange(func(c *corev1.Container) { c.Ports[0].HostPort = 15010 }), "host port 15010"},
			{"admin", sidecarChange(func(c *corev1.Container) { c.Ports[0].ContainerPort = 15000 }), "the admin port"},
		},
		"agent": {
			{"a proxyless driver with a command", withoutProxy{specOf(goodTemplate, &agentspec.Spec{Command: []string{"/proxy"}})}, "there must be no command"},
			{"a shared identity beside a proxy", agent(&agentspec.Spec{Command: []string{"/proxy"}, ShareIdentity: true}), "the identity is shared with the application"},
			{"none", sidecarChange(func(c *corev1.Container) {
				c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == agentspec.EnvSpec })
			}), "0 containers set OUTRIGGER_AGENT"},
			{"no command", agent(&agentspec.Spec{}), "there is no command"},
			{"no JSON", sidecarChange(func(c *corev1.Container) { setEnv(c, agentspec.EnvSpec, "command: /proxy") }), "OUTRIGGER_AGENT: invalid character"},
			{"unescaped", sidecarChange(func(c *corev1.Container) { setEnv(c, agentspec.EnvSpec, `{"command":["$(HOME)"]}`) }), "use agentspec.EnvValue"},
			{"no probes", sidecarChange(func(c *corev1.Container) { setEnv(c, agentspec.EnvSpec, `{"command":["/proxy"]}`) }), "the probes are null"},
			{"mTLS", after(func(inj *driver.InjectorContext, p *corev1.Pod) {
				value, _ := agentspec.EnvValue(agentspec.Spec{Command: []string{"/proxy"}, Probes: inj.AppProbes})
				setEnv(sidecarOf(p), agentspec.EnvSpec, value)
			}), "disabledMTLS is false, want true"},
			{"file nowhere", agent(&agentspec.Spec{Command: []string{"/p"}, Files: []agentspec.File{{Path: "/etc/p"}}}), `the file "/etc/p" is on no volume`},
			{"file on a read-only volume", agent(&agentspec.Spec{Command: []string{"/p"}, Files: []agentspec.File{{Path: "/run/outrigger-ca/p"}}}), "is on no volume that the container can write to"},
			{"file that climbs", agent(&agentspec.Spec{Command: []string{"/p"}, Files: []agentspec.File{{Path: "/run/outrigger/../x"}}}), "is on no volume that the container can write to"},
			{"mirror without TLS", agent(&agentspec.Spec{Command: []string{"/p"}, Mirror: &agentspec.Mirror{URL: "http://c", Dir: "/run/outrigger/m"}}), "is not https"},
			{"mirror nowhere", agent(&agentspec.Spec{Command: []string{"/p"}, Mirror: &agentspec.Mirror{URL: "https://c", Dir: "/m"}}), "the mirror's folder"},
			{"reload twice", agent(&agentspec.Spec{Command: []string{"/p"}, Reload: &agentspec.Reload{Signal: "HUP", Command: []string{"x"}}}), "a signal or a command"},
			{"unset variable", agent(&agentspec.Spec{Command: []string{"/p", "${POD_IDENTITY}"}}), "${POD_IDENTITY} is used"},
			{"spans", agent(&agentspec.Spec{Command: []string{"/p"}, Spans: &agentspec.Spans{Collector: "c"}}), "the spans' collector"},
			{"ready URL", agent(&agentspec.Spec{Command: []string{"/p"}, ReadyURL: "/ready"}), "is not a URL"},
			{"upgrade", agent(&agentspec.Spec{Command: []string{"/p"}, Upgrade: &agentspec.Upgrade{Seconds: -1}}), "upgrade takes -1"},
			{"drain", agent(&agentspec.Spec{Command: []string{"/p"}, Drain: &agentspec.Drain{Seconds: -1}}), "drain takes -1"},
			{"redirection", pod(func(p *corev1.Pod) { setEnv(initOf(p), agentspec.EnvRedirection, "{}") }), "OUTRIGGER_REDIRECTION says {}"},
			{"identity on disk", pod(func(p *corev1.Pod) {
				for _, v := range p.Spec.Volumes {
					if v.Name == "outrigger-identity" {
						v.EmptyDir.Medium = ""
					}
				}
			}), "/run/outrigger-identity is not on an emptyDir in memory"},
		},
		"windows": {
			{"user", sidecarChange(func(c *corev1.Container) { c.SecurityContext.RunAsUser = new(int64(1500)) }), "sets securityContext.runAsUser"},
			{"capabilities", sidecarChange(func(c *corev1.Container) { c.SecurityContext.Capabilities = &corev1.Capabilities{} }), "sets securityContext.capabilities"},
			{"memory", pod(func(p *corev1.Pod) {
				for _, v := range p.Spec.Volumes {
					if v.EmptyDir != nil {
						v.EmptyDir.Medium = "Memory"
					}
				}
			}), "has the medium Memory"},
			{"redirection", pod(func(p *corev1.Pod) {
				p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "i", Env: []corev1.EnvVar{{Name: agentspec.EnvRedirection}}})
			}), "container i sets OUTRIGGER_REDIRECTION"},
		},
		"offline": {
			{"client", after(func(inj *driver.InjectorContext, _ *corev1.Pod) { inj.KubeClient.CoreV1() }), "panicked"},
			{"UUID", broken{patch: func(ctx context.Context) error {
				if inj, err := driver.InjectorFrom(ctx); err == nil && inj.ProxyCommonName == "" {
					return errors.New("the proxy has no name")
				}
				return good{}.Patch(ctx)
			}}, "the proxy has no name"},
			{"nothing", broken{patch: func(context.Context) error { return nil }}, "no container was added"},
		},
		"no_side_effects": {
			{"writes", broken{patch: func(ctx context.Context) error {
				inj, err := driver.InjectorFrom(ctx)
				if err != nil {
					return err
				}
				_, _ = inj.KubeClient.CoreV1().Events("shop").Create(ctx, &corev1.Event{}, metav1.CreateOptions{})
				return good{}.Patch(ctx)
			}}, `Patch wrote to the cluster: ["POST /api/v1/namespaces/shop/events"]`},
			{"changes an argument", after(func(inj *driver.InjectorContext, _ *corev1.Pod) { inj.InboundPortExclusionList[0] = 1 }), "Patch changed InjectorContext.InboundPortExclusionList"},
			{"changes a probe", after(func(inj *driver.InjectorContext, _ *corev1.Pod) {
				if len(inj.AppProbes) > 0 {
					inj.AppProbes[0].Port++
				}
			}), "Patch changed InjectorContext.AppProbes"},
			{"dry run", broken{patch: func(ctx context.Context) error {
				if inj, err := driver.InjectorFrom(ctx); err == nil && inj.DryRun {
					return nil
				}
				return good{}.Patch(ctx)
			}}, "a dry run gives another pod"},
		},
		"huge": {
			{"slow", broken{patch: func(ctx context.Context) error {
				inj, err := driver.InjectorFrom(ctx)
				if err != nil {
					return err
				}
				for range inj.Pod.Spec.Containers[0].Env {
					time.Sleep(time.Millisecond)
				}
				return good{}.Patch(ctx)
			}}, "has not returned after"},
			{"cuts", app(func(c *corev1.Container) { c.Env = c.Env[:1000] }), "spec.containers[web].env[1000]"},
		},
		"scalars": {
			{"puts texts together", broken{patch: func(ctx context.Context) error {
				inj, err := driver.InjectorFrom(ctx)
				if err != nil {
					return err
				}
				return podtemplate.Apply(ctx, "bad", strings.ReplaceAll(blocksWithImage, "IMAGE", inj.Sidecar.Image), &agentspec.Spec{Command: []string{"/p"}})
			}}, `with the text "a\nprivileged: true"`},
			{"refuses", template(`{{ $x := plain .Image }}` + goodTemplate), "plain: value"},
			{"loses", sidecarChange(func(c *corev1.Container) { c.Image = strings.TrimSpace(c.Image) }), `with the text " a ": the image of outrigger-proxy is "a"`},
			{"drops probes", after(func(inj *driver.InjectorContext, p *corev1.Pod) {
				if inj.MeshName == "OUTRIGGERv0v" {
					setEnv(sidecarOf(p), agentspec.EnvSpec, `{"command":["/p"]}`)
				}
			}), "OUTRIGGER_AGENT: the probes are"},
		},
		"template": {
			{"ignores the user's", sidecarlessTemplater{}, "Patch returned <nil>, want that error"},
			{"empty", emptyTemplater{}, "PodTemplate is empty"},
		},
	}
}

// blocksWithImage is a template with a literal image.
const blocksWithImage = `spec:
  containers:
  - name: outrigger-proxy
    image: IMAGE
`

// sidecarlessTemplater has a template but does not use it.
type sidecarlessTemplater struct{ good }

func (sidecarlessTemplater) Patch(context.Context) error { return nil }

// emptyTemplater has an empty template.
type emptyTemplater struct{ good }

func (emptyTemplater) PodTemplate() string { return "" }
