package driver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Peer is the identity of a proxy according to its certificate.
type Peer struct {
	// Identity is the identity of the pod.
	Identity mesh.Identity
	// ProxyUID is the UID of the pod, by which the proxy is identified everywhere.
	ProxyUID string
	// NotAfter is when the first certificate of the verified chain expires. Streams must
	// end before.
	NotAfter time.Time
}

// PeerOf returns the peer of a connection that was accepted with certificate.Manager's
// ServerTLS. It returns an error if the client has no verified certificate or one that
// is not a workload's.
func PeerOf(state *tls.ConnectionState) (Peer, error) {
	if state == nil || len(state.VerifiedChains) == 0 {
		return Peer{}, errors.New("the client has shown no certificate of the mesh")
	}
	leaf := state.VerifiedChains[0][0]
	if len(leaf.URIs) != 1 || len(leaf.Subject.OrganizationalUnit) != 1 || leaf.Subject.OrganizationalUnit[0] == "" {
		return Peer{}, errors.New("the client's certificate is not a workload's: it needs one URI and one organizational unit, the UID of the pod")
	}
	identity, err := mesh.ParseIdentity(leaf.URIs[0].String())
	if err != nil {
		return Peer{}, fmt.Errorf("the client's certificate is not a workload's: %w", err)
	}
	return Peer{Identity: identity, ProxyUID: leaf.Subject.OrganizationalUnit[0], NotAfter: endOf(state.VerifiedChains)}, nil
}

// endOf returns when the last valid chain expires.
func endOf(chains [][]*x509.Certificate) time.Time {
	var last time.Time
	for _, chain := range chains {
		end := chain[0].NotAfter
		for _, certificate := range chain[1:] {
			if certificate.NotAfter.Before(end) {
				end = certificate.NotAfter
			}
		}
		if end.After(last) {
			last = end
		}
	}
	return last
}

// ProxyRegistry is where drivers report their connected proxies. The core uses it for
// /debug/proxy, 'outrigger proxy', metrics and Problems. It is safe for concurrent use.
type ProxyRegistry interface {
	// Connect records that a proxy has connected. The driver must have authenticated it. A
	// proxy may briefly have several connections. The error wraps ErrTooManyProxies if the
	// mesh's configuration allows no more; the driver then rejects the proxy with the
	// error's text.
	Connect(proxy ConnectedProxy) (ProxyConnection, error)
}

// ErrTooManyProxies means that this controller already has as many proxies as the
// MeshConfig allows. Another replica may accept the proxy, or this one later.
var ErrTooManyProxies = errors.New("too many proxies")

// ConnectedProxy is a proxy that has connected.
type ConnectedProxy struct {
	Peer
	// Name is the name of the pod.
	Name mesh.Name
	// Class is the class of the driver that serves it.
	Class string
	// Version is the proxy's own version, as it says; it may be empty.
	Version string
	// Address is the remote address.
	Address netip.AddrPort
}

// ProxyConnection is a proxy's connection. It is safe for concurrent use.
type ProxyConnection interface {
	// Sent records that the proxy was sent a configuration. Version identifies the
	// complete configuration, usually by the View's digest; resources is the number of
	// parts sent, and bytes their total size. Both are 0 if the proxy already has that
	// configuration, because it does not differ from the former version's.
	Sent(version string, resources, bytes int)
	// Acked records that the proxy runs the configuration of that version. since is when
	// the change that caused it was noticed; zero if unknown.
	Acked(version string, since time.Time)
	// Rejected records that the proxy has rejected a configuration and keeps its last good
	// one. It is cleared by a later Acked without rejected parts.
	Rejected(Rejection)
	// SetVersion records the proxy's own version, if it was unknown or has changed since the
	// proxy connected.
	SetVersion(version string)
	// Close records that the connection has ended. It may be called twice.
	Close()
}

// Rejection describes a configuration that a proxy has rejected.
type Rejection struct {
	// Version identifies the configuration.
	Version string
	// Message is the proxy's error message.
	Message string
	// Resources are the names of the rejected parts, for people, for example "Cluster
	// bookstore/bookstore:80".
	Resources []string
	// Objects are the user's objects from which the parts were made; may be empty.
	Objects []mesh.ObjectRef
	// LeftOut says that the proxy runs the version, from which the parts are left out. The
	// core then reports that requests to them are answered with 500 or denied, in place of
	// the proxy's keeping its last good configuration. It is reported after Acked.
	LeftOut bool
}
