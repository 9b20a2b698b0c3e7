package inject

import (
	"fmt"
	"maps"
	"slices"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// unreadFields are the fields in a pod's probes and hooks that the agent cannot act on. It reads
// them from the pod's JSON, since the Kubernetes types drop fields that are newer than they are.
// The JSON is read when it is first needed.
type unreadFields struct {
	json []byte
	// pod is nil before the JSON is read.
	pod *rawPod
	// err says why it could not be read.
	err error
}

// ignored is a field that is known. Its value is not kept.
type ignored struct{}

// UnmarshalJSONFrom skips the value.
func (*ignored) UnmarshalJSONFrom(d *jsontext.Decoder) error { return d.SkipValue() }

// unknown are the fields of an object that its Go type does not have.
type unknown map[string]jsontext.Value

// rawPod is the part of a pod's JSON with its probes and hooks. It names the fields that the agent
// acts on.
type rawPod struct {
	Spec struct {
		InitContainers []rawContainer `json:"initContainers"`
		Containers     []rawContainer `json:"containers"`
	} `json:"spec"`
}

type rawContainer struct {
	Name           string      `json:"name"`
	LivenessProbe  rawHandlers `json:"livenessProbe"`
	ReadinessProbe rawHandlers `json:"readinessProbe"`
	StartupProbe   rawHandlers `json:"startupProbe"`
	Lifecycle      struct {
		PostStart rawHandlers `json:"postStart"`
		PreStop   rawHandlers `json:"preStop"`
	} `json:"lifecycle"`
}

type rawHandlers struct {
	HTTPGet   rawGet    `json:"httpGet"`
	TCPSocket rawSocket `json:"tcpSocket"`
	GRPC      rawGRPC   `json:"grpc"`

	Exec                          ignored `json:"exec"`
	Sleep                         ignored `json:"sleep"`
	InitialDelaySeconds           ignored `json:"initialDelaySeconds"`
	TimeoutSeconds                ignored `json:"timeoutSeconds"`
	PeriodSeconds                 ignored `json:"periodSeconds"`
	SuccessThreshold              ignored `json:"successThreshold"`
	FailureThreshold              ignored `json:"failureThreshold"`
	TerminationGracePeriodSeconds ignored `json:"terminationGracePeriodSeconds"`
	Unknown                       unknown `json:",embed"`
}

type rawGet struct {
	Path        ignored     `json:"path"`
	Port        ignored     `json:"port"`
	Host        ignored     `json:"host"`
	Scheme      ignored     `json:"scheme"`
	Protocol    ignored     `json:"protocol"`
	HTTPHeaders []rawHeader `json:"httpHeaders"`
	Unknown     unknown     `json:",embed"`
}

type rawHeader struct {
	Name    ignored `json:"name"`
	Value   ignored `json:"value"`
	Unknown unknown `json:",embed"`
}

type rawSocket struct {
	Port    ignored `json:"port"`
	Host    ignored `json:"host"`
	Unknown unknown `json:",embed"`
}

type rawGRPC struct {
	Port    ignored `json:"port"`
	Service ignored `json:"service"`
	Mode    ignored `json:"mode"`
	Unknown unknown `json:",embed"`
}

// of returns what the agent does not know of a probe or hook, as the object of a sentence; empty if
// it knows all.
func (u *unreadFields) of(container, field string, probe *agentspec.Probe) string {
	switch {
	case probe.Kind == agentspec.HTTP && probe.Scheme != "HTTP" && probe.Scheme != "HTTPS":
		return fmt.Sprintf("the scheme %q", probe.Scheme)
	case probe.Protocol != "" && probe.Protocol != string(corev1.HTTPProtocolHTTP1) && probe.Protocol != agentspec.HTTP2:
		return fmt.Sprintf("the protocol %q", probe.Protocol)
	case probe.Protocol == agentspec.HTTP2 && probe.Scheme == "HTTPS":
		return "the protocol HTTP2 with the scheme HTTPS"
	case probe.Mode != "" && probe.Mode != string(corev1.GRPCProbeModePlaintext) && probe.Mode != agentspec.TLS:
		return fmt.Sprintf("the mode %q", probe.Mode)
	}
	h := u.find(container, field)
	if u.err != nil {
		return "fields that cannot be read (" + u.err.Error() + ")"
	}
	fields := h.TCPSocket.Unknown
	switch probe.Kind {
	case agentspec.HTTP:
		fields = h.HTTPGet.Unknown
		for i := range h.HTTPGet.HTTPHeaders {
			if name := first(h.HTTPGet.HTTPHeaders[i].Unknown); name != "" {
				return fmt.Sprintf("the field %q in httpHeaders", name)
			}
		}
	case agentspec.GRPC:
		fields = h.GRPC.Unknown
	}
	if name := first(fields); name != "" {
		return fmt.Sprintf("the field %q", name)
	}
	return ""
}

// kind returns the name of a field in a probe without a known handler, which may be one.
func (u *unreadFields) kind(container, field string) string {
	return first(u.find(container, field).Unknown)
}

func (u *unreadFields) find(container, field string) *rawHandlers {
	if u.pod == nil {
		u.pod = &rawPod{}
		u.err = jsonv2.Unmarshal(u.json, u.pod, inOnePass)
	}
	for _, list := range [][]rawContainer{u.pod.Spec.InitContainers, u.pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == container {
				return list[i].find(field)
			}
		}
	}
	return &rawHandlers{}
}

func (c *rawContainer) find(field string) *rawHandlers {
	switch field {
	case "livenessProbe":
		return &c.LivenessProbe
	case "readinessProbe":
		return &c.ReadinessProbe
	case "startupProbe":
		return &c.StartupProbe
	case "postStart":
		return &c.Lifecycle.PostStart
	}
	return &c.Lifecycle.PreStop
}

// first returns the first name in alphabetical order; empty for none.
func first(fields unknown) string {
	if len(fields) == 0 {
		return ""
	}
	return slices.Min(slices.Collect(maps.Keys(fields)))
}
