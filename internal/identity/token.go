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

// TokenKey makes and verifies tokens for a mesh without a cluster, where no API server
// does. The zero value is no key: it mints nothing and verifies nothing. It shows
// itself in no log.
type TokenKey struct{ key []byte }

// TokenClaims is what a token says.
type TokenClaims struct {
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
	// Pod and PodUID are the pod's name and UID.
	Pod    string `json:"pod"`
	PodUID string `json:"podUID"`
	// Audience is whom the token is for; the signing service wants Audience.
	Audience string `json:"audience"`
	// NotAfter is when the token ends.
	NotAfter time.Time `json:"notAfter"`
}

var errNoTokenKey = errors.New("there is no key for tokens")

// LoadTokenKey reads the key from the file token.key of a folder, and makes both if
// they are missing. Programs that do so at once get one key. Nobody but the owner may be
// able to read it.
func LoadTokenKey(dir string) (TokenKey, error) {
	path := filepath.Join(dir, tokenKeyFile)
	k, err := readTokenKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if err := makeTokenKey(dir, path); err != nil {
		return TokenKey{}, fmt.Errorf("making the key for tokens: %w", err)
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
		return TokenKey{}, fmt.Errorf("the key for tokens, %s, has the mode %s: others could read it; make it -rw-------", path, info.Mode())
	}
	key, err := io.ReadAll(io.LimitReader(f, tokenKeySize+1))
	if err != nil {
		return TokenKey{}, fmt.Errorf("reading the key for tokens: %w", err)
	}
	if len(key) != tokenKeySize {
		return TokenKey{}, fmt.Errorf("the key for tokens, %s, is not %d bytes long; delete it to have another made", path, tokenKeySize)
	}
	return TokenKey{key}, nil
}

// makeTokenKey writes a new key, unless another program was faster.
func makeTokenKey(dir, path string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// Files that CreateTemp makes have the mode 0600.
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
	// A link is made whole or not at all, and never over a file that is there.
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Mint returns a token of the claims, all of which have to be there.
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

// Verify returns what a token says if it was minted with this key, is for the audience
// and has not ended. The error wraps ErrToken and never holds the token.
func (k TokenKey) Verify(token, audience string) (TokenClaims, error) {
	if len(k.key) == 0 {
		return TokenClaims{}, errNoTokenKey
	}
	refuse := func(format string, args ...any) (TokenClaims, error) {
		return TokenClaims{}, fmt.Errorf("%w: "+format, append([]any{ErrToken}, args...)...)
	}
	at := strings.LastIndexByte(token, '.')
	// Package base64 passes over the ends of lines.
	if !strings.HasPrefix(token, tokenPrefix) || at < len(tokenPrefix) || strings.ContainsAny(token, "\r\n") {
		return refuse("it is not of the form that this mesh mints")
	}
	encoding := base64.RawURLEncoding.Strict()
	mac, err := encoding.DecodeString(token[at+1:])
	if err != nil || !hmac.Equal(mac, k.sign(token[:at])) {
		return refuse("it was not minted with the key of this mesh, or changed since")
	}
	text, err := encoding.DecodeString(token[len(tokenPrefix):at])
	if err != nil {
		return refuse("its claims can't be read")
	}
	var claims TokenClaims
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&claims); err != nil {
		return refuse("its claims can't be read")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return refuse("there is something after its claims")
	}
	if claims.Audience != audience {
		return refuse("it is for the audience %q, want %q", claims.Audience, audience)
	}
	if !time.Now().Before(claims.NotAfter) {
		return refuse("it ended at %s", claims.NotAfter.UTC().Format(time.RFC3339))
	}
	return claims, nil
}

func (k TokenKey) sign(body string) []byte {
	mac := hmac.New(sha256.New, k.key)
	mac.Write([]byte(body))
	return mac.Sum(nil)
}

// Format keeps the key out of any text, whatever the verb. JSON has no field to show.
func (k TokenKey) Format(state fmt.State, _ rune) { fmt.Fprint(state, "a key for tokens") }

// Review is for TokenReviewer. Whether the pod is still there is for the service's
// Member to say.
func (k TokenKey) Review(_ context.Context, token string) (Workload, error) {
	claims, err := k.Verify(token, Audience)
	if err != nil {
		return Workload{}, err
	}
	return Workload{
		Namespace: claims.Namespace, ServiceAccount: claims.ServiceAccount, Pod: claims.Pod, PodUID: claims.PodUID,
	}, nil
}
