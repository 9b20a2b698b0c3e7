package catalog

import (
	"cmp"
	"fmt"
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
			issuers = append(issuers, mesh.TokenIssuer{Origin: originOf(kindTokenPolicy, name, issuer.Field), Issuer: issuer.Issuer, Keys: j.keysOf(r, policy, &issuer).Keys})
		}
	}
	slices.SortStableFunc(issuers, func(a, b mesh.TokenIssuer) int { return cmp.Compare(a.Issuer, b.Issuer) })
	return issuers
}

// keysOf returns the keys of an issuer of a policy. If they are elsewhere and cannot be read there, it
// has no keys.
func (j *join) keysOf(r *graph.Reader, policy *fact.TokenPolicy, issuer *fact.TokenIssuer) fact.KeySet {
	switch {
	case issuer.Fetched != fact.KeyAddress{}:
		fetched, ok := j.fetchedKeys.Get(r, keyOf(issuer.Fetched.Object()).Name)
		switch {
		case !ok && !j.fetches:
			// Nobody knows whether something is wrong.
			return fact.KeySet{}
		case !ok:
			return noKeys("the keys have not been fetched from %q yet, so none of the issuer's tokens is verified; the controller fetches them if spec.traffic.tokenKeys of the MeshConfig allows the host", issuer.Fetched.URL)
		}
		return fetched.Sets[""]
	case issuer.ConfigMapKey == "":
		return fact.KeySet{Keys: issuer.Keys}
	}
	keys, ok := j.tokenKeys.Get(r, mesh.Name{Namespace: policy.Namespace, Name: fact.TokenKeysName})
	if !ok {
		return noKeys("namespace %s has no ConfigMap %s, so none of the issuer's tokens is verified; create it with the issuer's keys in %q", policy.Namespace, fact.TokenKeysName, issuer.ConfigMapKey)
	}
	set, ok := keys.Sets[issuer.ConfigMapKey]
	if !ok {
		return noKeys("ConfigMap %s has no text with the key %q, so none of the issuer's tokens is verified; add the issuer's keys there", fact.TokenKeysName, issuer.ConfigMapKey)
	}
	found := fact.KeySet{Keys: set.Keys}
	for _, flaw := range set.Flaws {
		found.Flaws = append(found.Flaws, fact.Flaw{Reason: flaw.Reason, Message: fmt.Sprintf("%q of ConfigMap %s: %s", issuer.ConfigMapKey, fact.TokenKeysName, flaw.Message)})
	}
	return found
}

// placeOf names the field of a policy that says where the issuer's keys are.
func placeOf(issuer *fact.TokenIssuer) string {
	switch {
	case issuer.Fetched.Issuer != "":
		return "discovery"
	case issuer.Fetched.URL != "":
		return "url"
	}
	return "configMapKey"
}

// noKeys is a set of keys that is not there.
func noKeys(format string, args ...any) fact.KeySet {
	return fact.KeySet{Flaws: []fact.Flaw{{Reason: ReasonNotFound, Message: fmt.Sprintf(format, args...)}}}
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

// inspectTokenPolicy reports keys that cannot be read where they are, and a policy whose issuers no
// AccessPolicy of the namespace asks for.
func (j *join) inspectTokenPolicy(r *graph.Reader, policy *fact.TokenPolicy, f *fault) {
	for i := range policy.Issuers {
		issuer := &policy.Issuers[i]
		for _, flaw := range j.keysOf(r, policy, issuer).Flaws {
			f.add(flaw.Reason, issuer.Field+".jwksFrom."+placeOf(issuer), "%s", flaw.Message)
		}
	}
	used := false
	for _, a := range j.accessPoliciesIn.Get(r, policy.Namespace) {
		access, _ := j.accessPolicies.Get(r, a.key)
		tokensOf(access, func(string, *mesh.TokenMatch) { used = true })
	}
	if !used {
		f.add(ReasonNoEffect, "spec.issuers", "no AccessPolicy of namespace %s asks for a token, so the issuers have no effect; add a rule with token", policy.Namespace)
	}
}
