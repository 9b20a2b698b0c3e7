package podtemplate

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// data is the dot of a template. docs/templates.md lists its fields and methods.
type data struct {
	inj   *driver.InjectorContext
	agent *agentspec.Spec
	// kept holds the values to which a keptValue is an index.
	kept []string
	// specs remember what the specs of earlier pods became.
	specs *specs
	// marks is set if the values are the marks of their sources.
	marks bool

	// Values is the content of the operator's values file.
	Values map[string]any
}

// Class is the driver's name.
func (d *data) Class() string { return d.inj.Sidecar.Class }

// Image is the proxy's image, InitImage the init container's.
func (d *data) Image() Value     { return d.value(imageSource) }
func (d *data) InitImage() Value { return d.value(initImageSource) }

// PullPolicy is the pull policy of both images.
func (d *data) PullPolicy() string { return string(d.inj.ContainerPullPolicy) }

// LogLevel is one of Open Service Mesh's log levels.
func (d *data) LogLevel() string { return d.inj.Sidecar.LogLevel }

// Resources are those of the sidecar container.
func (d *data) Resources() corev1.ResourceRequirements { return d.inj.Sidecar.Resources }

// Concurrency is as in driver.Sidecar. CPULimit reports whether the sidecar container
// will have a CPU limit, from the mesh or from the user's container of the same name:
// without one the downward API returns the node's CPUs.
func (d *data) Concurrency() int32 { return d.inj.Sidecar.Concurrency }
func (d *data) CPULimit() bool {
	limits := []corev1.ResourceList{d.inj.Sidecar.Resources.Limits}
	for _, containers := range [][]corev1.Container{d.inj.Pod.Spec.InitContainers, d.inj.Pod.Spec.Containers} {
		for i := range containers {
			if containers[i].Name == driver.ProxyContainer {
				limits = append(limits, containers[i].Resources.Limits)
			}
		}
	}
	return slices.ContainsFunc(limits, func(l corev1.ResourceList) bool { return !l.Cpu().IsZero() })
}

// Native, HoldApplication and PrivilegedInit are as in driver.Sidecar.
func (d *data) Native() bool          { return d.inj.Sidecar.Native }
func (d *data) HoldApplication() bool { return d.inj.Sidecar.HoldApplication }
func (d *data) PrivilegedInit() bool  { return d.inj.Sidecar.PrivilegedInit }

// PreStopSeconds is as in driver.Sidecar.
func (d *data) PreStopSeconds() int32 { return d.inj.Sidecar.PreStopSeconds }

// CertificateSigner, CertificateBundle and CertificateSeconds are the fields of
// driver.PodCertificate; the signer is empty if there is none.
func (d *data) CertificateSigner() string { return d.podCertificate().Signer }
func (d *data) CertificateBundle() string { return d.podCertificate().Bundle }
func (d *data) CertificateSeconds() int32 { return d.podCertificate().MaxSeconds }

func (d *data) podCertificate() driver.PodCertificate {
	if c := d.inj.Sidecar.PodCertificate; c != nil {
		return *c
	}
	return driver.PodCertificate{}
}

// Redirects reports whether any of the pod's traffic is redirected.
func (d *data) Redirects() bool {
	return !d.inj.Redirection.DisableInbound || !d.inj.Redirection.DisableOutbound
}

// Proxyless reports whether the sidecar container only runs the agent, from an image that
// has it.
func (d *data) Proxyless() bool { return d.agent != nil && len(d.agent.Command) == 0 }

// ServerPort is the port on which the controller serves the class's proxies.
func (d *data) ServerPort(byDefault uint32) uint32 { return d.inj.ServerPort(byDefault) }

// CNI is as in driver.Sidecar.
func (d *data) CNI() bool { return d.inj.Sidecar.CNI }

// Windows reports whether the pod is for Windows nodes.
func (d *data) Windows() bool { return d.inj.PodOS == "windows" }

// MeshName, MeshNamespace and TrustDomain are the mesh's.
func (d *data) MeshName() Value      { return d.value(meshNameSource) }
func (d *data) MeshNamespace() Value { return d.value(meshNamespaceSource) }
func (d *data) TrustDomain() Value   { return d.value(trustDomainSource) }

// Namespace and ServiceAccount are the pod's.
func (d *data) Namespace() Value      { return d.value(namespaceSource) }
func (d *data) ServiceAccount() Value { return d.value(serviceAccountSource) }

// Workload is the name of the pod's owner, such as a Deployment, or its own.
func (d *data) Workload() Value { return d.value(workloadSource) }

// AgentSpec is the value of OUTRIGGER_AGENT, Redirection that of
// OUTRIGGER_REDIRECTION.
func (d *data) AgentSpec() (keptValue, error)   { return d.keep(d.content(agentSpecSource)) }
func (d *data) Redirection() (keptValue, error) { return d.keep(d.content(redirectionSource)) }

// value returns the value of a source that has no error.
func (d *data) value(src source) Value {
	content, _ := d.content(src)
	return Value(content)
}

// content returns the value of a source, or its mark.
func (d *data) content(src source) (string, error) {
	if d.marks {
		return src.mark(), nil
	}
	switch src {
	case imageSource:
		return d.inj.Sidecar.Image, nil
	case initImageSource:
		return d.inj.Sidecar.InitImage, nil
	case meshNameSource:
		return d.inj.MeshName, nil
	case meshNamespaceSource:
		return d.inj.OsmNamespace, nil
	case trustDomainSource:
		return d.inj.Identity.TrustDomain, nil
	case namespaceSource:
		return d.inj.PodNamespace, nil
	case serviceAccountSource:
		return d.inj.Identity.ServiceAccount, nil
	case workloadSource:
		return workload(d.inj.Pod, d.inj.OwnerKind, d.inj.OwnerName), nil
	case agentSpecSource:
		return d.agentSpec()
	case redirectionSource:
		return agentspec.EnvValue(d.inj.Redirection)
	}
	return "", fmt.Errorf("there is no source %d", src)
}

// agentSpec returns the value of OUTRIGGER_AGENT.
func (d *data) agentSpec() (string, error) {
	if d.agent == nil {
		return "", nil
	}
	spec := *d.agent
	spec.Probes = d.inj.AppProbes
	spec.DisabledMTLS = d.inj.Sidecar.DisabledMTLS
	if seconds := d.inj.Sidecar.DrainSeconds; seconds != nil {
		drain := agentspec.Drain{Seconds: *seconds}
		if spec.Drain != nil {
			drain.URL = spec.Drain.URL
		}
		spec.Drain = &drain
	}
	return d.specs.value(&spec)
}

// keep returns the value in a form that can only be printed, as a short placeholder.
func (d *data) keep(value string, err error) (keptValue, error) {
	d.kept = append(d.kept, value)
	return keptValue{len(d.kept) - 1}, err
}

// Pod is the pod before this template is applied.
func (d *data) Pod() pod { return pod{d.inj.Pod} }

type pod struct{ pod *corev1.Pod }

// Name may be empty if GenerateName is set.
func (p pod) Name() Value         { return Value(p.pod.Name) }
func (p pod) GenerateName() Value { return Value(p.pod.GenerateName) }

// Label and Annotation return "" if the pod has none of that name.
func (p pod) Label(name string) Value      { return Value(p.pod.Labels[name]) }
func (p pod) Annotation(name string) Value { return Value(p.pod.Annotations[name]) }

// Containers are the pod's containers, and InitContainers its init containers, in order.
func (p pod) Containers() []container     { return containersOf(p.pod.Spec.Containers) }
func (p pod) InitContainers() []container { return containersOf(p.pod.Spec.InitContainers) }

func containersOf(list []corev1.Container) []container {
	containers := make([]container, 0, len(list))
	for i := range list {
		containers = append(containers, container{&list[i]})
	}
	return containers
}

type container struct{ container *corev1.Container }

// Name and Image are the container's.
func (c container) Name() Value  { return Value(c.container.Name) }
func (c container) Image() Value { return Value(c.container.Image) }

// Ports are the numbers of the ports that the container declares.
func (c container) Ports() []int32 {
	ports := make([]int32, 0, len(c.container.Ports))
	for _, p := range c.container.Ports {
		ports = append(ports, p.ContainerPort)
	}
	return ports
}
