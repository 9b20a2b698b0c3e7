// Package program helps a driver's FindProxy and Check to find and run the proxy's
// program on this machine.
package program

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Find returns the absolute path of a program. If the environment variable is set, it
// is the path or the name in PATH; otherwise the first existing candidate is used, each
// a path or a name in PATH. The error wraps driver.ErrNoProxy and ends with advice on
// how to get the program.
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

// WriteIdentity writes the files of driver.IdentityDir to a directory, for a program
// that only validates its configuration: a self-signed certificate of the identity,
// which is not trusted, and its key.
func WriteIdentity(dir string, identity mesh.Identity) error {
	private, chain, err := newIdentity(identity)
	if err != nil {
		return err
	}
	write := func(name string, content []byte) error {
		return os.WriteFile(filepath.Join(dir, name), content, 0o600)
	}
	return errors.Join(
		write("key.pem", private), write("chain.pem", chain), write("bundle.pem", chain),
		write("identity.pem", append(private, chain...)),
	)
}

// ExampleCertificates returns the files of driver.CertificateFile for the certificates of the View's gateway, in a
// folder whose name ends with a slash. They have a new certificate with its private key, since a
// View has none: the proxy only checks its configuration with them.
func ExampleCertificates(view *mesh.View, folder string) ([]driver.File, error) {
	var files []driver.File
	for _, d := range view.Outbound.Destinations.All() {
		for _, c := range d.Certificates {
			private, chain, err := newIdentity(view.Proxy.Identity)
			if err != nil {
				return nil, err
			}
			files = append(files, driver.File{Name: folder + driver.CertificateFile(c.Name), Content: append(chain, private...)})
		}
	}
	return files, nil
}

// newIdentity returns a private key and a certificate for the identity, signed by itself.
func newIdentity(identity mesh.Identity) (private, chain []byte, err error) {
	key, err := pki.NewKey()
	if err != nil {
		return nil, nil, err
	}
	uri, err := url.Parse(identity.String())
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: identity.CommonName()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{identity.DNSName()}, URIs: []*url.URL{uri},
	}
	certificate, err := pki.Sign(template, template, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	private, err = pki.EncodeKey(key)
	return private, pki.Encode(certificate), err
}
