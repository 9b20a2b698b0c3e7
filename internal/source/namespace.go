package source

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// The labels and annotations that facts are made of, besides Kubernetes' own.
const (
	// InboundTLSAnnotation, on a pod or a namespace, is Strict or Permissive and says
	// what the pod, or the namespace's pods, take besides mesh TLS.
	InboundTLSAnnotation = "openservicemesh.io/inbound-tls-mode"

	// MonitoredByLabel, on a namespace, is the name of the mesh that it belongs to.
	MonitoredByLabel = "openservicemesh.io/monitored-by"
	ignoreLabel      = "openservicemesh.io/ignore"
)

// namespace follows the injector in what belongs to the mesh.
func (m *Mapper) namespace(obj *corev1.Namespace, n *notes) mesh.Content {
	_, ignored := obj.Labels[ignoreLabel]
	return mesh.Seal(&mesh.Namespace{
		Name:       obj.Name,
		Member:     obj.Labels[MonitoredByLabel] == m.opts.MeshName && m.opts.MeshName != "" && !ignored,
		InboundTLS: n.inboundTLS(obj.Annotations),
	})
}

func (n *notes) inboundTLS(annotations map[string]string) mesh.TLSMode {
	return n.tlsMode("metadata.annotations["+InboundTLSAnnotation+"]", annotations[InboundTLSAnnotation])
}
