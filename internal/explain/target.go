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

// callTarget resolves the target and calls it.
func (x *inquiry) callTarget(c caller, target Target) {
	if target.Addr.IsValid() {
		x.host(&x.request, target.Addr.String())
		x.callAddress(c, netip.AddrPortFrom(target.Addr, target.number(80)))
		return
	}
	if target.Host != "" {
		x.host(&x.request, target.Host)
		if endpoint, ok := x.endpointOfHost(target.Host, c.workload.Namespace); ok {
			x.callEndpoint(c, endpoint, target)
			return
		}
		target.Name = serviceOf(target.Host, c.workload.Namespace)
	}
	if x.callsItself(c) {
		return
	}
	service, isService := x.snapshot.Services.Get(target.Name.String())
	workload, isPod := x.snapshot.Workloads.Get(target.Name.String())
	alias, isAlias := x.alias(target.Name)
	switch {
	case isAlias:
		x.callAlias(c, alias, target)
	case isService:
		x.callService(c, service, target)
	case isPod && target.Host == "":
		x.callPod(c, workload, target)
	default:
		x.callElsewhere(c, target)
	}
}

// host sets the request's host, unless it was given.
func (x *inquiry) host(r *mesh.Request, host string) { r.Host = cmp.Or(r.Host, host) }

func (x *inquiry) callService(c caller, service *fact.Service, target Target) {
	name := service.Name
	x.involveName("Service", name)
	x.namespaces = append(x.namespaces, service.Namespace)
	x.host(&x.request, name.Name+"."+name.Namespace)
	if service.Headless && len(x.surroundings.slices[name.String()]) > 0 {
		x.callHeadless(c, service, target)
		return
	}
	port, ok := portOf(service, target.Port)
	if !ok && target.number(0) == 0 && target.Port != "" {
		x.hasNoPort(service, target)
		return
	}
	if !ok {
		x.end(Unreachable, "destination", fmt.Sprintf("service %s has no port %s", name, cmp.Or(target.Port, "at all")), "its ports are "+list(portsOf(service), 10))
		return
	}
	if target.Port == "" && len(service.Ports) > 1 {
		x.say("destination", fmt.Sprintf("service %s has the ports %s; assuming %d", name, list(portsOf(service), 10), port.Port))
	}
	at := mesh.ServicePort{Name: name, Port: port.Port}
	if len(service.Addresses) > 0 {
		c = x.redirect(c, netip.AddrPortFrom(service.Addresses[0], port.Port))
	}
	if c.view == nil {
		x.callBehind(c, at, fmt.Sprintf("%s: %s", at, WithoutSidecar))
		return
	}
	destinations := destinationsOf(c.view.Outbound, at)
	if len(destinations) == 0 {
		x.callUnknown(c, service, at)
		return
	}
	if service.Headless {
		x.say("destination", fmt.Sprintf("service %s is headless: its name resolves to the addresses of %s", name, count(len(destinations), "endpoint")))
	}
	callEach(x, destinations, func(d *mesh.Destination) { x.call(c, d) })
}

// callEach calls each of several places, silently after the first mostShown.
func callEach[T any](x *inquiry, places []T, call func(T)) {
	for i, place := range places {
		if i == mostShown {
			x.silently(func() {
				for _, place := range places[i:] {
					call(place)
				}
			})
			return
		}
		call(place)
	}
}

// hasNoPort reports that the service has no port of that name.
func (x *inquiry) hasNoPort(service *fact.Service, target Target) {
	x.fail("TO %s: service %s has no port called %s; its ports are %s", x.answer.To, service.Name, target.Port, list(portsOf(service), 10))
}

// mostShown limits how many similar parts are explained.
const mostShown = 5

// silently runs f and keeps only a summary of its verdicts.
func (x *inquiry) silently(f func()) {
	steps, verdicts := len(x.answer.Steps), len(x.verdicts)
	f()
	x.answer.Steps = x.answer.Steps[:steps]
	counts := make(map[Verdict]int)
	for _, v := range x.verdicts[verdicts:] {
		counts[v]++
	}
	var words []string
	for _, v := range []Verdict{Allowed, Denied, Unreachable} {
		if counts[v] > 0 {
			words = append(words, fmt.Sprintf("%d %s", counts[v], v))
		}
	}
	x.say("destination", "for the others: "+strings.Join(words, ", "))
}

func portOf(service *fact.Service, port string) (fact.PortSpec, bool) {
	if service == nil {
		return fact.PortSpec{}, false
	}
	for _, spec := range service.Ports {
		if port == "" || port == spec.Name || port == strconv.Itoa(int(spec.Port)) {
			return spec, true
		}
	}
	return fact.PortSpec{}, false
}

func portsOf(service *fact.Service) []string {
	var ports []string
	for _, spec := range service.Ports {
		text := strconv.Itoa(int(spec.Port))
		if spec.Name != "" {
			text += " (" + spec.Name + ")"
		}
		ports = append(ports, text)
	}
	return ports
}

// destinationsOf returns the Destinations of a service port, sorted. A headless service
// may have several.
func destinationsOf(o *mesh.Outbound, port mesh.ServicePort) []*mesh.Destination {
	if d, ok := o.Destinations.Get(port.String()); ok {
		return []*mesh.Destination{d}
	}
	var found []*mesh.Destination
	for name, d := range o.Destinations.All() {
		if strings.HasPrefix(name, port.String()+"@") {
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b *mesh.Destination) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// behind returns the Views of the workloads that a service port targets, sorted, with the
// port of each.
func (x *inquiry) behind(port mesh.ServicePort) ([]*mesh.View, []uint16) {
	var views []*mesh.View
	for _, view := range x.snapshot.Views.All() {
		if targetPort(view, port) != 0 {
			views = append(views, view)
		}
	}
	slices.SortFunc(views, func(a, b *mesh.View) int { return a.Proxy.Name.Compare(b.Proxy.Name) })
	ports := make([]uint16, len(views))
	for i, view := range views {
		ports[i] = targetPort(view, port)
	}
	return views, ports
}

func targetPort(view *mesh.View, servicePort mesh.ServicePort) uint16 {
	for _, port := range view.Inbound.Ports {
		if slices.Contains(port.Services, servicePort) {
			return port.Port
		}
	}
	return 0
}

// callBehind calls the workloads of a service port in plaintext, bypassing the caller's
// sidecar or through it as unknown traffic.
func (x *inquiry) callBehind(c caller, port mesh.ServicePort, text string) {
	calls := x.callsBehind(c, port)
	if len(calls) == 0 {
		x.end(Unreachable, "destination", text, "it has no endpoint that accepts connections")
		return
	}
	x.say("destination", text)
	x.arrive(calls)
}

// callsBehind returns plaintext connections to the workloads of a service port, with a
// sidecar or without.
func (x *inquiry) callsBehind(c caller, port mesh.ServicePort) []arrival {
	var calls []arrival
	views, ports := x.behind(port)
	for i, view := range views {
		calls = append(calls, arrival{caller: c, security: mesh.Plaintext, view: view, workload: view.Proxy.Name.String(), port: ports[i], addresses: view.Proxy.Addresses})
	}
	service, _ := x.snapshot.Services.Get(port.Name.String())
	spec, _ := portOf(service, strconv.Itoa(int(port.Port)))
	for _, e := range x.surroundings.endpoints(port.Name, spec.Name) {
		if w, ok := x.snapshot.Workloads.Get(e.Workload); !ok || x.viewOf(w) == nil {
			calls = append(calls, arrival{caller: c, security: mesh.Plaintext, workload: e.Workload, port: e.Port, addresses: e.Addresses})
		}
	}
	return calls
}

// Steps with these texts are taken by Kubernetes on the caller's node, not by a sidecar.
const (
	WithoutSidecar = "without a sidecar, the request goes to one of its endpoints in plaintext"
	ByKubernetes   = "Kubernetes routes the connection to one of its endpoints, in plaintext"
)

// callUnknown calls a service that is not among the sidecar's destinations.
func (x *inquiry) callUnknown(c caller, service *fact.Service, port mesh.ServicePort) {
	views, ports := x.behind(port)
	text := fmt.Sprintf("the sidecar of %s has no destination %s", c.workload.Name, port)
	var details []string
	services, limited := x.surroundings.unknownTo(c.workload, port.Name)
	if len(c.view.Outbound.Unknown) > 0 {
		x.learn(text)
		return
	}
	switch {
	case limited:
		details = append(details, "the annotation openservicemesh.io/outbound-services of the pod or its namespace limits the sidecar to other services: "+list(texts(services), 10))
	case c.view.Settings.PermissivePolicy && len(service.Addresses) == 0:
		details = append(details, "the service has no address and no endpoints that accept connections")
	case c.view.Settings.PermissivePolicy:
	case len(views) == 0:
		details = append(details, "it has no endpoint with a sidecar, so no TrafficTarget can allow it")
	default:
		details = append(details, "permissive traffic policy mode is off, and no TrafficTarget allows the caller anything there")
		details = append(details, x.whyNot(views[0], ports[0], arrivalOf(c, views[0], ports[0], x.asked()))...)
	}
	x.say("destination", text, details...)
	var address netip.AddrPort
	switch calls := x.callsBehind(c, port); {
	case len(service.Addresses) > 0:
		address = netip.AddrPortFrom(service.Addresses[0], port.Port)
	case service.Headless && len(calls) > 0 && len(calls[0].addresses) > 0:
		address = netip.AddrPortFrom(calls[0].addresses[0], calls[0].port)
	default:
		x.end(Unreachable, "destination", fmt.Sprintf("service %s has no address", service.Name))
		return
	}
	if x.mayLeave(c, mesh.Departure{To: address, Request: &x.request}, fmt.Sprintf("the address of %s", service.Name)) {
		x.callBehind(c, port, ByKubernetes)
	}
}

// learn ends a call of something that the sidecar gets on demand, and whose routes and rules
// it therefore does not have yet. The text says what it lacks.
func (x *inquiry) learn(text string) {
	x.say("destination", text, "it gets services on demand, and no pod of its service account has used this one")
	x.end(Mixed, "destination", "the first connection waits until the sidecar has what the caller may call there, and is then treated like later ones: ask again after it")
}

func (x *inquiry) callPod(c caller, workload *fact.Workload, target Target) {
	x.involveName("Pod", target.Name)
	x.namespaces = append(x.namespaces, target.Name.Namespace)
	if workload.Ended {
		x.end(Unreachable, "destination", fmt.Sprintf("the containers of pod %s have terminated", target.Name))
		return
	}
	port, ok := podPort(workload, x.viewOf(workload), target)
	if !ok {
		x.fail("TO %s: pod %s has no named port%s; use its number as %s:PORT", x.answer.To, target.Name, quoted(target.Port), target.Name)
		return
	}
	if len(workload.Addresses) == 0 {
		x.end(Unreachable, "destination", fmt.Sprintf("pod %s has no address yet", target.Name))
		return
	}
	x.host(&x.request, workload.Addresses[0].String())
	x.callAddress(c, netip.AddrPortFrom(workload.Addresses[0], port))
}

// quoted returns a space and the quoted name, or "" without a name.
func quoted(name string) string {
	if name == "" {
		return ""
	}
	return " " + strconv.Quote(name)
}

// podPort returns the port with the number or name. Without a port, it returns the first
// one that a service targets or a container declares.
func podPort(workload *fact.Workload, view *mesh.View, target Target) (uint16, bool) {
	if number := target.number(0); number != 0 {
		return number, true
	}
	for _, p := range workload.Ports {
		if target.Port != "" && p.Name == target.Port {
			return p.Number, true
		}
	}
	switch {
	case target.Port != "":
		return 0, false
	case view != nil && len(view.Inbound.Ports) > 0:
		return view.Inbound.Ports[0].Port, true
	case len(workload.Ports) > 0:
		return workload.Ports[0].Number, true
	}
	return 0, false
}

// callAddress connects to an address: of a Destination, of a pod, or outside the mesh.
func (x *inquiry) callAddress(c caller, address netip.AddrPort) {
	if c.ownAddress(address.Addr()) {
		x.end(Allowed, "destination", fmt.Sprintf("%s is the caller's own address: the connection stays in the pod, without access control", address))
		return
	}
	c = x.redirect(c, address)
	if c.view != nil {
		if d, ok := c.view.Outbound.DestinationAt(address); ok {
			x.call(c, d)
			return
		}
	}
	var workload *fact.Workload
	for _, w := range x.snapshot.Workloads.All() {
		if slices.Contains(w.Addresses, address.Addr()) && !w.Ended {
			workload = w
		}
	}
	if workload != nil && x.viewOf(workload) != nil && c.view != nil &&
		slices.ContainsFunc(c.view.Outbound.Unknown, func(p netip.Prefix) bool { return p.Contains(address.Addr()) }) {
		x.learn(fmt.Sprintf("the sidecar of %s has no destination %s, the address of pod %s", c.workload.Name, address, workload.Name))
		return
	}
	what := address.String() + ", which is neither a destination of the sidecar nor a pod"
	if workload != nil {
		what = fmt.Sprintf("%s, the address of pod %s, which is not a destination of the mesh", address, workload.Name)
	}
	if !x.mayLeave(c, mesh.Departure{To: address, Request: &x.request}, what) {
		return
	}
	if workload == nil {
		x.end(Allowed, "destination", fmt.Sprintf("%s is outside the mesh", address))
		return
	}
	x.arrive([]arrival{{
		caller: c, security: mesh.Plaintext, view: x.viewOf(workload),
		workload: workload.Name.String(), port: address.Port(), addresses: []netip.Addr{address.Addr()},
	}})
}
