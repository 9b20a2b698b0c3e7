package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// writeKey writes a private key as openssl does, and returns the file.
func writeKey(t *testing.T, key any, blockType string) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func verified(public crypto.PublicKey, text, signature []byte) bool {
	switch public := public.(type) {
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(text)
		return ecdsa.VerifyASN1(public, sum[:], signature)
	case ed25519.PublicKey:
		return ed25519.Verify(public, text, signature)
	}
	return false
}

// TestSigned makes the last files of a release, and verifies them as a user without a network.
func TestSigned(t *testing.T) {
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []crypto.Signer{p256, edwards} {
		t.Run(fmt.Sprintf("%T", key), func(t *testing.T) {
			signer, err := readSigner(writeKey(t, key, "PRIVATE KEY"))
			if err != nil {
				t.Fatal(err)
			}
			r := &release{source: testSource, out: t.TempDir(), registry: "example.com", platforms: []platform{testPlatform}, signer: signer}
			if err := r.write("outrigger.tgz", []byte("a chart")); err != nil {
				t.Fatal(err)
			}
			digest := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("ab", 32)}
			if err := r.provenance([]image{{program: coreProgram, digest: digest}}); err != nil {
				t.Fatal(err)
			}
			if err := r.checksums(); err != nil {
				t.Fatal(err)
			}
			read := func(name string) []byte {
				text, err := os.ReadFile(filepath.Join(r.out, name))
				if err != nil {
					t.Fatal(err)
				}
				return text
			}

			sums := read("outrigger_1.2.3_checksums.txt")
			for _, name := range []string{"outrigger.tgz", "outrigger_1.2.3_provenance.intoto.jsonl"} {
				if line := fmt.Sprintf("%x  %s\n", sha256.Sum256(read(name)), name); !strings.Contains(string(sums), line) {
					t.Errorf("the checksums lack %q", line)
				}
			}
			signature, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(read("outrigger_1.2.3_checksums.txt.sig"))))
			if err != nil {
				t.Fatal(err)
			}
			if !verified(key.Public(), sums, signature) || verified(key.Public(), append(sums, ' '), signature) {
				t.Error("the signature does not hold for the checksums, or holds for others")
			}

			var signed struct {
				PayloadType string `json:"payloadType"`
				Payload     []byte `json:"payload"`
				Signatures  []struct {
					Sig []byte `json:"sig"`
				} `json:"signatures"`
			}
			if err := json.Unmarshal(read("outrigger_1.2.3_provenance.intoto.jsonl"), &signed); err != nil || len(signed.Signatures) != 1 {
				t.Fatalf("the envelope is %+v, %v", signed, err)
			}
			encoded := fmt.Sprintf("DSSEv1 %d %s %d %s", len(signed.PayloadType), signed.PayloadType, len(signed.Payload), signed.Payload)
			if !verified(key.Public(), []byte(encoded), signed.Signatures[0].Sig) {
				t.Error("the signature of the envelope does not hold")
			}
			for _, want := range []string{
				`"predicateType":"https://slsa.dev/provenance/v1"`, `"gitCommit":"0123456789abcdef"`,
				fmt.Sprintf(`{"name":"outrigger.tgz","digest":{"sha256":"%x"}}`, sha256.Sum256([]byte("a chart"))),
				`{"name":"example.com/outrigger","digest":{"sha256":"` + digest.Hex + `"}}`,
			} {
				if !strings.Contains(string(signed.Payload), want) {
					t.Errorf("the provenance lacks %s: %s", want, signed.Payload)
				}
			}
		})
	}
}

// TestOpenSSL runs the commands of README.md.
func TestOpenSSL(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("SKIPPED: openssl is not installed")
	}
	dir := t.TempDir()
	shell := func(command string) ([]byte, error) {
		cmd := exec.Command("bash", "-c", command)
		cmd.Dir = dir
		return cmd.CombinedOutput()
	}
	if out, err := shell("openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem && openssl pkey -in key.pem -pubout -out outrigger.pub"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	signer, err := readSigner(filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	r := &release{source: testSource, out: dir, signer: signer}
	if err := r.checksums(); err != nil {
		t.Fatal(err)
	}
	const verify = "openssl dgst -sha256 -verify outrigger.pub -signature <(base64 -d outrigger_1.2.3_checksums.txt.sig) outrigger_1.2.3_checksums.txt"
	if out, err := shell(verify); err != nil || !strings.Contains(string(out), "Verified OK") {
		t.Errorf("openssl says %v: %s", err, out)
	}
	if out, err := shell("echo >> outrigger_1.2.3_checksums.txt && " + verify); err == nil {
		t.Errorf("openssl takes changed checksums: %s", out)
	}
}

func TestBadKeys(t *testing.T) {
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cut := writeKey(t, curve, "PRIVATE KEY")
	if err := os.WriteFile(cut, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret text")}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{
		"no file": filepath.Join(t.TempDir(), "none"), "RSA": writeKey(t, long, "PRIVATE KEY"), "no DER": cut,
		"encrypted": writeKey(t, curve, "ENCRYPTED SIGSTORE PRIVATE KEY"),
	} {
		if _, err := readSigner(file); err == nil || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "secret text") {
			t.Errorf("%s: the error is %v, want one with the file's name", name, err)
		}
	}
}

func TestNotes(t *testing.T) {
	const page = "# Changes\n\n## 1.2.4\n\n- later\n\n## 1.2.3\n\n### New\n\n- [this](docs/a.md)\n\n## 1.2.2\n\n- before\n"
	r := &release{source: testSource, out: t.TempDir()}
	if err := r.notes([]byte(page)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(r.out, "outrigger_1.2.3_notes.md"))
	if want := "### New\n\n- [this](https://" + modulePath + "/blob/v1.2.3/docs/a.md)\n"; err != nil || string(text) != want {
		t.Errorf("the notes are %q, %v, want %q", text, err, want)
	}
	if err := r.notes([]byte("# Changes\n\n## 1.2.30\n")); err == nil || !strings.Contains(err.Error(), "releasenotes/1.2.3") {
		t.Errorf("a version without notes gives %v", err)
	}
}
