package source

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const accessModeAudit = "Audit"

// namespace decides membership like the injector does.
func (m *Mapper) namespace(obj *corev1.Namespace, n *notes) mesh.Digester {
	_, ignored := obj.Labels[metadata.Ignore]
	return mesh.Seal(&fact.Namespace{
		Name:       obj.Name,
		Member:     obj.Labels[metadata.MonitoredBy] == m.opts.MeshName && m.opts.MeshName != "" && !ignored,
		InboundTLS: n.inboundTLS(obj.Annotations),
		AccessLog:  n.accessLogOf(obj.Annotations),
		Audit:      n.audit(obj.Annotations),

		OutboundServices: n.outboundServices(obj.Name, obj.Annotations),
	})
}

func (n *notes) inboundTLS(annotations map[string]string) mesh.TLSMode {
	return n.tlsMode("metadata.annotations["+metadata.InboundTLSMode+"]", annotations[metadata.InboundTLSMode])
}

func (n *notes) audit(annotations map[string]string) bool {
	switch mode := annotations[metadata.AccessMode]; mode {
	case "":
	case accessModeAudit:
		return true
	default:
		n.add(ReasonInvalid, "metadata.annotations["+metadata.AccessMode+"]", "%q is not an access mode and is ignored; use %s, or remove it", mode, accessModeAudit)
	}
	return false
}
