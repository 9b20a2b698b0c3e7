package catalog

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// destinations has the Destinations of a service port, and the ports whose Backends they
// use.
type destinations struct {
	list []*mesh.Destination
	uses []mesh.ServicePort
	// calls are the names of Backends that get calls of gRPC of a gateway.
	calls  map[string]bool
	digest mesh.Digest
}

func (d *destinations) Digest() mesh.Digest { return d.digest }

func (d *destinations) done() *destinations {
	digests := make([]mesh.Digest, 0, len(d.list)+1)
	for _, one := range d.list {
		digests = append(digests, one.Digest())
	}
	d.digest = mesh.JoinDigests(append(digests, mesh.DigestOf(d.uses))...)
	return d
}

// makeDestinations returns where the traffic of an audience to a service port goes.
func (j *join) makeDestinations(r *graph.Reader, users audience) *destinations {
	port := users.port
	svc := j.service(r, port.Name)
	spec, ok := portOf(svc, port.Port)
	switch {
	case !ok || svc.ExternalName != "":
		return (&destinations{}).done()
	case svc.Headless:
		return j.headless(r, port, spec)
	case len(svc.Addresses) == 0:
		return (&destinations{}).done()
	}
	addresses := j.serviceAddresses(r, svc, port.Port)
	if len(addresses) == 0 {
		return (&destinations{}).done()
	}
	made := &destinations{uses: []mesh.ServicePort{port}}
	d := &mesh.Destination{
		Name: port.String(), Service: port, Origins: j.originsOfDestination(r, port.Name),
		Addresses: addresses, Port: port.Port, Protocol: spec.Protocol,
	}
	if spec.Protocol.IsHTTP() {
		d.Routes = j.routeRequests(r, svc, spec, users.namespace, made)
	} else if !j.routeConnections(r, svc, spec, users.namespace, made, d) {
		d.Backends = []mesh.WeightedBackend{{Backend: port.String(), Weight: 1}}
		for _, split := range j.splitsInForce(r, svc, spec.Protocol) {
			d.Backends, d.Origins = j.shares(r, split, port, made), append(d.Origins, originOf(kindTrafficSplit, split.Name, "spec.backends"))
		}
	}
	slices.SortFunc(made.uses, mesh.ServicePort.Compare)
	made.uses = slices.Compact(made.uses)
	for _, used := range made.uses {
		policy := j.policies.Get(r, used.Name)
		before := len(d.HashOn)
		if d.HashOn = appendHash(d.HashOn, policy.Upstream.LoadBalancing); len(d.HashOn) > before {
			d.Origins = withOrigin(d.Origins, originsAt(policy.Origins, fieldLoadBalancing, fieldSessionAffinity)...)
		}
	}
	made.list = []*mesh.Destination{mesh.Seal(d)}
	return made.done()
}

// routeRequests returns the routes of a Destination: those of the routes in force, otherwise
// those of splits and the service's default route. It adds the ports of their backends to
// made.uses.
func (j *join) routeRequests(r *graph.Reader, svc *fact.Service, spec fact.PortSpec, namespace string, made *destinations) []mesh.Route {
	if routes, ok := j.gatewayRoutes(r, svc, spec, namespace, made); ok {
		return routes
	}
	port := mesh.ServicePort{Name: svc.Name, Port: spec.Port}
	timeout := j.policies.Get(r, svc.Name).Upstream.RequestTimeout
	rest := mesh.Route{Backends: []mesh.WeightedBackend{{Backend: port.String(), Weight: 1}}, Timeout: timeout}
	var routes []mesh.Route
	for _, split := range j.splitsInForce(r, svc, spec.Protocol) {
		route := mesh.Route{Origin: originOf(kindTrafficSplit, split.Name, "spec.backends"), Timeout: timeout, Backends: j.shares(r, split, port, made)}
		if len(split.Matches) == 0 {
			rest = route
			continue
		}
		for _, match := range j.matchesOf(r, split.Namespace, split.Matches) {
			route.Match = match
			routes = append(routes, route)
		}
	}
	return append(routes, rest)
}

// headless makes a Destination for each endpoint, at its own address.
func (j *join) headless(r *graph.Reader, port mesh.ServicePort, spec fact.PortSpec) *destinations {
	made := &destinations{uses: []mesh.ServicePort{port}}
	policy := j.policies.Get(r, port.Name)
	origins := append(j.originsOfDestination(r, port.Name), originsAt(policy.Origins, fieldLoadBalancing, fieldSessionAffinity)...)
	for _, b := range j.backends.Get(r, port).list {
		e := b.Endpoints[0]
		addresses := j.workloadAddresses(r, workloadOf(e), e.Addresses, e.Port)
		if len(addresses) == 0 || j.isTaken(r, port, e) {
			continue
		}
		d := &mesh.Destination{
			Name: b.Name, Service: port, Origins: origins, Addresses: addresses, Port: e.Port, Protocol: spec.Protocol,
			HashOn: appendHash(nil, policy.Upstream.LoadBalancing),
		}
		to := []mesh.WeightedBackend{{Backend: b.Name, Weight: 1}}
		if spec.Protocol.IsHTTP() {
			d.Routes = []mesh.Route{{Backends: to, Timeout: policy.Upstream.RequestTimeout}}
		} else {
			d.Backends = to
		}
		made.list = append(made.list, mesh.Seal(d))
	}
	return made.done()
}

// No two Destinations may share an address and port. A service's virtual IP takes
// precedence over a workload's address. Among services or workloads with the same
// address, the first by name takes precedence.

// serviceAddresses returns the service's virtual IPs, except those whose port belongs to
// another service.
func (j *join) serviceAddresses(r *graph.Reader, svc *fact.Service, port uint16) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(svc.Addresses), func(a netip.Addr) bool {
		return j.ownerOf(r, netip.AddrPortFrom(a, port)) != svc.Name
	})
}

// ownerOf returns the service of the mesh that owns a virtual IP and port, or zero.
func (j *join) ownerOf(r *graph.Reader, address netip.AddrPort) mesh.Name {
	for _, name := range j.servicesAt.Get(r, address) {
		if j.member(r, name.Namespace) {
			return name
		}
	}
	return mesh.Name{}
}

// workloadAddresses returns those of the addresses that belong to the workload at the
// port.
func (j *join) workloadAddresses(r *graph.Reader, workload mesh.Name, addresses []netip.Addr, port uint16) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool {
		if (j.ownerOf(r, netip.AddrPortFrom(a, port)) != mesh.Name{}) {
			return true
		}
		for _, key := range j.workloadsAt.Get(r, a) {
			if j.peers.Get(r, key).hasSidecar {
				return key != workload
			}
		}
		return true
	})
}

// isTaken reports whether another headless service, or another port of this one, already
// has the endpoint's address and port. The first by name and number takes precedence.
func (j *join) isTaken(r *graph.Reader, port mesh.ServicePort, e mesh.Endpoint) bool {
	for _, name := range j.servicesOf.Get(r, workloadOf(e)) {
		other := j.service(r, name)
		if other == nil || !other.Headless {
			continue
		}
		for _, spec := range other.Ports {
			before := mesh.ServicePort{Name: name, Port: spec.Port}
			if before.Compare(port) < 0 && j.backends.Get(r, before).has(e) {
				return true
			}
		}
	}
	return false
}

// has reports whether a headless service's Backends include the endpoint.
func (b *backends) has(e mesh.Endpoint) bool {
	_, ok := slices.BinarySearchFunc(b.list, e, func(one *mesh.Backend, e mesh.Endpoint) int {
		return compareEndpoints(one.Endpoints[0], e)
	})
	return ok
}

// targetOf returns the workload's port that a service port targets, 0 if the workload has
// no port of that name.
func targetOf(w *fact.Workload, spec fact.PortSpec) uint16 {
	if spec.TargetName == "" {
		return cmp.Or(spec.Target, spec.Port)
	}
	if w != nil {
		for _, p := range w.Ports {
			if p.Name == spec.TargetName {
				return p.Number
			}
		}
	}
	return 0
}

// splitsInForce returns the splits of a service in order of precedence: those with
// matches by age, then the oldest one without.
func (j *join) splitsInForce(r *graph.Reader, svc *fact.Service, protocol mesh.Protocol) []*fact.Split {
	var matching, whole []*fact.Split
	for _, a := range j.splitsOf.Get(r, svc.Name) {
		split, _ := j.splits.Get(r, a.key)
		switch {
		case len(split.Matches) == 0:
			whole = append(whole, split)
		case protocol.IsHTTP():
			matching = append(matching, split)
		}
	}
	return append(matching, whole[:min(len(whole), 1)]...)
}

// shares returns the weighted backends of a split and adds their ports to made.uses.
// Services that don't exist or lack the port get nothing.
func (j *join) shares(r *graph.Reader, split *fact.Split, root mesh.ServicePort, made *destinations) []mesh.WeightedBackend {
	var shares []mesh.WeightedBackend
	for _, backend := range split.Backends {
		port, ok := j.splitPort(r, split, backend, root)
		if !ok || backend.Weight == 0 {
			continue
		}
		made.uses = append(made.uses, port)
		shares = append(shares, mesh.WeightedBackend{Backend: port.String(), Weight: backend.Weight})
	}
	return shares
}

// splitPort returns the port of a split's backend for the traffic to the root's port: the
// port with the same number, otherwise with the same name, otherwise the only port.
func (j *join) splitPort(r *graph.Reader, split *fact.Split, backend fact.SplitBackend, root mesh.ServicePort) (mesh.ServicePort, bool) {
	name := mesh.Name{Namespace: split.Namespace, Name: backend.Service}
	svc := j.service(r, name)
	if other, ok := j.aliasTarget(r, svc); ok {
		name, svc = other.Name, other
	}
	// A headless service has no Backend that covers all endpoints.
	if svc == nil || svc.Headless {
		return mesh.ServicePort{}, false
	}
	if _, ok := portOf(svc, root.Port); ok {
		return mesh.ServicePort{Name: name, Port: root.Port}, true
	}
	if spec, ok := portOf(j.service(r, root.Name), root.Port); ok && spec.Name != "" {
		for _, other := range svc.Ports {
			if other.Name == spec.Name {
				return mesh.ServicePort{Name: name, Port: other.Port}, true
			}
		}
	}
	if len(svc.Ports) == 1 {
		return mesh.ServicePort{Name: name, Port: svc.Ports[0].Port}, true
	}
	return mesh.ServicePort{}, false
}

// matchesOf returns the matches of the HTTPRouteGroups. Missing groups have none.
func (j *join) matchesOf(r *graph.Reader, namespace string, groups []string) []mesh.HTTPMatch {
	var matches []mesh.HTTPMatch
	for _, name := range groups {
		group, _ := j.httpGroups.Get(r, mesh.Name{Namespace: namespace, Name: name})
		if group == nil {
			continue
		}
		for _, m := range group.HTTP {
			matches = append(matches, m.HTTPMatch)
		}
	}
	return matches
}

// appendHash adds the hash inputs of a load balancing policy, without duplicates.
func appendHash(hashes []mesh.HashOn, balancing mesh.LoadBalancing) []mesh.HashOn {
	for _, h := range balancing.HashOn {
		if !slices.Contains(hashes, h) {
			hashes = append(hashes, h)
		}
	}
	return hashes
}
