package drivertest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Tokens signs tokens of an issuer, with a key for each algorithm. Several goroutines may use it.
type Tokens struct {
	issuer string
	keys   map[mesh.TokenAlgorithm]crypto.Signer
}

// NewTokens returns an issuer with the claim "iss". It panics if the system has no randomness.
func NewTokens(issuer string) *Tokens {
	must := func(key crypto.Signer, err error) crypto.Signer {
		if err != nil {
			panic(err)
		}
		return key
	}
	curve := func(c elliptic.Curve) crypto.Signer {
		key, err := ecdsa.GenerateKey(c, rand.Reader)
		return must(key, err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	must(rsaKey, err)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	must(edKey, err)
	t := &Tokens{issuer: issuer, keys: map[mesh.TokenAlgorithm]crypto.Signer{
		mesh.TokenES256: curve(elliptic.P256()), mesh.TokenES384: curve(elliptic.P384()), mesh.TokenES512: curve(elliptic.P521()), mesh.TokenEdDSA: edKey,
	}}
	for _, algorithm := range mesh.TokenAlgorithms() {
		if t.keys[algorithm] == nil {
			t.keys[algorithm] = rsaKey
		}
	}
	return t
}

// Issuer returns the issuer as a proxy with the features can use it: its keys are named like their
// algorithms, in lower case.
func (t *Tokens) Issuer(features []mesh.Feature) mesh.TokenIssuer {
	issuer := mesh.TokenIssuer{Origin: Origin("TokenPolicy", "shop/login"), Issuer: t.issuer}
	for _, algorithm := range mesh.TokenAlgorithms() {
		if slices.ContainsFunc(algorithm.Needs(), func(f mesh.Feature) bool { return !slices.Contains(features, f) }) {
			continue
		}
		issuer.Keys = append(issuer.Keys, mesh.TokenKey{ID: strings.ToLower(string(algorithm)), Algorithm: algorithm, Public: t.public(algorithm)})
	}
	return issuer
}

// JWKS returns the keys as a JSON Web Key Set.
func (t *Tokens) JWKS() string {
	encode := base64.RawURLEncoding.EncodeToString
	var keys []map[string]string
	for _, algorithm := range mesh.TokenAlgorithms() {
		key := map[string]string{"alg": string(algorithm), "kid": strings.ToLower(string(algorithm)), "use": "sig"}
		switch public := t.keys[algorithm].Public().(type) {
		case *rsa.PublicKey:
			key["kty"], key["n"], key["e"] = "RSA", encode(public.N.Bytes()), "AQAB"
		case *ecdsa.PublicKey:
			point, _ := public.Bytes()
			key["kty"], key["crv"], key["x"], key["y"] = "EC", public.Curve.Params().Name, encode(point[1:1+len(point)/2]), encode(point[1+len(point)/2:])
		case ed25519.PublicKey:
			key["kty"], key["crv"], key["x"] = "OKP", "Ed25519", encode(public)
		}
		keys = append(keys, key)
	}
	text, _ := json.Marshal(map[string]any{"keys": keys})
	return string(text)
}

func (t *Tokens) public(algorithm mesh.TokenAlgorithm) []byte {
	der, err := x509.MarshalPKIXPublicKey(t.keys[algorithm].Public())
	if err != nil {
		panic(err)
	}
	return der
}

// Claims returns the claims of a token that is good for an hour, with those of more added. A nil value
// removes a claim.
func (t *Tokens) Claims(more map[string]any) map[string]any {
	claims := map[string]any{"iss": t.issuer, "sub": "anna", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range more {
		if claims[name] = value; value == nil {
			delete(claims, name)
		}
	}
	return claims
}

// Sign returns a token with the claims, signed with the key of the algorithm, which its header names.
func (t *Tokens) Sign(algorithm mesh.TokenAlgorithm, claims map[string]any) string {
	return t.SignAs(algorithm, map[string]any{"alg": algorithm, "kid": strings.ToLower(string(algorithm)), "typ": "JWT"}, claims)
}

// SignAs is Sign with a header of the caller's. The payload is any value with a form in JSON.
func (t *Tokens) SignAs(algorithm mesh.TokenAlgorithm, header map[string]any, payload any) string {
	signed := part(header) + "." + part(payload)
	return signed + "." + base64.RawURLEncoding.EncodeToString(t.signature(algorithm, []byte(signed)))
}

func part(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func (t *Tokens) signature(algorithm mesh.TokenAlgorithm, signed []byte) []byte {
	var sum []byte
	var hash crypto.Hash
	switch algorithm[2:] {
	case "256":
		s := sha256.Sum256(signed)
		hash, sum = crypto.SHA256, s[:]
	case "384":
		s := sha512.Sum384(signed)
		hash, sum = crypto.SHA384, s[:]
	case "512":
		s := sha512.Sum512(signed)
		hash, sum = crypto.SHA512, s[:]
	}
	var signature []byte
	var err error
	switch key := t.keys[algorithm].(type) {
	case *ecdsa.PrivateKey:
		r, s, signErr := ecdsa.Sign(rand.Reader, key, sum)
		size := (key.Curve.Params().BitSize + 7) / 8
		signature, err = make([]byte, 2*size), signErr
		r.FillBytes(signature[:size])
		s.FillBytes(signature[size:])
	case *rsa.PrivateKey:
		if algorithm[0] == 'P' {
			signature, err = rsa.SignPSS(rand.Reader, key, hash, sum, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
		} else {
			signature, err = rsa.SignPKCS1v15(nil, key, hash, sum)
		}
	case ed25519.PrivateKey:
		signature = ed25519.Sign(key, signed)
	}
	if err != nil {
		panic(err)
	}
	return signature
}

// HMAC returns a token that is signed with the public key of RS256 as if that were a secret, in one of
// the forms that a proxy may have it in: "pem", "der".
func (t *Tokens) HMAC(form string, claims map[string]any) string {
	secret := t.public(mesh.TokenRS256)
	if form == "pem" {
		secret = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: secret})
	}
	signed := part(map[string]any{"alg": "HS256", "kid": "rs256"}) + "." + part(claims)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// contents returns headers with verified tokens whose claims differ, and some without one.
func (t *Tokens) contents() map[string][]string {
	with := func(more map[string]any) string { return t.Sign(mesh.TokenES256, t.Claims(more)) }
	all := map[string][]string{"no header": nil, "another scheme": {"Authorization", "Basic dXNlcjpwYXNz"}}
	for name, token := range map[string]string{
		"garbage":      "garbage",
		"for the shop": with(map[string]any{"aud": "shop"}), "for several": with(map[string]any{"aud": []string{"x", "shop"}}), "for others": with(map[string]any{"aud": []string{"x", "shops"}}), "for no text": with(map[string]any{"aud": []any{1, nil}}),
		"of a guest": with(map[string]any{"groups": "guests"}), "of staff": with(map[string]any{"groups": []string{"users", "staff"}}), "of no group": with(map[string]any{"groups": []string{}}),
		"of a number": with(map[string]any{"groups": 1}), "of an object": with(map[string]any{"groups": map[string]any{"staff": true}}), "of staff in a text": with(map[string]any{"groups": "users,staff"}), "of null": with(map[string]any{"groups": nil, "admin": []any{nil, true}}),
		"of staff elsewhere": with(map[string]any{"realm": map[string]any{"groups": []string{"staff"}}}), "of a list elsewhere": with(map[string]any{"realm": []any{map[string]any{"groups": "staff"}}}), "with a dot": with(map[string]any{"realm.groups": "staff"}),
		"of an admin": with(map[string]any{"admin": true}), "of no admin": with(map[string]any{"admin": false}), "of an admin as text": with(map[string]any{"admin": "true"}),
		"to read": with(map[string]any{"scope": "list read  x"}), "to read only": with(map[string]any{"scope": "read"}), "to read in a list": with(map[string]any{"scope": []string{"read"}}), "to reads": with(map[string]any{"scope": "reads xread"}),
		"with odd texts": with(map[string]any{"groups": "st\u00e4ff \"\\ \u2028 \U0001f600 \x7f", "https://example.com/x[0].y": "a"}),
	} {
		all["a token "+name] = []string{"Authorization", "Bearer " + token}
	}
	return all
}

// Headers returns headers with tokens that are verified and that are not, by name, in the form of
// AccessCall's Header.
func (t *Tokens) Headers() map[string][]string {
	other := NewTokens(t.issuer)
	now := time.Now()
	good := t.Claims(map[string]any{"aud": "shop"})
	token := t.Sign(mesh.TokenRS256, good)
	head, rest, _ := strings.Cut(token, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	with := func(more map[string]any) string { return t.Sign(mesh.TokenES256, t.Claims(more)) }
	bearer := map[string]string{
		"expired": with(map[string]any{"exp": now.Add(-time.Hour).Unix()}), "expired a moment ago": with(map[string]any{"exp": now.Add(-20 * time.Second).Unix()}),
		"not yet valid": with(map[string]any{"nbf": now.Add(time.Hour).Unix()}), "valid in a moment": with(map[string]any{"nbf": now.Add(20 * time.Second).Unix()}),
		"without an expiry": with(map[string]any{"exp": nil}), "with a text as expiry": with(map[string]any{"exp": "never"}), "with a text as beginning": with(map[string]any{"nbf": "now"}),
		"of another issuer": with(map[string]any{"iss": "https://other.example.com"}), "without an issuer": with(map[string]any{"iss": nil}), "with a list of issuers": with(map[string]any{"iss": []string{t.issuer}}),
		"forged": other.Sign(mesh.TokenES256, good), "with another signature": head + "." + payload + "." + strings.Repeat("A", len(signature)), "without a signature": head + "." + payload + ".",
		"with another payload": head + "." + part(t.Claims(map[string]any{"groups": "staff"})) + "." + signature, "with a short signature": head + "." + payload + ".AA",
		"of no algorithm": part(map[string]any{"alg": "none"}) + "." + payload + ".", "of no algorithm, signed": part(map[string]any{"alg": "none"}) + "." + payload + "." + signature, "without an algorithm": t.SignAs(mesh.TokenRS256, map[string]any{"typ": "JWT"}, good),
		"of the algorithm nOnE": part(map[string]any{"alg": "nOnE"}) + "." + payload + "." + signature, "of an algorithm that is no text": t.SignAs(mesh.TokenRS256, map[string]any{"alg": []string{"RS256"}}, good),
		"with the public key as secret": t.HMAC("pem", good), "with the public key in DER as secret": t.HMAC("der", good),
		"of a key for another algorithm": t.SignAs(mesh.TokenRS256, map[string]any{"alg": "PS256", "kid": "rs256"}, good), "of another algorithm than it says": t.SignAs(mesh.TokenRS256, map[string]any{"alg": "ES256"}, good),
		"of no known key": t.SignAs(mesh.TokenRS256, map[string]any{"alg": "RS256", "kid": "x"}, good), "of the name of another key": t.SignAs(mesh.TokenRS256, map[string]any{"alg": "RS256", "kid": "es256"}, good), "of no key's name": t.SignAs(mesh.TokenES256, map[string]any{"alg": "ES256"}, good),
		"with its own key": other.SignAs(mesh.TokenRS256, map[string]any{"alg": "RS256", "kid": "rs256", "jku": "http://127.0.0.1:1/", "jwk": map[string]string{"kty": "RSA"}}, good),
		"of no object":     t.SignAs(mesh.TokenRS256, map[string]any{"alg": "RS256"}, "x"), "of a list": t.SignAs(mesh.TokenRS256, map[string]any{"alg": "RS256"}, []any{good}),
		"garbage": "garbage", "of empty parts": "..", "of dots": ".....", "of garbage": "YQ.YQ.YQ", "of four parts": token + ".x", "with padding": token + "==", "of standard base64": "a+/b.YQ.YQ", "with a space": token + " x", "with another behind a comma": token + "," + token,
		"empty": "", "large": with(map[string]any{"x": strings.Repeat("x", 20_000)}), "of large garbage": strings.Repeat("YWFh", 8_000), "of many dots": strings.Repeat("a.", 10_000), "of deep objects": head + "." + base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat(`{"a":`, 3000)+"1"+strings.Repeat("}", 3000))) + "." + signature,
		"with bytes that are no text": "a\xff\xfe.YQ.YQ", "with NUL in it": part(map[string]any{"alg": "RS256\x00"}) + "." + payload + "." + signature, "with broken UTF-8 in it": head + "." + base64.RawURLEncoding.EncodeToString([]byte("{\"iss\":\"\xff\"}")) + "." + signature,
	}
	all := map[string][]string{
		"no header": nil, "an empty header": {"Authorization", ""}, "no scheme": {"Authorization", token}, "lower case": {"Authorization", "bearer " + token}, "upper case": {"Authorization", "BEARER " + token}, "mixed case": {"Authorization", "BeArEr " + token},
		"two spaces": {"Authorization", "Bearer  " + token}, "a tab": {"Authorization", "Bearer\t" + token}, "another scheme": {"Authorization", "Basic dXNlcjpwYXNz"}, "a token in another scheme": {"Authorization", "Basic Bearer " + token}, "two schemes": {"Authorization", "Basic dXNl, Bearer " + token},
		"two lines": {"Authorization", "Bearer " + token, "Authorization", "Bearer " + token}, "another line before": {"Authorization", "Basic x", "Authorization", "Bearer " + token}, "another line behind": {"Authorization", "Bearer " + token, "Authorization", "Bearer x"},
		"another header": {"X-Authorization", "Bearer " + token, "Proxy-Authorization", "Bearer " + token}, "a cookie": {"Cookie", "access_token=" + token},
	}
	for _, algorithm := range mesh.TokenAlgorithms() {
		bearer["of "+string(algorithm)] = t.Sign(algorithm, good)
	}
	for name, text := range bearer {
		all["a token "+name] = []string{"Authorization", "Bearer " + text}
	}
	return all
}

// TokenCases returns cases of conditions on tokens, which a driver with FeatureTokens must decide as
// package mesh does. The View's Inbound has the Issuer of the Tokens.
func TokenCases(trustDomain string, tokens *Tokens) []AccessCase {
	web := mesh.Identity{TrustDomain: trustDomain, Namespace: "shop", ServiceAccount: "web"}
	claims := func(values []string, path ...string) *mesh.TokenMatch {
		return &mesh.TokenMatch{Claims: []mesh.ClaimMatch{{Path: path, Values: values}}}
	}
	callsOf := func(headers map[string][]string) (calls []AccessCall) {
		for name := range headers {
			calls = append(calls, AccessCall{Peer: web, Target: "/", Header: headers[name]})
		}
		return append(calls, AccessCall{Peer: web, Target: "/?access_token=" + tokens.Sign(mesh.TokenRS256, tokens.Claims(nil))})
	}
	contents := callsOf(tokens.contents())
	// Whether a token is verified does not depend on the condition.
	all := append(callsOf(tokens.Headers()), contents...)
	var cases []AccessCase
	for name, token := range map[string]*mesh.TokenMatch{
		"any token": {}, "an issuer": {Issuer: tokens.issuer}, "an unknown issuer": {Issuer: "https://other.example.com"}, "an audience": {Audiences: []string{"desk", "shop"}},
		"a group": claims([]string{"staff", "admins"}, "groups"), "a group that is there": claims(nil, "groups"), "a group within": claims([]string{"staff"}, "realm", "groups"), "a name with a dot": claims([]string{"staff"}, "realm.groups"),
		"true": claims([]string{"true"}, "admin"), "false": claims([]string{"false"}, "admin"), "a scope": claims([]string{"read"}, "scope"), "odd texts": claims([]string{"st\u00e4ff \"\\ \u2028 \U0001f600 \x7f"}, "groups"), "an odd name": claims([]string{"a"}, "https://example.com/x[0].y"), "no name": claims([]string{"a"}),
		"all at once": {Issuer: tokens.issuer, Audiences: []string{"shop"}, Claims: []mesh.ClaimMatch{{Path: []string{"sub"}, Values: []string{"anna"}}, {Path: []string{"exp"}}}},
	} {
		requests, calls := []mesh.HTTPMatch{{Token: token}}, contents
		if name == "any token" {
			calls = all
		}
		cases = append(cases,
			AccessCase{name, mesh.Access{Rules: []mesh.Permission{{Origin: Origin("AccessPolicy", "shop/some"), Sources: []mesh.Identity{web}, Requests: requests}}}, calls},
			AccessCase{name + " is denied", mesh.Access{Anyone: true, Denials: []mesh.Denial{{Origin: Origin("AccessPolicy", "shop/none"), Everyone: true, Requests: requests}}}, calls},
		)
	}
	get := mesh.HTTPMatch{Methods: []string{"GET"}, Token: &mesh.TokenMatch{}}
	put := mesh.HTTPMatch{Methods: []string{"PUT"}, Token: &mesh.TokenMatch{}}
	return append(cases,
		AccessCase{"a method or a method", mesh.Access{Rules: []mesh.Permission{{Origin: Origin("AccessPolicy", "shop/some"), Sources: []mesh.Identity{web}, Requests: []mesh.HTTPMatch{put, get}}}}, contents},
		AccessCase{"another method is denied", mesh.Access{Anyone: true, Denials: []mesh.Denial{{Origin: Origin("AccessPolicy", "shop/none"), Everyone: true, Requests: []mesh.HTTPMatch{put}}}}, contents},
	)
}

// fixedKey returns a public key whose private one nobody has, the same each time, or nil.
func fixedKey(algorithm mesh.TokenAlgorithm) []byte {
	text := map[mesh.TokenAlgorithm]string{
		mesh.TokenES256: "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAES/DcZjZRKusrvFJcIO59ki6TJAEH/Mw8HUccvXJYH4YX/atQcsUGyNgm5EPDCmU84NrfbXwoabHqUSp11KB0Ag==",
		mesh.TokenPS256: "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAtqg9aBz2Jjp4M5MdanvLdGK4Bqdk9S2pbRjwFVeqmTjZ4FbZseoReaD2FXluz6ipDlXyr/X8ArktpEspIEufOSiOjJ/JdZFwTgBkJ/b3gZ758KfzbCeOrm9GLHbYZ5kzNiwMCMtKRfOJQv3532WmdGoQ1hZcVHEeBQaepBUes7knO2CPdH4+uPaoerHq5G6IytGkUSrH3n3XBSNVm14IH/mSu+sDUhCTHB6oD91tfrugU0boWjjU4gtXHJWplOW6A2UBRZcCkAdlatNpwUbA4zJFfg6KFNc7tX3rJwSejDBJOjI1w3ZXwbvgFhNUZUbSr2c4fAH0oFz2SliPVzbg5QIDAQAB",
		mesh.TokenEdDSA: "MCowBQYDK2VwAyEA4hTxX1we4bcXKPM0nEKpAQ+pseXPTeB+dWq8wwEyfbY=",
	}[algorithm]
	if text == "" {
		return nil
	}
	der, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		panic(err)
	}
	return der
}
