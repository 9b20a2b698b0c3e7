package catalog

import (
	"fmt"
	"slices"
	"strings"
	"unique"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// offerService puts the Destinations and Backends of a service into the tables of the
// accounts that may call it.
func (j *join) offerService(r *graph.Reader, name mesh.Name, out *graph.Output) {
	svc := j.service(r, name)
	if svc == nil {
		return
	}
	graph.Put(out, j.servicesTable, name.String(), svc)
	permissive := j.mustSettings(r).PermissivePolicy
	for _, spec := range svc.Ports {
		for _, of := range j.audiences(r, mesh.ServicePort{Name: svc.Name, Port: spec.Port}) {
			j.putRanges(out, j.destinations.Get(r, of).list)
			ofDestinations := func() []ask { return j.asksOfDestinations(r, svc, of) }
			ofBackends := func() []ask { return j.asksOfBackends(r, svc, of) }
			if permissive {
				j.offerToAll(r, of, out)
				j.putLacking(r, out, ofDestinations, func() *classes { return j.limitedIn(r, of) })
				// A namespace with Destinations of its own has the Backends of the others too.
				j.putLacking(r, out, ofBackends, func() *classes { return j.limited.Get(r, of.namespace) })
				continue
			}
			sources := j.sourcesOf(r, of)
			for _, source := range sources {
				j.put(out, clients{ServiceAccount: source}, j.offerOfTo(r, source, svc, of))
			}
			both := func() []ask { return append(ofDestinations(), ofBackends()...) }
			j.putLacking(r, out, both, func() *classes { return j.limitedOf(r, sources) })
		}
	}
}

// offerToAll offers what an audience calls to everyone in its namespace, or to everyone.
func (j *join) offerToAll(r *graph.Reader, of audience, out *graph.Output) {
	offer := j.offerOf(r, of)
	for _, to := range j.allOf(r, of) {
		j.put(out, to, offer)
	}
}

// put puts an offer into the tables of clients.
func (j *join) put(out *graph.Output, users clients, offer offer) {
	for _, d := range offer.destinations {
		graph.Put(out, j.destinationTables.Of(users), d.Name, d)
	}
	for _, b := range offer.backends {
		graph.Put(out, j.backendTables.Of(users), b.Name, b)
	}
}

// offer is what clients get of a service port, or of a workload that is called by its own
// address.
type offer struct {
	destinations []*mesh.Destination
	backends     []*mesh.Backend
}

// offerOf returns what an audience gets in permissive mode.
func (j *join) offerOf(r *graph.Reader, of audience) offer {
	destinations := j.destinations.Get(r, of)
	offered := offer{destinations: destinations.list}
	for _, used := range destinations.uses {
		offered.backends = append(offered.backends, j.backends.Get(r, used).list...)
	}
	return offered
}

// allOf returns all clients of an audience: those of its namespace or everyone, and of these
// the ones that are limited to some services, of which this is one.
func (j *join) allOf(r *graph.Reader, of audience) []clients {
	all := []clients{inNamespace(of.namespace)}
	consumers := j.consumersOf(r, of.port.Name)
	for _, limited := range j.limitedToAnyOf(r, of.port.Name) {
		if limited.Namespace == of.namespace || of.namespace == "" && !slices.Contains(consumers, limited.Namespace) {
			all = append(all, limited)
		}
	}
	return all
}

// offerOfTo returns what a service account of an audience gets by policy.
func (j *join) offerOfTo(r *graph.Reader, source fact.ServiceAccount, svc *fact.Service, of audience) offer {
	var offered offer
	destinations := j.destinations.Get(r, of)
	allowed := map[string]bool{}
	for _, used := range destinations.uses {
		for _, b := range j.filtered.Get(r, filter{port: used, source: source}).list {
			allowed[b.Name] = true
			offered.backends = append(offered.backends, b)
		}
	}
	for _, d := range destinations.list {
		// Endpoints of a headless service that reject the source are left out.
		if !svc.Headless || allowed[d.Name] {
			offered.destinations = append(offered.destinations, d)
		}
	}
	return offered
}

// offerWorkload publishes a workload and its Inbound, and offers the ports at which it is
// called by its own address to the accounts that may call it.
func (j *join) offerWorkload(r *graph.Reader, key mesh.Name, out *graph.Output) {
	w, _ := j.workloads.Get(r, key)
	if !j.member(r, w.Namespace) {
		return
	}
	graph.Put(out, j.workloadsTable, key.String(), w)
	if !j.hasSidecar(r, w) {
		return
	}
	p := j.peers.Get(r, key)
	if j.usesRules(r, p.account) || j.applied.Get(r, key) != (unique.Handle[appliedPolicies]{}) {
		in := j.inboundOf.Get(r, key)
		graph.Put(out, j.accepted.Of(p.account), acceptedName(w.Class, in), in)
	}
	direct := j.direct(r, key)
	if len(direct.destinations) == 0 {
		return
	}
	var callers []clients
	if j.mustSettings(r).PermissivePolicy {
		callers = append(j.limitedToAnyOf(r, j.servicesOf.Get(r, key)...), everyone)
	} else {
		for _, source := range j.grants.Get(r, p.account).sources {
			if len(j.used.Get(r, source)) > 0 {
				callers = append(callers, clients{ServiceAccount: source})
			}
		}
	}
	for _, caller := range callers {
		j.put(out, caller, direct)
	}
	j.putRanges(out, direct.destinations)
	j.putLacking(r, out, func() []ask { return j.asksOfDirect(r, w, direct.destinations) }, func() *classes {
		if j.mustSettings(r).PermissivePolicy {
			return j.limited.Get(r, allNamespaces)
		}
		return j.limitedOf(r, j.grants.Get(r, p.account).sources)
	})
}

// direct returns what those get who may call a workload by its own address.
func (j *join) direct(r *graph.Reader, key mesh.Name) offer {
	var offered offer
	w, _ := j.workloads.Get(r, key)
	p := j.peers.Get(r, key)
	for _, port := range j.directPorts(r, w) {
		addresses := j.workloadAddresses(r, key, w.Addresses, port.Port)
		if len(addresses) == 0 {
			continue
		}
		name := directName(key, port.Port)
		at := mesh.ServicePort{Name: w.Name, Port: port.Port}
		origins := []mesh.Origin{originOf(kindPod, key, "")}
		b := mesh.Seal(&mesh.Backend{Name: name, Service: at, Protocol: port.Protocol, Origins: origins, Endpoints: []mesh.Endpoint{{
			Addresses: addresses, Port: port.Port, ServerName: p.serverName, Workload: key.String(), Zone: w.Zone,
		}}})
		d := &mesh.Destination{Name: name, Service: at, Origins: origins, Addresses: addresses, Port: port.Port, Protocol: port.Protocol}
		to := []mesh.WeightedBackend{{Backend: name, Weight: 1}}
		if port.Protocol.IsHTTP() {
			d.Routes = []mesh.Route{{Backends: to}}
		} else {
			d.Backends = to
		}
		offered.destinations = append(offered.destinations, mesh.Seal(d))
		offered.backends = append(offered.backends, b)
	}
	return offered
}

// acceptedName names an Inbound among those of a service account. Pods of a class share it.
func acceptedName(class string, in *mesh.Inbound) string { return class + "/" + in.Digest().String() }

// directName is the name of the Destination of a workload's port at its own address.
func directName(workload mesh.Name, port uint16) string {
	return fmt.Sprintf("%s%s:%d", direct, workload, port)
}

const direct = "pod/"

// isDirect reports whether a name is a directName.
func isDirect(name string) bool { return strings.HasPrefix(name, direct) }

// directPorts returns the ports at which a workload is called by its own address, without
// being an endpoint of a headless service: those that it declares, if it belongs to no
// service, and those that its services with routes target, because routes do not govern
// such requests. Other ports are left out: every Destination is a cost to every proxy that
// may call it.
func (j *join) directPorts(r *graph.Reader, w *fact.Workload) []fact.PortSpec {
	var ports []fact.PortSpec
	services := j.servicesOf.Get(r, w.Name)
	if len(services) == 0 {
		for _, port := range w.Ports {
			ports = append(ports, fact.PortSpec{Port: port.Number, Protocol: mesh.TCP})
		}
		return ports
	}
	for _, name := range services {
		if svc := j.service(r, name); svc != nil && svc.Headless {
			return nil
		}
	}
	for _, t := range j.targets(r, w) {
		// The Inbound of a port has the protocol of the first service too.
		if i := len(ports) - 1; (i < 0 || ports[i].Port != t.port) && len(j.routesFor(r, t.service.Name)) > 0 {
			spec, _ := portOf(j.service(r, t.service.Name), t.service.Port)
			ports = append(ports, fact.PortSpec{Port: t.port, Protocol: spec.Protocol})
		}
	}
	return ports
}

// sourcesOf returns the service accounts of an audience that may call anything behind its
// destinations, sorted: those of workloads, since a TrafficTarget may name thousands of others.
func (j *join) sourcesOf(r *graph.Reader, of audience) []fact.ServiceAccount {
	var sources []fact.ServiceAccount
	for _, used := range j.destinations.Get(r, of).uses {
		for _, account := range j.backends.Get(r, used).accounts {
			sources = append(sources, j.grants.Get(r, account).sources...)
		}
	}
	consumers := j.consumersOf(r, of.port.Name)
	sources = slices.DeleteFunc(sources, func(source fact.ServiceAccount) bool {
		if len(j.used.Get(r, source)) == 0 {
			return true
		}
		if of.namespace == "" {
			return slices.Contains(consumers, source.Namespace)
		}
		return source.Namespace != of.namespace
	})
	slices.SortFunc(sources, fact.ServiceAccount.Compare)
	return slices.Compact(sources)
}

// retry puts the destinations of a RetryRule as its source sees them.
func (j *join) retry(r *graph.Reader, key mesh.Name, out *graph.Output) {
	rule, _ := j.retries.Get(r, key)
	if !j.mustSettings(r).RetryPolicy || !j.member(r, rule.Namespace) {
		return
	}
	for _, name := range rule.Destinations {
		svc := j.service(r, name)
		if svc == nil || j.retryFor(r, rule.Source, name) != rule {
			continue
		}
		for _, spec := range svc.Ports {
			if !spec.Protocol.IsHTTP() {
				continue
			}
			of := j.audienceIn(r, mesh.ServicePort{Name: name, Port: spec.Port}, rule.Source.Namespace)
			for _, d := range j.destinations.Get(r, of).list {
				graph.Put(out, j.retried.Of(rule.Source), d.Name, withRetry(d, rule))
			}
			j.putLacking(r, out, func() []ask { return j.asksOfRetry(r, rule, of) }, func() *classes { return j.limitedOf(r, []fact.ServiceAccount{rule.Source}) })
		}
	}
}

// retryFor returns the source's oldest rule for the service.
func (j *join) retryFor(r *graph.Reader, source fact.ServiceAccount, service mesh.Name) *fact.RetryRule {
	for _, a := range j.retriesOf.Get(r, source) {
		rule, _ := j.retries.Get(r, a.key)
		if j.member(r, rule.Namespace) && slices.Contains(rule.Destinations, service) {
			return rule
		}
	}
	return nil
}

// withRetry returns the destination with the rule's retry for its routes that have none.
func withRetry(d *mesh.Destination, rule *fact.RetryRule) *mesh.Destination {
	retried, retry := *d, rule.Retry
	retry.Origin = originOf(kindRetry, rule.Name, "spec.retryPolicy")
	retried.Routes = slices.Clone(d.Routes)
	for i := range retried.Routes {
		if retried.Routes[i].Retry == nil {
			retried.Routes[i].Retry = &retry
		}
	}
	return mesh.Seal(&retried)
}

// makeShared returns the clients whose Outbound some clients have: in permissive mode most have
// that of everyone.
func (j *join) makeShared(r *graph.Reader, key clients) clients {
	if _, ok := key.onDemand(); ok {
		if j.usedBy.Get(r, key.ServiceAccount).All {
			return j.shared.Get(r, clients{ServiceAccount: key.ServiceAccount})
		}
		return key
	}
	if !j.mustSettings(r).PermissivePolicy {
		return key
	}
	if key.Name != "" {
		if j.retried.Of(key.ServiceAccount).Get(r).Len() > 0 {
			return key
		}
		key.Name = ""
	}
	if key.services == "" && j.destinationTables.Of(key).Get(r).Len() == 0 {
		return everyone
	}
	return key
}

// makeOutbound returns the Outbound of clients that makeShared has returned.
func (j *join) makeOutbound(r *graph.Reader, key clients) *mesh.Outbound {
	if key.gateway != "" {
		return j.makeGateway(r, key)
	}
	if others, ok := key.onDemand(); ok {
		return j.makeOnDemand(r, key, others)
	}
	permissive := j.mustSettings(r).PermissivePolicy
	if key.services != "" && !permissive {
		// There are few.
		whole := j.outbounds.Get(r, clients{ServiceAccount: key.ServiceAccount})
		return j.limit(r, whole, key.scope(), fact.ParseServices(key.services))
	}
	if permissive && key.Name != "" {
		all := inNamespace(key.Namespace)
		all.services = key.services
		shared := j.outbounds.Get(r, j.shared.Get(r, all))
		return mesh.NewOutbound(key.scope(), overlaid(shared.Destinations, j.retried.Of(key.ServiceAccount).Get(r)), shared.Backends)
	}
	own, backends := j.destinationTables.Of(key).Get(r), j.backendTables.Of(key).Get(r)
	switch {
	case !permissive:
		return mesh.NewOutbound(key.scope(), overlaid(own, j.retried.Of(key.ServiceAccount).Get(r)), backends)
	case key == everyone || key.services != "":
		return mesh.NewOutbound(key.scope(), own, backends)
	}
	shared := j.outbounds.Get(r, everyone)
	var more []mesh.Change[*mesh.Backend]
	for name, b := range backends.All() {
		more = append(more, mesh.Change[*mesh.Backend]{Name: name, Value: b})
	}
	return mesh.NewOutbound(key.scope(), overlaid(shared.Destinations, own), shared.Backends.With(more...))
}

// overlaid replaces entries of the base by those of the overlay. Names that are only in
// the overlay are ignored.
func overlaid(base, overlay mesh.Table[*mesh.Destination]) mesh.Table[*mesh.Destination] {
	var changes []mesh.Change[*mesh.Destination]
	for name, d := range overlay.All() {
		if _, ok := base.Get(name); ok {
			changes = append(changes, mesh.Change[*mesh.Destination]{Name: name, Value: d})
		}
	}
	return base.With(changes...)
}
