package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestTokens says which proxies get issuers, and what those get that verify no tokens.
func TestTokens(t *testing.T) {
	staff := []mesh.HTTPMatch{{Methods: []string{"GET"}, Token: &mesh.TokenMatch{Issuer: "i"}}}
	asks := func(action fact.AccessAction, issuer string) fact.Fact {
		return policyOf("shop/policy", action, fact.AccessTarget{Pods: podsWith(t, "").Pods}, fact.PolicyRule{
			Field: "spec.rules[0]", Everyone: true, AnyPort: true, OnlyRequests: true, Requests: []mesh.HTTPMatch{{Methods: []string{"GET"}, Token: &mesh.TokenMatch{Issuer: issuer}}},
		})
	}
	issuer := func(name, text string, algorithms ...mesh.TokenAlgorithm) fact.Fact {
		policy := &fact.TokenPolicy{Name: parseName(name), Issuers: []fact.TokenIssuer{{Field: "spec.issuers[0]", Issuer: text}}}
		for _, algorithm := range algorithms {
			policy.Issuers[0].Keys = append(policy.Issuers[0].Keys, mesh.TokenKey{Algorithm: algorithm, Public: []byte(name)})
		}
		return factOf(kindTokenPolicy, name, policy, nil)
	}
	elsewhere := factOf(kindTokenPolicy, "shop/c", &fact.TokenPolicy{Name: parseName("shop/c"), Issuers: []fact.TokenIssuer{{Field: "spec.issuers[0]", Issuer: "i", ConfigMapKey: "a"}}}, nil)
	keys := func(namespace, set string, of fact.KeySet) fact.Fact {
		return factOf("ConfigMap", namespace+"/"+fact.TokenKeysName, &fact.TokenKeys{Sets: map[string]fact.KeySet{set: of}}, nil)
	}
	fetchedBy := func(issuer string) fact.Fact {
		return factOf(kindTokenPolicy, "shop/c", &fact.TokenPolicy{Name: parseName("shop/c"), Issuers: []fact.TokenIssuer{{Field: "spec.issuers[0]", Issuer: "i", Fetched: fact.KeyAddress{URL: "https://i", Issuer: issuer}}}}, nil)
	}
	fetched := func(issuer string, of fact.KeySet) fact.Fact {
		return fact.Fact{Object: fact.KeyAddress{URL: "https://i", Issuer: issuer}.Object(), Content: mesh.Seal(&fact.TokenKeys{Sets: map[string]fact.KeySet{"": of}})}
	}
	good := fact.KeySet{Keys: []mesh.TokenKey{{Algorithm: mesh.TokenRS256, Public: []byte("key")}}}
	issuers := []fact.Fact{issuer("shop/z", "i", mesh.TokenRS256), issuer("shop/b", "j"), issuer("shop/a", "i", mesh.TokenPS256, mesh.TokenEdDSA), issuer("users/a", "i", mesh.TokenRS256)}
	base := slices.Concat(server("shop/cart", "10.96.0.1", "10.1.0.1", port(80, 8080, mesh.HTTP)), list(
		namespace("shop"), namespace("users"), pod("shop/cart-1", "cart", "10.1.0.1"), pod("users/web-1", "web", "10.1.0.2"), settings(func(s *mesh.Settings) { s.PermissivePolicy = true }),
	))
	lacking := func(lacked ...mesh.Feature) FeaturesOf {
		return func(string) []mesh.Feature {
			return slices.DeleteFunc(mesh.Features(), func(f mesh.Feature) bool { return slices.Contains(lacked, f) })
		}
	}
	none := func(string) []mesh.Feature { return mesh.Features() }
	for name, tt := range map[string]struct {
		facts    []fact.Fact
		features FeaturesOf
		// issuers are "ISSUER/POLICY", and those of the policy c with the number of keys. requests are those of the rule or the denial.
		issuers  []string
		requests []mesh.HTTPMatch
		problems []string
	}{
		"an Allow":                      {append(issuers, asks(fact.Allow, "i")), none, []string{"i/a", "i/z", "j/b"}, staff, []string{"TokenPolicy users/a NoEffect spec.issuers"}},
		"a Deny":                        {append(issuers, asks(fact.Deny, "i")), none, []string{"i/a", "i/z", "j/b"}, staff, []string{"TokenPolicy users/a NoEffect spec.issuers"}},
		"no rule":                       {issuers, none, nil, nil, []string{"TokenPolicy shop/a NoEffect spec.issuers", "TokenPolicy shop/b NoEffect spec.issuers", "TokenPolicy shop/z NoEffect spec.issuers", "TokenPolicy users/a NoEffect spec.issuers"}},
		"an unknown issuer":             {append(issuers[1:2:2], asks(fact.Allow, "i")), none, []string{"j/b"}, staff, []string{"AccessPolicy shop/policy NotFound spec.rules[0].token.issuer"}},
		"no issuer":                     {list(asks(fact.Deny, "")), none, nil, []mesh.HTTPMatch{{Methods: []string{"GET"}, Token: &mesh.TokenMatch{}}}, []string{"AccessPolicy shop/policy NotFound spec.rules[0].token"}},
		"an Allow, without the feature": {append(issuers[:1:1], asks(fact.Allow, "i")), lacking(mesh.FeatureTokens), nil, nil, []string{"AccessPolicy shop/policy NotSupportedByProxy spec.rules[0]"}},
		"a Deny, without the feature":   {append(issuers[:1:1], asks(fact.Deny, "i")), lacking(mesh.FeatureTokens), nil, []mesh.HTTPMatch{{Methods: []string{"GET"}}}, []string{"AccessPolicy shop/policy NotSupportedByProxy spec.rules[0]"}},
		"keys that a class cannot use": {append(issuers[:3:3], asks(fact.Allow, "i")), lacking(mesh.FeatureTokensPSS, mesh.FeatureTokensEdDSA), []string{"i/a", "i/z", "j/b"}, staff,
			[]string{"TokenPolicy shop/a NotSupportedByProxy spec.issuers[0]", "TokenPolicy shop/a NotSupportedByProxy spec.issuers[0]"}},
		"keys of a ConfigMap":                 {list(elsewhere, asks(fact.Allow, "i"), keys("shop", "a", good)), none, []string{"i/c+1"}, staff, nil},
		"keys of no ConfigMap":                {list(elsewhere, asks(fact.Allow, "i")), none, []string{"i/c"}, staff, []string{"TokenPolicy shop/c NotFound spec.issuers[0].jwksFrom.configMapKey"}},
		"keys of another namespace":           {list(elsewhere, asks(fact.Deny, "i"), keys("users", "a", good)), none, []string{"i/c"}, staff, []string{"TokenPolicy shop/c NotFound spec.issuers[0].jwksFrom.configMapKey"}},
		"keys of a ConfigMap that lacks them": {list(elsewhere, asks(fact.Allow, "i"), keys("shop", "b", good)), none, []string{"i/c"}, staff, []string{"TokenPolicy shop/c NotFound spec.issuers[0].jwksFrom.configMapKey"}},
		"keys that were fetched":              {list(fetchedBy("i"), asks(fact.Allow, "i"), fetched("", good)), none, []string{"i/c"}, staff, []string{"TokenPolicy shop/c NotFound spec.issuers[0].jwksFrom.discovery"}},
		"keys that were discovered":           {list(fetchedBy("i"), asks(fact.Allow, "i"), fetched("i", good)), none, []string{"i/c+1"}, staff, nil},
		"keys that were fetched before":       {list(fetchedBy(""), asks(fact.Allow, "i"), fetched("", fact.KeySet{Keys: good.Keys, Flaws: []fact.Flaw{{Reason: "NotFetched", Message: "later"}}})), none, []string{"i/c+1"}, staff, []string{"TokenPolicy shop/c NotFetched spec.issuers[0].jwksFrom.url"}},
		"bad keys of a ConfigMap": {list(elsewhere, asks(fact.Allow, "i"), keys("shop", "a", fact.KeySet{Flaws: []fact.Flaw{{Reason: "Invalid", Message: "bad"}}})), none, []string{"i/c"}, staff,
			[]string{"TokenPolicy shop/c Invalid spec.issuers[0].jwksFrom.configMapKey"}},
		"keys of a ConfigMap that a class cannot use": {list(elsewhere, asks(fact.Allow, "i"), keys("shop", "a", fact.KeySet{Keys: []mesh.TokenKey{{Algorithm: mesh.TokenEdDSA, Public: []byte("key")}}})), lacking(mesh.FeatureTokensEdDSA), []string{"i/c+1"}, staff,
			[]string{"TokenPolicy shop/c NotSupportedByProxy spec.issuers[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := BuildFor(slices.Concat(base, tt.facts), Options{Features: tt.features, Fetches: true})
			in := viewOf(t, s, "shop/cart-1").Inbound
			var got []string
			for _, i := range in.Issuers {
				at := i.Issuer + "/" + i.Origin.Object.Name
				if len(i.Keys) > 0 && i.Origin.Object.Name == "c" {
					at = fmt.Sprintf("%s+%d", at, len(i.Keys))
				}
				got = append(got, at)
			}
			if diff := gocmp.Diff(tt.issuers, got); diff != "" {
				t.Errorf("issuers (-want +got):\n%s", diff)
			}
			port, _ := in.PortOf(8080)
			var requests []mesh.HTTPMatch
			for _, rule := range port.Access.Rules {
				requests = append(requests, rule.Requests...)
			}
			for _, d := range port.Access.Denials {
				requests = append(requests, d.Requests...)
			}
			if diff := gocmp.Diff(tt.requests, requests); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if in.Others.Anyone && slices.ContainsFunc(tt.facts, func(f fact.Fact) bool { p, ok := f.Content.(*fact.AccessPolicy); return ok && p.Action == fact.Allow }) {
				t.Error("other ports are open")
			}
			var problems []string
			for _, all := range s.Problems.All() {
				for _, p := range all.List {
					problems = append(problems, strings.Join([]string{p.Object.Kind, p.Object.Namespace + "/" + p.Object.Name, p.Reason, p.Field}, " "))
				}
			}
			slices.Sort(problems)
			if diff := gocmp.Diff(tt.problems, problems); diff != "" {
				t.Errorf("Problems (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTokensNotFetched builds a mesh as commands do, which fetch no keys and so miss none.
func TestTokensNotFetched(t *testing.T) {
	policy := &fact.TokenPolicy{Name: parseName("shop/c"), Issuers: []fact.TokenIssuer{{Field: "spec.issuers[0]", Issuer: "i", Fetched: fact.KeyAddress{URL: "https://i"}}}}
	rule := fact.PolicyRule{Field: "spec.rules[0]", Everyone: true, AnyPort: true, OnlyRequests: true, Requests: []mesh.HTTPMatch{{Token: &mesh.TokenMatch{}}}}
	facts := list(namespace("shop"), pod("shop/cart-1", "cart", "10.1.0.1"), settings(), factOf(kindTokenPolicy, "shop/c", policy, nil),
		policyOf("shop/policy", fact.Allow, fact.AccessTarget{Pods: podsWith(t, "").Pods}, rule))
	for fetches, want := range map[bool]int{false: 0, true: 1} {
		found, _ := BuildFor(facts, Options{Fetches: fetches}).Problems.Get("TokenPolicy shop/c")
		n := 0
		if found != nil {
			n = len(found.List)
		}
		if n != want {
			t.Errorf("if keys are fetched is %t, there are %d Problems, want %d", fetches, n, want)
		}
	}
}
