package catalog

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// clients are proxies that may call the same: those of a service account or, without a
// name, of a namespace or, without a namespace too, of the mesh.
type clients struct {
	fact.ServiceAccount
	// services is the String of the only Services that they know of those, or empty if they
	// know all. With fact.OnDemand they are those of a service account.
	services string
	// gateway is the name of the Gateway in the namespace whose pods they are, and families are
	// theirs. Other clients have neither.
	gateway  string
	families families
}

// everyone are all proxies.
var everyone clients

// inNamespace are the proxies of a namespace. They are everyone without a namespace.
func inNamespace(namespace string) clients {
	return clients{ServiceAccount: fact.ServiceAccount{Namespace: namespace}}
}

func (c clients) compare(other clients) int {
	return cmp.Or(c.ServiceAccount.Compare(other.ServiceAccount), strings.Compare(c.services, other.services),
		strings.Compare(c.gateway, other.gateway), strings.Compare(c.families.String(), other.families.String()))
}

// scope names the clients, as in mesh.Outbound.
func (c clients) scope() string {
	if c == everyone {
		return "*"
	}
	scope := c.ServiceAccount.String()
	if c.Name == "" {
		scope += "*"
	}
	if c.services != "" {
		scope += " " + c.services
	}
	if c.gateway != "" {
		scope += " gateway " + c.gateway + " " + c.families.String()
	}
	return scope
}

// outboundServicesOf returns the Services that the proxy of a workload is limited to, or nil.
func (j *join) outboundServicesOf(r *graph.Reader, w *fact.Workload) fact.Services {
	own := j.annotatedServicesOf(r, w)
	_, onDemand := own.OnDemand()
	// Proxies that cannot have their connections handed to the agent get everything.
	if own.All() || onDemand && !j.supports(w.Class, mesh.FeatureOnDemand) {
		return nil
	}
	return own
}

// annotatedServicesOf returns the Services in the annotation of a workload or, without one, of its
// namespace.
func (j *join) annotatedServicesOf(r *graph.Reader, w *fact.Workload) fact.Services {
	if w.OutboundServices != nil {
		return w.OutboundServices
	}
	ns, _ := j.namespaces.Get(r, mesh.Name{Name: w.Namespace})
	return ns.OutboundServices
}

// entriesOf yields each entry of the Services but fact.OnDemand, with the clients that are
// limited to them.
func entriesOf(namespace string, services fact.Services) iter.Seq2[mesh.Name, clients] {
	if services.All() {
		services = nil
	}
	services, _ = services.OnDemand()
	limited := inNamespace(namespace)
	limited.services = services.String()
	return each(services, func(entry mesh.Name) (mesh.Name, clients) { return entry, limited })
}

// limitedToAnyOf returns the clients that are limited to Services with any of these, sorted.
func (j *join) limitedToAnyOf(r *graph.Reader, services ...mesh.Name) []clients {
	var all []clients
	for _, service := range services {
		for _, entry := range fact.Entries(service) {
			all = append(all, j.limitedTo.Get(r, entry)...)
			all = append(all, j.limitedToIn.Get(r, entry)...)
		}
	}
	slices.SortFunc(all, clients.compare)
	return slices.Compact(all)
}

// inspectOutboundServices reports entries without a service.
func (j *join) inspectOutboundServices(r *graph.Reader, services fact.Services, f *fault) {
	for _, name := range services {
		if name != fact.OnDemand && name.Name != fact.Any && j.service(r, name) == nil {
			f.add(ReasonNotFound, fieldOutboundServices, "there is no Service %s in the mesh", name)
		}
	}
}

func (j *join) inspectWorkload(r *graph.Reader, w *fact.Workload, f *fault) {
	if !w.Ended {
		j.inspectOutboundServices(r, w.OutboundServices, f)
		j.inspectProxyProtocol(r, w, f)
	}
}

// limit returns the part of an Outbound that clients have which are limited to the Services.
func (j *join) limit(r *graph.Reader, o *mesh.Outbound, scope string, services fact.Services) *mesh.Outbound {
	destinations, backends := map[string]*mesh.Destination{}, map[string]*mesh.Backend{}
	for name, d := range o.Destinations.All() {
		known := services.Has(d.Service.Name)
		if isDirect(name) {
			known = slices.ContainsFunc(j.servicesOf.Get(r, d.Service.Name), services.Has)
		}
		if !known {
			continue
		}
		destinations[name] = d
		for name := range d.AllBackends() {
			if b, ok := o.Backends.Get(name); ok {
				backends[name] = b
			}
		}
	}
	return mesh.NewOutbound(scope, mesh.TableOf(destinations), mesh.TableOf(backends))
}
