package source

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The mesh's labels and annotations that facts depend on.
const (
	// InboundTLSAnnotation, on a pod or a namespace, is Strict or Permissive: whether the
	// pod, or the namespace's pods, accept traffic without mesh TLS.
	InboundTLSAnnotation = "openservicemesh.io/inbound-tls-mode"

	// ProxyProtocolAnnotation, on a pod, has the ports whose application gets the caller's
	// address by the PROXY protocol.
	ProxyProtocolAnnotation = "openservicemesh.io/proxy-protocol-port-list"

	// AccessModeAnnotation, on a namespace or a TrafficTarget, is Audit: count what the
	// policies would refuse, before they are enforced.
	AccessModeAnnotation = "openservicemesh.io/access-mode"
	accessModeAudit      = "Audit"

	// MonitoredByLabel, on a namespace, is the name of its mesh.
	MonitoredByLabel = "openservicemesh.io/monitored-by"
	ignoreLabel      = "openservicemesh.io/ignore"
)

// namespace decides membership like the injector does.
func (m *Mapper) namespace(obj *corev1.Namespace, n *notes) mesh.Digester {
	_, ignored := obj.Labels[ignoreLabel]
	return mesh.Seal(&fact.Namespace{
		Name:       obj.Name,
		Member:     obj.Labels[MonitoredByLabel] == m.opts.MeshName && m.opts.MeshName != "" && !ignored,
		InboundTLS: n.inboundTLS(obj.Annotations),
		AccessLog:  n.accessLogOf(obj.Annotations),
		Audit:      n.audit(obj.Annotations),

		OutboundServices: n.outboundServices(obj.Name, obj.Annotations),
	})
}

func (n *notes) inboundTLS(annotations map[string]string) mesh.TLSMode {
	return n.tlsMode("metadata.annotations["+InboundTLSAnnotation+"]", annotations[InboundTLSAnnotation])
}

func (n *notes) audit(annotations map[string]string) bool {
	switch mode := annotations[AccessModeAnnotation]; mode {
	case "":
	case accessModeAudit:
		return true
	default:
		n.add(ReasonInvalid, "metadata.annotations["+AccessModeAnnotation+"]", "%q is not an access mode and is ignored; use %s, or remove it", mode, accessModeAudit)
	}
	return false
}
