package source

import (
	"cmp"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// endpointSlice returns nil for slices without a service.
func endpointSlice(obj *discoveryv1.EndpointSlice, n *notes) mesh.Digester {
	service := obj.Labels[discoveryv1.LabelServiceName]
	if service == "" {
		return nil
	}
	if obj.AddressType == discoveryv1.AddressTypeFQDN {
		n.add(ReasonNotSupported, "addressType", "endpoints that are DNS names are ignored, since Kubernetes does not define their meaning; use IPv4 or IPv6, or an ExternalName service")
		return nil
	}
	s := &fact.EndpointSlice{Name: nameOf(&obj.ObjectMeta), Service: service}
	for i := range obj.Ports {
		port := &obj.Ports[i]
		if port.Protocol != nil && !isTCP(*port.Protocol) || port.Port == nil {
			continue
		}
		if number, ok := n.port(index("ports", i)+".port", int64(*port.Port)); ok {
			s.Ports = append(s.Ports, fact.SlicePort{Name: deref(port.Name, ""), Port: number})
		}
	}
	for i := range obj.Endpoints {
		if e, ok := n.sliceEndpoint(index("endpoints", i), obj.Namespace, &obj.Endpoints[i]); ok {
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	slices.SortStableFunc(s.Ports, func(a, b fact.SlicePort) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port)) })
	slices.SortStableFunc(s.Endpoints, func(a, b fact.SliceEndpoint) int {
		return cmp.Or(a.Addresses[0].Compare(b.Addresses[0]), cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Hostname, b.Hostname))
	})
	return mesh.Seal(s)
}

// sliceEndpoint uses only the first address, since all of them are the same endpoint.
// Unset conditions get the API's defaults.
func (n *notes) sliceEndpoint(path, namespace string, endpoint *discoveryv1.Endpoint) (fact.SliceEndpoint, bool) {
	if len(endpoint.Addresses) == 0 {
		return fact.SliceEndpoint{}, false
	}
	address, err := netip.ParseAddr(endpoint.Addresses[0])
	if err != nil || !isReachable(address.Unmap()) {
		n.add(ReasonInvalid, path+".addresses[0]", "%q is not the IP address of another host, so the endpoint is ignored", endpoint.Addresses[0])
		return fact.SliceEndpoint{}, false
	}
	e := fact.SliceEndpoint{
		Addresses:   []netip.Addr{address.Unmap()},
		Hostname:    deref(endpoint.Hostname, ""),
		Zone:        deref(endpoint.Zone, ""),
		Ready:       deref(endpoint.Conditions.Ready, true),
		Terminating: deref(endpoint.Conditions.Terminating, false),
	}
	e.Serving = deref(endpoint.Conditions.Serving, e.Ready)
	if target := endpoint.TargetRef; target != nil && target.Kind == "Pod" && (target.Namespace == "" || target.Namespace == namespace) {
		e.Workload = target.Name
	}
	return e, true
}

func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
