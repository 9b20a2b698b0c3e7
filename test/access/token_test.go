package access

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

// The issuers of all rounds. Their keys are those that every class with mesh.FeatureTokens can use.
var login, other = sync.OnceValue(func() *drivertest.Tokens { return drivertest.NewTokens("https://login.example.com") }),
	sync.OnceValue(func() *drivertest.Tokens { return drivertest.NewTokens("https://other.example.com") })

var issuers = sync.OnceValue(func() []mesh.TokenIssuer {
	return []mesh.TokenIssuer{login().Issuer(nil), other().Issuer(nil)}
})

// requestHeaders are those of drivertest, good and bad, as fields of requests.
var requestHeaders = sync.OnceValue(func() [][][2]string {
	all := login().Headers()
	var fields [][][2]string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var lines [][2]string
		for i := 0; i+1 < len(all[name]); i += 2 {
			lines = append(lines, [2]string{all[name][i], all[name][i+1]})
		}
		fields = append(fields, lines)
	}
	return fields
})

func (g generator) tokenMatch() *mesh.TokenMatch {
	return &mesh.TokenMatch{
		Issuer:    pick(g, "", "", "https://login.example.com", "https://other.example.com", "https://third.example.com"),
		Audiences: some(g, 2, func() string { return pick(g, "shop", "bank", "desk") }),
		Claims: some(g, 2, func() mesh.ClaimMatch {
			return mesh.ClaimMatch{
				Path:   pick(g, []string{"groups"}, []string{"groups"}, []string{"scope"}, []string{"admin"}, []string{"realm", "groups"}, []string{"a.b"}),
				Values: some(g, 2, func() string { return pick(g, "staff", "guests", "true", "false", "read", "1", "a b") }),
			}
		}),
	}
}

// token returns a token that satisfies the condition, but for a change now and then.
func (g generator) token(m *mesh.TokenMatch) string {
	claim := func() any {
		return pick[any](g, "staff", "guests", true, false, 1, nil, "read staff", []any{"guests", "staff"}, []any{true, "x"}, []any{}, map[string]any{"groups": "staff"}, map[string]any{"groups": []any{"guests", 2}}, "a b")
	}
	from := login()
	if m.Issuer == "https://other.example.com" || g.chance(10) {
		from = other()
	}
	claims := from.Claims(map[string]any{"groups": claim(), "scope": claim(), "admin": claim(), "realm": claim(), "a.b": claim(), "aud": pick[any](g, nil, "shop", "bank", []any{"desk", "shop"}, []any{})})
	if len(m.Audiences) > 0 && g.chance(80) {
		claims["aud"] = pick[any](g, m.Audiences[0], []any{"x", m.Audiences[0]})
	}
	for _, c := range m.Claims {
		if len(c.Path) == 1 && len(c.Values) > 0 && g.chance(80) {
			claims[c.Path[0]] = pick[any](g, c.Values[0], []any{"x", c.Values[0]})
		}
	}
	if g.chance(10) {
		claims["exp"] = time.Now().Add(pick(g, -time.Hour, -10*time.Minute, 24*time.Hour)).Unix()
	}
	return from.Sign(pick(g, mesh.TokenRS256, mesh.TokenES256, mesh.TokenES256, mesh.TokenES384), claims)
}

// withoutTokens returns what a class gets that verifies no tokens: nothing is allowed by a condition on
// one, and everything is denied that it could deny.
func withoutTokens(in *mesh.Inbound) *mesh.Inbound {
	made := &mesh.Inbound{TLS: in.TLS, Others: in.Others}
	for _, p := range in.Ports {
		var access mesh.Access
		access.Anyone, access.Audit = p.Access.Anyone, p.Access.Audit
		for _, rule := range p.Access.Rules {
			rule.Requests = slices.DeleteFunc(slices.Clone(rule.Requests), func(m mesh.HTTPMatch) bool { return m.Token != nil })
			access.Rules = append(access.Rules, rule)
		}
		for _, d := range p.Access.Denials {
			d.Requests = slices.Clone(d.Requests)
			for i := range d.Requests {
				d.Requests[i].Token = nil
			}
			access.Denials = append(access.Denials, d)
		}
		p.Access = access
		p.Ingress = slices.Clone(p.Ingress)
		for i := range p.Ingress {
			p.Ingress[i].Requests = slices.DeleteFunc(slices.Clone(p.Ingress[i].Requests), func(m mesh.HTTPMatch) bool { return m.Token != nil })
		}
		made.Ports = append(made.Ports, p)
	}
	return mesh.Seal(made)
}
