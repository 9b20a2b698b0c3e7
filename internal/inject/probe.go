package inject

import (
	"fmt"
	"iter"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// probeRewriter points the app's probes and lifecycle hooks at the agent: the kubelet
// is not in the mesh and cannot reach redirected ports.
//
// A probe that the agent cannot take over stays unchanged if its port is not redirected.
// Otherwise the pod is denied, since it would never get ready or be restarted again and
// again.
type probeRewriter struct {
	// handle is part of the paths of hooks, which have side effects while the agent's
	// port is open to the network: only clients that may read the pod know it. The
	// zero value is left out.
	handle      uuid.UUID
	redirection *agentspec.Redirection
	// classic says that the agent runs in an ordinary container.
	classic bool
	// unread are the fields of probes and hooks that this program does not know.
	unread    unreadFields
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
func (r *probeRewriter) rewrite(pod *corev1.Pod) error {
	for c := range containersOf(pod) {
		if isOurs(c.Name) {
			continue
		}
		if err := r.container(c); err != nil {
			return err
		}
	}
	return nil
}

func (r *probeRewriter) container(c *corev1.Container) error {
	var originals driver.HealthProbes
	for _, p := range []struct {
		field, name string
		probe       *corev1.Probe
		original    **driver.HealthProbe
	}{
		{"livenessProbe", "livez", c.LivenessProbe, &originals.Liveness},
		{"readinessProbe", "readyz", c.ReadinessProbe, &originals.Readiness},
		{"startupProbe", "startupz", c.StartupProbe, &originals.Startup},
	} {
		if p.probe == nil {
			continue
		}
		var err error
		if *p.original, err = r.probe(c, p.field, p.name, p.probe); err != nil {
			return err
		}
	}
	if originals != (driver.HealthProbes{}) {
		if r.originals == nil {
			r.originals = make(map[string]driver.HealthProbes)
		}
		r.originals[c.Name] = originals
	}
	if c.Lifecycle == nil {
		return nil
	}
	if err := r.hook(c, agentspec.PostStart, c.Lifecycle.PostStart); err != nil {
		return err
	}
	return r.hook(c, agentspec.PreStop, c.Lifecycle.PreStop)
}

func (r *probeRewriter) probe(c *corev1.Container, field, name string, p *corev1.Probe) (*driver.HealthProbe, error) {
	timeout := max(p.TimeoutSeconds, 1)
	path := healthPathPrefix + c.Name + "/" + name
	probe, original, ok := r.handler(c, field, p.HTTPGet, p.TCPSocket, p.GRPC)
	if !ok {
		r.warnOfUnknownHandler(c, field, p)
		return nil, nil
	}
	if takes, err := r.takes(c, field, &probe); err != nil || !takes {
		return nil, err
	}
	probe.Path, probe.TimeoutSeconds = path, timeout
	original.Timeout = time.Duration(timeout) * time.Second
	r.agent = append(r.agent, probe)
	p.ProbeHandler = corev1.ProbeHandler{HTTPGet: agentGet(path, p.HTTPGet)}
	return &original, nil
}

func (r *probeRewriter) hook(c *corev1.Container, field string, h *corev1.LifecycleHandler) error {
	if h == nil || h.HTTPGet == nil {
		return nil
	}
	probe, _, ok := r.handler(c, field, h.HTTPGet, nil, nil)
	if !ok {
		return nil
	}
	if takes, err := r.takes(c, field, &probe); err != nil || !takes {
		return err
	}
	prefix := lifecyclePathPrefix
	if r.handle != uuid.Nil {
		prefix += r.handle.String() + "/"
	}
	probe.Path, probe.Hook = prefix+c.Name+"/"+field, field
	r.agent = append(r.agent, probe)
	h.HTTPGet = agentGet(probe.Path, h.HTTPGet)
	return nil
}

// agentGet returns a request to the agent in place of another, which may be nil. The other's
// headers stay if the kubelet would send them in plaintext anyway: the agent does not look at them,
// and uninject need not write them anew.
func agentGet(path string, was *corev1.HTTPGetAction) *corev1.HTTPGetAction {
	get := &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(driver.AgentPort), Scheme: corev1.URISchemeHTTP}
	if was != nil && was.Scheme != corev1.URISchemeHTTPS {
		get.HTTPHeaders = was.HTTPHeaders
	}
	return get
}

// takes reports whether the agent takes over a probe or hook. The error denies the pod.
func (r *probeRewriter) takes(c *corev1.Container, field string, probe *agentspec.Probe) (bool, error) {
	// The kubelet calls another host directly.
	redirected := probe.Host == "" && redirectsInbound(r.redirection, int(probe.Port))
	if what := r.unread.of(c.Name, field, probe); what != "" {
		if !redirected {
			return false, nil
		}
		return false, deny("probe_unsupported", fmt.Errorf(
			"the %s of container %s has %s, which the mesh's agent does not know, and the kubelet cannot use its port %d itself, because that is redirected; change the probe, or add the port to the annotation %s",
			field, c.Name, what, probe.Port, metadata.InboundPortExclusion))
	}
	if !r.classic || !isNative(c) || field == "readinessProbe" {
		return true, nil
	}
	switch {
	case !redirected:
		return false, nil
	case field == "livenessProbe":
		r.warnings = append(r.warnings, Warning{"probe_before_sidecar", fmt.Sprintf(
			"the livenessProbe of the native sidecar %s fails until the mesh's sidecar runs, which here starts after all init containers; set the annotation %s to true",
			c.Name, metadata.NativeSidecar)})
		return true, nil
	}
	return false, deny("native_sidecar_needed", fmt.Errorf(
		"the %s of container %s, a native sidecar, uses the redirected port %d, but the mesh's sidecar is an ordinary container, which starts later and ends earlier; set the annotation %s to true, or add the port to %s",
		field, c.Name, probe.Port, metadata.NativeSidecar, metadata.InboundPortExclusion))
}

// isNative reports whether an init container is a native sidecar.
func isNative(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// warnOfUnknownHandler warns of a probe whose only handler is of a kind that this program
// does not know.
func (r *probeRewriter) warnOfUnknownHandler(c *corev1.Container, field string, p *corev1.Probe) {
	if p.ProbeHandler != (corev1.ProbeHandler{}) || r.redirection.DisableInbound {
		return
	}
	if kind := r.unread.kind(c.Name, field); kind != "" {
		r.warnings = append(r.warnings, Warning{"probe_unknown", fmt.Sprintf(
			"the %s of container %s has the handler %s, which is not known here; it is left unchanged, and its port must be excluded from redirection",
			field, c.Name, kind)})
	}
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
		if http.Protocol != nil {
			probe.Protocol = string(*http.Protocol)
		}
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
		if grpc.Mode != nil {
			probe.Mode = string(*grpc.Mode)
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
