package source

import (
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	outrigger "github.com/outrigger-mesh/outrigger/apis/outrigger/v1alpha1"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// accessPolicy closes what it cannot read: such a part of a policy allows nothing, and denies
// everything that it could deny.
func accessPolicy(obj *outrigger.AccessPolicy, n *notes) mesh.Digester {
	policy := &fact.AccessPolicy{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta), Action: fact.Allow}
	p := policyReader{notes: n, namespace: obj.Namespace}
	none := false
	switch action := obj.Spec.Action; action {
	case outrigger.ActionAllow, "":
	case outrigger.ActionDeny:
		policy.Action, p.denies = fact.Deny, true
	case outrigger.ActionAudit:
		policy.Action = fact.Audit
	default:
		n.add(ReasonInvalid, "spec.action", "%q is not an action, so the policy allows nothing to its targets; use Allow, Deny or Audit", string(action))
		none = true
	}
	n.needed("spec.targetRefs", len(obj.Spec.TargetRefs), "target, so the policy has no effect")
	for i := range obj.Spec.TargetRefs {
		target, ok := p.target(index("spec.targetRefs", i), &obj.Spec.TargetRefs[i])
		none = none || !ok && !p.denies
		policy.Targets = append(policy.Targets, target)
	}
	if !none {
		policy.Rules = p.rules(obj.Spec.Rules)
	}
	return mesh.Seal(policy)
}

// clusterAccessPolicy closes what it cannot read, as accessPolicy does.
func clusterAccessPolicy(obj *outrigger.ClusterAccessPolicy, n *notes) mesh.Digester {
	policy := &fact.AccessPolicy{Name: mesh.Name{Name: obj.Name}, Age: ageOf(&obj.ObjectMeta), Action: fact.Allow}
	p := policyReader{notes: n, cluster: true}
	none := false
	switch action := obj.Spec.Action; action {
	case outrigger.ActionAllow:
	case outrigger.ActionDeny:
		policy.Action, p.denies = fact.Deny, true
	default:
		n.add(ReasonInvalid, "spec.action", "%q is not an action, so the policy has no effect; use Allow or Deny", string(action))
		none = true
	}
	selects := func(path string, s *metav1.LabelSelector) fact.Selector {
		selector, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			p.invalid(path, "%q is not a selector of labels", err.Error())
			none, selector = none || !p.denies, labels.Everything()
		}
		return fact.NewSelector(selector)
	}
	policy.Namespaces = selects("spec.namespaceSelector", &obj.Spec.NamespaceSelector)
	pods := obj.Spec.PodSelector
	if pods == nil {
		pods = &metav1.LabelSelector{}
	}
	policy.Targets = []fact.AccessTarget{{Pods: selects("spec.podSelector", pods)}}
	if !none {
		policy.Rules = p.rules(obj.Spec.Rules)
	}
	return mesh.Seal(policy)
}

// policyReader reads an AccessPolicy of a namespace or, if it has none, a ClusterAccessPolicy.
type policyReader struct {
	*notes
	namespace string
	cluster   bool
	denies    bool
}

// rules returns one that matches everything if the field is missing.
func (p policyReader) rules(list []outrigger.AccessRule) []fact.PolicyRule {
	if list == nil {
		return []fact.PolicyRule{p.rule("spec", &outrigger.AccessRule{})}
	}
	var rules []fact.PolicyRule
	for i := range list {
		path := index("spec.rules", i)
		rule := p.rule(path, &list[i])
		if p.cluster && !p.denies && (list[i].HTTP != nil || list[i].NotSources != nil || len(rule.Ranges) > 0) {
			p.invalid(path, "a rule of a ClusterAccessPolicy that allows has sources of the mesh and ports only")
			rule.Requests = nil
		}
		rules = append(rules, rule)
	}
	return rules
}

// invalid adds a Problem about a part of the policy that cannot be read.
func (p policyReader) invalid(path, format string, args ...any) {
	outcome := ", so nothing is allowed by it; correct it"
	if p.denies {
		outcome = ", so everything is denied that it could deny; correct it"
	}
	p.add(ReasonInvalid, path, format+outcome, args...)
}

// target returns all pods of the namespace, and false, for a target that cannot be read.
func (p policyReader) target(path string, t *outrigger.AccessTarget) (fact.AccessTarget, bool) {
	all := fact.AccessTarget{Pods: fact.NewSelector(labels.Everything())}
	switch {
	case t.Kind == "Pod" && t.Selector != nil:
		selector, err := metav1.LabelSelectorAsSelector(t.Selector)
		if err == nil {
			return fact.AccessTarget{Pods: fact.NewSelector(selector)}, true
		}
		p.invalid(path+".selector", "%q is not a selector of labels and counts as all pods of the namespace", err.Error())
	case t.Kind == "Service" && isObjectLabel(t.Name):
		return fact.AccessTarget{Service: t.Name}, true
	case t.Kind == "ServiceAccount" && isObjectName(t.Name):
		return fact.AccessTarget{ServiceAccount: t.Name}, true
	case t.Kind == "Service" || t.Kind == "ServiceAccount":
		p.invalid(path+".name", "%q is not the name of a %s, and the target counts as all pods of the namespace", t.Name, t.Kind)
	case t.Kind == "Pod":
		p.invalid(path+".selector", "a Pod needs a selector, and the target counts as all pods of the namespace")
	default:
		p.invalid(path+".kind", "%q is not a kind of target, which is Pod, Service or ServiceAccount, and counts as all pods of the namespace", t.Kind)
	}
	return all, false
}

func (p policyReader) rule(path string, r *outrigger.AccessRule) fact.PolicyRule {
	rule := fact.PolicyRule{Field: path, Everyone: r.Sources == nil, AnyPort: r.Ports == nil, OnlyRequests: r.HTTP != nil || r.Token != nil}
	for i := range r.Sources {
		at := index(path+".sources", i)
		if block := r.Sources[i].IPBlock; block != "" && p.isOnly(&r.Sources[i]) {
			if prefix, ok := p.block(at+".ipBlock", block); ok {
				rule.Ranges = append(rule.Ranges, prefix)
			}
			rule.Everyone = rule.Everyone || p.denies
		} else if source, ok := p.source(at, &r.Sources[i]); ok {
			rule.Sources = append(rule.Sources, source)
		} else {
			rule.Everyone = rule.Everyone || p.denies
		}
	}
	lost := false
	for i := range r.NotSources {
		at := index(path+".notSources", i)
		if r.NotSources[i].IPBlock != "" {
			p.invalid(at+".ipBlock", "ranges of addresses cannot be excepted")
			lost = true
		} else if source, ok := p.source(at, &r.NotSources[i]); ok {
			rule.Except = append(rule.Except, source)
		} else {
			lost = true
		}
	}
	for i, port := range r.Ports {
		if port < 1 || port > maxPort {
			p.invalid(index(path+".ports", i), "%d is not a port", port)
			rule.AnyPort = rule.AnyPort || p.denies
			continue
		}
		rule.Ports = append(rule.Ports, uint16(port))
	}
	if rule.Requests = p.requests(path+".http", r.HTTP); lost && !p.denies {
		// Without the exception the rule would allow more.
		rule.Requests = nil
	}
	if r.Token != nil {
		rule.Requests = p.withToken(path+".token", rule.Requests, r.Token)
	}
	return rule
}

func (p policyReader) requests(path string, matches []gateway.HTTPRouteMatch) []mesh.HTTPMatch {
	if matches == nil {
		return []mesh.HTTPMatch{{}}
	}
	var requests []mesh.HTTPMatch
	for i := range matches {
		at := index(path, i)
		match, ok := p.httpRouteMatch(at, &matches[i])
		for k, q := range match.Query {
			if q.Regex != "" {
				p.invalid(index(at+".queryParams", k)+".type", "proxies cannot compare the value of a parameter with a regular expression for access")
				ok = false
			}
		}
		switch {
		case ok:
			requests = append(requests, match.HTTPMatch)
		case p.denies:
			p.invalid(at, "the match cannot be used")
			requests = append(requests, mesh.HTTPMatch{})
		}
	}
	return requests
}

// isOnly reports whether the source has one field.
func (p policyReader) isOnly(s *outrigger.AccessSource) bool {
	set := 0
	for _, isSet := range []bool{s.ServiceAccount != nil, s.Namespaces != nil, s.SPIFFE != "", s.IPBlock != ""} {
		if isSet {
			set++
		}
	}
	return set == 1
}

func (p policyReader) source(path string, s *outrigger.AccessSource) (fact.PolicySource, bool) {
	switch {
	case !p.isOnly(s):
		p.invalid(path, "a source needs exactly one of serviceAccount, namespaces, spiffe and ipBlock")
	case s.Namespaces != nil:
		selector, err := metav1.LabelSelectorAsSelector(s.Namespaces)
		if err == nil {
			namespaces := fact.NewSelector(selector)
			return fact.PolicySource{Namespaces: &namespaces}, true
		}
		p.invalid(path+".namespaces", "%q is not a selector of labels", err.Error())
	case s.SPIFFE != "":
		id, err := mesh.ParseIdentity(s.SPIFFE)
		if err == nil && id.Validate() == nil {
			return fact.PolicySource{Identity: id}, true
		}
		p.invalid(path+".spiffe", "%q is not of the form spiffe://<trust domain>/ns/<namespace>/sa/<service account>", s.SPIFFE)
	default:
		id := mesh.Identity{Namespace: s.ServiceAccount.Namespace, ServiceAccount: s.ServiceAccount.Name}
		if id.Namespace == "" {
			id.Namespace = p.namespace
		}
		switch {
		case !isObjectLabel(id.Namespace):
			p.invalid(path+".serviceAccount.namespace", "%q is not the name of a namespace", id.Namespace)
		case id.ServiceAccount != "" && !isObjectName(id.ServiceAccount):
			p.invalid(path+".serviceAccount.name", "%q is not the name of a service account", id.ServiceAccount)
		default:
			return fact.PolicySource{Identity: id}, true
		}
	}
	return fact.PolicySource{}, false
}

func (p policyReader) block(path, text string) (netip.Prefix, bool) {
	if p.denies {
		p.add(ReasonNotSupported, path, "a range of addresses can only be allowed, so this rule denies everybody; name the callers that are not denied in notSources")
		return netip.Prefix{}, false
	}
	prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil || prefix.Addr().Is4In6() {
		p.invalid(path, "%q is not a range of addresses such as 10.0.0.0/8", text)
		return netip.Prefix{}, false
	}
	return prefix.Masked(), true
}
