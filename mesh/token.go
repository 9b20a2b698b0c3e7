package mesh

import (
	"crypto/x509"
	"encoding/pem"
	"regexp"
	"slices"
	"strings"
	"time"
)

// TokenIssuer issues tokens that say who the user behind a request is: JSON Web Tokens (RFC 7519)
// with a signature (RFC 7515). A token comes in the one line of the header "authorization", after
// "Bearer " or "bearer ".
type TokenIssuer struct {
	// Origin is that of the issuer.
	Origin Origin `json:"origin,omitzero"`
	// Issuer is the claim "iss" of its tokens, not empty.
	Issuer string `json:"issuer"`
	// Keys are those that it signs with. Without keys no token of the issuer is verified.
	Keys []TokenKey `json:"keys,omitempty"`
}

// TokenKey is a public key of an issuer.
type TokenKey struct {
	// ID is the key's name, or empty. A token that names a key, in "kid" of its header, is not
	// verified with a key of another name.
	ID string `json:"id,omitempty"`
	// Algorithm is the only one that the key is for. A token with another "alg" in its header
	// is not verified with the key.
	Algorithm TokenAlgorithm `json:"algorithm"`
	// Public is the key as a SubjectPublicKeyInfo in DER. It fits the Algorithm.
	Public []byte `json:"public"`
}

// TokenAlgorithm is an algorithm of signatures, as RFC 7518 and RFC 8037 name it.
type TokenAlgorithm string

// The algorithms. None of them has a secret key.
const (
	TokenRS256 TokenAlgorithm = "RS256"
	TokenRS384 TokenAlgorithm = "RS384"
	TokenRS512 TokenAlgorithm = "RS512"
	TokenES256 TokenAlgorithm = "ES256"
	TokenES384 TokenAlgorithm = "ES384"
	TokenES512 TokenAlgorithm = "ES512"
	TokenPS256 TokenAlgorithm = "PS256"
	TokenPS384 TokenAlgorithm = "PS384"
	TokenPS512 TokenAlgorithm = "PS512"
	TokenEdDSA TokenAlgorithm = "EdDSA"
)

// Needs returns the feature that verifying signatures of the algorithm requires besides
// FeatureTokens, or none.
func (a TokenAlgorithm) Needs() []Feature {
	switch a {
	case TokenPS256, TokenPS384, TokenPS512:
		return []Feature{FeatureTokensPSS}
	case TokenEdDSA:
		return []Feature{FeatureTokensEdDSA}
	}
	return nil
}

// TokenLeeway is how far the clocks of an issuer and a proxy may differ: a token is verified for so
// long after its "exp" and before its "nbf".
const TokenLeeway = time.Minute

// AuthorizationHeader is the header that tokens come in. Where a rule has a condition on tokens,
// a denial with such a condition also refuses requests with this header in which no token is verified.
const AuthorizationHeader = "authorization"

// TokenHeader is an RE2 and PCRE2 expression for the whole value of AuthorizationHeader that may
// contain a token. Proxies verify none in any other value.
const TokenHeader = `[Bb]earer [A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+`

var tokenHeader = regexp.MustCompile(`\A(?:` + TokenHeader + `)\z`)

// Token is a verified token.
type Token struct {
	// Issuer and Audiences are the claims "iss" and "aud".
	Issuer    string
	Audiences []string
	// Claims are all claims as encoding/json decodes them.
	Claims map[string]any
}

// TokenMatch is a condition on the verified token of a request: all its parts must hold. The zero
// TokenMatch holds for every verified token. A request without one never satisfies it.
type TokenMatch struct {
	// Issuer is that of the token. Empty means any issuer that the proxy knows.
	Issuer string `json:"issuer,omitempty"`
	// Audiences are those of which the token must have one. Empty means any, or none.
	Audiences []string `json:"audiences,omitempty"`
	// Claims must all hold.
	Claims []ClaimMatch `json:"claims,omitempty"`
}

// ClaimMatch is a condition on a claim.
type ClaimMatch struct {
	// Path leads to the claim: its name or, within objects, several names. It is not empty.
	Path []string `json:"path"`
	// Values are those of which the claim must be one, or have one as an element of its list. They
	// are compared with texts, and "true" and "false" with these two values too. The claim "scope"
	// is a list of words if it is a text. Empty means any value.
	Values []string `json:"values,omitempty"`
}

// Matches reports whether the condition holds for a verified token, which is nil if there is none.
func (m *TokenMatch) Matches(t *Token) bool {
	if t == nil || m.Issuer != "" && m.Issuer != t.Issuer {
		return false
	}
	if len(m.Audiences) > 0 && !slices.ContainsFunc(t.Audiences, func(a string) bool { return slices.Contains(m.Audiences, a) }) {
		return false
	}
	return !slices.ContainsFunc(m.Claims, func(c ClaimMatch) bool { return !c.matches(t.Claims) })
}

// denies reports whether a denial with the condition refuses the request: if its token satisfies the
// condition, or if it has an AuthorizationHeader in which no token is verified, since the
// application could read one there.
func (m *TokenMatch) denies(r *Request) bool {
	return m.Matches(r.Token) || r.Token == nil && len(r.Headers[AuthorizationHeader]) > 0
}

// IsScope reports whether the claim, if it is a text, is a list of words.
func (m ClaimMatch) IsScope() bool { return len(m.Path) == 1 && m.Path[0] == "scope" }

func (m ClaimMatch) matches(claims map[string]any) bool {
	value, ok := any(claims), len(m.Path) > 0
	for _, name := range m.Path {
		object, _ := value.(map[string]any)
		if value, ok = object[name]; !ok {
			return false
		}
	}
	if len(m.Values) == 0 {
		return ok
	}
	list, isList := value.([]any)
	text, isText := value.(string)
	switch {
	case isText && m.IsScope():
		list = nil
		for word := range strings.SplitSeq(text, " ") {
			list = append(list, word)
		}
	case !isList:
		list = []any{value}
	}
	return slices.ContainsFunc(list, func(element any) bool {
		switch element := element.(type) {
		case string:
			return slices.Contains(m.Values, element)
		case bool:
			return element && slices.Contains(m.Values, "true") || !element && slices.Contains(m.Values, "false")
		}
		return false
	})
}

// TokenAlgorithms returns the algorithms, in a new slice.
func TokenAlgorithms() []TokenAlgorithm {
	return []TokenAlgorithm{TokenRS256, TokenRS384, TokenRS512, TokenES256, TokenES384, TokenES512, TokenPS256, TokenPS384, TokenPS512, TokenEdDSA}
}

// Name returns a name of the condition, letters, digits and dots that equal conditions have in common.
func (m *TokenMatch) Name() string {
	digest := DigestOf(m).String()
	return digest[:8] + "." + digest[8:16] + "." + digest[16:24] + "." + digest[24:32]
}

// TokenMatches returns the conditions on tokens of all rules of the ports, by their names.
func (in *Inbound) TokenMatches() map[string]*TokenMatch {
	all := make(map[string]*TokenMatch)
	add := func(requests []HTTPMatch) {
		for _, m := range requests {
			if m.Token != nil {
				all[m.Token.Name()] = m.Token
			}
		}
	}
	for i := range in.Ports {
		for _, rule := range in.Ports[i].Access.Rules {
			add(rule.Requests)
		}
		for _, d := range in.Ports[i].Access.Denials {
			add(d.Requests)
		}
		for _, rule := range in.Ports[i].Ingress {
			add(rule.Requests)
		}
	}
	return all
}

// PEM returns the public key in PEM, or nothing if it does not fit the Algorithm.
func (k TokenKey) PEM() []byte {
	if public, err := x509.ParsePKIXPublicKey(k.Public); err != nil || !k.Algorithm.Fits(public) {
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: k.Public})
}
