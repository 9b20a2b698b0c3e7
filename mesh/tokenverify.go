package mesh

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"strings"
	"time"

	// The hashes of the algorithms.
	_ "crypto/sha256"
	_ "crypto/sha512"
)

// VerifyToken returns the token of the request at a time, or nil if it has none that one of the
// issuers has signed. It defines which tokens proxies verify:
//
//   - The request has one line of AuthorizationHeader, which is a TokenHeader. Its three parts are
//     base64url without padding, the first two of them JSON objects.
//   - "iss" is that of a TokenIssuer, one of whose Keys has the token's "alg" and, if both have a name,
//     the token's "kid", and verifies the signature.
//   - "exp" is a number, of which at most TokenLeeway is past. "nbf" is missing, or a number that is at
//     most TokenLeeway ahead. "aud" is missing, a text, or a list of texts.
//
// It does not change its arguments.
func VerifyToken(issuers []TokenIssuer, r *Request, now time.Time) *Token {
	lines := r.Headers[AuthorizationHeader]
	if len(lines) != 1 || !tokenHeader.MatchString(lines[0]) {
		return nil
	}
	_, text, _ := strings.Cut(lines[0], " ")
	signed, signature, _ := cutLast(text, ".")
	head, payload, _ := strings.Cut(signed, ".")
	var header, claims map[string]any
	sum, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || !decodePart(head, &header) || !decodePart(payload, &claims) {
		return nil
	}
	issuer, _ := claims["iss"].(string)
	expiry, expires := claims["exp"].(float64)
	begin, begins := claims["nbf"].(float64)
	_, hasBegin := claims["nbf"]
	algorithm, _ := header["alg"].(string)
	id, named := header["kid"].(string)
	seconds, leeway := float64(now.Unix()), TokenLeeway.Seconds()
	audiences, hasAudiences := audiencesOf(claims)
	if !named && header["kid"] != nil || !hasAudiences || !expires || expiry+leeway < seconds || hasBegin && (!begins || begin-leeway > seconds) {
		return nil
	}
	for _, from := range issuers {
		if from.Issuer != issuer || issuer == "" {
			continue
		}
		for _, key := range from.Keys {
			if string(key.Algorithm) == algorithm && (key.ID == "" || id == "" || key.ID == id) && key.verifies([]byte(signed), sum) {
				return &Token{Issuer: issuer, Audiences: audiences, Claims: claims}
			}
		}
	}
	return nil
}

// cutLast is strings.Cut at the last separator.
func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

func decodePart(part string, into any) bool {
	content, err := base64.RawURLEncoding.DecodeString(part)
	return err == nil && strings.HasPrefix(strings.TrimSpace(string(content)), "{") && json.Unmarshal(content, into) == nil
}

// audiencesOf returns the claim "aud", and false for one of another type.
func audiencesOf(claims map[string]any) ([]string, bool) {
	claim, ok := claims["aud"]
	switch claim := claim.(type) {
	case string:
		return []string{claim}, true
	case []any:
		var all []string
		for _, element := range claim {
			text, ok := element.(string)
			if !ok {
				return nil, false
			}
			all = append(all, text)
		}
		return all, true
	}
	return nil, !ok
}

// hashes are those of the algorithms, apart from EdDSA.
var hashes = map[TokenAlgorithm]crypto.Hash{
	TokenRS256: crypto.SHA256, TokenRS384: crypto.SHA384, TokenRS512: crypto.SHA512,
	TokenES256: crypto.SHA256, TokenES384: crypto.SHA384, TokenES512: crypto.SHA512,
	TokenPS256: crypto.SHA256, TokenPS384: crypto.SHA384, TokenPS512: crypto.SHA512,
}

// Fits reports whether a public key is one for the algorithm: of RSA, of the algorithm's curve, or of
// Ed25519.
func (a TokenAlgorithm) Fits(public any) bool {
	switch key := public.(type) {
	case *rsa.PublicKey:
		if _, ok := hashes[a]; !ok {
			return false
		}
		return strings.HasPrefix(string(a), "RS") || strings.HasPrefix(string(a), "PS")
	case *ecdsa.PublicKey:
		size := map[TokenAlgorithm]int{TokenES256: 256, TokenES384: 384, TokenES512: 521}[a]
		return key.Curve.Params().BitSize == size
	case ed25519.PublicKey:
		return a == TokenEdDSA
	}
	return false
}

// verifies reports whether the key has made the signature.
func (k TokenKey) verifies(signed, signature []byte) bool {
	public, err := x509.ParsePKIXPublicKey(k.Public)
	if err != nil || !k.Algorithm.Fits(public) {
		return false
	}
	if key, ok := public.(ed25519.PublicKey); ok {
		return ed25519.Verify(key, signed, signature)
	}
	hash, ok := hashes[k.Algorithm]
	if !ok {
		return false
	}
	h := hash.New()
	h.Write(signed)
	switch key := public.(type) {
	case *rsa.PublicKey:
		if strings.HasPrefix(string(k.Algorithm), "PS") {
			return rsa.VerifyPSS(key, hash, h.Sum(nil), signature, nil) == nil
		}
		return rsa.VerifyPKCS1v15(key, hash, h.Sum(nil), signature) == nil
	case *ecdsa.PublicKey:
		size := (key.Curve.Params().BitSize + 7) / 8
		if len(signature) != 2*size {
			return false
		}
		return ecdsa.Verify(key, h.Sum(nil), new(big.Int).SetBytes(signature[:size]), new(big.Int).SetBytes(signature[size:]))
	}
	return false
}
