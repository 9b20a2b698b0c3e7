package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
)

// readSigner reads a private key in PKCS #8, of an elliptic curve or Ed25519, in PEM.
func readSigner(file string) (crypto.Signer, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	const remedy = "make one with 'openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256'"
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s has no block PRIVATE KEY in PEM (an encrypted key must be decrypted first); %s", file, remedy)
	}
	// Errors of the parser are left out, since they could quote the key.
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s holds no private key in PKCS #8; %s", file, remedy)
	}
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		return key, nil
	case ed25519.PrivateKey:
		return key, nil
	default:
		return nil, fmt.Errorf("%s holds a key of type %T; %s", file, key, remedy)
	}
}

// sign signs as cosign's sign-blob and openssl's dgst -sha256 do: by ECDSA over the SHA-256 sum
// in ASN.1, or by Ed25519 over the text itself.
func sign(signer crypto.Signer, text []byte) ([]byte, error) {
	if _, ok := signer.(ed25519.PrivateKey); ok {
		return signer.Sign(rand.Reader, text, crypto.Hash(0))
	}
	sum := sha256.Sum256(text)
	return signer.Sign(rand.Reader, sum[:], crypto.SHA256)
}

// envelope returns a signed DSSE envelope in JSON, version 1.
func envelope(signer crypto.Signer, payloadType string, payload []byte) ([]byte, error) {
	signature, err := sign(signer, fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(payload), payload))
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"payloadType": payloadType,
		"payload":     base64.StdEncoding.EncodeToString(payload),
		"signatures":  []map[string]string{{"sig": base64.StdEncoding.EncodeToString(signature)}},
	})
}
