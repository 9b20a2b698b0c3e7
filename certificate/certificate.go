// Package certificate is the vocabulary of mesh identity documents: names,
// certificates without their keys, and the interface of what manages them.
//
// It imports the standard library only. A workload's private key has no place in
// it: it is born in the pod and never leaves it.
package certificate

import (
	"crypto/tls"
	"time"
)

// CommonName is the handle of one proxy: <ProxyUUID>.sidecar.<service
// account>.<namespace>. It is for people to read and decides nothing.
type CommonName string

// String returns the name as it is.
func (cn CommonName) String() string { return string(cn) }

// Certificate is what is public about a certificate that a proxy has, or will
// be issued. It never holds a private key.
type Certificate struct {
	// CommonName is the subject's common name.
	CommonName CommonName
	// URI is the one URI SAN, a SPIFFE ID.
	URI string
	// DNSNames are the DNS SANs.
	DNSNames []string
	// Chain is the leaf and its intermediates as PEM, leaf first; empty for a
	// certificate that has not been issued yet.
	Chain []byte
	// TrustBundle is the PEM of every root that peers are verified against;
	// empty where the bundle is not known, as in offline injection.
	TrustBundle []byte
	// NotAfter is the end of the leaf's life; zero before it is issued.
	NotAfter time.Time
}

// Manager is what drivers may ask of the mesh's certificate authority.
// Implementations are safe for use by many goroutines.
type Manager interface {
	// Ready returns a channel that is closed once there is a trust bundle and a
	// certificate to serve with. The controller starts drivers after that.
	Ready() <-chan struct{}
	// TrustBundle returns the PEM of the roots that are trusted now. It is not empty
	// once Ready's channel is closed.
	TrustBundle() []byte
	// TrustBundleChanged returns a channel that receives a value after each
	// change of the bundle, until stop is closed. Changes that come in quick
	// succession may be told as one.
	TrustBundleChanged(stop <-chan struct{}) <-chan struct{}
	// ServerTLS returns how the controller speaks TLS with the proxies that it
	// serves: TLS 1.3, with its own certificate as it is at each handshake, and only
	// with clients whose certificate the trust bundle of that moment verifies. Whose
	// it is, driver.PeerOf tells. Every call returns a new one, of which the caller may
	// change NextProtos.
	ServerTLS() *tls.Config
}
