package mesh

import "slices"

// Origin says what a part of a View was made of: one of the user's objects, and the path of
// its field, such as "spec.rules[0]". The Field is empty if the part is made of the whole
// object. The zero Origin is that of parts which no object asks for.
type Origin struct {
	Object ObjectRef `json:"object"`
	Field  string    `json:"field,omitempty"`
}

// IsZero reports whether there is no object.
func (o Origin) IsZero() bool { return o == Origin{} }

// Name returns namespace/name of the object, the name of a cluster-scoped object, or "".
func (o Origin) Name() string {
	if o.Object.Namespace == "" {
		return o.Object.Name
	}
	return o.Object.Namespace + "/" + o.Object.Name
}

// ObjectsOf returns the objects of the origins, each once, in the order of the origins.
func ObjectsOf(origins []Origin) []ObjectRef {
	var objects []ObjectRef
	seen := make(map[ObjectRef]struct{})
	for _, o := range origins {
		if _, is := seen[o.Object]; !is && !o.IsZero() {
			seen[o.Object] = struct{}{}
			objects = append(objects, o.Object)
		}
	}
	return objects
}

// Name returns namespace/name of the object that the route comes from, with "/" and the rule's
// name if it has one. It is empty for the service's default route.
func (r *Route) Name() string {
	if r.Rule == "" {
		return r.Origin.Name()
	}
	return r.Origin.Name() + "/" + r.Rule
}

// AllOrigins returns the origins of the Destination with its routes and their retries, in their
// order, without those of the backends.
func (d *Destination) AllOrigins() []Origin {
	all := slices.Clone(d.Origins)
	for _, route := range d.Routes {
		all = append(all, route.Origin)
		if route.Retry != nil {
			all = append(all, route.Retry.Origin)
		}
	}
	for _, server := range d.Servers {
		all = append(all, server.Origin)
	}
	return all
}

// AllOrigins returns the origins of all parts of the View but for its Settings and Proxy.
func (v *View) AllOrigins() []Origin {
	all := v.Inbound.Others.AllOrigins()
	for i := range v.Inbound.Ports {
		all = append(all, v.Inbound.Ports[i].AllOrigins()...)
	}
	for _, d := range v.Outbound.Destinations.All() {
		all = append(all, d.AllOrigins()...)
	}
	for _, b := range v.Outbound.Backends.All() {
		all = append(all, b.Origins...)
	}
	for i := range v.Egress.Ports {
		all = append(all, v.Egress.Ports[i].AllOrigins()...)
	}
	return all
}

// AllOrigins returns the origins of the port, its rules and its ingress, in their order.
func (p *InboundPort) AllOrigins() []Origin {
	all := append(slices.Clone(p.Origins), p.Access.AllOrigins()...)
	for _, ingress := range p.Ingress {
		all = append(all, ingress.Origin)
	}
	return all
}

// AllOrigins returns the origins of the rules, in their order.
func (a Access) AllOrigins() []Origin {
	all := make([]Origin, 0, len(a.Rules)+len(a.Denials))
	for _, rule := range a.Rules {
		all = append(all, rule.Origin)
	}
	for _, denial := range a.Denials {
		all = append(all, denial.Origin)
	}
	return all
}

// AllOrigins returns the origins of the port and its hosts, in their order.
func (e *EgressRoutes) AllOrigins() []Origin {
	all := slices.Clone(e.Origins)
	for _, host := range e.Hosts {
		all = append(all, host.Origins...)
	}
	return all
}

// OriginsOf returns the origins of a part of the View, in their order, or nil if the View has no
// part of its kind and name.
func (v *View) OriginsOf(part Part) []Origin {
	switch part.Kind {
	case PartDestination:
		if d, ok := v.Outbound.Destinations.Get(part.Name); ok {
			return d.AllOrigins()
		}
	case PartBackend:
		if b, ok := v.Outbound.Backends.Get(part.Name); ok {
			return b.Origins
		}
	case PartEgress:
		for _, port := range v.Egress.Ports {
			for _, host := range port.Hosts {
				if partName(port, host) == part.Name {
					return host.Origins
				}
			}
		}
	case PartPermission:
		for _, access := range v.Inbound.accesses() {
			for _, origin := range access.AllOrigins() {
				if origin.Name() == part.Name {
					return []Origin{origin}
				}
			}
		}
	case PartIngress:
		for _, port := range v.Inbound.Ports {
			for _, ingress := range port.Ingress {
				if ingress.Origin.Name() == part.Name {
					return []Origin{ingress.Origin}
				}
			}
		}
	}
	return nil
}

// accesses returns the accesses of all ports, and of those that are not listed.
func (in *Inbound) accesses() []Access {
	all := []Access{in.Others}
	for _, port := range in.Ports {
		all = append(all, port.Access)
	}
	return all
}
