package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

func (j *join) inspectEgress(r *graph.Reader, rule *fact.EgressRule, f *fault) {
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
						f.add(ReasonConflict, field, "Egress %s is older and uses port %d with protocol %s, so protocol %s does not apply for %s; use one protocol per port", older, port.Number, taken.Protocol, port.Protocol, source)
					}
				}
			}
		}
	}
	j.inspectEgressPorts(rule, f)
	j.inspectEgressProduct(r, rule, f)
	for i, name := range rule.Groups {
		if _, ok := j.httpGroups.Get(r, mesh.Name{Namespace: rule.Namespace, Name: name}); !ok {
			f.add(ReasonNotFound, fmt.Sprintf("spec.matches[%d]", i), "there is no HTTPRouteGroup %s/%s; nothing is allowed until there is", rule.Namespace, name)
		}
	}
	for _, name := range rule.Settings {
		setting, ok := j.upstreams.Get(r, mesh.Name{Namespace: rule.Namespace, Name: name})
		switch {
		case !ok:
			f.add(ReasonNotFound, "spec.matches", "there is no valid UpstreamTrafficSetting %s/%s; nothing is allowed until there is", rule.Namespace, name)
		case !slices.ContainsFunc(rule.Hosts, func(h string) bool { return strings.EqualFold(h, setting.Host) }):
			f.add(ReasonNoEffect, "spec.matches", "UpstreamTrafficSetting %s is for host %q, which is not among spec.hosts", setting, setting.Host)
		}
	}
}

// inspectEgressPorts finds conditions that apply to none of the rule's ports.
func (j *join) inspectEgressPorts(rule *fact.EgressRule, f *fault) {
	for _, port := range rule.Ports {
		switch {
		case port.Protocol == mesh.EgressTCP:
		case port.Protocol == mesh.EgressHTTP && len(rule.Hosts) == 0 && len(rule.Groups) > 0:
			f.add(ReasonNoEffect, "spec.matches", "requests to port %d are matched by host, but spec.hosts is empty, so nothing is allowed; add hosts", port.Number)
		}
	}
	if len(rule.Groups) > 0 && !slices.ContainsFunc(rule.Ports, func(p fact.EgressPort) bool { return p.Protocol == mesh.EgressHTTP }) {
		f.add(ReasonNoEffect, "spec.matches", "no port has protocol http, so the matches are ignored and the ports and hosts alone decide; remove the matches, or set protocol http")
	}
}

func (j *join) inspectIngress(r *graph.Reader, rule *fact.IngressRule, f *fault) {
	if !j.mustSettings(r).IngressPolicy {
		f.add(ReasonDisabled, "", "spec.featureFlags.enableIngressBackendPolicy of the MeshConfig is off")
	}
	for i, backend := range rule.Backends {
		field := fmt.Sprintf("spec.backends[%d]", i)
		name := mesh.Name{Namespace: rule.Namespace, Name: backend.Service}
		svc := j.service(r, name)
		if svc == nil {
			f.add(ReasonNotFound, field+".name", "there is no Service %s; nothing is allowed until there is", name)
			continue
		}
		if !j.targetsPort(r, svc, backend.Port) {
			f.add(ReasonNoSuchPort, field+".port.number", "no port of Service %s targets port %d of its pods; use the target port", name, backend.Port)
		}
		if !backend.TLS && namesPrincipal(rule) {
			f.add(ReasonNoEffect, field+".port.protocol", "callers have no certificate with protocol http, so the principals in spec.sources never match and nothing is allowed; use https, or remove the principals")
		}
		for _, a := range j.ingressesOf.Get(r, name) {
			older, _ := j.ingresses.Get(r, a.key)
			if older == rule {
				break
			}
			for _, other := range older.Backends {
				if other.Service == backend.Service && other.Port == backend.Port && (other.TLS != backend.TLS || other.SkipClientCert != backend.SkipClientCert) {
					f.add(ReasonConflict, field, "IngressBackend %s opens the same port with other TLS settings; for callers that both allow, either may apply", older)
				}
			}
		}
	}
	for i, source := range rule.Sources {
		field := fmt.Sprintf("spec.sources[%d]", i)
		switch {
		case source.Principal != "" && source.Principal != "*":
			if _, ok := parsePrincipal(j.mustSettings(r), source.Principal); !ok {
				f.add(ReasonNotFound, field+".name", "%q is not an identity of the mesh; write <service account>.<namespace>.%s", source.Principal, j.mustSettings(r).TrustDomain)
			}
		case source.Service != mesh.Name{}:
			if len(j.addressesOf(r, source.Service)) == 0 {
				f.add(ReasonNotFound, field, "Service %s has no endpoints; nothing is allowed until it has", source.Service)
			}
		}
	}
	for i, name := range rule.Groups {
		if _, ok := j.httpGroups.Get(r, mesh.Name{Namespace: rule.Namespace, Name: name}); !ok {
			f.add(ReasonNotFound, fmt.Sprintf("spec.matches[%d]", i), "there is no HTTPRouteGroup %s/%s; nothing is allowed until there is", rule.Namespace, name)
		}
	}
}

// targetsPort reports whether a port of the service targets the workloads' port.
func (j *join) targetsPort(r *graph.Reader, svc *fact.Service, port uint16) bool {
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
