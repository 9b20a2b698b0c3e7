package envoy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// version is the Envoy that the driver is made for.
const version = "1.40.0"

var (
	_ driver.Checker = Driver{}
	_ driver.Finder  = Driver{}
)

// Check has Envoy validate the View's configuration with the bootstrap, which opens
// no port. Envoy is the program that FindProxy finds.
func (Driver) Check(ctx context.Context, view *mesh.View) error {
	program, err := Driver{}.FindProxy()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "outrigger-envoy-")
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := writeExampleIdentity(dir, view.Proxy.Identity); err != nil {
		return fmt.Errorf("envoy: writing an example of an identity: %w", err)
	}
	form, err := staticForm(NewTranslator().Config(view), dir)
	if err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	file := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(file, form, 0o600); err != nil {
		return fmt.Errorf("envoy: %w", err)
	}
	cmd := exec.CommandContext(ctx, program, "--mode", "validate", "--config-path", file,
		"--disable-hot-restart", "--log-level", "error", "--log-format", "%v")
	var output bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("envoy: validating took too long: %w", ctx.Err())
		}
		return fmt.Errorf("envoy: %s refuses the configuration: %w: %s", program, err, strings.TrimSpace(output.String()))
	}
	return nil
}

// FindProxy returns the path of Envoy: the program that the variable ENVOY names, or the
// one in PATH, or the one that 'make envoy' installs.
func (Driver) FindProxy() (string, error) {
	if program := os.Getenv("ENVOY"); program != "" {
		found, err := exec.LookPath(program)
		if err != nil {
			return "", fmt.Errorf("envoy: %w: ENVOY is %q: %v", driver.ErrNoProxy, program, err)
		}
		return filepath.Abs(found)
	}
	if program, err := exec.LookPath("envoy"); err == nil {
		return filepath.Abs(program)
	}
	cache := os.Getenv("OUTRIGGER_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("envoy: %w: %v", driver.ErrNoProxy, err)
		}
		cache = filepath.Join(user, "outrigger")
	}
	program, err := exec.LookPath(filepath.Join(cache, "envoy-"+version, "envoy"))
	if err != nil {
		return "", fmt.Errorf("envoy: %w: run 'make envoy', set ENVOY to the path of an Envoy %s, or put it into PATH", driver.ErrNoProxy, version)
	}
	return filepath.Abs(program)
}

// writeExampleIdentity writes the files that the agent keeps, with a certificate of
// nobody's.
func writeExampleIdentity(dir string, id mesh.Identity) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	uri, err := url.Parse(id.String())
	if err != nil {
		return err
	}
	certificate := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: id.CommonName()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{id.DNSName()}, URIs: []*url.URL{uri},
	}
	chain, err := x509.CreateCertificate(rand.Reader, certificate, certificate, key.Public(), key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	pemChain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain})
	return writeIdentity(dir, pemChain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), pemChain)
}

func writeIdentity(dir string, chain, key, bundle []byte) error {
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "chain.pem"), chain, 0o600),
		os.WriteFile(filepath.Join(dir, "key.pem"), key, 0o600),
		os.WriteFile(filepath.Join(dir, "bundle.pem"), bundle, 0o600),
	)
}
