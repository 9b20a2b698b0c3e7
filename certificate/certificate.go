// Package certificate defines the types of mesh identities: names, certificates without
// their keys, and the interface of the certificate manager.
//
// It must import only the standard library. No type may hold a workload's private key,
// which is generated in the pod and never leaves it.
package certificate

import (
	"crypto/tls"
	"time"
)

// CommonName identifies one proxy: <ProxyUUID>.sidecar.<service account>.<namespace>. It is
// for people to read; nothing is authorized by it.
type CommonName string

// String returns the name.
func (cn CommonName) String() string { return string(cn) }

// Certificate is the public part of a certificate that a proxy has or will be issued. It
// never holds a private key.
type Certificate struct {
	// CommonName is the subject's common name.
	CommonName CommonName
	// URI is the only URI SAN, a SPIFFE ID.
	URI string
	// DNSNames are the DNS SANs.
	DNSNames []string
	// Chain is the leaf and its intermediates as PEM, leaf first; empty before the
	// certificate is issued.
	Chain []byte
	// TrustBundle is the PEM of all roots that peers are verified against; empty if the
	// bundle is unknown, as in offline injection.
	TrustBundle []byte
	// NotAfter is when the leaf expires; zero before it is issued.
	NotAfter time.Time
}

// Manager is the drivers' interface to the mesh's certificate authority. Implementations
// are safe for use by many goroutines.
type Manager interface {
	// Ready returns a channel that is closed once there is a trust bundle and a serving
	// certificate. The controller starts drivers after that.
	Ready() <-chan struct{}
	// TrustBundle returns the PEM of the currently trusted roots. It is not empty once
	// Ready's channel is closed.
	TrustBundle() []byte
	// TrustBundleChanged returns a channel that receives a value after each change of the
	// bundle, until stop is closed. Changes in quick succession may be reported as one.
	TrustBundleChanged(stop <-chan struct{}) <-chan struct{}
	// ServerTLS returns the TLS configuration for serving proxies: TLS 1.3, with the
	// controller's current certificate at each handshake, and only for clients whose
	// certificate the current trust bundle verifies. driver.PeerOf returns the identity of
	// such a client. Every call returns a new configuration; the caller may change
	// NextProtos.
	ServerTLS() *tls.Config
}
