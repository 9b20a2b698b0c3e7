package envoy

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	// tokenFilter is also the name of the metadata in which the filter leaves the claims of a verified
	// token, as claimsKey.
	tokenFilter = "envoy.filters.http.jwt_authn"
	claimsKey   = "claims"
)

// verifyTokens returns the filter that verifies tokens of the issuers, if a rule of the port asks for
// one. It refuses nothing: the rules do.
func verifyTokens(p *mesh.InboundPort, issuers []mesh.TokenIssuer) []*hcmv3.HttpFilter {
	if !slices.Contains(p.ComparedHeaders(), mesh.AuthorizationHeader) && !asksForToken(p.Access.Evaluated()) {
		return nil
	}
	config := &jwtv3.JwtAuthentication{Providers: make(map[string]*jwtv3.JwtProvider)}
	var any []*jwtv3.JwtRequirement
	for i, issuer := range issuers {
		keys := jwksOf(issuer.Keys)
		if keys == "" || !areTexts(issuer.Issuer) {
			continue
		}
		name := strconv.Itoa(i) + " " + issuer.Issuer
		config.Providers[name] = &jwtv3.JwtProvider{
			Issuer:              issuer.Issuer,
			JwksSourceSpecifier: &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: keys}}},
			// Otherwise the token could also come in a parameter of the query.
			FromHeaders: []*jwtv3.JwtHeader{
				{Name: mesh.AuthorizationHeader, ValuePrefix: "Bearer "}, {Name: mesh.AuthorizationHeader, ValuePrefix: "bearer "},
			},
			Forward:                    true,
			RequireExpiration:          true,
			ClockSkewSeconds:           uint32(mesh.TokenLeeway.Seconds()),
			PayloadInMetadata:          claimsKey,
			NormalizePayloadInMetadata: &jwtv3.JwtProvider_NormalizePayload{SpaceDelimitedClaims: []string{"scope"}},
		}
		any = append(any, &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{ProviderName: name}})
	}
	if len(any) == 0 {
		return nil
	}
	any = append(any, &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_AllowMissingOrFailed{AllowMissingOrFailed: &emptypb.Empty{}}})
	config.Rules = []*jwtv3.RequirementRule{{
		Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		RequirementType: &jwtv3.RequirementRule_Requires{Requires: &jwtv3.JwtRequirement{
			RequiresType: &jwtv3.JwtRequirement_RequiresAny{RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: any}},
		}},
	}}
	return []*hcmv3.HttpFilter{httpFilterOf(tokenFilter, config)}
}

func asksForToken(rules []mesh.Permission) bool {
	return slices.ContainsFunc(rules, func(rule mesh.Permission) bool {
		return slices.ContainsFunc(rule.Requests, func(m mesh.HTTPMatch) bool { return m.Token != nil })
	})
}

// webKey is a JSON Web Key.
type webKey struct {
	Type      string `json:"kty"`
	ID        string `json:"kid,omitempty"`
	Algorithm string `json:"alg"`
	Curve     string `json:"crv,omitempty"`
	Modulus   string `json:"n,omitempty"`
	Exponent  string `json:"e,omitempty"`
	X         string `json:"x,omitempty"`
	Y         string `json:"y,omitempty"`
}

// jwksOf returns a JSON Web Key Set, or "" without keys. Each key names its algorithm, so Envoy
// verifies no token of another one with it.
func jwksOf(keys []mesh.TokenKey) string {
	set := make([]webKey, 0, len(keys))
	encode := base64.RawURLEncoding.EncodeToString
	for _, key := range keys {
		web := webKey{ID: key.ID, Algorithm: string(key.Algorithm)}
		public, err := x509.ParsePKIXPublicKey(key.Public)
		if err != nil || !key.Algorithm.Fits(public) {
			continue
		}
		switch public := public.(type) {
		case *rsa.PublicKey:
			web.Type, web.Modulus, web.Exponent = "RSA", encode(public.N.Bytes()), encode(big.NewInt(int64(public.E)).Bytes())
		case *ecdsa.PublicKey:
			point, err := public.Bytes()
			if err != nil {
				continue
			}
			half := len(point[1:]) / 2
			web.Type, web.Curve, web.X, web.Y = "EC", public.Curve.Params().Name, encode(point[1:1+half]), encode(point[1+half:])
		case ed25519.PublicKey:
			web.Type, web.Curve, web.X = "OKP", "Ed25519", encode(public)
		}
		set = append(set, web)
	}
	if len(set) == 0 {
		return ""
	}
	// Texts are always valid JSON.
	text, _ := json.Marshal(map[string]any{"keys": set})
	return string(text)
}

// tokenLine matches requests whose header can contain a token. Envoy itself finds tokens behind any
// text, and the first of several in one line.
var tokenLine = header(requestMatch(mesh.AuthorizationHeader, regex(mesh.TokenHeader)))

// verified matches requests with a token that satisfies the condition.
func verified(m *mesh.TokenMatch) *rbacv3.Permission {
	if !canMatchToken(m) {
		return not(anyPermission[0])
	}
	issuer := present
	if m.Issuer != "" {
		issuer = oneText(m.Issuer)
	}
	all := []*rbacv3.Permission{tokenLine, claim(issuer, "iss")}
	if len(m.Audiences) > 0 {
		all = append(all, claim(textIn(m.Audiences), "aud"))
	}
	for _, c := range m.Claims {
		switch {
		case len(c.Path) == 0:
			return not(anyPermission[0])
		case len(c.Values) == 0:
			all = append(all, claim(present, c.Path...))
		default:
			all = append(all, claim(textIn(c.Values), c.Path...))
		}
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: all}}}
}

// deniedToken matches what a denial with the condition refuses: everything if Envoy cannot express it.
func deniedToken(m *mesh.TokenMatch) *rbacv3.Permission {
	if !canMatchToken(m) {
		return anyPermission[0]
	}
	unclear := []*rbacv3.Permission{
		header(headerMatch(mesh.KeyMatch{Name: mesh.AuthorizationHeader, StringMatch: mesh.StringMatch{Present: true}})), not(verified(&mesh.TokenMatch{})),
	}
	return either(verified(m), &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: unclear}}})
}

// canMatchToken reports whether Envoy takes the texts of the condition.
func canMatchToken(m *mesh.TokenMatch) bool {
	return areTexts(m.Issuer) && areTexts(m.Audiences...) && !slices.ContainsFunc(m.Claims, func(c mesh.ClaimMatch) bool {
		return !areTexts(c.Path...) || !areTexts(c.Values...) || slices.Contains(c.Path, "")
	})
}

func areTexts(texts ...string) bool {
	return !slices.ContainsFunc(texts, func(text string) bool { return len(text) > maxText || !isText(text) })
}

// claim matches requests with a verified token that has the claim with the value.
func claim(value *matcherv3.ValueMatcher, path ...string) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_SourcedMetadata{SourcedMetadata: &rbacv3.SourcedMetadata{
		MetadataMatcher: &matcherv3.MetadataMatcher{
			Filter: tokenFilter, Value: value,
			Path: each(append([]string{claimsKey}, path...), func(key string) *matcherv3.MetadataMatcher_PathSegment {
				return &matcherv3.MetadataMatcher_PathSegment{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: key}}
			}),
		},
		MetadataSource: rbacv3.MetadataSource_DYNAMIC,
	}}}
}

var present = &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}

func oneText(text string) *matcherv3.ValueMatcher {
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_StringMatch{StringMatch: exact(text)}}
}

// textIn matches a value that is one of the texts, and a list that has one of them.
func textIn(texts []string) *matcherv3.ValueMatcher {
	var any []*matcherv3.ValueMatcher
	for _, text := range texts {
		any = append(any, oneText(text))
		if text == "true" || text == "false" {
			any = append(any, &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_BoolMatch{BoolMatch: text == "true"}})
		}
	}
	for _, one := range any[:len(any):len(any)] {
		any = append(any, &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_ListMatch{
			ListMatch: &matcherv3.ListMatcher{MatchPattern: &matcherv3.ListMatcher_OneOf{OneOf: one}},
		}})
	}
	return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_OrMatch{OrMatch: &matcherv3.OrMatcher{ValueMatchers: any}}}
}
