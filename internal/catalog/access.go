package catalog

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// grants are the access rules for the workloads of a service account.
type grants struct {
	mesh.Sealed
	List []grant `json:"list"`
	// sources are the sources of all rules, sorted.
	sources []fact.ServiceAccount
}

// grant is an AccessRule with its routes resolved.
type grant struct {
	Name    mesh.Name             `json:"name"`
	Sources []fact.ServiceAccount `json:"sources"`
	HTTP    []mesh.HTTPMatch      `json:"http,omitempty"`
	TCP     []fact.TCPMatch       `json:"tcp,omitempty"`
	// ByPort reports that the rule has TCPRoutes, which may not exist. Its requests are
	// then allowed only at their ports.
	ByPort bool `json:"byPort,omitempty"`
}

// reaches reports whether the rule's TCPRoutes include the port.
func (g *grant) reaches(port uint16) bool {
	return slices.ContainsFunc(g.TCP, func(m fact.TCPMatch) bool { return len(m.Ports) == 0 || slices.Contains(m.Ports, port) })
}

// requests returns the requests that the rule allows at a port.
func (g *grant) requests(port uint16, protocol mesh.Protocol) []mesh.HTTPMatch {
	switch {
	case g.ByPort && !g.reaches(port):
		return nil
	case protocol.IsHTTP():
		return g.HTTP
	case g.ByPort:
		return []mesh.HTTPMatch{{}}
	}
	return nil
}

// allows reports whether a rule allows the source something.
func (g *grants) allows(source fact.ServiceAccount) bool {
	_, ok := slices.BinarySearchFunc(g.sources, source, fact.ServiceAccount.Compare)
	return ok
}

// allowsAt reports whether a rule allows the source something at a port.
func (g *grants) allowsAt(source fact.ServiceAccount, port uint16, protocol mesh.Protocol) bool {
	return g.allows(source) && slices.ContainsFunc(g.List, func(rule grant) bool {
		return slices.Contains(rule.Sources, source) && len(rule.requests(port, protocol)) > 0
	})
}

func (j *join) makeGrants(r *graph.Reader, account fact.ServiceAccount) *grants {
	made := &grants{}
	for _, a := range j.accessesOf.Get(r, account) {
		rule, _ := j.accesses.Get(r, a.key)
		if !j.member(r, rule.Namespace) {
			continue
		}
		g := j.grant(r, rule)
		if len(g.Sources) == 0 || len(g.TCP) == 0 && (g.ByPort || len(g.HTTP) == 0) || g.size() > maxProduct {
			continue
		}
		made.List = append(made.List, g)
		made.sources = append(made.sources, g.Sources...)
	}
	slices.SortFunc(made.sources, fact.ServiceAccount.Compare)
	made.sources = slices.Compact(made.sources)
	return mesh.Seal(made)
}

// grant resolves the routes of a rule.
func (j *join) grant(r *graph.Reader, rule *fact.AccessRule) grant {
	g := grant{Name: rule.Name, Sources: rule.Sources}
	for _, routes := range rule.Rules {
		g.HTTP = append(g.HTTP, j.httpMatches(r, rule, routes)...)
		g.ByPort = g.ByPort || routes.Kind == kindTCPRoute
		if group := j.tcpRoutes(r, rule, routes); group != nil {
			g.TCP = append(g.TCP, *group.TCP)
		}
	}
	return g
}

// httpMatches returns the matches of an HTTPRouteGroup that a rule refers to.
func (j *join) httpMatches(r *graph.Reader, rule *fact.AccessRule, routes fact.AccessRoutes) []mesh.HTTPMatch {
	if routes.Kind != kindHTTPRouteGroup {
		return nil
	}
	group, _ := j.httpGroups.Get(r, mesh.Name{Namespace: rule.Namespace, Name: routes.Group})
	if group == nil {
		return nil
	}
	var matches []mesh.HTTPMatch
	for _, m := range group.HTTP {
		if len(routes.Matches) == 0 || slices.Contains(routes.Matches, m.Name) {
			matches = append(matches, m.HTTPMatch)
		}
	}
	return matches
}

func (j *join) tcpRoutes(r *graph.Reader, rule *fact.AccessRule, routes fact.AccessRoutes) *fact.RouteGroup {
	if routes.Kind != kindTCPRoute {
		return nil
	}
	group, _ := j.tcpGroups.Get(r, mesh.Name{Namespace: rule.Namespace, Name: routes.Group})
	return group
}

// access returns who may call a port of the account's workloads. Port 0 stands for all
// ports that are not listed.
func (j *join) access(r *graph.Reader, account fact.ServiceAccount, port uint16, protocol mesh.Protocol) mesh.Access {
	settings := j.mustSettings(r)
	access := mesh.Access{Anyone: settings.PermissivePolicy, Audit: j.audited(r, account)}
	if access.Anyone && !access.Audit {
		return access
	}
	for _, g := range j.grants.Get(r, account).List {
		requests := g.requests(port, protocol)
		if len(requests) == 0 {
			continue
		}
		p := mesh.Permission{Origin: originOf(kindTrafficTarget, g.Name, ""), Requests: requests}
		for _, source := range g.Sources {
			p.Sources = append(p.Sources, identityOf(settings, source))
		}
		slices.SortFunc(p.Sources, compareIdentity)
		p.Sources = slices.Compact(p.Sources)
		access.Rules = append(access.Rules, p)
	}
	return access
}

// audited reports whether the rules for the account's workloads are evaluated without being
// enforced: in permissive traffic policy mode, if its namespace or a rule for it asks.
func (j *join) audited(r *graph.Reader, account fact.ServiceAccount) bool {
	if !j.mustSettings(r).PermissivePolicy {
		return false
	}
	if ns, ok := j.namespaces.Get(r, mesh.Name{Name: account.Namespace}); ok && ns.Audit {
		return true
	}
	return slices.ContainsFunc(j.accessesOf.Get(r, account), func(a aged) bool {
		rule, _ := j.accesses.Get(r, a.key)
		return rule.Audit && j.member(r, rule.Namespace)
	})
}

// usesRules reports whether the proxies of the account's workloads have its rules.
func (j *join) usesRules(r *graph.Reader, account fact.ServiceAccount) bool {
	return !j.mustSettings(r).PermissivePolicy || j.audited(r, account)
}

func (j *join) inspectNamespace(r *graph.Reader, ns *fact.Namespace, f *fault) {
	if ns.Audit {
		j.inspectAudit(r, f)
	}
	j.inspectOutboundServices(r, ns.OutboundServices, f)
}

// inspectAudit reports an audit that has no effect.
func (j *join) inspectAudit(r *graph.Reader, f *fault) {
	if !j.mustSettings(r).PermissivePolicy {
		f.add(ReasonNoEffect, fieldAccessMode, "the mesh is not in permissive traffic policy mode, so policies are enforced and the annotation changes nothing; remove it, or set spec.traffic.enablePermissiveTrafficPolicyMode of the MeshConfig to try policies first")
	}
}
