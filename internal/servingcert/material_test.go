package servingcert_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/servingcert"
)

// TestKeyNotPrinted checks that no text contains the key.
func TestKeyNotPrinted(t *testing.T) {
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	scalar, err := ec.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		key   any
		forms []string
	}{
		"ECDSA": {ec, []string{new(big.Int).SetBytes(scalar).String(), fmt.Sprintf("%x", scalar), fmt.Sprint(scalar)}},
		"Ed25519": {ed, []string{
			fmt.Sprintf("%x", []byte(ed)), fmt.Sprint([]byte(ed))[1:40], fmt.Sprintf("%#v", []byte(ed))[7:40],
		}},
	} {
		t.Run(what, func(t *testing.T) {
			material := servingcert.Material{Certificate: tls.Certificate{PrivateKey: test.key}}
			var log bytes.Buffer
			slog.New(slog.NewJSONHandler(&log, nil)).Info("", "material", material, "pointer", &material)
			slog.New(slog.NewTextHandler(&log, nil)).Info("", "material", material, "pointer", &material)
			text := log.String() + fmt.Sprintf("%v %+v %#v %x %v", material, material, material, material, &material)
			for _, form := range test.forms {
				if strings.Contains(text, form) {
					t.Errorf("the key is in %s", text)
				}
			}
		})
	}
}
