package catalog

import (
	"cmp"
	"slices"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// hasToken reports whether the match has a condition on tokens.
func hasToken(m mesh.HTTPMatch) bool { return m.Token != nil }

// withoutTokens returns the requests for a class that verifies no tokens: nothing is allowed by a
// condition on a token, and everything is denied that it could deny.
func withoutTokens(requests []mesh.HTTPMatch, denies bool) []mesh.HTTPMatch {
	if !slices.ContainsFunc(requests, hasToken) {
		return requests
	}
	var made []mesh.HTTPMatch
	for _, m := range requests {
		if m.Token == nil || denies {
			m.Token = nil
			made = append(made, m)
		}
	}
	return made
}

// issuersFor returns the issuers of the workloads' namespace if a rule of a port asks for a token.
func (j *join) issuersFor(r *graph.Reader, key inboundKey, ports []mesh.InboundPort) []mesh.TokenIssuer {
	if !slices.ContainsFunc(ports, asksForToken) {
		return nil
	}
	var issuers []mesh.TokenIssuer
	for _, name := range j.tokenPoliciesIn.Get(r, key.account.Namespace) {
		policy, _ := j.tokenPolicies.Get(r, name)
		for _, issuer := range policy.Issuers {
			issuers = append(issuers, mesh.TokenIssuer{Origin: originOf(kindTokenPolicy, name, issuer.Field), Issuer: issuer.Issuer, Keys: issuer.Keys})
		}
	}
	slices.SortStableFunc(issuers, func(a, b mesh.TokenIssuer) int { return cmp.Compare(a.Issuer, b.Issuer) })
	return issuers
}

func asksForToken(p mesh.InboundPort) bool {
	return slices.ContainsFunc(p.Access.Rules, func(rule mesh.Permission) bool { return slices.ContainsFunc(rule.Requests, hasToken) }) ||
		slices.ContainsFunc(p.Access.Denials, func(d mesh.Denial) bool { return slices.ContainsFunc(d.Requests, hasToken) }) ||
		slices.ContainsFunc(p.Ingress, func(i mesh.Ingress) bool { return slices.ContainsFunc(i.Requests, hasToken) })
}

// asksOfIssuers returns what the keys of issuers ask for. That tokens are verified at all, the rules
// ask for.
func asksOfIssuers(issuers []mesh.TokenIssuer) []ask {
	var asks []ask
	for _, issuer := range issuers {
		for _, key := range issuer.Keys {
			asks = append(asks, asksOf(issuer.Origin, key.Algorithm.Needs())...)
		}
	}
	return asks
}

// tokensOf yields the conditions on tokens of a policy, each with the field of its rule.
func tokensOf(policy *fact.AccessPolicy, yield func(field string, token *mesh.TokenMatch)) {
	for i := range policy.Rules {
		// All requests of a rule have the same condition.
		if requests := policy.Rules[i].Requests; len(requests) > 0 && requests[0].Token != nil {
			yield(policy.Rules[i].Field+".token", requests[0].Token)
		}
	}
}

// inspectTokens reports conditions that no token can satisfy, since the namespace has no such issuer.
func (j *join) inspectTokens(r *graph.Reader, policy *fact.AccessPolicy, f *fault) {
	tokensOf(policy, func(field string, token *mesh.TokenMatch) {
		known := false
		for _, name := range j.tokenPoliciesIn.Get(r, policy.Namespace) {
			issuers, _ := j.tokenPolicies.Get(r, name)
			known = known || slices.ContainsFunc(issuers.Issuers, func(i fact.TokenIssuer) bool { return token.Issuer == "" || token.Issuer == i.Issuer })
		}
		outcome := "nothing is allowed by the rule"
		if policy.Action == fact.Deny {
			outcome = "only requests are denied that have any token"
		}
		switch {
		case known:
		case token.Issuer == "":
			f.add(ReasonNotFound, field, "namespace %s has no TokenPolicy, so no token is verified and %s; create one with the issuer's keys", policy.Namespace, outcome)
		default:
			f.add(ReasonNotFound, field+".issuer", "no TokenPolicy of namespace %s has the issuer %q, so none of its tokens is verified and %s; create one with the issuer's keys, or correct the issuer", policy.Namespace, token.Issuer, outcome)
		}
	})
}

// inspectTokenPolicy reports a policy whose issuers no AccessPolicy of the namespace asks for.
func (j *join) inspectTokenPolicy(r *graph.Reader, policy *fact.TokenPolicy, f *fault) {
	used := false
	for _, a := range j.accessPoliciesIn.Get(r, policy.Namespace) {
		access, _ := j.accessPolicies.Get(r, a.key)
		tokensOf(access, func(string, *mesh.TokenMatch) { used = true })
	}
	if !used {
		f.add(ReasonNoEffect, "spec.issuers", "no AccessPolicy of namespace %s asks for a token, so the issuers have no effect; add a rule with token", policy.Namespace)
	}
}
