package catalog

import (
	"iter"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
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

// grant is an AccessRule with its routes resolved and its sources sorted.
type grant struct {
	Name    mesh.Name             `json:"name"`
	Sources []fact.ServiceAccount `json:"sources"`
	HTTP    []mesh.HTTPMatch      `json:"http,omitempty"`
	TCP     []fact.TCPMatch       `json:"tcp,omitempty"`
	// ByPort reports that the rule has TCPRoutes, which may not exist. Its requests are
	// then allowed only at their ports.
	ByPort bool `json:"byPort,omitempty"`
	// bytes is the size of HTTP in a proxy's configuration.
	bytes int
	// policy says that it is that of an AccessPolicy, which only clients need.
	policy bool
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
		_, ok := slices.BinarySearchFunc(rule.Sources, source, fact.ServiceAccount.Compare)
		return ok && len(rule.requests(port, protocol)) > 0
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
	if !j.mustSettings(r).PermissivePolicy {
		for _, g := range j.policyGrants(r, account) {
			made.List = append(made.List, g)
			made.sources = append(made.sources, g.Sources...)
		}
	}
	slices.SortFunc(made.sources, fact.ServiceAccount.Compare)
	made.sources = slices.Compact(made.sources)
	return mesh.Seal(made)
}

// grant resolves the routes of a rule, until they are too large to be used.
func (j *join) grant(r *graph.Reader, rule *fact.AccessRule) grant {
	g := grant{Name: rule.Name, Sources: slices.Clone(rule.Sources)}
	slices.SortFunc(g.Sources, fact.ServiceAccount.Compare)
	g.Sources = slices.Compact(g.Sources)
	for routes := range distinct(rule.Rules) {
		if g.size() > maxProduct {
			break
		}
		matches := j.httpMatches(r, rule, routes)
		g.HTTP = append(g.HTTP, matches...)
		g.bytes += sizeOf(matches)
		g.ByPort = g.ByPort || routes.Kind == kindTCPRoute
		if group := j.tcpRoutes(r, rule, routes); group != nil {
			g.TCP = append(g.TCP, *group.TCP)
		}
	}
	return g
}

// distinct returns the routes without those that have been there before, with their indices: one
// object can have the same ones ten thousand times.
func distinct(all []fact.AccessRoutes) iter.Seq2[fact.AccessRoutes, int] {
	return func(yield func(fact.AccessRoutes, int) bool) {
		seen := map[string]bool{}
		for i, routes := range all {
			key := strings.Join(append([]string{routes.Kind, routes.Group}, routes.Matches...), "\x00")
			if !seen[key] && !yield(routes, i) {
				return
			}
			seen[key] = true
		}
	}
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

// access returns who may call a port of the workloads. Port 0 stands for all ports that are not
// listed.
func (j *join) access(r *graph.Reader, key inboundKey, port uint16, protocol mesh.Protocol) mesh.Access {
	access := mesh.Access{Denials: j.denials(r, key, port, protocol)}
	access.Anyone = j.open(r, key.account.Namespace) && !j.acts(r, key, port, fact.Allow)
	access.Audit = access.Anyone && (j.audited(r, key.account) || j.acts(r, key, port, fact.Audit))
	if !access.Anyone || access.Audit {
		access.Rules = append(j.targetPermissions(r, key.account, port, protocol), j.permissions(r, key, port, protocol, fact.Allow)...)
	}
	if access.Audit {
		access.Rules = append(access.Rules, j.permissions(r, key, port, protocol, fact.Audit)...)
	}
	// A proxy that lacks the feature would allow what is denied or excepted.
	if key.limited && (len(access.Denials) > 0 || slices.ContainsFunc(access.Rules, func(p mesh.Permission) bool { return len(p.Except) > 0 })) {
		return mesh.Access{}
	}
	return access
}

// targetPermissions returns what TrafficTargets allow at a port.
func (j *join) targetPermissions(r *graph.Reader, account fact.ServiceAccount, port uint16, protocol mesh.Protocol) []mesh.Permission {
	settings := j.mustSettings(r)
	var permissions []mesh.Permission
	for _, g := range j.grants.Get(r, account).List {
		requests := g.requests(port, protocol)
		if len(requests) == 0 || g.policy {
			continue
		}
		p := mesh.Permission{Origin: originOf(kindTrafficTarget, g.Name, ""), Requests: requests}
		for _, source := range g.Sources {
			p.Sources = append(p.Sources, identityOf(settings, source))
		}
		slices.SortFunc(p.Sources, compareIdentity)
		p.Sources = slices.Compact(p.Sources)
		permissions = append(permissions, p)
	}
	return permissions
}

// open reports whether everyone in the mesh may call the workloads of a namespace unless a policy
// closes them: by its own default, or else in permissive traffic policy mode.
func (j *join) open(r *graph.Reader, namespace string) bool {
	if ns, ok := j.namespaces.Get(r, mesh.Name{Name: namespace}); ok && ns.DefaultAccess != "" {
		return ns.DefaultAccess != fact.Deny
	}
	return j.mustSettings(r).PermissivePolicy
}

// audited reports whether the rules for the account's workloads are evaluated without being
// enforced: where everybody may call, if the namespace or a rule for the account asks.
func (j *join) audited(r *graph.Reader, account fact.ServiceAccount) bool {
	if !j.open(r, account.Namespace) {
		return false
	}
	if ns, ok := j.namespaces.Get(r, mesh.Name{Name: account.Namespace}); ok && (ns.Audit || ns.DefaultAccess == fact.Audit) {
		return true
	}
	return slices.ContainsFunc(j.accessesOf.Get(r, account), func(a aged) bool {
		rule, _ := j.accesses.Get(r, a.key)
		return rule.Audit && j.member(r, rule.Namespace)
	})
}

// usesRules reports whether the proxies of the account's workloads have its rules.
func (j *join) usesRules(r *graph.Reader, account fact.ServiceAccount) bool {
	return !j.open(r, account.Namespace) || j.audited(r, account)
}

func (j *join) inspectNamespace(r *graph.Reader, ns *fact.Namespace, f *fault) {
	if ns.Audit {
		j.inspectAudit(r, ns.Name, f)
	}
	j.inspectOutboundServices(r, ns.OutboundServices, f)
}

// inspectAudit reports an audit of a namespace's workloads that has no effect.
func (j *join) inspectAudit(r *graph.Reader, namespace string, f *fault) {
	if !j.open(r, namespace) {
		f.add(ReasonNoEffect, fieldAccessMode, "namespace %s is not open: neither is the mesh in permissive traffic policy mode nor does the namespace say otherwise, so policies are enforced and the annotation changes nothing; remove it, or annotate the namespace with "+metadata.DefaultAccess+": audit to try policies first", namespace)
	}
}
