package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The kinds of the objects that rules are, as users know them.
const (
	kindService         = "Service"
	kindTrafficTarget   = "TrafficTarget"
	kindHTTPRouteGroup  = "HTTPRouteGroup"
	kindTCPRoute        = "TCPRoute"
	kindTrafficSplit    = "TrafficSplit"
	kindEgress          = "Egress"
	kindIngressBackend  = "IngressBackend"
	kindRetry           = "Retry"
	kindUpstreamSetting = "UpstreamTrafficSetting"
)

// The reasons of the Problems of objects that do not fit together.
const (
	// ReasonNotFound says that a name leads to nothing in the mesh.
	ReasonNotFound = "NotFound"
	// ReasonConflict says that an object gives way to an older one.
	ReasonConflict = "Conflict"
	// ReasonNoEffect says that something can never apply.
	ReasonNoEffect = "NoEffect"
	// ReasonNoSuchPort says that a service has no port for what it is to take.
	ReasonNoSuchPort = "NoSuchPort"
	// ReasonCycle says that splits lead back to where they began.
	ReasonCycle = "Cycle"
	// ReasonOutsideMesh says that an endpoint has no sidecar, and that nothing may
	// leave the mesh.
	ReasonOutsideMesh = "OutsideMesh"
	// ReasonDisabled says that the MeshConfig turns the object's kind off.
	ReasonDisabled = "Disabled"
)

func problemsOf(object mesh.ObjectRef, list []mesh.Problem) *mesh.Problems {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b mesh.Problem) int {
		return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	return mesh.Seal(&mesh.Problems{Object: object, List: list})
}

// fault notes what is wrong with one object.
type fault struct {
	object mesh.ObjectRef
	list   []mesh.Problem
}

func (f *fault) add(reason, field, format string, args ...any) {
	f.list = append(f.list, mesh.Problem{Object: f.object, Reason: reason, Field: field, Message: fmt.Sprintf(format, args...)})
}

// findProblems makes the rules that find what contradicts or leads nowhere. What is
// wrong with one object by itself came with its fact.
func (j *join) findProblems() {
	graph.NewRule(j.faults, func(r *graph.Reader, key string, out *graph.Output) {
		found, _ := j.faults.Get(r, key)
		graph.Put(out, j.problems, only, found.Object.String()+" (itself)", found)
	})
	inspect(j, j.services, kindService, j.inspectService)
	inspect(j, j.accesses, kindTrafficTarget, j.inspectAccess)
	inspect(j, j.splits, kindTrafficSplit, j.inspectSplit)
	inspect(j, j.egresses, kindEgress, j.inspectEgress)
	inspect(j, j.ingresses, kindIngressBackend, j.inspectIngress)
	inspect(j, j.retries, kindRetry, j.inspectRetry)
	inspect(j, j.upstreams, kindUpstreamSetting, j.inspectUpstream)
}

// inspect makes a rule of a function that looks at one object of the mesh.
func inspect[V mesh.Digester](j *join, in *graph.Input[string, V], kind string, f func(*graph.Reader, V, *fault)) {
	graph.NewRule(in, func(r *graph.Reader, key string, out *graph.Output) {
		name := parseName(key)
		if !j.member(r, name.Namespace) {
			return
		}
		value, _ := in.Get(r, key)
		found := &fault{object: mesh.ObjectRef{APIVersion: j.versions[kind], Kind: kind, Namespace: name.Namespace, Name: name.Name}}
		f(r, value, found)
		if len(found.list) > 0 {
			graph.Put(out, j.problems, only, found.object.String()+" (in the mesh)", problemsOf(found.object, found.list))
		}
	})
}

func (j *join) inspectService(r *graph.Reader, svc *mesh.Service, f *fault) {
	for i, spec := range svc.Ports {
		field := fmt.Sprintf("spec.ports[%d]", i)
		port := mesh.ServicePort{Name: svc.Name, Port: spec.Port}
		if outside := j.backends.Get(r, port).outside; len(outside) > 0 {
			f.add(ReasonOutsideMesh, field, "nothing is sent to %s, which the mesh has no sidecar in; inject one, or let traffic out of the mesh with spec.traffic.enableEgress of the MeshConfig", strings.Join(outside, ", "))
		}
		for _, e := range j.backends.Get(r, port).list {
			j.inspectTarget(r, port, spec, e, field, f)
		}
	}
}

// inspectTarget finds a port of a workload that services call by two protocols.
func (j *join) inspectTarget(r *graph.Reader, port mesh.ServicePort, spec mesh.PortSpec, b *mesh.Backend, field string, f *fault) {
	if len(b.Endpoints) == 0 || b.Endpoints[0].Workload == "" {
		return
	}
	// Endpoints of a service are of a kind: the first stands for all.
	w, _ := j.workloads.Get(r, b.Endpoints[0].Workload)
	if w == nil {
		return
	}
	for _, name := range j.servicesOf.Get(r, w.String()) {
		other := j.service(r, name)
		if other == nil {
			continue
		}
		for _, otherSpec := range other.Ports {
			before := mesh.ServicePort{Name: name, Port: otherSpec.Port}
			if before.Compare(port) < 0 && targetOf(w, otherSpec) == targetOf(w, spec) && otherSpec.Protocol != spec.Protocol {
				f.add(ReasonConflict, field, "port %d of the pods is %s for Service port %s, which comes first, and %s here; give both the same protocol by appProtocol or the port's name", targetOf(w, spec), otherSpec.Protocol, before, spec.Protocol)
				return
			}
		}
	}
}

func (j *join) inspectAccess(r *graph.Reader, rule *mesh.AccessRule, f *fault) {
	if j.mustSettings(r).PermissivePolicy {
		f.add(ReasonNoEffect, "", "everyone may call everyone while spec.traffic.enablePermissiveTrafficPolicyMode of the MeshConfig is on")
	}
	j.inspectAccount(r, rule.Destination, "spec.destination", f)
	for i, source := range rule.Sources {
		j.inspectAccount(r, source, fmt.Sprintf("spec.sources[%d]", i), f)
	}
	for i, routes := range rule.Rules {
		field := fmt.Sprintf("spec.rules[%d]", i)
		in := j.httpGroups
		if routes.Kind == kindTCPRoute {
			in = j.tcpGroups
		}
		group, ok := in.Get(r, mesh.Name{Namespace: rule.Namespace, Name: routes.Group}.String())
		if !ok {
			f.add(ReasonNotFound, field+".name", "there is no %s %s/%s; it allows nothing until there is", routes.Kind, rule.Namespace, routes.Group)
			continue
		}
		for k, match := range routes.Matches {
			if !slices.ContainsFunc(group.HTTP, func(m mesh.NamedMatch) bool { return m.Name == match }) && group.TCP == nil {
				f.add(ReasonNotFound, fmt.Sprintf("%s.matches[%d]", field, k), "HTTPRouteGroup %s/%s has no match %q; it allows nothing until it has", rule.Namespace, routes.Group, match)
			}
		}
	}
}

func (j *join) inspectAccount(r *graph.Reader, account mesh.ServiceAccount, field string, f *fault) {
	if !j.member(r, account.Namespace) {
		f.add(ReasonNotFound, field, "namespace %q is not in the mesh; label it with openservicemesh.io/monitored-by", account.Namespace)
		return
	}
	if len(j.workloadsOf.Get(r, account)) == 0 {
		f.add(ReasonNotFound, field, "no pod runs as service account %s; check the name, or wait for the pods", account)
	}
}

func (j *join) inspectSplit(r *graph.Reader, split *mesh.Split, f *fault) {
	root := j.service(r, mesh.Name{Namespace: split.Namespace, Name: split.Root})
	if root == nil {
		f.add(ReasonNotFound, "spec.service", "there is no Service %s/%s; the split has no effect until there is", split.Namespace, split.Root)
		return
	}
	if root.Headless {
		f.add(ReasonNoEffect, "spec.service", "Service %s is headless, so clients choose a pod themselves; give it a cluster IP to split its traffic", root)
	}
	if len(split.Matches) == 0 {
		for _, a := range j.splitsOf.Get(r, root.String()) {
			other, _ := j.splits.Get(r, a.key)
			if other == split {
				break
			}
			if len(other.Matches) == 0 {
				f.add(ReasonConflict, "spec.service", "TrafficSplit %s splits the same service and is older; delete one of them", other)
				break
			}
		}
	} else if !slices.ContainsFunc(root.Ports, func(p mesh.PortSpec) bool { return p.Protocol.IsHTTP() }) {
		f.add(ReasonNoEffect, "spec.matches", "Service %s has no port whose requests can be matched; name a port http or leave the matches out", root)
	}
	for i, name := range split.Matches {
		if _, ok := j.httpGroups.Get(r, mesh.Name{Namespace: split.Namespace, Name: name}.String()); !ok {
			f.add(ReasonNotFound, fmt.Sprintf("spec.matches[%d]", i), "there is no HTTPRouteGroup %s/%s; nothing is split by it until there is", split.Namespace, name)
		}
	}
	total := uint64(0)
	for i, backend := range split.Backends {
		total += uint64(backend.Weight)
		j.inspectShare(r, split, root, backend, fmt.Sprintf("spec.backends[%d]", i), f)
	}
	if total == 0 {
		f.add(ReasonNoEffect, "spec.backends", "all weights are 0, so requests that the split takes are answered with 503; give one of them a weight")
	}
	if path := j.cycle(r, split); path != "" {
		f.add(ReasonCycle, "spec.backends", "splits lead in a circle (%s); a split sends to the endpoints of its backends, not through their splits", path)
	}
}

func (j *join) inspectShare(r *graph.Reader, split *mesh.Split, root *mesh.Service, backend mesh.SplitBackend, field string, f *fault) {
	name := mesh.Name{Namespace: split.Namespace, Name: backend.Service}
	svc := j.service(r, name)
	switch {
	case svc == nil:
		f.add(ReasonNotFound, field+".service", "there is no Service %s; its share goes to the others", name)
		return
	case svc.Headless:
		f.add(ReasonNoEffect, field+".service", "Service %s is headless, so it cannot take a share; give it a cluster IP", name)
		return
	}
	for _, spec := range root.Ports {
		if _, ok := j.splitPort(r, split, backend, mesh.ServicePort{Name: root.Name, Port: spec.Port}); !ok {
			f.add(ReasonNoSuchPort, field+".service", "Service %s has no port %d and none of that name, so for this port its share goes to the others", name, spec.Port)
		}
	}
	if backend.Service != split.Root && len(j.splitsOf.Get(r, name.String())) > 0 && j.cycle(r, split) == "" {
		f.add(ReasonNoEffect, field+".service", "Service %s is the root of a split itself, which does not apply here: its share goes to its own endpoints", name)
	}
}

// cycle returns a way from a split's root over other splits back to it, or "".
func (j *join) cycle(r *graph.Reader, split *mesh.Split) string {
	seen := map[string]bool{}
	var walk func(service, path string) string
	walk = func(service, path string) string {
		for _, a := range j.splitsOf.Get(r, mesh.Name{Namespace: split.Namespace, Name: service}.String()) {
			next, _ := j.splits.Get(r, a.key)
			for _, backend := range next.Backends {
				// A split that keeps a share for its root's own endpoints is no circle.
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

func (j *join) inspectEgress(r *graph.Reader, rule *mesh.EgressRule, f *fault) {
	settings := j.mustSettings(r)
	if !settings.EgressPolicy {
		f.add(ReasonDisabled, "", "spec.featureFlags.enableEgressPolicy of the MeshConfig is off")
	}
	for i, source := range rule.Sources {
		field := fmt.Sprintf("spec.sources[%d]", i)
		j.inspectAccount(r, source, field, f)
		for _, older := range j.egressRules(r, source) {
			if older == rule {
				break
			}
			for _, port := range rule.Ports {
				for _, taken := range older.Ports {
					if taken.Number == port.Number && taken.Protocol != port.Protocol {
						f.add(ReasonConflict, field, "Egress %s is older and has port %d as %s, so it is not %s for %s; use one protocol for a port", older, port.Number, taken.Protocol, port.Protocol, source)
					}
				}
			}
		}
	}
	for i, name := range rule.Groups {
		if _, ok := j.httpGroups.Get(r, mesh.Name{Namespace: rule.Namespace, Name: name}.String()); !ok {
			f.add(ReasonNotFound, fmt.Sprintf("spec.matches[%d]", i), "there is no HTTPRouteGroup %s/%s; it allows nothing until there is", rule.Namespace, name)
		}
	}
	for _, name := range rule.Settings {
		setting, ok := j.upstreams.Get(r, mesh.Name{Namespace: rule.Namespace, Name: name}.String())
		switch {
		case !ok:
			f.add(ReasonNotFound, "spec.matches", "there is no UpstreamTrafficSetting %s/%s", rule.Namespace, name)
		case !slices.ContainsFunc(rule.Hosts, func(h string) bool { return strings.EqualFold(h, setting.Host) }):
			f.add(ReasonNoEffect, "spec.matches", "UpstreamTrafficSetting %s is for host %q, which is not among spec.hosts", setting, setting.Host)
		}
	}
}

func (j *join) inspectIngress(r *graph.Reader, rule *mesh.IngressRule, f *fault) {
	if !j.mustSettings(r).IngressPolicy {
		f.add(ReasonDisabled, "", "spec.featureFlags.enableIngressBackendPolicy of the MeshConfig is off")
	}
	for i, backend := range rule.Backends {
		field := fmt.Sprintf("spec.backends[%d]", i)
		name := mesh.Name{Namespace: rule.Namespace, Name: backend.Service}
		svc := j.service(r, name)
		if svc == nil {
			f.add(ReasonNotFound, field+".name", "there is no Service %s; it lets nothing in until there is", name)
			continue
		}
		if !j.leadsTo(r, svc, backend.Port) {
			f.add(ReasonNoSuchPort, field+".port.number", "no port of Service %s leads to port %d of its pods; name the target port", name, backend.Port)
		}
		for _, a := range j.ingressesOf.Get(r, name.String()) {
			older, _ := j.ingresses.Get(r, a.key)
			if older == rule {
				break
			}
			for _, other := range older.Backends {
				if other.Service == backend.Service && other.Port == backend.Port && (other.TLS != backend.TLS || other.SkipClientCert != backend.SkipClientCert) {
					f.add(ReasonConflict, field, "IngressBackend %s opens the same port in another way; callers that both name may get either", older)
				}
			}
		}
	}
	for i, source := range rule.Sources {
		field := fmt.Sprintf("spec.sources[%d]", i)
		switch {
		case source.Principal != "" && source.Principal != "*":
			if _, ok := parsePrincipal(j.mustSettings(r), source.Principal); !ok {
				f.add(ReasonNotFound, field+".name", "%q is no identity of the mesh; write <service account>.<namespace>.%s", source.Principal, j.mustSettings(r).TrustDomain)
			}
		case source.Service != mesh.Name{}:
			if len(j.addressesOf(r, source.Service)) == 0 {
				f.add(ReasonNotFound, field, "Service %s has no endpoints; it lets nothing in until it has", source.Service)
			}
		}
	}
	for i, name := range rule.Groups {
		if _, ok := j.httpGroups.Get(r, mesh.Name{Namespace: rule.Namespace, Name: name}.String()); !ok {
			f.add(ReasonNotFound, fmt.Sprintf("spec.matches[%d]", i), "there is no HTTPRouteGroup %s/%s; it lets nothing in until there is", rule.Namespace, name)
		}
	}
}

// leadsTo reports whether a port of a service leads to that port of its workloads.
func (j *join) leadsTo(r *graph.Reader, svc *mesh.Service, port uint16) bool {
	for _, spec := range svc.Ports {
		if spec.TargetName == "" && targetOf(nil, spec) == port {
			return true
		}
		for _, b := range j.backends.Get(r, mesh.ServicePort{Name: svc.Name, Port: spec.Port}).list {
			if slices.ContainsFunc(b.Endpoints, func(e mesh.Endpoint) bool { return e.Port == port }) {
				return true
			}
		}
	}
	return false
}

func (j *join) inspectRetry(r *graph.Reader, rule *mesh.RetryRule, f *fault) {
	if !j.mustSettings(r).RetryPolicy {
		f.add(ReasonDisabled, "", "spec.featureFlags.enableRetryPolicy of the MeshConfig is off")
	}
	j.inspectAccount(r, rule.Source, "spec.source", f)
	for i, name := range rule.Destinations {
		field := fmt.Sprintf("spec.destinations[%d]", i)
		svc := j.service(r, name)
		if svc == nil {
			f.add(ReasonNotFound, field, "there is no Service %s in the mesh", name)
			continue
		}
		if !slices.ContainsFunc(svc.Ports, func(p mesh.PortSpec) bool { return p.Protocol.IsHTTP() }) {
			f.add(ReasonNoEffect, field, "Service %s has no port whose requests could be tried again; name a port http", name)
		}
		if first := j.retryFor(r, rule.Source, name); first != nil && first != rule && j.mustSettings(r).RetryPolicy {
			f.add(ReasonConflict, field, "Retry %s is older and has the same source and destination; delete one of them", first)
		}
	}
}

func (j *join) inspectUpstream(r *graph.Reader, setting *mesh.UpstreamSetting, f *fault) {
	name := serviceOfHost(setting)
	if j.service(r, name) == nil {
		if len(j.egressesUsing.Get(r, setting.String())) == 0 {
			f.add(ReasonNotFound, "spec.host", "%q is no Service of namespace %s, and no Egress names this object; write <service>.%s.svc.cluster.local", setting.Host, setting.Namespace, setting.Namespace)
		}
		return
	}
	for _, a := range j.upstreamsOf.Get(r, name.String()) {
		if oldest, _ := j.upstreams.Get(r, a.key); oldest != setting {
			f.add(ReasonConflict, "spec.host", "UpstreamTrafficSetting %s is older and for the same service; delete one of them", oldest)
		}
		break
	}
}
