package source

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	outrigger "github.com/outrigger-mesh/outrigger/apis/outrigger/v1alpha1"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// MaxKeySet limits the text of a set of keys, in bytes.
const MaxKeySet = 64 << 10

// Limits of keys, so that verifying a token costs a proxy little.
const (
	maxKeys                    = 16
	minModulusBits, maxModulus = 2048, 8192
)

// tokenPolicy leaves out keys that it cannot read: no token is verified with them.
func tokenPolicy(obj *outrigger.TokenPolicy, n *notes) mesh.Digester {
	policy := &fact.TokenPolicy{Name: nameOf(&obj.ObjectMeta)}
	n.needed("spec.issuers", len(obj.Spec.Issuers), "issuer, so the policy has no effect")
	for i := range obj.Spec.Issuers {
		path := index("spec.issuers", i)
		declared := &obj.Spec.Issuers[i]
		if declared.Issuer == "" {
			n.add(ReasonMissing, path+".issuer", "an issuer needs the claim \"iss\" of its tokens here, so none of them is verified")
			continue
		}
		issuer := fact.TokenIssuer{Field: path, Issuer: declared.Issuer}
		switch from := declared.JWKSFrom; {
		case from == nil:
			set, _ := ReadKeySet(declared.JWKS)
			issuer.Keys = set.Keys
			for _, flaw := range set.Flaws {
				n.add(flaw.Reason, path+".jwks", "%s", flaw.Message)
			}
		case declared.JWKS != "":
			n.add(ReasonConflict, path+".jwksFrom", "there are keys in jwks too, so none of the issuer's tokens is verified; set one of the two")
		case from.ConfigMapKey == "" && from.URL == "" && from.Discovery == nil:
			n.add(ReasonMissing, path+".jwksFrom", "this names no place of the issuer's keys that this version knows, so none of its tokens is verified; set configMapKey, url or discovery")
		case from.ConfigMapKey != "" && (from.URL != "" || from.Discovery != nil) || from.URL != "" && from.Discovery != nil:
			n.add(ReasonConflict, path+".jwksFrom", "this names several places of the issuer's keys, so none of its tokens is verified; set one of configMapKey, url and discovery")
		case from.ConfigMapKey != "":
			issuer.ConfigMapKey = from.ConfigMapKey
		case from.URL != "":
			if _, err := HTTPSAddress(from.URL); err != nil {
				n.add(ReasonInvalid, path+".jwksFrom.url", "%v, so none of the issuer's tokens is verified; write one such as https://login.example.com/keys", err)
				break
			}
			issuer.Fetched = fact.KeyAddress{URL: from.URL}
		default:
			if u, err := HTTPSAddress(declared.Issuer); err != nil || u.RawQuery != "" {
				n.add(ReasonInvalid, path+".jwksFrom.discovery", "the issuer %q is no URL with https and without a query, so its keys cannot be discovered and none of its tokens is verified; set url", declared.Issuer)
				break
			}
			issuer.Fetched = fact.KeyAddress{URL: strings.TrimSuffix(declared.Issuer, "/") + "/.well-known/openid-configuration", Issuer: declared.Issuer}
		}
		policy.Issuers = append(policy.Issuers, issuer)
	}
	return mesh.Seal(policy)
}

// TokenKeys returns the fact of a ConfigMap with the name fact.TokenKeysName, and false for all others.
// Each of its values is a JSON Web Key Set. Its fact has no Problems: those of a set belong to the
// TokenPolicies that refer to it.
func TokenKeys(configMap *corev1.ConfigMap) (fact.Fact, bool) {
	if configMap.Name != fact.TokenKeysName {
		return fact.Fact{}, false
	}
	content := &fact.TokenKeys{Sets: map[string]fact.KeySet{}}
	for name, text := range configMap.Data {
		content.Sets[name], _ = ReadKeySet(text)
	}
	return fact.Fact{
		Object:  mesh.ObjectRef{APIVersion: "v1", Kind: "ConfigMap", Namespace: configMap.Namespace, Name: configMap.Name},
		Content: mesh.Seal(content),
	}, true
}

// jwk is a JSON Web Key. Its secret parts are only looked for.
type jwk struct {
	Type      string          `json:"kty"`
	Use       string          `json:"use"`
	Uses      []string        `json:"key_ops"`
	ID        string          `json:"kid"`
	Algorithm string          `json:"alg"`
	Curve     string          `json:"crv"`
	Modulus   string          `json:"n"`
	Exponent  string          `json:"e"`
	X         string          `json:"x"`
	Y         string          `json:"y"`
	Private   json.RawMessage `json:"d"`
	Secret    json.RawMessage `json:"k"`
}

// ReadKeySet reads a JSON Web Key Set. Its flaws never quote a part of it, which could be a secret. It
// returns false if the text is no such set, such as one that was cut off, and true for one
// without a key.
func ReadKeySet(text string) (fact.KeySet, bool) {
	var read fact.KeySet
	add := func(reason, format string, args ...any) {
		read.Flaws = append(read.Flaws, fact.Flaw{Reason: reason, Message: fmt.Sprintf(format, args...)})
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if len(text) > MaxKeySet {
		add(ReasonNotSupported, "this is longer than %d KiB, so no token of the issuer is verified; remove the keys that it no longer signs with", MaxKeySet>>10)
		return read, false
	}
	if err := json.Unmarshal([]byte(text), &set); err != nil {
		// The error could quote a part of a key.
		add(ReasonInvalid, "this is no JSON Web Key Set, a JSON object with the list \"keys\", so no token of the issuer is verified; take it from the issuer's jwks_uri")
		return read, false
	}
	for i, raw := range set.Keys {
		var key jwk
		if json.Unmarshal(raw, &key) != nil {
			add(ReasonInvalid, "key %d is no JSON Web Key, so no token is verified with it", i)
			continue
		}
		if key.Private != nil || key.Secret != nil {
			add(ReasonInvalid, "key %d is a private or secret one, with which whoever reads this object can sign tokens, so no token is verified with it; replace it at the issuer, and put only the public key here", i)
			continue
		}
		if key.Use != "" && key.Use != "sig" || key.Uses != nil && !slices.Contains(key.Uses, "verify") || key.Type != "RSA" && key.Type != "EC" && key.Type != "OKP" {
			continue
		}
		algorithm, public, problem := key.public()
		if problem != "" {
			add(ReasonInvalid, "key %d %s, so no token is verified with it", i, problem)
			continue
		}
		if len(read.Keys) == maxKeys {
			add(ReasonNotSupported, "there are more than %d keys; the others are not used, remove those that the issuer no longer signs with", maxKeys)
			break
		}
		read.Keys = append(read.Keys, mesh.TokenKey{ID: key.ID, Algorithm: algorithm, Public: public})
	}
	if len(read.Keys) == 0 {
		add(ReasonMissing, "this has no key that tokens can be verified with, so none of the issuer's tokens is")
	}
	return read, set.Keys != nil
}

// public returns the algorithm that the key is for and the key in DER, or what is wrong with it.
func (k *jwk) public() (algorithm mesh.TokenAlgorithm, der []byte, problem string) {
	var public any
	switch k.Type {
	case "RSA":
		algorithm = mesh.TokenRS256
		modulus, exponent := k.number(k.Modulus), k.number(k.Exponent)
		switch {
		case modulus == nil || exponent == nil:
			return "", nil, `has no "n" and "e" in base64url`
		case modulus.BitLen() < minModulusBits || modulus.BitLen() > maxModulus:
			return "", nil, "has fewer than 2048 or more than 8192 bits"
		case exponent.BitLen() > 31 || exponent.Int64() < 3 || exponent.Bit(0) == 0 || modulus.Bit(0) == 0:
			return "", nil, `has a value of "n" or "e" that no RSA key has`
		}
		public = &rsa.PublicKey{N: modulus, E: int(exponent.Int64())}
	case "EC":
		curve := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[k.Curve]
		algorithm = map[string]mesh.TokenAlgorithm{"P-256": mesh.TokenES256, "P-384": mesh.TokenES384, "P-521": mesh.TokenES512}[k.Curve]
		if curve == nil {
			return "", nil, "is on another curve than P-256, P-384 and P-521"
		}
		size := (curve.Params().BitSize + 7) / 8
		x, y := k.bytes(k.X), k.bytes(k.Y)
		if len(x) != size || len(y) != size {
			return "", nil, `has no "x" and "y" of its curve in base64url`
		}
		key, err := ecdsa.ParseUncompressedPublicKey(curve, slices.Concat([]byte{4}, x, y))
		if err != nil {
			return "", nil, "is no point of its curve"
		}
		public = key
	case "OKP":
		algorithm = mesh.TokenEdDSA
		x := k.bytes(k.X)
		if k.Curve != "Ed25519" || len(x) != ed25519.PublicKeySize {
			return "", nil, "is no key of Ed25519"
		}
		public = ed25519.PublicKey(x)
	}
	if k.Algorithm != "" {
		algorithm = mesh.TokenAlgorithm(k.Algorithm)
	}
	if !algorithm.Fits(public) || !slices.Contains(mesh.TokenAlgorithms(), algorithm) {
		return "", nil, `has an "alg" that is unknown or not for its kind`
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", nil, "cannot be encoded"
	}
	return algorithm, der, ""
}

func (k *jwk) bytes(text string) []byte {
	content, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil {
		return nil
	}
	return content
}

// number returns nil if the text is empty or no base64url.
func (k *jwk) number(text string) *big.Int {
	if content := k.bytes(text); len(content) > 0 {
		return new(big.Int).SetBytes(content)
	}
	return nil
}

// withToken returns the requests with the condition on tokens.
func (p policyReader) withToken(path string, requests []mesh.HTTPMatch, t *outrigger.AccessToken) []mesh.HTTPMatch {
	token, ok := p.token(path, t)
	switch {
	case !ok && p.denies:
		// Without the condition the rule denies more.
		return requests
	case !ok, t.Audiences != nil && len(t.Audiences) == 0, t.Claims != nil && len(t.Claims) == 0,
		slices.ContainsFunc(t.Claims, func(c outrigger.AccessClaim) bool { return c.Values != nil && len(c.Values) == 0 }):
		return nil
	}
	var made []mesh.HTTPMatch
	for _, m := range requests {
		m.Token = token
		made = append(made, m)
	}
	return made
}

// token returns false for a condition that cannot be read.
func (p policyReader) token(path string, t *outrigger.AccessToken) (*mesh.TokenMatch, bool) {
	if p.cluster {
		p.invalid(path, "a ClusterAccessPolicy has no condition on tokens, since the keys are in a namespace")
		return nil, false
	}
	token, ok := &mesh.TokenMatch{Issuer: t.Issuer, Audiences: t.Audiences}, true
	filled := func(path string, texts []string) {
		for i, text := range texts {
			if text == "" {
				p.invalid(index(path, i), "a text must not be empty")
				ok = false
			}
		}
	}
	filled(path+".audiences", t.Audiences)
	for i, claim := range t.Claims {
		at := index(path+".claims", i)
		if len(claim.Path) == 0 {
			p.invalid(at+".path", "a claim needs its name")
			ok = false
		}
		filled(at+".path", claim.Path)
		filled(at+".values", claim.Values)
		token.Claims = append(token.Claims, mesh.ClaimMatch{Path: claim.Path, Values: claim.Values})
	}
	return token, ok
}
