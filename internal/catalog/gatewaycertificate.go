package catalog

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// usableCertificate is a certificate that a listener refers to.
type usableCertificate struct {
	mesh.Name
	*fact.ServerCertificate
}

// refusedCertificate is why a reference to a certificate cannot be used.
type refusedCertificate struct{ reason, field, message string }

// certificatesOf returns the certificates of a listener that can be used, in the user's order, and why
// the others cannot.
func (j *join) certificatesOf(r *graph.Reader, g *fact.Gateway, l *fact.GatewayListener) (usable []usableCertificate, refused []refusedCertificate) {
	for _, ref := range l.Certificates {
		refuse := func(reason, format string, args ...any) {
			refused = append(refused, refusedCertificate{reason, ref.Field, fmt.Sprintf(format, args...)})
		}
		if ref.Secret.Namespace != g.Namespace && !j.mayRefer(r, fact.Referrer{Kind: kindGateway, Namespace: g.Namespace}, ref.Secret, func(g *fact.ReferenceGrant) []string { return g.Secrets }) {
			// What else is true of the Secret is not said, since its namespace permits nothing.
			refuse(fact.ReasonRefNotPermitted, "Secret %s is in another namespace than the gateway; permit the reference with a ReferenceGrant in the namespace %s", ref.Secret, ref.Secret.Namespace)
			continue
		}
		certificate, ok := j.serverCertificates.Get(r, ref.Secret)
		switch {
		case !ok:
			refuse(fact.ReasonInvalidCertificateRef, "there is no Secret %s of the type kubernetes.io/tls that the mesh may read; create it, correct the name, or add its namespace to the chart's value gateways.certificateNamespaces", ref.Secret)
		case certificate.Flaw != nil:
			refuse(certificate.Flaw.Reason, "%s", certificate.Flaw.Message)
		default:
			usable = append(usable, usableCertificate{ref.Secret, certificate})
		}
	}
	return usable, refused
}

// present adds the certificates of a listener to those of its port, which has the listeners. It returns false
// for a listener that has none although TLS ends at it.
func (j *join) present(r *graph.Reader, g *fact.Gateway, l *fact.GatewayListener, listeners portListeners, d *mesh.Destination) bool {
	if !l.Terminates {
		return true
	}
	usable, _ := j.certificatesOf(r, g, l)
	listener, added := cmp.Or(l.Host, mesh.AnyHost), map[string]bool{}
	add := func(host string, c usableCertificate) {
		// A server name belongs to the listener that is closest to it, so no other one has added it.
		if added[host] || listeners.of(host) != l {
			return
		}
		added[host] = true
		d.Certificates = append(d.Certificates, mesh.ServerCertificate{Host: host, Listener: listener, Name: c.Name, Digest: c.Chain})
	}
	for _, c := range usable {
		for _, name := range c.Hosts {
			switch {
			case mesh.Covers(name, listener):
				add(listener, c)
			case mesh.Covers(listener, name) && (len(usable) > 1 || isDeeper(name, listener)):
				add(name, c)
			}
		}
	}
	if len(usable) > 0 {
		// Clients find out themselves that its names are others.
		add(listener, usable[0])
	}
	return len(usable) > 0
}

// isDeeper reports whether a host has more labels in the place of a wildcard than one, which some proxies
// find by its exact name only.
func isDeeper(host, wildcard string) bool {
	suffix, isWildcard := strings.CutPrefix(wildcard, "*.")
	return isWildcard && strings.Contains(strings.TrimSuffix(host, "."+suffix), ".")
}

// secureRedirect returns the redirect of a listener at which TLS ends: what it does not say is that of
// the listener.
func secureRedirect(to *mesh.Redirect, port uint16) *mesh.Redirect {
	secure := *to
	if secure.Scheme == "" {
		secure.Scheme, secure.Port = "https", cmp.Or(to.Port, port)
	}
	return &secure
}
