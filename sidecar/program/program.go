// Package program is what a driver's FindProxy and Check need to meet the proxy's
// program on this machine. It is public because vendors' drivers implement
// driver.Finder and driver.Checker with it, as ours do.
package program

import (
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
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Find returns the absolute path of a program: the one that the environment variable
// names, by a path or a name in PATH, or, if the variable is not set, the first of the
// candidates that is there, names in PATH or paths. The error wraps driver.ErrNoProxy
// and ends in advice, the way to get the program.
func Find(variable, advice string, candidates ...string) (string, error) {
	if named := os.Getenv(variable); named != "" {
		found, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("%w: %s is %q: %w: %s", driver.ErrNoProxy, variable, named, err, advice)
		}
		return filepath.Abs(found)
	}
	for _, candidate := range candidates {
		if found, err := exec.LookPath(candidate); err == nil {
			return filepath.Abs(found)
		}
	}
	return "", fmt.Errorf("%w: %s", driver.ErrNoProxy, advice)
}

// WriteIdentity writes the files that the agent keeps in driver.IdentityDir into a
// folder, for a program that only reads its configuration: a certificate of that
// identity, signed by itself, which nobody trusts, and its key.
func WriteIdentity(dir string, identity mesh.Identity) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	uri, err := url.Parse(identity.String())
	if err != nil {
		return err
	}
	nobody := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: identity.CommonName()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{identity.DNSName()}, URIs: []*url.URL{uri},
	}
	der, err := x509.CreateCertificate(rand.Reader, nobody, nobody, key.Public(), key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	write := func(name string, content []byte) error {
		return os.WriteFile(filepath.Join(dir, name), content, 0o600)
	}
	return errors.Join(
		write("key.pem", private), write("chain.pem", chain), write("bundle.pem", chain),
		write("identity.pem", append(private, chain...)),
	)
}
