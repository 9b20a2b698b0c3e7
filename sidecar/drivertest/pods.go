package drivertest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// plainPod is a typical pod.
func plainPod() *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "cart-7d4b9c-",
			Labels:       map[string]string{"app": "cart"},
			Annotations:  map[string]string{"example.com/team": "shop"},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: "cart",
			Containers: []corev1.Container{{
				Name: "web", Image: "example.com/cart:1",
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
			}},
		},
	}
}

// barePod has only required fields.
func barePod() *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example.com/cart:1"}}}}
}

// windowsPod is for Windows nodes.
func windowsPod() *corev1.Pod {
	pod := plainPod()
	pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
	pod.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "windows"}
	return pod
}

// richPod has one of everything that is easily lost.
func richPod() *corev1.Pod {
	pod := plainPod()
	always := corev1.ContainerRestartPolicyAlways
	pod.Labels["version"] = "v1"
	pod.Annotations["example.com/empty"] = ""
	pod.Finalizers = []string{"example.com/b", "example.com/a"}
	pod.Spec = corev1.PodSpec{
		ServiceAccountName: "cart",
		InitContainers: []corev1.Container{
			{Name: "migrate", Image: "example.com/migrate:1", Args: []string{"up"}},
			{Name: "logs", Image: "example.com/logs:1", RestartPolicy: &always},
			{Name: "warm", Image: "example.com/warm:1"},
		},
		Containers: []corev1.Container{
			{
				Name: "web", Image: "example.com/cart:1", Command: []string{"/cart"}, Args: []string{"-v", "-v"},
				WorkingDir: "/srv", TTY: true, Stdin: true,
				Ports: []corev1.ContainerPort{
					{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP},
					{Name: "dns-tcp", ContainerPort: 53, Protocol: corev1.ProtocolTCP},
					{Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP},
				},
				Env: []corev1.EnvVar{
					{Name: "Z", Value: "1"},
					{Name: "A", Value: "$(Z)2"},
					{Name: "Z", Value: "3"},
					{Name: "EMPTY"},
					{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}},
				},
				EnvFrom: []corev1.EnvFromSource{{Prefix: "C_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cart"}}}},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "data", MountPath: "/data"}, {Name: "data", MountPath: "/backup", SubPath: "b", ReadOnly: true},
					{Name: "cart-tls", MountPath: "/tls"},
				},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/app-health/web/readyz", Port: intstr.FromInt32(15901)}},
					PeriodSeconds: 7,
				},
				LivenessProbe:   &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}},
				Lifecycle:       &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sleep", "1"}}}},
				SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(1000)), RunAsNonRoot: new(true)},
				Resources:       corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}},
			},
			{Name: "a-helper", Image: "example.com/helper:1"},
		},
		Volumes: []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "cart-tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cart-tls"}}},
		},
		NodeSelector:                  map[string]string{"disk": "ssd"},
		ImagePullSecrets:              []corev1.LocalObjectReference{{Name: "b"}, {Name: "a"}},
		Tolerations:                   []corev1.Toleration{{Key: "b", Operator: corev1.TolerationOpExists}, {Key: "a", Operator: corev1.TolerationOpExists}},
		HostAliases:                   []corev1.HostAlias{{IP: "10.0.0.9", Hostnames: []string{"legacy"}}},
		ReadinessGates:                []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}},
		SecurityContext:               &corev1.PodSecurityContext{FSGroup: new(int64(2000))},
		TerminationGracePeriodSeconds: new(int64(7)),
		RestartPolicy:                 corev1.RestartPolicyNever,
		DNSConfig:                     &corev1.PodDNSConfig{Searches: []string{"b.example.com", "a.example.com"}},
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{
			{TopologyKey: "zone", MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule},
			{TopologyKey: "zone", MaxSkew: 2, WhenUnsatisfiable: corev1.ScheduleAnyway},
		},
		PriorityClassName: "high",
		Hostname:          "cart",
	}
	return pod
}

// hugePod has the given number of env vars.
func hugePod(envVars int) *corev1.Pod {
	pod := plainPod()
	for i := range envVars {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("VAR_%d", i), Value: "a value of some length"})
	}
	return pod
}

// withDefaults returns the pod as a reinvoked webhook gets it from the API server: with
// the defaults that are relevant for what drivers add.
func withDefaults(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			defaultContainer(&list[i])
		}
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.ConfigMap != nil {
			setDefault(&v.ConfigMap.DefaultMode, 0o644)
		}
		if v.Secret != nil {
			setDefault(&v.Secret.DefaultMode, 0o644)
		}
		if v.DownwardAPI != nil {
			setDefault(&v.DownwardAPI.DefaultMode, 0o644)
			for j := range v.DownwardAPI.Items {
				defaultFieldRef(v.DownwardAPI.Items[j].FieldRef)
			}
		}
		if v.Projected != nil {
			setDefault(&v.Projected.DefaultMode, 0o644)
			for _, s := range v.Projected.Sources {
				if s.ServiceAccountToken != nil {
					setDefault(&s.ServiceAccountToken.ExpirationSeconds, 3600)
				}
			}
		}
	}
	setDefault(&pod.Spec.TerminationGracePeriodSeconds, 30)
	setDefault(&pod.Spec.EnableServiceLinks, true)
	setDefault(&pod.Spec.SecurityContext, corev1.PodSecurityContext{})
	setIfZero(&pod.Spec.DNSPolicy, corev1.DNSClusterFirst)
	setIfZero(&pod.Spec.RestartPolicy, corev1.RestartPolicyAlways)
	setIfZero(&pod.Spec.SchedulerName, corev1.DefaultSchedulerName)
	return pod
}

func defaultContainer(c *corev1.Container) {
	setIfZero(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	setIfZero(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	setIfZero(&c.ImagePullPolicy, corev1.PullIfNotPresent)
	for i := range c.Ports {
		setIfZero(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p == nil {
			continue
		}
		setIfZero(&p.TimeoutSeconds, 1)
		setIfZero(&p.PeriodSeconds, 10)
		setIfZero(&p.SuccessThreshold, 1)
		setIfZero(&p.FailureThreshold, 3)
		defaultHTTPGet(p.HTTPGet)
	}
	if c.Lifecycle != nil && c.Lifecycle.PostStart != nil {
		defaultHTTPGet(c.Lifecycle.PostStart.HTTPGet)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		defaultHTTPGet(c.Lifecycle.PreStop.HTTPGet)
	}
	for name, quantity := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[name]; !ok {
			if c.Resources.Requests == nil {
				c.Resources.Requests = corev1.ResourceList{}
			}
			c.Resources.Requests[name] = quantity
		}
	}
}

func defaultHTTPGet(a *corev1.HTTPGetAction) {
	if a != nil {
		setIfZero(&a.Path, "/")
		setIfZero(&a.Scheme, corev1.URISchemeHTTP)
	}
}

func defaultFieldRef(f *corev1.ObjectFieldSelector) {
	if f != nil {
		setIfZero(&f.APIVersion, "v1")
	}
}

func setDefault[T any](p **T, value T) {
	if *p == nil {
		*p = &value
	}
}

func setIfZero[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}
