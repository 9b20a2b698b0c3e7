package source

import (
	"maps"
	"strings"

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
		Labels:     namespaceLabels(obj),
		InboundTLS: n.inboundTLS(obj.Annotations),
		AccessLog:  n.accessLogOf(obj.Annotations),
		Audit:      n.audit(obj.Annotations),

		DefaultAccess: n.defaultAccess(obj.Annotations),

		OutboundServices: n.outboundServices(obj.Name, obj.Annotations),
	})
}

// namespaceLabels returns the labels with the one that the API server adds to each namespace.
func namespaceLabels(obj *corev1.Namespace) map[string]string {
	labels := maps.Clone(obj.Labels)
	if labels == nil {
		labels = make(map[string]string)
	}
	labels[corev1.LabelMetadataName] = obj.Name
	return labels
}

func (n *notes) inboundTLS(annotations map[string]string) mesh.TLSMode {
	return n.tlsMode("metadata.annotations["+metadata.InboundTLSMode+"]", annotations[metadata.InboundTLSMode])
}

// defaultAccess denies if it cannot read the annotation.
func (n *notes) defaultAccess(annotations map[string]string) fact.AccessAction {
	text, ok := annotations[metadata.DefaultAccess]
	if !ok {
		return ""
	}
	for _, action := range []fact.AccessAction{fact.Allow, fact.Deny, fact.Audit} {
		if strings.EqualFold(text, string(action)) {
			return action
		}
	}
	n.add(ReasonInvalid, "metadata.annotations["+metadata.DefaultAccess+"]", "%q is not a default, so what no policy allows is denied; use allow, deny or audit, or remove it", text)
	return fact.Deny
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
