package servercert

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
)

var shopWeb = mesh.Name{Namespace: "shop", Name: "web"}

// TestStore replaces, breaks and deletes a certificate.
func TestStore(t *testing.T) {
	var s Store
	key := newKey(t)
	first, second := certify(t, key, "a.example.com", "*.B.example.com"), certify(t, key, "c.example.com")
	content := func(f fact.Fact) *fact.ServerCertificate { return f.Content.(*fact.ServerCertificate) }
	f, ok := s.Put(secret(first, encode(t, key)))
	if !ok || content(f).Flaw != nil || strings.Join(content(f).Hosts, " ") != "a.example.com *.b.example.com" {
		t.Fatalf("the fact is %+v", content(f))
	}
	pair, ok := s.ServerCertificate(shopWeb)
	if !ok || !bytes.Equal(pair.Chain, first) || pair.Digest != content(f).Chain {
		t.Errorf("the store has %v", pair)
	}
	if text, err := json.Marshal(pair); err != nil || strings.Contains(fmt.Sprintf("%v %+v %s %#v", pair, pair, pair, pair)+string(text), "PRIVATE KEY") {
		t.Error("a private key is printed")
	}
	renewed, _ := s.Put(secret(second, encode(t, key)))
	if content(renewed).Chain == content(f).Chain {
		t.Error("a new certificate has the former digest")
	}
	if broken, _ := s.Put(secret(second, []byte("none"))); content(broken).Flaw == nil {
		t.Error("a broken Secret has no flaw")
	}
	if _, ok := s.ServerCertificate(shopWeb); ok {
		t.Error("the former certificate of a broken Secret is presented")
	}
	_, _ = s.Put(secret(first, encode(t, key)))
	if gone := s.Delete(secret(nil, nil)); gone.Content != nil || gone.Object.Name != "web" {
		t.Errorf("a deletion has the fact %+v", gone)
	}
	if _, ok := s.ServerCertificate(shopWeb); ok {
		t.Error("a deleted certificate is presented")
	}
	other := secret(first, encode(t, key))
	other.Type = corev1.SecretTypeOpaque
	if _, ok := s.Put(other); ok {
		t.Error("a Secret of another type has a fact")
	}
}

// TestFlaws holds that no Secret that a proxy could refuse reaches one, and that no flaw quotes a key.
func TestFlaws(t *testing.T) {
	key, other := newKey(t), newKey(t)
	good := certify(t, key, "a.example.com")
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ chain, key []byte }{
		"nothing":                {},
		"no key":                 {good, nil},
		"no certificate":         {nil, encode(t, key)},
		"another key":            {good, encode(t, other)},
		"text":                   {[]byte("a"), encode(t, key)},
		"half a certificate":     {good[:len(good)/2], encode(t, key)},
		"half a key":             {good, encode(t, key)[:60]},
		"a key as certificate":   {encode(t, key), encode(t, key)},
		"too many certificates":  {bytes.Repeat(good, 17), encode(t, key)},
		"too many names":         {certify(t, key, slices.Repeat([]string{"a.example.com"}, 257)...), encode(t, key)},
		"a short key":            {certify(t, weak, "a.example.com"), encode(t, weak)},
		"a key of another kind":  {certify(t, edwards, "a.example.com"), encode(t, edwards)},
		"a key of a small curve": {certify(t, small, "a.example.com"), encode(t, small)},
	} {
		var s Store
		f, ok := s.Put(secret(tt.chain, tt.key))
		if !ok {
			t.Errorf("%s: there is no fact", name)
			continue
		}
		flaw := f.Content.(*fact.ServerCertificate).Flaw
		if flaw == nil || flaw.Reason != fact.ReasonInvalidCertificateRef || !strings.Contains(flaw.Message, "shop/web") {
			t.Errorf("%s: the flaw is %+v", name, flaw)
		} else if block, _ := pem.Decode(tt.key); block != nil && strings.Contains(flaw.Message, string(tt.key[30:50])) {
			t.Errorf("%s: the flaw quotes the key", name)
		}
		if _, ok := s.ServerCertificate(shopWeb); ok {
			t.Errorf("%s: it is presented", name)
		}
	}
	// What surrounds the blocks reaches no proxy.
	var s Store
	_, _ = s.Put(secret(append([]byte("bind :1\n"), good...), append([]byte("text\n"), encode(t, key)...)))
	if pair, ok := s.ServerCertificate(shopWeb); !ok || strings.Contains(string(pair.Chain)+string(pair.Key), "bind") {
		t.Errorf("the chain is %q", pair.Chain)
	}
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func encode(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	text, err := pki.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func certify(t *testing.T, key crypto.Signer, hosts ...string) []byte {
	t.Helper()
	template := &x509.Certificate{SerialNumber: pki.Serial(), DNSNames: hosts, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func secret(chain, key []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: shopWeb.Namespace, Name: shopWeb.Name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key},
	}
}
