package identity_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/identity"
)

func loadTokenKey(t testing.TB, dir string) identity.TokenKey {
	t.Helper()
	key, err := identity.LoadTokenKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// claims are the claims of a token that is valid for an hour.
func claims(w identity.Workload) identity.TokenClaims {
	return identity.TokenClaims{
		Namespace: w.Namespace, ServiceAccount: w.ServiceAccount, Pod: w.Pod, PodUID: w.PodUID,
		Audience: "outrigger", NotAfter: time.Now().Add(time.Hour).UTC().Truncate(time.Second),
	}
}

func mint(t testing.TB, key identity.TokenKey, c identity.TokenClaims) string {
	t.Helper()
	token, err := key.Mint(c)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestTokenRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "as well")
	key, want := loadTokenKey(t, dir), claims(shopper)
	token := mint(t, key, want)
	if strings.ContainsAny(token, " \r\n") {
		t.Errorf("the token %q does not fit a header", token)
	}
	// Another program, or this one after a restart.
	got, err := loadTokenKey(t, dir).Verify(token, "outrigger")
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Verify: %v (-want +got):\n%s", err, diff)
	}
	w, err := key.Review(t.Context(), token)
	if diff := cmp.Diff(shopper, w); err != nil || diff != "" {
		t.Errorf("Review: %v (-want +got):\n%s", err, diff)
	}
}

func TestTokenIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		key := loadTokenKey(t, dir)
		good := mint(t, key, claims(shopper))
		body, mac, _ := strings.Cut(strings.TrimPrefix(good, "outrigger1."), ".")
		// signed signs any text with the key.
		secret, err := os.ReadFile(filepath.Join(dir, "token.key"))
		if err != nil {
			t.Fatal(err)
		}
		signed := func(body string) string {
			h := hmac.New(sha256.New, secret)
			h.Write([]byte(body))
			return body + "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
		}
		other := claims(shopper)
		other.ServiceAccount = "bank"
		elsewhere := claims(shopper)
		elsewhere.Audience = "https://kubernetes.default.svc"
		for name, token := range map[string]string{
			"empty":                   "",
			"nothing but a prefix":    "outrigger1.",
			"dots":                    "outrigger1...",
			"no signature":            "outrigger1." + body,
			"an empty signature":      "outrigger1." + body + ".",
			"another prefix":          "outrigger2." + body + "." + mac,
			"half a signature":        good[:len(good)-8],
			"more after it":           good + "A",
			"an end of line after it": good + "\n",
			"a space after it":        good + " ",
			"of another key":          mint(t, loadTokenKey(t, t.TempDir()), claims(shopper)),
			"the claims of another":   strings.SplitAfter(mint(t, key, other), ".")[0] + strings.SplitAfter(mint(t, key, other), ".")[1] + mac,
			"for another audience":    mint(t, key, elsewhere),
			"signed, not base64":      signed("outrigger1.%%%"),
			"signed, not JSON":        signed("outrigger1." + base64.RawURLEncoding.EncodeToString([]byte("{"))),
			"signed, unknown claims":  signed("outrigger1." + base64.RawURLEncoding.EncodeToString([]byte(`{"audience":"outrigger","notAfter":"2999-01-01T00:00:00Z","admin":true}`))),
			"signed, without an end":  signed("outrigger1." + base64.RawURLEncoding.EncodeToString([]byte(`{"audience":"outrigger"}`))),
			"signed, more after it":   signed("outrigger1." + base64.RawURLEncoding.EncodeToString([]byte(`{"namespace":"shop","serviceAccount":"web","pod":"a","podUID":"b","audience":"outrigger","notAfter":"2999-01-01T00:00:00Z"}{"namespace":"bank"}`))),
			"a token of a cluster":    "eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOlsib3V0cmlnZ2VyIl19.c2lnbmF0dXJl",
			"a signature of nothing":  signed(""),
			"only a signed prefix":    signed("outrigger1."),
			"the signature of itself": signed(good),
		} {
			got, err := key.Verify(token, "outrigger")
			if !errors.Is(err, identity.ErrToken) || got != (identity.TokenClaims{}) {
				t.Errorf("%s: Verify = %v, %v, want ErrToken", name, got, err)
			}
			if err != nil && len(token) > 20 && strings.Contains(err.Error(), token) {
				t.Errorf("%s: the error %q shows the token", name, err)
			}
		}
		for _, token := range spellings(good) {
			if got, err := key.Verify(token, "outrigger"); !errors.Is(err, identity.ErrToken) {
				t.Errorf("the token is taken in another spelling, %q for %q: %v, %v", token, good, got, err)
			}
		}
		if _, err := key.Verify(good, "outrigger"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if _, err := key.Verify(good, "outrigger"); !errors.Is(err, identity.ErrToken) || !strings.Contains(err.Error(), "expired") {
			t.Errorf("a token that has ended: %v", err)
		}
	})
}

// spellings returns texts that a base64 decoder might accept as the same token.
func spellings(token string) []string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	all := []string{token + "=", token + "==", strings.ReplaceAll(token, "-", "+") + " ", strings.ToUpper(token[:9]) + token[9:], " " + token, "Bearer " + token}
	for i := range len(token) + 1 {
		for _, gap := range []string{"\n", "\r", "\r\n", " ", "\t", "\x00", "="} {
			all = append(all, token[:i]+gap+token[i:])
		}
	}
	// The last letter of each part has unused bits.
	parts := strings.Split(token, ".")
	for i, part := range parts {
		for _, letter := range alphabet {
			other := slices.Clone(parts)
			if other[i] = part[:len(part)-1] + string(letter); other[i] != part {
				all = append(all, strings.Join(other, "."))
			}
		}
	}
	return all
}

func TestMintWantsAllClaims(t *testing.T) {
	key := loadTokenKey(t, t.TempDir())
	for name, change := range map[string]func(*identity.TokenClaims){
		"namespace":       func(c *identity.TokenClaims) { c.Namespace = "" },
		"service account": func(c *identity.TokenClaims) { c.ServiceAccount = "" },
		"pod":             func(c *identity.TokenClaims) { c.Pod = "" },
		"UID":             func(c *identity.TokenClaims) { c.PodUID = "" },
		"audience":        func(c *identity.TokenClaims) { c.Audience = "" },
		"end":             func(c *identity.TokenClaims) { c.NotAfter = time.Time{} },
	} {
		c := claims(shopper)
		change(&c)
		if token, err := key.Mint(c); err == nil {
			t.Errorf("without its %s a token was minted: %s", name, token)
		}
	}
}

func TestNoTokenKey(t *testing.T) {
	var none identity.TokenKey
	if token, err := none.Mint(claims(shopper)); err == nil {
		t.Errorf("a token was minted without a key: %s", token)
	}
	// Anybody can compute the signature of an empty key.
	h := hmac.New(sha256.New, nil)
	body := "outrigger1." + base64.RawURLEncoding.EncodeToString([]byte(`{"audience":"outrigger","notAfter":"2999-01-01T00:00:00Z"}`))
	h.Write([]byte(body))
	if c, err := none.Verify(body+"."+base64.RawURLEncoding.EncodeToString(h.Sum(nil)), "outrigger"); err == nil {
		t.Errorf("a token was taken without a key: %v", c)
	}
}

func TestTokenKeyFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "token.key")
	key := loadTokenKey(t, dir)
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 || info.Size() != 32 {
		t.Errorf("the key's file is %v, %v, want 32 bytes for the owner alone", info, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("there is something beside the key: %v, %v", entries, err)
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("loaded", "key", key)
	for _, text := range []string{fmt.Sprint(key), fmt.Sprintf("%v %+v %#v %s %x %q %d", key, key, key, key, key, key, key), log.String()} {
		for _, form := range []string{string(secret), fmt.Sprintf("%x", secret), fmt.Sprint(secret), fmt.Sprint(secret[:4])[1:8], base64.StdEncoding.EncodeToString(secret)} {
			if strings.Contains(text, form) {
				t.Errorf("the key is in %q", text)
			}
		}
	}

	for name, spoil := range map[string]func() error{
		"others can read it": func() error { return os.Chmod(path, 0o640) },
		"it is short":        func() error { return os.WriteFile(path, secret[:31], 0o600) },
		"it is long":         func() error { return os.WriteFile(path, append(secret, 0), 0o600) },
		"it is empty":        func() error { return os.WriteFile(path, nil, 0o600) },
		"it is a folder":     func() error { return os.Mkdir(path, 0o700) },
	} {
		if err := errors.Join(os.RemoveAll(path), os.WriteFile(path, secret, 0o600)); err != nil {
			t.Fatal(err)
		}
		if name == "it is a folder" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if _, err := identity.LoadTokenKey(dir); err == nil {
			t.Errorf("%s, and it was taken", name)
		}
	}
}

func TestTokenKeyIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	var programs sync.WaitGroup
	tokens := make([]string, 16)
	for i := range tokens {
		programs.Go(func() {
			key, err := identity.LoadTokenKey(dir)
			if err == nil {
				tokens[i], err = key.Mint(claims(shopper))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	programs.Wait()
	key := loadTokenKey(t, dir)
	for i, token := range tokens {
		if _, err := key.Verify(token, "outrigger"); err != nil {
			t.Errorf("program %d has another key: %v", i, err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	key := loadTokenKey(f, f.TempDir())
	good := mint(f, key, claims(shopper))
	f.Add(good)
	f.Add("outrigger1..")
	f.Fuzz(func(t *testing.T, token string) {
		if c, err := key.Verify(token, "outrigger"); err == nil && token != good {
			t.Errorf("%q was taken for %v", token, c)
		} else if err != nil && !errors.Is(err, identity.ErrToken) {
			t.Errorf("%q: %v, want ErrToken", token, err)
		}
	})
}
