package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// clusterDomain is the suffix of services' DNS names. The default is assumed, since no
// object states it.
const clusterDomain = ".svc.cluster.local"

// serviceOf parses a service's DNS name as used in the namespace: name, name.namespace,
// name.namespace.svc or longer. It returns the zero Name if the host has another form.
func serviceOf(host, namespace string) mesh.Name {
	labels := strings.Split(host, ".")
	switch {
	case len(labels) == 1:
		return mesh.Name{Namespace: namespace, Name: host}
	case len(labels) == 2, labels[2] == "svc":
		return mesh.Name{Namespace: labels[1], Name: labels[0]}
	}
	return mesh.Name{}
}

// endpointOfHost returns the endpoint with the DNS name, such as a pod of a StatefulSet:
// pod.service (in the namespace), pod.service.namespace, pod.service.namespace.svc or
// longer.
func (x *inquiry) endpointOfHost(host, namespace string) (mesh.Endpoint, bool) {
	labels := strings.Split(host, ".")
	var service mesh.Name
	switch {
	case len(labels) == 2:
		service = mesh.Name{Namespace: namespace, Name: labels[1]}
	case len(labels) == 3, len(labels) > 3 && labels[3] == "svc":
		service = mesh.Name{Namespace: labels[2], Name: labels[1]}
	default:
		return mesh.Endpoint{}, false
	}
	if s := x.surroundings.services[service.String()]; s == nil || !s.Headless {
		return mesh.Endpoint{}, false
	}
	for _, e := range x.surroundings.listed(service) {
		if e.hostname == labels[0] {
			return e.Endpoint, true
		}
	}
	return mesh.Endpoint{}, false
}

// callEndpoint calls an endpoint by its own DNS name, with a port of the pod.
func (x *inquiry) callEndpoint(c caller, e mesh.Endpoint, target Target) {
	workload, known := x.snapshot.Workloads.Get(e.Workload)
	port := target.number(e.Port)
	if known {
		var ok bool
		if port, ok = podPort(workload, x.viewOf(workload), target); !ok {
			x.fail("TO %s: pod %s has no named port%s; use its number", x.answer.To, e.Workload, quoted(target.Port))
			return
		}
		x.namespaces = append(x.namespaces, workload.Namespace)
	}
	x.say("destination", fmt.Sprintf("%s is the name of one endpoint, %s", target.Host, e.Addresses[0]))
	x.callAddress(c, netip.AddrPortFrom(e.Addresses[0], port))
}

// callHeadless calls a headless service, whose name resolves to the addresses of its
// endpoints, in the mesh or not. A port number is one of the endpoints'.
func (x *inquiry) callHeadless(c caller, service *fact.Service, target Target) {
	spec, named := portOf(service, target.Port)
	if !named && target.number(0) == 0 {
		x.hasNoPort(service, target)
		return
	}
	var calls []netip.AddrPort
	for _, e := range x.surroundings.listed(service.Name) {
		port := e.Port
		if number := target.number(0); number != 0 {
			port = number
		} else if e.portName != spec.Name {
			continue
		}
		calls = append(calls, netip.AddrPortFrom(e.Addresses[0], port))
	}
	slices.SortFunc(calls, netip.AddrPort.Compare)
	calls = slices.Compact(calls)
	if len(calls) == 0 {
		x.end(Unreachable, "destination", fmt.Sprintf("service %s is headless and has no endpoint that accepts connections: its name does not resolve", service.Name))
		return
	}
	text := fmt.Sprintf("service %s is headless: its name resolves to the addresses of %s", service.Name, count(len(calls), "endpoint"))
	if named && spec.Target != 0 && spec.Target != target.number(spec.Target) {
		text += fmt.Sprintf(", and its port %d is not translated: the endpoints use %d", spec.Port, spec.Target)
	}
	x.say("destination", text)
	callEach(x, calls, func(to netip.AddrPort) { x.callAddress(c, to) })
}

// maxAliases limits chains of ExternalName services, as DNS limits CNAME chains.
const maxAliases = 8

// callAlias calls an ExternalName service, which refers to a service or pod of the
// cluster, or to a host outside.
func (x *inquiry) callAlias(c caller, service *fact.Service, target Target) {
	x.involveName("Service", service.Name)
	x.namespaces = append(x.namespaces, service.Namespace)
	x.host(&x.request, service.Name.Name+"."+service.Namespace)
	spec, ok := portOf(service, target.Port)
	if !ok && target.Port != "" && target.number(0) == 0 {
		x.hasNoPort(service, target)
		return
	}
	port := target.number(spec.Port)
	if port == 0 {
		port = 80
	}
	host := strings.ToLower(strings.TrimSuffix(service.ExternalName, "."))
	if !strings.HasSuffix(host, clusterDomain) {
		x.say("destination", fmt.Sprintf("service %s is an alias for %s, outside the mesh", service.Name, host))
		x.leaveToHost(c, host, port)
		return
	}
	x.say("destination", fmt.Sprintf("service %s is an alias for %s, in the cluster", service.Name, host))
	if x.aliases++; x.aliases > maxAliases {
		x.end(Unreachable, "destination", "the chain of ExternalName services is too long")
		return
	}
	x.callTarget(c, Target{Host: host, Port: strconv.Itoa(int(port))})
}

// alias returns the service if it has type ExternalName, in the mesh or not.
func (x *inquiry) alias(name mesh.Name) (*fact.Service, bool) {
	service, ok := x.snapshot.Services.Get(name.String())
	if !ok {
		service, ok = x.surroundings.services[name.String()]
	}
	return service, ok && service.ExternalName != ""
}
