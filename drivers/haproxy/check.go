package haproxy

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

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
	if err := errors.Join(writeExampleIdentity(dir), writeConfig(dir, view)); err != nil {
		return fmt.Errorf("haproxy: %w", err)
	}
	out, err := exec.CommandContext(ctx, program, "-c", "-f", filepath.Join(dir, configFile)).CombinedOutput()
	if err = cmp.Or(ctx.Err(), err); err != nil {
		return fmt.Errorf("haproxy: %s refuses the configuration: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// FindProxy returns the path of the program: that which the variable HAPROXY names, or
// the one in PATH, or Debian's.
func (Driver) FindProxy() (string, error) {
	path, err := exec.LookPath(cmp.Or(os.Getenv("HAPROXY"), name))
	if err != nil && os.Getenv("HAPROXY") == "" {
		path, err = exec.LookPath("/usr/sbin/haproxy")
	}
	if err != nil {
		return "", fmt.Errorf("haproxy: %w: %v: install the package haproxy (test/haproxy/install.sh does), or set HAPROXY to the path of an HAProxy of %s or later", driver.ErrNoProxy, err, version)
	}
	return filepath.Abs(path)
}

// writeConfig writes the configuration of a proxy that has its identity and its sockets
// in the folder.
func writeConfig(dir string, view *mesh.View) error {
	files, err := Driver{}.Translate(view)
	here := strings.NewReplacer(driver.IdentityDir, dir, driver.RunDir, dir)
	for _, f := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, f.Name), []byte(here.Replace(string(f.Content))), 0o600))
	}
	return err
}

// writeExampleIdentity writes the agent's files, with a certificate of nobody's.
func writeExampleIdentity(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	nobody := &x509.Certificate{SerialNumber: big.NewInt(1)}
	certificate, err := x509.CreateCertificate(rand.Reader, nobody, nobody, key.Public(), key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	both := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), chain...)
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "identity.pem"), both, 0o600), os.WriteFile(filepath.Join(dir, "bundle.pem"), chain, 0o600))
}
