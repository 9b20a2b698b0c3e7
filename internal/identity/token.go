package identity

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// tokenKeyFile is the name of the key's file.
	tokenKeyFile = "token.key"
	tokenKeySize = 32

	// tokenPrefix names the form of a token. It is authenticated with the claims.
	tokenPrefix = "outrigger1."
)

// TokenKey mints and verifies tokens for a mesh without a cluster, and so without an API
// server. The zero value has no key and can neither mint nor verify. Printing it does not
// reveal the key.
type TokenKey struct{ key []byte }

// TokenClaims are the claims of a token.
type TokenClaims struct {
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
	// Pod and PodUID are the pod's name and UID.
	Pod    string `json:"pod"`
	PodUID string `json:"podUID"`
	// Audience is the token's audience; the signing service requires Audience.
	Audience string `json:"audience"`
	// NotAfter is when the token expires.
	NotAfter time.Time `json:"notAfter"`
}

var errNoTokenKey = errors.New("there is no key for tokens")

// LoadTokenKey reads the key from the file token.key of a folder and creates both if they
// are missing. Concurrent programs get the same key. The file must be readable only by its
// owner.
func LoadTokenKey(dir string) (TokenKey, error) {
	path := filepath.Join(dir, tokenKeyFile)
	k, err := readTokenKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if err := createTokenKey(dir, path); err != nil {
		return TokenKey{}, fmt.Errorf("creating the key for tokens: %w", err)
	}
	return readTokenKey(path)
}

func readTokenKey(path string) (TokenKey, error) {
	f, err := os.Open(path)
	if err != nil {
		return TokenKey{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return TokenKey{}, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return TokenKey{}, fmt.Errorf("the key for tokens, %s, has the mode %s, so others could read it; change it to -rw-------", path, info.Mode())
	}
	key, err := io.ReadAll(io.LimitReader(f, tokenKeySize+1))
	if err != nil {
		return TokenKey{}, fmt.Errorf("reading the key for tokens: %w", err)
	}
	if len(key) != tokenKeySize {
		return TokenKey{}, fmt.Errorf("the key for tokens, %s, is not %d bytes long; delete it to create a new one", path, tokenKeySize)
	}
	return TokenKey{key}, nil
}

// createTokenKey writes a new key, unless another program was faster.
func createTokenKey(dir, path string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// CreateTemp creates files with mode 0600.
	f, err := os.CreateTemp(dir, "."+tokenKeyFile+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	key := make([]byte, tokenKeySize)
	if _, err := rand.Read(key); err != nil {
		return errors.Join(err, f.Close())
	}
	_, err = f.Write(key)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	// Creating a link is atomic and never replaces an existing file.
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Mint returns a token with the claims, all of which are required.
func (k TokenKey) Mint(claims TokenClaims) (string, error) {
	if len(k.key) == 0 {
		return "", errNoTokenKey
	}
	if claims.Namespace == "" || claims.ServiceAccount == "" || claims.Pod == "" || claims.PodUID == "" || claims.Audience == "" || claims.NotAfter.IsZero() {
		return "", fmt.Errorf("a token for the pod %s/%s lacks one of its claims", claims.Namespace, claims.Pod)
	}
	text, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("encoding the claims of a token: %w", err)
	}
	body := tokenPrefix + base64.RawURLEncoding.EncodeToString(text)
	return body + "." + base64.RawURLEncoding.EncodeToString(k.sign(body)), nil
}

// Verify returns the claims of a token that was minted with this key, is for the audience
// and has not expired. The error wraps ErrToken and never contains the token.
func (k TokenKey) Verify(token, audience string) (TokenClaims, error) {
	if len(k.key) == 0 {
		return TokenClaims{}, errNoTokenKey
	}
	refuse := func(format string, args ...any) (TokenClaims, error) {
		return TokenClaims{}, fmt.Errorf("%w: "+format, append([]any{ErrToken}, args...)...)
	}
	at := strings.LastIndexByte(token, '.')
	// Package base64 ignores line ends.
	if !strings.HasPrefix(token, tokenPrefix) || at < len(tokenPrefix) || strings.ContainsAny(token, "\r\n") {
		return refuse("it is not in the format of this mesh")
	}
	encoding := base64.RawURLEncoding.Strict()
	mac, err := encoding.DecodeString(token[at+1:])
	if err != nil || !hmac.Equal(mac, k.sign(token[:at])) {
		return refuse("it was not minted with the key of this mesh, or was modified")
	}
	text, err := encoding.DecodeString(token[len(tokenPrefix):at])
	if err != nil {
		return refuse("its claims are unreadable")
	}
	var claims TokenClaims
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&claims); err != nil {
		return refuse("its claims are unreadable")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return refuse("unexpected data after its claims")
	}
	if claims.Audience != audience {
		return refuse("it is for the audience %q, want %q", claims.Audience, audience)
	}
	if !time.Now().Before(claims.NotAfter) {
		return refuse("it expired at %s", claims.NotAfter.UTC().Format(time.RFC3339))
	}
	return claims, nil
}

func (k TokenKey) sign(body string) []byte {
	mac := hmac.New(sha256.New, k.key)
	mac.Write([]byte(body))
	return mac.Sum(nil)
}

// Format keeps the key out of formatted text. JSON omits it because it is unexported.
func (k TokenKey) Format(state fmt.State, _ rune) { fmt.Fprint(state, "a key for tokens") }

// Review is for TokenReviewer. The service's Member checks that the pod still exists.
func (k TokenKey) Review(_ context.Context, token string) (Workload, error) {
	claims, err := k.Verify(token, Audience)
	if err != nil {
		return Workload{}, err
	}
	return Workload{
		Namespace: claims.Namespace, ServiceAccount: claims.ServiceAccount, Pod: claims.Pod, PodUID: claims.PodUID,
	}, nil
}
