package mesh_test

import (
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
)

const issuer = "https://login.example.com"

// TestVerifyToken says which tokens are verified. The names are those of drivertest's headers, with
// which real proxies are compared.
func TestVerifyToken(t *testing.T) {
	tokens := drivertest.NewTokens(issuer)
	issuers := []mesh.TokenIssuer{{Issuer: "https://other.example.com"}, tokens.Issuer(mesh.Features())}
	verified := make(map[string]bool)
	for name, header := range tokens.Headers() {
		r := &mesh.Request{Headers: make(map[string][]string)}
		for i := 0; i < len(header); i += 2 {
			key := strings.ToLower(header[i])
			r.Headers[key] = append(r.Headers[key], header[i+1])
		}
		if token := mesh.VerifyToken(issuers, r, time.Now()); token != nil {
			verified[name] = true
			if token.Issuer != issuer || token.Claims["sub"] != "anna" {
				t.Errorf("%s: %+v", name, token)
			}
			if mesh.VerifyToken(issuers, r, time.Now().Add(2*time.Hour)) != nil || mesh.VerifyToken(issuers[:1], r, time.Now()) != nil || mesh.VerifyToken(nil, r, time.Now()) != nil {
				t.Errorf("%s: it is verified when it has expired, or without keys", name)
			}
		}
	}
	want := []string{"lower case", "a token expired a moment ago", "a token valid in a moment", "a token of no key's name", "a token large"}
	for _, algorithm := range mesh.TokenAlgorithms() {
		want = append(want, "a token of "+string(algorithm))
	}
	for _, name := range want {
		if !verified[name] {
			t.Errorf("%s: no token is verified", name)
		}
		delete(verified, name)
	}
	for name := range verified {
		t.Errorf("%s: a token is verified", name)
	}
	// Each key alone verifies its own token, and the keys of other algorithms do not.
	for _, key := range issuers[1].Keys {
		r := &mesh.Request{Headers: map[string][]string{"authorization": {"Bearer " + tokens.SignAs(key.Algorithm, map[string]any{"alg": key.Algorithm}, tokens.Claims(nil))}}}
		for _, other := range issuers[1].Keys {
			alone := []mesh.TokenIssuer{{Issuer: issuer, Keys: []mesh.TokenKey{other}}}
			if got, want := mesh.VerifyToken(alone, r, time.Now()) != nil, other.Algorithm == key.Algorithm; got != want {
				t.Errorf("a token of %s with the key for %s: verified %t", key.Algorithm, other.Algorithm, got)
			}
			mislabelled := []mesh.TokenKey{{Algorithm: key.Algorithm, Public: other.Public}}
			if got, want := mesh.VerifyToken([]mesh.TokenIssuer{{Issuer: issuer, Keys: mislabelled}}, r, time.Now()) != nil, string(other.Public) == string(key.Public); got != want {
				t.Errorf("a token of %s with the key of %s that says it is for the first: verified %t", key.Algorithm, other.Algorithm, got)
			}
		}
	}
}

// TestTokenMatch compares claims, for permissions and for denials.
func TestTokenMatch(t *testing.T) {
	claims := func(name string, value any) *mesh.Token {
		return &mesh.Token{Issuer: issuer, Audiences: []string{"shop", "bank"}, Claims: map[string]any{name: value}}
	}
	where := func(values []string, path ...string) mesh.TokenMatch {
		return mesh.TokenMatch{Claims: []mesh.ClaimMatch{{Path: path, Values: values}}}
	}
	list := func(elements ...any) []any { return elements }
	staff := []string{"staff", "true"}
	for name, tt := range map[string]struct {
		match mesh.TokenMatch
		token *mesh.Token
		want  bool
	}{
		"none":                       {mesh.TokenMatch{}, nil, false},
		"any":                        {mesh.TokenMatch{}, claims("a", "b"), true},
		"an issuer":                  {mesh.TokenMatch{Issuer: issuer}, claims("a", "b"), true},
		"another issuer":             {mesh.TokenMatch{Issuer: issuer + "/"}, claims("a", "b"), false},
		"an audience":                {mesh.TokenMatch{Audiences: []string{"x", "bank"}}, claims("a", "b"), true},
		"another audience":           {mesh.TokenMatch{Audiences: []string{"x", "ban"}}, claims("a", "b"), false},
		"an audience, of none":       {mesh.TokenMatch{Audiences: []string{"x"}}, &mesh.Token{Issuer: issuer}, false},
		"a claim":                    {where(staff, "g"), claims("g", "staff"), true},
		"another case":               {where(staff, "g"), claims("g", "Staff"), false},
		"a list":                     {where(staff, "g"), claims("g", list("a", "staff")), true},
		"a list of others":           {where(staff, "g"), claims("g", list("a", 1.0, nil, list("staff"))), false},
		"true":                       {where(staff, "g"), claims("g", true), true},
		"false":                      {where(staff, "g"), claims("g", false), false},
		"a number":                   {where([]string{"1"}, "g"), claims("g", 1.0), false},
		"an object":                  {where(staff, "g"), claims("g", map[string]any{"staff": true}), false},
		"words of a scope":           {where(staff, "scope"), claims("scope", "a staff"), true},
		"words of another claim":     {where(staff, "g"), claims("g", "a staff"), false},
		"a list of scopes":           {where([]string{"a b"}, "scope"), claims("scope", list("a b")), true},
		"a claim within":             {where(staff, "a", "b"), claims("a", map[string]any{"b": "staff"}), true},
		"a claim within a list":      {where(staff, "a", "b"), claims("a", list(map[string]any{"b": "staff"})), false},
		"a scope within":             {where(staff, "a", "scope"), claims("a", map[string]any{"scope": "x staff"}), false},
		"a claim that is there":      {where(nil, "g"), claims("g", nil), true},
		"a claim that is not there":  {where(nil, "h"), claims("g", nil), false},
		"no path":                    {where(nil), claims("g", "a"), false},
		"two claims of which one is": {mesh.TokenMatch{Claims: []mesh.ClaimMatch{{Path: []string{"g"}}, {Path: []string{"h"}}}}, claims("g", "a"), false},
	} {
		m := mesh.HTTPMatch{Token: &tt.match}
		r := &mesh.Request{Method: "GET", Path: "/", Token: tt.token, Headers: map[string][]string{"authorization": {"Bearer x"}}}
		if got := m.Permits(r); got != tt.want {
			t.Errorf("%s: permitted %t", name, got)
		}
		// What could have a token is denied if there is none.
		if got, want := m.Denies(r), tt.want || tt.token == nil; got != want {
			t.Errorf("%s: denied %t", name, got)
		}
		r.Headers = nil
		if got := m.Denies(r); got != tt.want {
			t.Errorf("%s, without the header: denied %t", name, got)
		}
		if m.Permits(nil) || !m.Denies(nil) {
			t.Errorf("%s: connections are permitted, or not denied", name)
		}
	}
}
