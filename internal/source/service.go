package source

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

func service(obj *corev1.Service, n *notes) mesh.Digester {
	s := &fact.Service{
		Name:          nameOf(&obj.ObjectMeta),
		Ports:         n.servicePorts(obj.Spec.Ports),
		StickyClients: obj.Spec.SessionAffinity == corev1.ServiceAffinityClientIP,
		PreferZone:    prefersZone(obj),
	}
	switch {
	case obj.Spec.Type == corev1.ServiceTypeExternalName:
		s.ExternalName = n.externalName(obj.Spec.ExternalName)
	case obj.Spec.ClusterIP == corev1.ClusterIPNone:
		s.Headless = true
	default:
		s.Addresses = addresses(append([]string{obj.Spec.ClusterIP}, obj.Spec.ClusterIPs...))
		s.External = externalAddresses(obj)
	}
	return mesh.Seal(s)
}

// externalAddresses returns the addresses of the service outside the cluster.
func externalAddresses(obj *corev1.Service) []string {
	var all []string
	for _, at := range obj.Status.LoadBalancer.Ingress {
		all = append(all, cmp.Or(at.IP, at.Hostname))
	}
	all = append(all, obj.Spec.ExternalIPs...)
	return slices.DeleteFunc(unique(all), func(address string) bool { return address == "" })
}

func (n *notes) externalName(value string) string {
	name := strings.ToLower(strings.TrimSuffix(value, "."))
	if !isDNSName(name) {
		n.add(ReasonInvalid, "spec.externalName", "%q is not a DNS name, so the service has no target; write a name such as api.example.com", value)
		return ""
	}
	if isLocalName(name) {
		n.add(ReasonInvalid, "spec.externalName", "%q is an address of the caller's own host or link, so the service has no target; write a name such as api.example.com", value)
		return ""
	}
	return name
}

// servicePorts returns the TCP ports. Other ports bypass the mesh, which is not a
// Problem.
func (n *notes) servicePorts(declared []corev1.ServicePort) []fact.PortSpec {
	var ports []fact.PortSpec
	for i := range declared {
		d, path := &declared[i], index("spec.ports", i)
		if !isTCP(d.Protocol) {
			continue
		}
		number, ok := n.port(path+".port", int64(d.Port))
		if !ok {
			continue
		}
		if slices.ContainsFunc(ports, func(p fact.PortSpec) bool { return p.Port == number || p.Name == d.Name }) {
			n.add(ReasonDuplicate, path, "another port also has the number %d or the name %q, so this one is ignored; use unique ports", number, d.Name)
			continue
		}
		port := fact.PortSpec{Name: d.Name, Port: number}
		port.Protocol, port.Assumed = n.protocol(path, d)
		switch {
		case d.TargetPort.Type == intstr.String && d.TargetPort.StrVal != "":
			port.TargetName = d.TargetPort.StrVal
		case d.TargetPort.IntVal == 0:
			port.Target = number
		default:
			if port.Target, ok = n.port(path+".targetPort", int64(d.TargetPort.IntVal)); !ok {
				continue
			}
		}
		ports = append(ports, port)
	}
	slices.SortFunc(ports, func(a, b fact.PortSpec) int { return cmp.Compare(a.Port, b.Port) })
	return ports
}

// prefersZone reads trafficDistribution and the older annotations. PreferSameNode falls
// back to the zone, and the mesh does not know nodes.
func prefersZone(obj *corev1.Service) bool {
	if distribution := obj.Spec.TrafficDistribution; distribution != nil {
		switch *distribution {
		case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode:
			return true
		}
	}
	for _, annotation := range []string{corev1.AnnotationTopologyMode, corev1.DeprecatedAnnotationTopologyAwareHints} {
		if strings.EqualFold(obj.Annotations[annotation], "auto") {
			return true
		}
	}
	return false
}
