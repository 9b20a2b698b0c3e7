package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

func (j *join) inspectAccess(r *graph.Reader, rule *fact.AccessRule, f *fault) {
	if rule.Audit {
		j.inspectAudit(r, rule.Destination.Namespace, f)
	}
	j.inspectAccount(r, rule.Destination, "spec.destination", f)
	at := &reach{join: j, rule: rule, grant: j.grant(r, rule), ports: j.httpPorts(r, rule.Destination)}
	inspectProduct(&at.grant, f)
	for i, source := range rule.Sources {
		j.inspectAccount(r, source, fmt.Sprintf("spec.sources[%d]", i), f)
	}
	for routes, i := range distinct(rule.Rules) {
		field := fmt.Sprintf("spec.rules[%d]", i)
		in := j.httpGroups
		if routes.Kind == kindTCPRoute {
			in = j.tcpGroups
		}
		group, ok := in.Get(r, mesh.Name{Namespace: rule.Namespace, Name: routes.Group})
		if !ok {
			f.add(ReasonNotFound, field+".name", "there is no %s %s/%s; nothing is allowed until there is", routes.Kind, rule.Namespace, routes.Group)
			continue
		}
		for k, match := range routes.Matches {
			if !slices.ContainsFunc(group.HTTP, func(m fact.NamedMatch) bool { return m.Name == match }) && group.TCP == nil {
				f.add(ReasonNotFound, fmt.Sprintf("%s.matches[%d]", field, k), "HTTPRouteGroup %s/%s has no match %q; nothing is allowed until it has", rule.Namespace, routes.Group, match)
			}
		}
		if at.ports != nil {
			at.inspect(r, group, field, f)
		}
	}
}

// reach finds routes of a rule that apply to no port of the destination's workloads. HTTP routes
// apply to HTTP ports and TCP routes to all others. TCP routes also restrict the ports of HTTP
// routes.
type reach struct {
	*join
	rule  *fact.AccessRule
	grant grant
	// ports is nil if no workload runs as the account, or if its proxies have no rules.
	ports *ports
	// known says that closed has been determined: the HTTP ports at which a source of the rule is
	// allowed nothing.
	known  bool
	closed []string
}

func (reached *reach) inspect(r *graph.Reader, group *fact.RouteGroup, field string, f *fault) {
	account, g := reached.rule.Destination, &reached.grant
	if group.TCP != nil {
		if len(g.HTTP) == 0 {
			reached.inspectConnections(r, group.TCP, field, f)
		}
		return
	}
	switch {
	case len(reached.ports.requests) == 0:
		f.add(ReasonNoEffect, field, "no Service has an HTTP port for the pods of %s, so there are no requests to match; name a port http, or allow connections with a TCPRoute", account)
	case len(g.TCP) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(reached.ports.requests)), g.reaches):
		f.add(ReasonNoEffect, field, "the rule's TCPRoutes restrict requests to their ports, none of which is an HTTP port of the pods of %s; add the port to a TCPRoute, or allow the requests in a separate TrafficTarget", account)
	}
}

// inspectConnections finds HTTP ports at which a rule with only TCPRoutes allows nothing,
// and where no other rule allows its sources anything.
func (at *reach) inspectConnections(r *graph.Reader, match *fact.TCPMatch, field string, f *fault) {
	destination := at.rule.Destination
	for _, number := range match.Ports {
		if _, http := at.ports.requests[number]; http && !at.ports.connections[number] {
			f.add(ReasonNoEffect, field, "port %d of the pods of %s is an HTTP port, at which a TCPRoute has no effect; allow requests with an HTTPRouteGroup", number, destination)
		}
	}
	if len(match.Ports) > 0 {
		return
	}
	if !at.known {
		at.known = true
		for _, number := range slices.Sorted(maps.Keys(at.ports.requests)) {
			if !at.allAllowed(r, at.rule.Sources, at.ports.requests[number]) {
				at.closed = append(at.closed, strconv.Itoa(int(number)))
			}
		}
	}
	if len(at.closed) > 0 {
		f.add(ReasonNoEffect, field, "a TCPRoute has no effect at HTTP ports, and the pods of %s have some (%s); allow requests with an HTTPRouteGroup, or list the intended ports in the TCPRoute", destination, someOf(at.closed))
	}
}

// ports are the ports of an account's workloads.
type ports struct {
	// requests has the HTTP ports with their permissions.
	requests map[uint16][]mesh.Permission
	// connections has the ports that are not HTTP at some of the workloads.
	connections map[uint16]bool
}

// httpPorts returns nil if no workload runs as the account, or if its proxies have no rules.
func (j *join) httpPorts(r *graph.Reader, account fact.ServiceAccount) *ports {
	accepted := j.accepted.Of(account).Get(r)
	if accepted.Len() == 0 {
		return nil
	}
	found := &ports{requests: map[uint16][]mesh.Permission{}, connections: map[uint16]bool{}}
	for _, in := range accepted.All() {
		for _, p := range in.Ports {
			if p.Protocol.IsHTTP() {
				found.requests[p.Port] = append(found.requests[p.Port], p.Access.Rules...)
			}
		}
	}
	for number := range found.requests {
		for _, in := range accepted.All() {
			p, _ := in.PortOf(number)
			found.connections[number] = found.connections[number] || !p.Protocol.IsHTTP()
		}
	}
	return found
}

// allAllowed reports whether each source has one of the permissions.
func (j *join) allAllowed(r *graph.Reader, sources []fact.ServiceAccount, permissions []mesh.Permission) bool {
	settings := j.mustSettings(r)
	return !slices.ContainsFunc(sources, func(source fact.ServiceAccount) bool {
		return !slices.ContainsFunc(permissions, func(p mesh.Permission) bool { return p.Names(identityOf(settings, source)) })
	})
}

func (j *join) inspectAccount(r *graph.Reader, account fact.ServiceAccount, field string, f *fault) {
	if !j.member(r, account.Namespace) {
		f.add(ReasonNotFound, field, "namespace %q is not in the mesh; label it with openservicemesh.io/monitored-by", account.Namespace)
		return
	}
	if len(j.used.Get(r, account)) == 0 {
		f.add(ReasonNotFound, field, "no pod runs as service account %s; check the name, or wait for the pods", account)
	}
}

func (j *join) inspectSplit(r *graph.Reader, split *fact.Split, f *fault) {
	root := j.service(r, mesh.Name{Namespace: split.Namespace, Name: split.Root})
	if root == nil {
		f.add(ReasonNotFound, "spec.service", "there is no Service %s/%s; the split has no effect until there is", split.Namespace, split.Root)
		return
	}
	switch {
	case root.Headless:
		f.add(ReasonNoEffect, "spec.service", "Service %s is headless, so clients choose a pod themselves; give it a cluster IP to split its traffic", root)
	case root.ExternalName != "":
		f.add(ReasonNoEffect, "spec.service", "Service %s has type ExternalName, so clients do not connect to it; give it a cluster IP to split its traffic", root)
	}
	for _, spec := range root.Ports {
		if routes := j.routesInForce(r, root, spec, ""); len(routes) > 0 {
			f.once(ReasonConflict, "spec.service", "the requests for port %d of Service %s are routed by %s of Gateway API, which takes precedence; delete one of them", spec.Port, root, routes[0])
		}
	}
	if len(split.Matches) == 0 {
		for _, a := range j.splitsOf.Get(r, root.Name) {
			other, _ := j.splits.Get(r, a.key)
			if other == split {
				break
			}
			if len(other.Matches) == 0 {
				f.add(ReasonConflict, "spec.service", "TrafficSplit %s splits the same service and is older; delete one of them", other)
				break
			}
		}
	} else if !slices.ContainsFunc(root.Ports, func(p fact.PortSpec) bool { return p.Protocol.IsHTTP() }) {
		f.add(ReasonNoEffect, "spec.matches", "Service %s has no HTTP port, so requests can't be matched; name a port http, or remove the matches", root)
	}
	for i, name := range split.Matches {
		if _, ok := j.httpGroups.Get(r, mesh.Name{Namespace: split.Namespace, Name: name}); !ok {
			f.add(ReasonNotFound, fmt.Sprintf("spec.matches[%d]", i), "there is no HTTPRouteGroup %s/%s; it matches nothing until there is", split.Namespace, name)
		}
	}
	cycle := j.cycle(r, split)
	if cycle != "" {
		f.add(ReasonCycle, "spec.backends", "the splits form a cycle (%s); a split sends to the endpoints of its backends, not through their splits", cycle)
	}
	total := uint64(0)
	for i, backend := range split.Backends {
		total += uint64(backend.Weight)
		field := fmt.Sprintf("spec.backends[%d].service", i)
		j.inspectShare(r, split, root, backend, field, f)
		name := mesh.Name{Namespace: split.Namespace, Name: backend.Service}
		if cycle == "" && backend.Service != split.Root && len(j.splitsOf.Get(r, name)) > 0 {
			f.add(ReasonNoEffect, field, "Service %s is itself the root of a split, which does not apply here: its share goes to its own endpoints", name)
		}
	}
	if total == 0 {
		f.add(ReasonNoEffect, "spec.backends", "all weights are 0, so requests to the split get a 503; set a weight above 0")
	}
}

func (j *join) inspectShare(r *graph.Reader, split *fact.Split, root *fact.Service, backend fact.SplitBackend, field string, f *fault) {
	name := mesh.Name{Namespace: split.Namespace, Name: backend.Service}
	svc := j.service(r, name)
	if other, ok := j.aliasTarget(r, svc); ok {
		name, svc = other.Name, other
	}
	switch {
	case svc == nil:
		f.add(ReasonNotFound, field, "there is no Service %s; its share goes to the others", name)
		return
	case svc.Headless:
		f.add(ReasonNoEffect, field, "Service %s is headless, so it cannot have a share; give it a cluster IP", name)
		return
	}
	for _, spec := range root.Ports {
		if _, ok := j.splitPort(r, split, backend, mesh.ServicePort{Name: root.Name, Port: spec.Port}); !ok {
			f.add(ReasonNoSuchPort, field, "Service %s has no port %d or port of the same name, so its share of this port goes to the others", name, spec.Port)
		}
	}
}

// cycle returns a path over splits from the split's root back to it, or "".
func (j *join) cycle(r *graph.Reader, split *fact.Split) string {
	seen := map[string]bool{}
	var walk func(service, path string) string
	walk = func(service, path string) string {
		for _, a := range j.splitsOf.Get(r, mesh.Name{Namespace: split.Namespace, Name: service}) {
			next, _ := j.splits.Get(r, a.key)
			for _, backend := range next.Backends {
				// A split may send a share to its root's own endpoints.
				if backend.Service == service {
					continue
				}
				longer := path + " -> " + backend.Service
				if backend.Service == split.Root {
					return longer
				}
				if !seen[backend.Service] {
					seen[backend.Service] = true
					if found := walk(backend.Service, longer); found != "" {
						return found
					}
				}
			}
		}
		return ""
	}
	return walk(split.Root, split.Root)
}
