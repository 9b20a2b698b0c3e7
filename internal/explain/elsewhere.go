package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// surroundings are facts that the Snapshot lacks.
type surroundings struct {
	// members reports for each namespace whether it is in the mesh.
	members map[string]bool
	// outbound has the services that the sidecars of a namespace are limited to.
	outbound map[string]fact.Services
	// defaults has the default access of the namespaces that have one of their own.
	defaults map[string]fact.AccessAction
	// services has all services, by namespace/name.
	services map[string]*fact.Service
	// slices has the slices of each service, by namespace/name.
	slices map[string][]*fact.EndpointSlice
	// targets has the rules for each destination, and tcpRoutes all TCPRoutes by
	// namespace/name.
	targets   map[fact.ServiceAccount][]*fact.AccessRule
	tcpRoutes map[string]*fact.TCPMatch
}

func surroundingsOf(facts []fact.Fact) surroundings {
	s := surroundings{
		members: make(map[string]bool), outbound: make(map[string]fact.Services), defaults: make(map[string]fact.AccessAction), services: make(map[string]*fact.Service), slices: make(map[string][]*fact.EndpointSlice),
		targets: make(map[fact.ServiceAccount][]*fact.AccessRule), tcpRoutes: make(map[string]*fact.TCPMatch),
	}
	last := make(map[mesh.ObjectRef]int)
	for i, f := range facts {
		last[f.Object] = i
	}
	for i, f := range facts {
		if last[f.Object] != i {
			continue
		}
		switch content := f.Content.(type) {
		case *fact.Namespace:
			s.members[content.Name] = content.Member
			s.outbound[content.Name] = content.OutboundServices
			if content.DefaultAccess != "" {
				s.defaults[content.Name] = content.DefaultAccess
			}
		case *fact.Service:
			s.services[content.String()] = content
		case *fact.EndpointSlice:
			service := mesh.Name{Namespace: content.Namespace, Name: content.Service}.String()
			s.slices[service] = append(s.slices[service], content)
		case *fact.AccessRule:
			s.targets[content.Destination] = append(s.targets[content.Destination], content)
		case *fact.RouteGroup:
			if content.TCP != nil {
				s.tcpRoutes[content.String()] = content.TCP
			}
		}
	}
	return s
}

// opens reports whether everyone in the mesh may call the proxy's workload unless a policy closes it.
func (s surroundings) opens(view *mesh.View) bool {
	if own, ok := s.defaults[view.Proxy.Namespace]; ok {
		return own != fact.Deny
	}
	return view.Settings.PermissivePolicy
}

// unknownTo reports whether the sidecar of a workload does not know a service because an
// annotation limits it to others, which it returns.
func (s surroundings) unknownTo(w *fact.Workload, service mesh.Name) (fact.Services, bool) {
	services := w.OutboundServices
	if services == nil {
		services = s.outbound[w.Namespace]
	}
	return services, services != nil && !services.Has(service)
}

// listedEndpoint is an endpoint that accepts connections, with one of its ports.
type listedEndpoint struct {
	mesh.Endpoint
	portName string
	// hostname is the first label of its own DNS name.
	hostname string
}

// listed returns the endpoints of a service that accept connections, once for each port.
func (s surroundings) listed(service mesh.Name) []listedEndpoint {
	var found []listedEndpoint
	type at struct {
		netip.AddrPort
		name string
	}
	seen := make(map[at]bool)
	for _, slice := range s.slices[service.String()] {
		for _, p := range slice.Ports {
			for _, e := range slice.Endpoints {
				if len(e.Addresses) == 0 || !e.Ready && !e.Serving {
					continue
				}
				key := at{netip.AddrPortFrom(e.Addresses[0], p.Port), p.Name}
				if seen[key] {
					continue
				}
				seen[key] = true
				one := listedEndpoint{mesh.Endpoint{Addresses: e.Addresses, Port: p.Port}, p.Name, e.Hostname}
				if e.Workload != "" {
					one.Workload = mesh.Name{Namespace: service.Namespace, Name: e.Workload}.String()
				}
				found = append(found, one)
			}
		}
	}
	return found
}

// endpoints returns the endpoints of a service that accept connections on the named port.
func (s surroundings) endpoints(service mesh.Name, port string) []mesh.Endpoint {
	var found []mesh.Endpoint
	for _, e := range s.listed(service) {
		if e.portName == port {
			found = append(found, e.Endpoint)
		}
	}
	return found
}

// restricted lists the rules that allow the peer some requests, but only at other ports.
func (s surroundings) restricted(destination, peer mesh.Identity, port uint16) []string {
	var reasons []string
	of := fact.ServiceAccount{Namespace: destination.Namespace, Name: destination.ServiceAccount}
	from := fact.ServiceAccount{Namespace: peer.Namespace, Name: peer.ServiceAccount}
	for _, rule := range s.targets[of] {
		if !slices.Contains(rule.Sources, from) || !slices.ContainsFunc(rule.Rules, func(r fact.AccessRoutes) bool { return r.Kind == "HTTPRouteGroup" }) {
			continue
		}
		byPort, reaches := false, false
		var ports []string
		for _, routes := range rule.Rules {
			if routes.Kind != "TCPRoute" {
				continue
			}
			byPort = true
			match := s.tcpRoutes[mesh.Name{Namespace: rule.Namespace, Name: routes.Group}.String()]
			if match == nil {
				continue
			}
			reaches = reaches || len(match.Ports) == 0 || slices.Contains(match.Ports, port)
			for _, number := range match.Ports {
				ports = append(ports, strconv.Itoa(int(number)))
			}
		}
		if byPort && !reaches {
			reasons = append(reasons, fmt.Sprintf("TrafficTarget %s allows requests of %s only at the ports of its TCPRoutes: %s",
				rule.Name, account(peer), cmp.Or(list(ports, mostShown), "there are none")))
		}
	}
	return reasons
}

// isMember reports whether the namespace is known to be in the mesh.
func (x *inquiry) isMember(namespace string) bool {
	if x.surroundings.members[namespace] {
		return true
	}
	for _, name := range append(x.snapshot.Services.Names(), x.snapshot.Workloads.Names()...) {
		if strings.HasPrefix(name, namespace+"/") {
			return true
		}
	}
	return false
}

// callElsewhere calls a target that is neither a service nor a pod of the mesh. If no
// Egress matches, it fails for names that look like typos.
func (x *inquiry) callElsewhere(c caller, target Target) {
	name := target.Name
	host := cmp.Or(target.Host, name.Name+"."+name.Namespace)
	x.host(&x.request, host)
	port := target.number(80)
	service := x.surroundings.services[name.String()]
	if spec, ok := portOf(service, target.Port); ok {
		port = spec.Port
	} else if target.Port != "" && target.number(0) == 0 {
		x.fail("TO %s: the port of a target outside the mesh must be a number", target)
		return
	}
	isName := name != mesh.Name{}
	_, known := x.surroundings.members[name.Namespace]
	member := isName && x.isMember(name.Namespace)
	// A name with two labels may also be an Internet host.
	typo := isName && !member && !known && strings.Count(target.Host, ".") != 1
	open, named := true, false
	c = x.redirectToHost(c, host, port)
	if c.view != nil {
		d := x.toHost(host, port)
		decision, _ := c.decideEgress(d)
		open = decision.Allowed
		for _, routes := range c.view.Egress.Ports {
			if _, ok := routes.HostOf(d); ok && routes.Port == port {
				named = true
			}
		}
	}
	switch {
	case member && !named:
		x.fail("TO %s: the mesh has neither a service nor a pod %s; %s", x.answer.To, name, x.servicesIn(name.Namespace))
	case typo && !named && !open:
		x.fail("TO %s: there is no namespace %s, and no Egress matches %s, port %d", x.answer.To, name.Namespace, host, port)
	default:
		if service != nil {
			x.say("destination", "service "+name.String()+" is outside the mesh's namespaces")
		}
		x.leaveToHost(c, host, port)
	}
}

func (x *inquiry) servicesIn(namespace string) string {
	var services []string
	for _, name := range x.snapshot.Services.Names() {
		if strings.HasPrefix(name, namespace+"/") {
			services = append(services, name)
		}
	}
	if len(services) == 0 {
		return "it has no service in namespace " + namespace
	}
	return "the services there are " + list(services, 10)
}
