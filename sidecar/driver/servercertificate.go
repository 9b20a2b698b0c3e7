package driver

import (
	"fmt"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// ServerCertificates has the certificates that the proxies of gateways present to clients outside the
// mesh. It is safe for concurrent use.
type ServerCertificates interface {
	// ServerCertificate returns the current certificate of the name of a mesh.ServerCertificate, or
	// false if there is none at the moment: then the proxy keeps what it has. It may be newer than
	// the View, which then follows. The private key may be sent only to proxies whose View has the
	// name, and must not be logged, shown or stored.
	ServerCertificate(name mesh.Name) (KeyPair, bool)
}

// KeyPair is a certificate with its private key.
type KeyPair struct {
	// Chain is the certificate and its intermediates as PEM, the leaf first.
	Chain []byte
	// Key is the private key as PEM, in PKCS #8.
	Key PrivateKey
	// Digest is that of the Chain, as in mesh.ServerCertificate.
	Digest mesh.Digest
}

// CertificateFile returns the name of the file with a certificate and its private key, in the folder that a
// driver has for them.
func CertificateFile(name mesh.Name) string { return name.Namespace + "/" + name.Name + ".pem" }

// PrivateKey is a private key as PEM. Printing it does not reveal it.
type PrivateKey []byte

// Format is for fmt.Formatter.
func (PrivateKey) Format(f fmt.State, _ rune) { fmt.Fprint(f, hiddenKey) }

// MarshalText is for encoding.TextMarshaler.
func (PrivateKey) MarshalText() ([]byte, error) { return []byte(hiddenKey), nil }

const hiddenKey = "(private key)"
