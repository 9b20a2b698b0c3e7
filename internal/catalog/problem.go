package catalog

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The kinds of routes that rules refer to.
const (
	kindHTTPRouteGroup = "HTTPRouteGroup"
	kindTCPRoute       = "TCPRoute"
)

// The reasons of Problems between objects.
const (
	// ReasonNotFound: a reference leads to nothing in the mesh.
	ReasonNotFound = "NotFound"
	// ReasonConflict: an object is overridden by an older one.
	ReasonConflict = "Conflict"
	// ReasonNoEffect: something can never apply.
	ReasonNoEffect = "NoEffect"
	// ReasonNoSuchPort: a service lacks the required port.
	ReasonNoSuchPort = "NoSuchPort"
	// ReasonCycle: splits form a cycle.
	ReasonCycle = "Cycle"
	// ReasonOutsideMesh: an endpoint has no sidecar, and egress is disabled.
	ReasonOutsideMesh = "OutsideMesh"
	// ReasonTooLarge: an object would make too much configuration.
	ReasonTooLarge = "TooLarge"
	// ReasonDisabled: the MeshConfig disables the object's kind.
	ReasonDisabled = "Disabled"
	// ReasonNotSupportedByProxy: an object requires a feature that a class of proxies
	// lacks.
	ReasonNotSupportedByProxy = "NotSupportedByProxy"
)

func problemsOf(object mesh.ObjectRef, list []mesh.Problem) *fact.Problems {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b mesh.Problem) int {
		return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Message, b.Message))
	})
	return mesh.Seal(&fact.Problems{Object: object, List: list})
}

// fault collects the Problems of one object.
type fault struct {
	object mesh.ObjectRef
	list   []mesh.Problem
	// parents, gateway and features are those of its fact.Problems.
	parents  []int
	gateway  *fact.GatewayState
	features []mesh.Feature
}

func (f *fault) problems() *fact.Problems {
	all := *problemsOf(f.object, f.list)
	all.Sealed, all.Parents, all.Gateway, all.Features = mesh.Sealed{}, f.parents, f.gateway, f.features
	return mesh.Seal(&all)
}

func (f *fault) add(reason, field, format string, args ...any) {
	f.list = append(f.list, mesh.Problem{Object: f.object, Reason: reason, Field: field, Message: fmt.Sprintf(format, args...)})
}

// once is add, except that it skips duplicates, such as those from another port.
func (f *fault) once(reason, field, format string, args ...any) {
	f.add(reason, field, format, args...)
	if last := len(f.list) - 1; slices.Contains(f.list[:last], f.list[last]) {
		f.list = f.list[:last]
	}
}

// inspector finds the Problems of an object in the context of others, such as conflicts and
// dangling references. inspectLacking adds missing features.
type inspector func(r *graph.Reader, name mesh.Name, f *fault)

// inspects reports whether an object may have Problems in the context of others. It is
// false for most pods and namespaces.
func (j *join) inspects(stated fact.Fact) bool {
	switch content := stated.Content.(type) {
	case nil:
		return false
	case *mesh.Settings:
		return true
	case *fact.Workload:
		return content.InboundTLS == mesh.Permissive || content.AccessLog != nil || content.OutboundServices != nil || content.ProxyProtocol != nil
	case *fact.Namespace:
		return content.InboundTLS == mesh.Permissive || content.AccessLog != nil || content.OutboundServices != nil || content.Audit || content.DefaultAccess == fact.Audit
	}
	return j.inspectors[stated.Object.FullKind()] != nil
}

// inspect puts all Problems of an object.
func (j *join) inspect(r *graph.Reader, key objectKey, out *graph.Output) {
	own, _ := j.faults.Get(r, key)
	object := own.Object
	found := &fault{object: object, list: slices.Clone(own.List)}
	if inspector := j.inspectors[key.kind]; inspector != nil {
		inspector(r, key.Name, found)
	}
	j.inspectLacking(r, object, found)
	if len(found.list)+len(found.parents)+len(found.features) > 0 || found.gateway != nil {
		graph.Put(out, j.problems, object.String(), found.problems())
	}
}

func (j *join) inspectService(r *graph.Reader, svc *fact.Service, f *fault) {
	for i, spec := range svc.Ports {
		field := fmt.Sprintf("spec.ports[%d]", i)
		port := mesh.ServicePort{Name: svc.Name, Port: spec.Port}
		if outside := j.backends.Get(r, port).outside; len(outside) > 0 {
			f.add(ReasonOutsideMesh, field, "no traffic is sent to %s, which has no sidecar; inject one, or allow egress with spec.traffic.enableEgress of the MeshConfig", someOf(outside))
		}
		for _, address := range svc.Addresses {
			if owner := j.ownerOf(r, netip.AddrPortFrom(address, spec.Port)); owner != svc.Name {
				f.add(ReasonConflict, field, "%s:%d also belongs to Service %s, which takes precedence; give each service its own addresses", address, spec.Port, owner)
			}
		}
		for _, before := range j.portsBefore(r, port) {
			if before.Protocol != spec.Protocol {
				f.add(ReasonConflict, field, "the pods' port has protocol %s in Service port %s, which takes precedence, and %s here; give both the same protocol with appProtocol or the port's name", before.Protocol, before.port, spec.Protocol)
				break
			}
		}
	}
}

// someOf lists the first names of a list that may be long.
func someOf(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// shared is a service port that targets the same port of workloads as another.
type shared struct {
	port mesh.ServicePort
	fact.PortSpec
}

// portsBefore returns the service ports that target the same workload port as port and
// take precedence over it, in order. The service's first endpoint represents all of them.
func (j *join) portsBefore(r *graph.Reader, port mesh.ServicePort) []shared {
	list := j.backends.Get(r, port).list
	if len(list) == 0 || len(list[0].Endpoints) == 0 || list[0].Endpoints[0].Workload == "" {
		return nil
	}
	w, ok := j.workloads.Get(r, workloadOf(list[0].Endpoints[0]))
	if !ok {
		return nil
	}
	var ports []shared
	spec, _ := portOf(j.service(r, port.Name), port.Port)
	for _, name := range j.servicesOf.Get(r, w.Name) {
		other := j.service(r, name)
		if other == nil {
			continue
		}
		for _, otherSpec := range other.Ports {
			before := mesh.ServicePort{Name: name, Port: otherSpec.Port}
			if before.Compare(port) < 0 && targetOf(w, otherSpec) == targetOf(w, spec) {
				ports = append(ports, shared{before, otherSpec})
			}
		}
	}
	return ports
}

func (j *join) inspectRetry(r *graph.Reader, rule *fact.RetryRule, f *fault) {
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
		if !slices.ContainsFunc(svc.Ports, func(p fact.PortSpec) bool { return p.Protocol.IsHTTP() }) {
			f.add(ReasonNoEffect, field, "Service %s has no HTTP port, so requests can't be retried; name a port http", name)
		}
		if first := j.retryFor(r, rule.Source, name); first != nil && first != rule && j.mustSettings(r).RetryPolicy {
			f.add(ReasonConflict, field, "Retry %s is older and has the same source and destination; delete one of them", first)
		}
	}
}

func (j *join) inspectUpstream(r *graph.Reader, setting *fact.UpstreamSetting, f *fault) {
	name := setting.Service()
	if j.service(r, name) == nil {
		if len(j.egressesUsing.Get(r, setting.Name)) == 0 {
			f.add(ReasonNotFound, "spec.host", "%q is not a Service of namespace %s, and no Egress refers to this object; write <service>.%s.svc.cluster.local", setting.Host, setting.Namespace, setting.Namespace)
		}
		return
	}
	// The index includes the setting itself.
	if oldest, _ := j.upstreams.Get(r, j.upstreamsOf.Get(r, name)[0].key); oldest != setting {
		f.add(ReasonConflict, "spec.host", "UpstreamTrafficSetting %s is older and for the same service; delete one of them", oldest)
		return
	}
	if isZeroLimits(setting.Limits) {
		return
	}
	for _, spec := range j.service(r, name).Ports {
		for _, before := range j.portsBefore(r, mesh.ServicePort{Name: name, Port: spec.Port}) {
			if before.port.Name != name && !isZeroLimits(j.policies.Get(r, before.port.Name).Limits) {
				f.add(ReasonConflict, "spec.rateLimit", "the pods of port %d also belong to Service port %s, whose rate limits take precedence; set limits for only one of the two", spec.Port, before.port)
				break
			}
		}
	}
}
