package servingcert

import (
	"cmp"
	"fmt"
	"net"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/outrigger-mesh/outrigger/internal/pki"
)

// Names are the names in a serving certificate.
type Names struct {
	// Service and Namespace are those of the webhook's Service.
	Service, Namespace string
	// ClusterDomain is the DNS domain of the cluster; empty means "cluster.local".
	ClusterDomain string
	// Extra are further DNS names and IP addresses, such as "localhost" and "127.0.0.1"
	// for a webhook that is called by URL.
	Extra []string
}

// ServerName returns "<service>.<namespace>.svc", the name that the API server verifies
// when it calls a webhook through its Service.
func (n Names) ServerName() string {
	return n.Service + "." + n.Namespace + ".svc"
}

func (n Names) validate() error {
	for _, label := range []string{n.Service, n.Namespace} {
		if problems := validation.IsDNS1123Label(label); len(problems) > 0 {
			return fmt.Errorf("the service or namespace %q of the serving certificate: %s", label, strings.Join(problems, "; "))
		}
	}
	for _, name := range append([]string{n.clusterDomain()}, n.Extra...) {
		if net.ParseIP(name) != nil {
			continue
		}
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return fmt.Errorf("the name %q of the serving certificate: %s", name, strings.Join(problems, "; "))
		}
	}
	return nil
}

func (n Names) clusterDomain() string { return cmp.Or(n.ClusterDomain, "cluster.local") }

// sans returns the subject alternative names by kind.
func (n Names) sans() (dns []string, ips []net.IP) {
	dns = []string{
		n.Service,
		n.Service + "." + n.Namespace,
		n.ServerName(),
		n.ServerName() + "." + n.clusterDomain(),
	}
	for _, name := range n.Extra {
		if ip := net.ParseIP(name); ip != nil {
			ips = append(ips, ip)
		} else {
			dns = append(dns, name)
		}
	}
	return dns, ips
}

// commonName returns the server name, or "" if it is too long for a common name: clients
// only check the alternative names.
func (n Names) commonName() string {
	if name := n.ServerName(); len(name) <= pki.MaxCommonName {
		return name
	}
	return ""
}
