package inject_test

import (
	"cmp"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// defaulted sets the defaults that an API server sets between two webhooks.
func defaulted(pod *corev1.Pod) *corev1.Pod {
	spec := &pod.Spec
	spec.RestartPolicy = cmp.Or(spec.RestartPolicy, corev1.RestartPolicyAlways)
	spec.DNSPolicy = cmp.Or(spec.DNSPolicy, corev1.DNSClusterFirst)
	spec.SchedulerName = cmp.Or(spec.SchedulerName, corev1.DefaultSchedulerName)
	spec.ServiceAccountName = cmp.Or(spec.ServiceAccountName, "default")
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
	fill(&spec.TerminationGracePeriodSeconds, 30)
	fill(&spec.EnableServiceLinks, true)
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			defaultContainer(&list[i])
		}
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i].VolumeSource
		switch {
		case v.ConfigMap != nil:
			fill(&v.ConfigMap.DefaultMode, 420)
		case v.Secret != nil:
			fill(&v.Secret.DefaultMode, 420)
		case v.Projected != nil:
			fill(&v.Projected.DefaultMode, 420)
		}
	}
	return pod
}

func defaultContainer(c *corev1.Container) {
	c.TerminationMessagePath = cmp.Or(c.TerminationMessagePath, "/dev/termination-log")
	c.TerminationMessagePolicy = cmp.Or(c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	c.ImagePullPolicy = cmp.Or(c.ImagePullPolicy, corev1.PullIfNotPresent)
	for i := range c.Ports {
		c.Ports[i].Protocol = cmp.Or(c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			from.FieldRef.APIVersion = cmp.Or(from.FieldRef.APIVersion, "v1")
		}
	}
	for name, limit := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[name]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[name] = limit
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p == nil {
			continue
		}
		p.TimeoutSeconds = cmp.Or(p.TimeoutSeconds, 1)
		p.PeriodSeconds = cmp.Or(p.PeriodSeconds, 10)
		p.SuccessThreshold = cmp.Or(p.SuccessThreshold, 1)
		p.FailureThreshold = cmp.Or(p.FailureThreshold, 3)
		defaultGet(p.HTTPGet)
		if p.GRPC != nil {
			fill(&p.GRPC.Service, "")
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultGet(h.HTTPGet)
			}
		}
	}
}

func defaultGet(g *corev1.HTTPGetAction) {
	if g != nil {
		g.Path = cmp.Or(g.Path, "/")
		g.Scheme = cmp.Or(g.Scheme, corev1.URISchemeHTTP)
	}
}

func fill[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}

// another makes typical changes of other webhooks: it adds variables and a mount to every
// container, at both ends, and a volume, a label and an annotation to the pod. Like the
// API server it drops unknown fields.
func another(pod *corev1.Pod) *corev1.Pod {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			c.Env = slices.Concat([]corev1.EnvVar{{Name: "FIRST", Value: "1"}}, c.Env, []corev1.EnvVar{{Name: "LAST", Value: "$(FIRST)"}})
			c.VolumeMounts = slices.Concat([]corev1.VolumeMount{{Name: "another", MountPath: "/another"}}, c.VolumeMounts,
				[]corev1.VolumeMount{{Name: "another", MountPath: "/another/way", SubPath: "b"}})
			c.EnvFrom = append(c.EnvFrom, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "another"}}})
		}
	}
	pod.Spec.Volumes = append([]corev1.Volume{{Name: "another", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}, pod.Spec.Volumes...)
	pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: "another"})
	setKey(&pod.Labels, "another", "1")
	setKey(&pod.Annotations, "another", "1")
	return pod
}

func setKey(m *map[string]string, key, value string) {
	if *m == nil {
		*m = make(map[string]string)
	}
	(*m)[key] = value
}

func TestReinvocationAfterDefaults(t *testing.T) {
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		// The API server sets defaults before the first webhook too.
		first := encode(t, defaulted(decode(t, s.raw)))
		unchanged(t, i, w, encode(t, defaulted(decode(t, once(t, i, w, first)))))
		// Offline injection sets no defaults.
		offline := encode(t, defaulted(decode(t, once(t, i, w, s.raw))))
		again := decode(t, once(t, i, w, offline))
		if d := gocmp.Diff(decode(t, offline), defaulted(again)); d != "" {
			t.Errorf("injection of what was injected offline changes it (-was +is):\n%s", d)
		}
	})
}

func TestReinvocationKeepsWhatOthersAdd(t *testing.T) {
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		first := encode(t, defaulted(decode(t, s.raw)))
		unchanged(t, i, w, encode(t, another(defaulted(decode(t, once(t, i, w, first))))))
	})
}

// TestReinvocationAfterChangedSettings checks that a second call with another configuration
// removes only the first call's additions.
func TestReinvocationAfterChangedSettings(t *testing.T) {
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		changed := shape{w.configurator.class, w.classic}.environment()
		changed.config = "imagePullPolicy: Always"
		pod := another(defaulted(decode(t, once(t, i, w, s.raw))))
		second := decode(t, once(t, changed.injector(t), changed, encode(t, pod)))
		got := proxy(t, second)
		if want := container(decode(t, s.raw), driver.ProxyContainer); want == nil && got.ImagePullPolicy != corev1.PullAlways {
			t.Errorf("the sidecar's pull policy is %s, want the new one", got.ImagePullPolicy)
		}
		for _, list := range [][]corev1.Container{second.Spec.InitContainers, second.Spec.Containers} {
			for _, c := range list {
				if variable(&c, "FIRST") != "1" || variable(&c, "LAST") != "$(FIRST)" || len(c.EnvFrom) == 0 {
					t.Errorf("container %s has lost what another webhook added: %v %v", c.Name, c.Env, c.EnvFrom)
				}
			}
		}
	})
}

// TestReinvocationSeesNewContainers checks that a container that another webhook adds
// between two calls is treated as if it had been in the pod from the start.
func TestReinvocationSeesNewContainers(t *testing.T) {
	everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
		agent := corev1.Container{
			Name: "agent", Image: "another/agent",
			Ports:         []corev1.ContainerPort{{Name: "agent", ContainerPort: 4000}},
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/alive", Port: intstr.FromString("agent")}}},
		}
		add := func(pod *corev1.Pod) []byte {
			pod.Spec.Containers = append(pod.Spec.Containers, *agent.DeepCopy())
			return encode(t, defaulted(pod))
		}
		first := encode(t, defaulted(decode(t, s.raw)))
		late := once(t, i, w, add(defaulted(decode(t, once(t, i, w, first)))))
		unchanged(t, i, w, late)
		early := once(t, i, w, add(decode(t, first)))
		got, want := decode(t, late), decode(t, early)
		if d := gocmp.Diff(container(want, "agent"), container(got, "agent")); d != "" {
			t.Errorf("the new container differs from one that was there before (-) by (+):\n%s", d)
		}
		if d := gocmp.Diff(variable(proxy(t, want), "OUTRIGGER_AGENT"), variable(proxy(t, got), "OUTRIGGER_AGENT")); d != "" {
			t.Errorf("the agent's spec differs from that of a pod with the container from the start (-):\n%s", d)
		}
		if names(got.Spec.Containers) != names(want.Spec.Containers) || names(got.Spec.InitContainers) != names(want.Spec.InitContainers) {
			t.Errorf("the containers are %s and %s, want %s and %s", names(got.Spec.InitContainers), names(got.Spec.Containers),
				names(want.Spec.InitContainers), names(want.Spec.Containers))
		}
	})
}

func names(list []corev1.Container) string {
	var s string
	for _, c := range list {
		s += c.Name + " "
	}
	return s
}

// TestReinvocationRestoresOrder lets another webhook reverse the containers or remove those of the
// sidecar between two calls. The second call must put the sidecar back to where it works.
func TestReinvocationRestoresOrder(t *testing.T) {
	ours := func(c corev1.Container) bool {
		return c.Name == driver.ProxyContainer || c.Name == driver.InitContainer
	}
	for name, change := range map[string]func(pod *corev1.Pod){
		"reversed": func(pod *corev1.Pod) {
			slices.Reverse(pod.Spec.InitContainers)
			slices.Reverse(pod.Spec.Containers)
			slices.Reverse(pod.Spec.Volumes)
		},
		"sidecar last": func(pod *corev1.Pod) {
			for _, list := range []*[]corev1.Container{&pod.Spec.InitContainers, &pod.Spec.Containers} {
				slices.SortStableFunc(*list, func(a, b corev1.Container) int {
					switch {
					case ours(a) == ours(b):
						return 0
					case ours(a):
						return 1
					}
					return -1
				})
			}
		},
		"init container gone": func(pod *corev1.Pod) {
			pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == driver.InitContainer })
		},
		"sidecar gone": func(pod *corev1.Pod) {
			pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, ours)
			pod.Spec.Containers = slices.DeleteFunc(pod.Spec.Containers, ours)
		},
		"volumes gone": func(pod *corev1.Pod) { pod.Spec.Volumes = nil },
	} {
		t.Run(name, func(t *testing.T) {
			everySample(t, func(t *testing.T, w *environment, i *inject.Injector, s sample) {
				original := defaulted(decode(t, s.raw))
				if slices.ContainsFunc(slices.Concat(original.Spec.InitContainers, original.Spec.Containers), ours) || name == "volumes gone" && len(original.Spec.Volumes) > 0 {
					return
				}
				first := defaulted(decode(t, once(t, i, w, encode(t, original))))
				changed := first.DeepCopy()
				change(changed)
				second := defaulted(decode(t, once(t, i, w, encode(t, changed))))
				unchanged(t, i, w, encode(t, second))
				if names(second.Spec.InitContainers) != names(first.Spec.InitContainers) && name != "reversed" ||
					names(second.Spec.Containers) != names(first.Spec.Containers) && name != "reversed" {
					t.Errorf("the containers are %s and %s, were %s and %s", names(second.Spec.InitContainers), names(second.Spec.Containers),
						names(first.Spec.InitContainers), names(first.Spec.Containers))
				}
				for n, list := range [][2][]corev1.Container{{first.Spec.InitContainers, second.Spec.InitContainers}, {first.Spec.Containers, second.Spec.Containers}} {
					for at, c := range list[0] {
						if ours(c) && list[1][at].Name != c.Name {
							t.Errorf("in list %d container %s is no longer at %d: %s", n, c.Name, at, names(list[1]))
						}
					}
				}
				if d := gocmp.Diff(variable(proxy(t, first), "OUTRIGGER_AGENT"), variable(proxy(t, second), "OUTRIGGER_AGENT")); d != "" && name != "reversed" {
					t.Errorf("the agent's spec changes (-first +second):\n%s", d)
				}
				checkUnique(t, second)
			})
		})
	}
}
