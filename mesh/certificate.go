package mesh

import "slices"

// ServerCertificate is a certificate that the proxy of a gateway presents to clients outside the mesh.
// Neither it nor its private key is part of a View: drivers get both by its Name from
// driver.ServerCertificates when they serve a proxy.
type ServerCertificate struct {
	// Host is the server name that it is for, in lower case: exact, or "*." and a suffix that one or
	// more labels precede. AnyHost is for all clients, also for those that send no server name.
	Host string `json:"host"`
	// Listener is the host of the listener to which connections with this server name belong. It is
	// equal to Host or includes it.
	Listener string `json:"listener"`
	// Name is its name, that of a Secret.
	Name Name `json:"name"`
	// Digest is a digest of the certificate with its chain. It changes with the private key, too, since
	// each key has its own certificate.
	Digest Digest `json:"digest"`
}

// CertificateFor returns the first of the Certificates for a server name, which is empty for clients that
// send none, or false: the connection is then closed.
func (d *Destination) CertificateFor(serverName string) (ServerCertificate, bool) {
	for _, c := range d.Certificates {
		if c.Host == AnyHost || MatchesName(c.Host, serverName) {
			return c, true
		}
	}
	return ServerCertificate{}, false
}

// ListenerOf returns the host of the listener to which one of the Destination's Hosts belongs: of the
// Certificates' listeners that include it, the first in the order of CompareHosts. It returns false if
// there is none.
func (d *Destination) ListenerOf(host string) (string, bool) {
	best, found := "", false
	for _, c := range d.Certificates {
		if Covers(c.Listener, host) && (!found || CompareHosts(c.Listener, best) < 0) {
			best, found = c.Listener, true
		}
	}
	return best, found
}

// Listeners returns the hosts of the Certificates' listeners, each once, sorted by CompareHosts.
func (d *Destination) Listeners() []string {
	var hosts []string
	for _, c := range d.Certificates {
		hosts = append(hosts, c.Listener)
	}
	slices.SortFunc(hosts, CompareHosts)
	return slices.Compact(hosts)
}

// Covers reports whether the pattern includes all names that another pattern or host includes. Both are
// in lower case; AnyHost includes everything.
func Covers(pattern, host string) bool {
	return pattern == AnyHost || pattern == host || host != AnyHost && MatchesHost(pattern, host)
}
