package catalog

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"unique"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// policyRules are the rules of an AccessPolicy with their identities resolved.
type policyRules struct {
	mesh.Sealed
	List []policyRule `json:"list"`
}

type policyRule struct {
	fact.PolicyRule
	Sources []mesh.Identity `json:"identities,omitempty"`
	Except  []mesh.Identity `json:"exceptions,omitempty"`
}

// requests returns the requests of a rule at a port. Port 0 stands for all ports that are not
// listed. At ports without HTTP a denial of some requests is one of all connections.
func (p *policyRule) requests(key inboundKey, port uint16, protocol mesh.Protocol, denies bool) []mesh.HTTPMatch {
	switch {
	case !p.AnyPort && !slices.Contains(p.Ports, port):
		return nil
	case protocol.IsHTTP() && key.tokenless:
		return withoutTokens(p.Requests, denies)
	case protocol.IsHTTP():
		return p.Requests
	case denies && len(p.Requests) > 0, !p.OnlyRequests && slices.ContainsFunc(p.Requests, func(m mesh.HTTPMatch) bool { return m.Matches(nil) }):
		return []mesh.HTTPMatch{{}}
	}
	return nil
}

// appliedPolicies is a comparable linked list of the AccessPolicies for a workload, the oldest first.
type appliedPolicies struct {
	appliedPolicy
	rest unique.Handle[appliedPolicies]
}

// appliedPolicy is an AccessPolicy and the ports of the workload at which it applies, unless it
// applies everywhere.
type appliedPolicy struct {
	name       mesh.Name
	everywhere bool
	ports      portSet
}

func (p appliedPolicy) at(port uint16) bool {
	return p.everywhere || slices.Contains(p.ports.list(), port)
}

// appliedAt yields the policies that apply at a port.
func (j *join) appliedAt(r *graph.Reader, list unique.Handle[appliedPolicies], port uint16) iter.Seq2[*fact.AccessPolicy, *policyRules] {
	return func(yield func(*fact.AccessPolicy, *policyRules) bool) {
		for ; list != (unique.Handle[appliedPolicies]{}); list = list.Value().rest {
			applied := list.Value().appliedPolicy
			policy, ok := j.accessPolicies.Get(r, applied.name)
			if ok && applied.at(port) && !yield(policy, j.policyRules.Get(r, applied.name)) {
				return
			}
		}
	}
}

// makeApplied returns the AccessPolicies for a workload.
func (j *join) makeApplied(r *graph.Reader, workload mesh.Name) unique.Handle[appliedPolicies] {
	var list unique.Handle[appliedPolicies]
	w, ok := j.workloads.Get(r, workload)
	if !ok {
		return list
	}
	for _, name := range slices.Backward(j.policiesIn.Get(r, w.Namespace).List) {
		policy, _ := j.accessPolicies.Get(r, name)
		if applied, ok := j.apply(r, policy, w); ok {
			list = unique.Make(appliedPolicies{applied, list})
		}
	}
	return list
}

// policyNames are names of AccessPolicies.
type policyNames struct {
	mesh.Sealed
	List []mesh.Name `json:"list"`
}

// makePoliciesIn returns the policies for a namespace: those of the cluster, and then its own, each the
// oldest first.
func (j *join) makePoliciesIn(r *graph.Reader, namespace string) *policyNames {
	made := &policyNames{}
	ns, known := j.namespaces.Get(r, mesh.Name{Name: namespace})
	for _, a := range j.accessPoliciesIn.Get(r, ofCluster) {
		if policy, _ := j.accessPolicies.Get(r, a.key); known && policy.Namespaces.Matches(ns.Labels) {
			made.List = append(made.List, a.key)
		}
	}
	for _, a := range j.accessPoliciesIn.Get(r, namespace) {
		made.List = append(made.List, a.key)
	}
	return mesh.Seal(made)
}

// ofCluster is the namespace of ClusterAccessPolicies.
const ofCluster = ""

// originOfPolicy returns the origin of a part that a policy asks for.
func originOfPolicy(policy *fact.AccessPolicy, field string) mesh.Origin {
	if policy.Namespace == ofCluster {
		return originOf(kindClusterAccessPolicy, policy.Name, field)
	}
	return originOf(kindAccessPolicy, policy.Name, field)
}

func (j *join) apply(r *graph.Reader, policy *fact.AccessPolicy, w *fact.Workload) (appliedPolicy, bool) {
	applied, is := appliedPolicy{name: policy.Name}, false
	var ports []uint16
	for _, target := range policy.Targets {
		switch {
		case target.ServiceAccount != "":
			applied.everywhere = applied.everywhere || target.ServiceAccount == w.ServiceAccount
		case target.Service == "":
			applied.everywhere = applied.everywhere || target.Pods.Matches(w.Labels)
		case slices.Contains(j.servicesOf.Get(r, w.Name), mesh.Name{Namespace: w.Namespace, Name: target.Service}):
			is = true
			for _, t := range j.targets(r, w) {
				if t.service.Name.Name == target.Service {
					ports = append(ports, t.port)
				}
			}
		}
	}
	if !applied.everywhere {
		slices.Sort(ports)
		applied.ports = newPortSet(slices.Compact(ports))
	}
	return applied, is || applied.everywhere
}

// makePolicyRules resolves the sources of a policy.
func (j *join) makePolicyRules(r *graph.Reader, name mesh.Name) *policyRules {
	made := &policyRules{}
	policy, ok := j.accessPolicies.Get(r, name)
	if !ok {
		return mesh.Seal(made)
	}
	for _, rule := range policy.Rules {
		made.List = append(made.List, policyRule{rule, j.identitiesOf(r, rule.Sources), j.identitiesOf(r, rule.Except)})
	}
	return mesh.Seal(made)
}

// identitiesOf returns the identities of sources, sorted.
func (j *join) identitiesOf(r *graph.Reader, sources []fact.PolicySource) []mesh.Identity {
	settings := j.mustSettings(r)
	var ids []mesh.Identity
	for _, source := range sources {
		if source.Namespaces == nil {
			id := source.Identity
			id.TrustDomain = cmp.Or(id.TrustDomain, settings.TrustDomain)
			ids = append(ids, id)
			continue
		}
		for _, name := range j.namespaceNames.Get(r, struct{}{}) {
			if ns, _ := j.namespaces.Get(r, mesh.Name{Name: name}); source.Namespaces.Matches(ns.Labels) {
				ids = append(ids, mesh.Identity{TrustDomain: settings.TrustDomain, Namespace: name})
			}
		}
	}
	slices.SortFunc(ids, compareIdentity)
	return slices.Compact(ids)
}

// rulesAt yields the rules of the policies with an action that apply at a port.
func (j *join) rulesAt(r *graph.Reader, key inboundKey, port uint16, action fact.AccessAction) iter.Seq2[*fact.AccessPolicy, *policyRule] {
	return func(yield func(*fact.AccessPolicy, *policyRule) bool) {
		for policy, rules := range j.appliedAt(r, key.policies, port) {
			if policy.Action != action {
				continue
			}
			for i := range rules.List {
				if !yield(policy, &rules.List[i]) {
					return
				}
			}
		}
	}
}

// callers returns the identities that a rule is about. Everyone are all of the trust domain.
func (p *policyRule) callers(settings *mesh.Settings) []mesh.Identity {
	if p.Everyone {
		return []mesh.Identity{{TrustDomain: settings.TrustDomain}}
	}
	return p.Sources
}

// permissions returns what the policies with an action allow at a port.
func (j *join) permissions(r *graph.Reader, key inboundKey, port uint16, protocol mesh.Protocol, action fact.AccessAction) []mesh.Permission {
	var permissions []mesh.Permission
	for policy, rule := range j.rulesAt(r, key, port, action) {
		p := mesh.Permission{
			Origin: originOfPolicy(policy, rule.Field), Sources: rule.callers(j.mustSettings(r)), Except: rule.Except, Requests: rule.requests(key, port, protocol, false),
		}
		if len(p.Sources) > 0 && len(p.Requests) > 0 {
			permissions = append(permissions, p)
		}
	}
	return permissions
}

// denials returns what the policies deny at a port. What the cluster allows is excepted from those of
// the namespace.
func (j *join) denials(r *graph.Reader, key inboundKey, port uint16, protocol mesh.Protocol) []mesh.Denial {
	var denials []mesh.Denial
	for policy, rule := range j.rulesAt(r, key, port, fact.Deny) {
		d := mesh.Denial{Origin: originOfPolicy(policy, rule.Field), Everyone: rule.Everyone, Except: rule.Except, Requests: rule.requests(key, port, protocol, true)}
		if !d.Everyone {
			d.Sources = rule.Sources
		}
		if policy.Namespace != ofCluster {
			d.Except = append(slices.Clip(d.Except), j.allowedByCluster(r, key, port)...)
		}
		if len(d.Requests) > 0 && (d.Everyone || len(d.Sources) > 0) {
			denials = append(denials, d)
		}
	}
	return denials
}

// allowedByCluster returns whom ClusterAccessPolicies allow a port, whatever its namespace denies.
func (j *join) allowedByCluster(r *graph.Reader, key inboundKey, port uint16) []mesh.Identity {
	var allowed []mesh.Identity
	for policy, rule := range j.rulesAt(r, key, port, fact.Allow) {
		if policy.Namespace == ofCluster && len(rule.requests(key, port, mesh.TCP, false)) > 0 {
			allowed = append(allowed, rule.callers(j.mustSettings(r))...)
		}
	}
	return allowed
}

// ingressByPolicy returns what the policies allow callers without an identity at a port.
func (j *join) ingressByPolicy(r *graph.Reader, key inboundKey, port uint16, protocol mesh.Protocol) []mesh.Ingress {
	var made []mesh.Ingress
	for policy, rule := range j.rulesAt(r, key, port, fact.Allow) {
		in := mesh.Ingress{Origin: originOfPolicy(policy, rule.Field), Ranges: rule.Ranges, Requests: rule.requests(key, port, protocol, false)}
		if rule.Everyone && key.tls == mesh.Permissive {
			in.Ranges = anywhere
		}
		if len(in.Ranges) > 0 && len(in.Requests) > 0 {
			made = append(made, in)
		}
	}
	return made
}

// acts reports whether a policy of the namespace with the action applies at the port.
func (j *join) acts(r *graph.Reader, key inboundKey, port uint16, action fact.AccessAction) bool {
	for policy := range j.appliedAt(r, key.policies, port) {
		if policy.Action == action && policy.Namespace != ofCluster {
			return true
		}
	}
	return false
}

// policyPorts adds the ports that the rules of policies name.
func (j *join) policyPorts(r *graph.Reader, key inboundKey, ports []mesh.InboundPort) []mesh.InboundPort {
	for list := key.policies; list != (unique.Handle[appliedPolicies]{}); list = list.Value().rest {
		applied := list.Value().appliedPolicy
		for _, rule := range j.policyRules.Get(r, applied.name).List {
			for _, port := range rule.Ports {
				if applied.at(port) {
					ports = withPort(ports, port)
				}
			}
		}
	}
	return ports
}

// policyGrants returns a grant for each policy that allows something to the workloads of an account,
// and for the default of its namespace, for clients: they know of the services that they may call a
// part of. The servers' own proxies know who may call what.
func (j *join) policyGrants(r *graph.Reader, account fact.ServiceAccount) []grant {
	every := grant{policy: true, ByPort: true, HTTP: []mesh.HTTPMatch{{}}, TCP: []fact.TCPMatch{{}}}
	if j.open(r, account.Namespace) {
		every.Sources = j.accountsIn.Get(r, "")
		return []grant{every}
	}
	var made []grant
	for _, name := range j.appliedTo(r, account) {
		policy, _ := j.accessPolicies.Get(r, name)
		if policy.Action != fact.Allow {
			continue
		}
		g := every
		g.Name, g.Sources = policy.Name, nil
		for _, rule := range j.policyRules.Get(r, name).List {
			for _, id := range rule.callers(j.mustSettings(r)) {
				switch {
				case id.TrustDomain != j.mustSettings(r).TrustDomain:
				case id.ServiceAccount == "":
					g.Sources = append(g.Sources, j.accountsIn.Get(r, id.Namespace)...)
				default:
					g.Sources = append(g.Sources, fact.ServiceAccount{Namespace: id.Namespace, Name: id.ServiceAccount})
				}
			}
		}
		slices.SortFunc(g.Sources, fact.ServiceAccount.Compare)
		if g.Sources = slices.Compact(g.Sources); len(g.Sources) > 0 {
			made = append(made, g)
		}
	}
	return made
}

// appliedTo returns the policies for any workload of an account.
func (j *join) appliedTo(r *graph.Reader, account fact.ServiceAccount) []mesh.Name {
	var names []mesh.Name
	for _, workload := range j.workloadsOf.Get(r, account) {
		for list := j.applied.Get(r, workload); list != (unique.Handle[appliedPolicies]{}); list = list.Value().rest {
			if name := list.Value().name; !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// asksOfPolicies returns what the AccessPolicies that a workload's Inbound is made of ask for.
func (j *join) asksOfPolicies(r *graph.Reader, policies unique.Handle[appliedPolicies], in *mesh.Inbound) []ask {
	asks := append(j.asksOfPoliciesAt(r, policies, 0, in.Others), asksOfIssuers(in.Issuers)...)
	for _, p := range in.Ports {
		asks = append(asks, j.asksOfPoliciesAt(r, policies, p.Port, p.Access)...)
	}
	return asks
}

func (j *join) asksOfPoliciesAt(r *graph.Reader, policies unique.Handle[appliedPolicies], port uint16, access mesh.Access) []ask {
	var asks []ask
	for _, d := range access.Denials {
		asks = append(asks, asksOf(d.Origin, mesh.Access{Denials: []mesh.Denial{d}}.Needs())...)
	}
	for _, p := range access.Rules {
		if p.Origin.Object.Kind != kindTrafficTarget {
			asks = append(asks, asksOf(p.Origin, mesh.Access{Rules: []mesh.Permission{p}}.Needs())...)
		}
	}
	for policy := range j.appliedAt(r, policies, port) {
		if access.Audit && policy.Action == fact.Audit {
			asks = append(asks, ask{originOfPolicy(policy, "spec.action"), mesh.FeatureAudit})
		}
	}
	return asks
}

func (j *join) inspectAccessPolicy(r *graph.Reader, policy *fact.AccessPolicy, f *fault) {
	for i, target := range policy.Targets {
		if name := (mesh.Name{Namespace: policy.Namespace, Name: target.Service}); target.Service != "" && j.service(r, name) == nil {
			f.add(ReasonNotFound, fmt.Sprintf("spec.targetRefs[%d].name", i), "there is no Service %s in the mesh, so the target has no workload; create it, or correct the name", name)
		}
	}
	j.inspectTokens(r, policy, f)
	if policy.Action == fact.Audit && !j.open(r, policy.Namespace) {
		f.add(ReasonNoEffect, "spec.action", "everything is refused in namespace %s that no policy allows, so the audit has no effect; use Allow, or annotate the namespace with "+metadata.DefaultAccess+": audit to try policies first", policy.Namespace)
	}
	for i, rule := range j.policyRules.Get(r, policy.Name).List {
		for k, id := range rule.Sources {
			if own := j.mustSettings(r).TrustDomain; id.TrustDomain != own {
				f.add(ReasonNoEffect, policy.Rules[i].Field+".sources", "%s is not in the mesh's trust domain %s, whose certificates are the only ones that the mesh accepts; remove it", rule.Sources[k], own)
			}
		}
	}
}
