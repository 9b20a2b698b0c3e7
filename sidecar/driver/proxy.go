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

// Peer is who a proxy is, by the certificate that it shows.
type Peer struct {
	// Identity is that of its pod.
	Identity mesh.Identity
	// ProxyUID is the UID of its pod, which is the proxy's key everywhere.
	ProxyUID string
	// NotAfter is when the certificate ends, or one that it is verified by if that is
	// sooner. A stream must end before.
	NotAfter time.Time
}

// PeerOf returns who is at the other end of a connection that was made with
// certificate.Manager's ServerTLS. It returns an error if the client has shown no
// verified certificate, or one that is not a workload's.
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

// endOf returns until when one of the chains is good.
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

// ProxyRegistry is where the drivers of a controller tell of the proxies that are
// connected to it. Core makes /debug/proxy, 'outrigger proxy', metrics and Problems of
// it. It is safe for use by many goroutines.
type ProxyRegistry interface {
	// Connect notes that a proxy has connected, after the driver has made sure who it
	// is. Several connections of one proxy may be there at once for a while. The error
	// wraps ErrTooManyProxies if the mesh's configuration allows no more; then the
	// driver refuses the proxy with the error's text.
	Connect(proxy ConnectedProxy) (ProxyConnection, error)
}

// ErrTooManyProxies says that as many proxies are connected to this controller as the
// MeshConfig allows. Another replica, or the same one later, may take the proxy.
var ErrTooManyProxies = errors.New("too many proxies")

// ConnectedProxy is a proxy that has connected.
type ConnectedProxy struct {
	Peer
	// Name is that of its pod.
	Name mesh.Name
	// Class is the class of the driver that serves it.
	Class string
	// Version is the proxy's own version, as it says; it may be empty.
	Version string
	// Address is where it connects from.
	Address netip.AddrPort
}

// ProxyConnection is a proxy's connection. Its methods may be called from many
// goroutines.
type ProxyConnection interface {
	// Sent notes that the proxy was sent a configuration. Version is the View's digest
	// or what else names the whole; resources are how many parts of it were sent, and
	// bytes how long they are.
	Sent(version string, resources, bytes int)
	// Acked notes that the proxy runs the configuration of that version, since is when
	// the change that led to it was seen; zero if that is not known.
	Acked(version string, since time.Time)
	// Rejected notes that the proxy has refused a configuration and goes on with its
	// last good one. Objects are those of the user's that the refused part came of,
	// which may be none. A later Acked with no rejected part left ends it.
	Rejected(Rejection)
	// Close notes that the connection has ended. It may be called twice.
	Close()
}

// Rejection is a configuration that a proxy has refused.
type Rejection struct {
	// Version names the configuration.
	Version string
	// Message is the proxy's own.
	Message string
	// Resources are the parts that were refused, as people know them, for example
	// "Cluster bookstore/bookstore:80".
	Resources []string
	// Objects are what the parts came of.
	Objects []mesh.ObjectRef
}
