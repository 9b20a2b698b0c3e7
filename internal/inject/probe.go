package inject

import (
	"fmt"
	"iter"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// probeRewriter points the app's probes and lifecycle hooks at the agent: the kubelet
// is not in the mesh and cannot reach redirected ports.
type probeRewriter struct {
	// handle is part of the paths of hooks, which have side effects while the agent's
	// port is open to the network: only clients that may read the pod know it. The
	// zero value is left out.
	handle    uuid.UUID
	originals map[string]driver.HealthProbes
	agent     []agentspec.Probe
	warnings  []Warning
}

// probesOf visits the probes that a container has, with their field names.
func probesOf(c *corev1.Container) iter.Seq2[string, *corev1.Probe] {
	return func(yield func(string, *corev1.Probe) bool) {
		for _, p := range []struct {
			field string
			*corev1.Probe
		}{{"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}, {"startupProbe", c.StartupProbe}} {
			if p.Probe != nil && !yield(p.field, p.Probe) {
				return
			}
		}
	}
}

// rewrite changes the probes of every container of the pod, including the user's own
// native sidecars.
func (r *probeRewriter) rewrite(pod *corev1.Pod) {
	for c := range containersOf(pod) {
		if !isOurs(c.Name) {
			r.container(c)
		}
	}
}

func (r *probeRewriter) container(c *corev1.Container) {
	var originals driver.HealthProbes
	originals.Liveness = r.probe(c, "livenessProbe", "livez", c.LivenessProbe)
	originals.Readiness = r.probe(c, "readinessProbe", "readyz", c.ReadinessProbe)
	originals.Startup = r.probe(c, "startupProbe", "startupz", c.StartupProbe)
	if originals != (driver.HealthProbes{}) {
		if r.originals == nil {
			r.originals = make(map[string]driver.HealthProbes)
		}
		r.originals[c.Name] = originals
	}
	if c.Lifecycle != nil {
		r.hook(c, "postStart", c.Lifecycle.PostStart)
		r.hook(c, "preStop", c.Lifecycle.PreStop)
	}
}

func (r *probeRewriter) probe(c *corev1.Container, field, name string, p *corev1.Probe) *driver.HealthProbe {
	if p == nil {
		return nil
	}
	timeout := max(p.TimeoutSeconds, 1)
	path := healthPathPrefix + c.Name + "/" + name
	probe, original, ok := r.handler(c, field, p.HTTPGet, p.TCPSocket, p.GRPC)
	if !ok {
		return nil
	}
	probe.Path, probe.TimeoutSeconds = path, timeout
	original.Timeout = time.Duration(timeout) * time.Second
	r.agent = append(r.agent, probe)
	p.ProbeHandler = corev1.ProbeHandler{HTTPGet: agentGet(path)}
	return &original
}

// hookTimeout bounds a hook that goes through the agent, in seconds. Kubernetes sets no
// timeout for hooks.
const hookTimeout = 30

func (r *probeRewriter) hook(c *corev1.Container, field string, h *corev1.LifecycleHandler) {
	if h == nil || h.HTTPGet == nil {
		return
	}
	probe, _, ok := r.handler(c, field, h.HTTPGet, nil, nil)
	if !ok {
		return
	}
	prefix := lifecyclePathPrefix
	if r.handle != uuid.Nil {
		prefix += r.handle.String() + "/"
	}
	probe.Path, probe.TimeoutSeconds = prefix+c.Name+"/"+field, hookTimeout
	r.agent = append(r.agent, probe)
	h.HTTPGet = agentGet(probe.Path)
}

func agentGet(path string) *corev1.HTTPGetAction {
	return &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(driver.AgentPort), Scheme: corev1.URISchemeHTTP}
}

// handler translates the action of a probe or hook. It returns false for commands,
// which run in the container, and for port names that cannot be resolved.
func (r *probeRewriter) handler(c *corev1.Container, field string, http *corev1.HTTPGetAction, tcp *corev1.TCPSocketAction, grpc *corev1.GRPCAction) (agentspec.Probe, driver.HealthProbe, bool) {
	var (
		probe    agentspec.Probe
		original driver.HealthProbe
		port     intstr.IntOrString
	)
	switch {
	case http != nil:
		scheme := string(http.Scheme)
		if scheme == "" {
			scheme = string(corev1.URISchemeHTTP)
		}
		port = http.Port
		probe = agentspec.Probe{Kind: agentspec.HTTP, Host: http.Host, Scheme: scheme, URL: http.Path}
		for _, h := range http.HTTPHeaders {
			probe.Headers = append(probe.Headers, agentspec.Header{Name: h.Name, Value: h.Value})
		}
		original = driver.HealthProbe{HTTP: true, Path: http.Path, Scheme: scheme}
	case tcp != nil:
		port = tcp.Port
		probe = agentspec.Probe{Kind: agentspec.TCP, Host: tcp.Host}
		original = driver.HealthProbe{TCPSocket: true}
	case grpc != nil:
		port = intstr.FromInt32(grpc.Port)
		probe = agentspec.Probe{Kind: agentspec.GRPC}
		if grpc.Service != nil {
			probe.Service = *grpc.Service
		}
		original = driver.HealthProbe{GRPC: true, GRPCService: probe.Service}
	default:
		return probe, original, false
	}
	number, ok := portNumber(c, port)
	if !ok {
		r.warnings = append(r.warnings, Warning{"probe_port_unresolved", fmt.Sprintf(
			"the %s of container %s names the port %q, which the container does not declare; it is left unchanged and will fail",
			field, c.Name, port.StrVal)})
		return probe, original, false
	}
	probe.Port, original.Port = number, number
	return probe, original, true
}

func portNumber(c *corev1.Container, port intstr.IntOrString) (int32, bool) {
	if port.Type == intstr.Int {
		return port.IntVal, port.IntVal > 0 && port.IntVal <= 65535
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return p.ContainerPort, true
		}
	}
	return 0, false
}

// redirectedProbes warns of probes to redirected ports in a pod whose probes are not
// rewritten.
func redirectedProbes(pod *corev1.Pod, redirection *agentspec.Redirection) []Warning {
	var r probeRewriter
	var warnings []Warning
	for c := range containersOf(pod) {
		if isOurs(c.Name) {
			continue
		}
		for field, probe := range probesOf(c) {
			asked, _, ok := r.handler(c, field, probe.HTTPGet, probe.TCPSocket, probe.GRPC)
			if ok && redirectsInbound(redirection, int(asked.Port)) {
				warnings = append(warnings, Warning{"probe_redirected", fmt.Sprintf(
					"the %s of container %s is not rewritten, and its port %d is redirected: the proxy rejects the kubelet unless it accepts plaintext; exclude the port from redirection",
					field, c.Name, asked.Port)})
			}
		}
	}
	return warnings
}
