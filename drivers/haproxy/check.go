package haproxy

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
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Check has HAProxy read the configuration of the View, which opens no port.
func (d Driver) Check(ctx context.Context, view *mesh.View) error {
	program, err := d.FindProxy()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "outrigger-haproxy-")
	if err != nil {
		return fmt.Errorf("haproxy: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := writeExampleIdentity(dir, view.Proxy.Identity); err != nil {
		return fmt.Errorf("haproxy: writing an example of an identity: %w", err)
	}
	file, err := writeConfig(dir, view)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "-c", "-f", file)
	var output bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("haproxy: checking took too long: %w", ctx.Err())
		}
		return fmt.Errorf("haproxy: %s refuses the configuration: %w: %s", program, err, strings.TrimSpace(output.String()))
	}
	return nil
}

// FindProxy returns the path of the program: that which the variable HAPROXY names, or
// the one in PATH, or Debian's.
func (Driver) FindProxy() (string, error) {
	if program := os.Getenv("HAPROXY"); program != "" {
		path, err := exec.LookPath(program)
		if err != nil {
			return "", fmt.Errorf("haproxy: %w: HAPROXY is %q: %v", driver.ErrNoProxy, program, err)
		}
		return filepath.Abs(path)
	}
	for _, program := range []string{name, "/usr/sbin/haproxy"} {
		if path, err := exec.LookPath(program); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", fmt.Errorf("haproxy: %w: install the package haproxy (test/haproxy/install.sh does), or set HAPROXY to the path of an HAProxy of %s or later", driver.ErrNoProxy, version)
}

// writeConfig writes the configuration of a proxy that has its identity and its sockets
// in the folder, and returns the file.
func writeConfig(dir string, view *mesh.View) (string, error) {
	files, err := Driver{}.Translate(view)
	if err != nil {
		return "", err
	}
	here := strings.NewReplacer(driver.IdentityDir, dir, driver.RunDir, dir)
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), []byte(here.Replace(string(f.Content))), 0o600); err != nil {
			return "", fmt.Errorf("haproxy: %w", err)
		}
	}
	return filepath.Join(dir, configFile), nil
}

// writeExampleIdentity writes the files that the agent keeps, with a certificate of
// nobody's.
func writeExampleIdentity(dir string, id mesh.Identity) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	certificate := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: id.CommonName()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
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
	pemKey := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "identity.pem"), append(pemKey, pemChain...), 0o600),
		os.WriteFile(filepath.Join(dir, "bundle.pem"), pemChain, 0o600),
	)
}
