package haproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// frontend is what may pass of what arrives for the application: connections of ports
// without requests, and requests of the others.
type frontend struct {
	*document
	Connections, Requests []rule
}

var anything = []mesh.HTTPMatch{{}}

// addInbound makes the rules. What none lets pass is refused by the template.
func (d *document) addInbound() {
	in := d.View.Inbound
	d.Mesh, d.Ingress, d.Entry = &frontend{document: d}, &frontend{document: d}, &frontend{document: d}
	for _, p := range in.Ports {
		at := fmt.Sprintf("port-%d", p.Port)
		d.Mesh.access(p.Access, p.Protocol, at)
		if d.Permissive() && p.Access.Anyone {
			d.Entry.allow(p.Protocol, anything, at+" plaintext")
			d.Entry.allow(mesh.TCP, anything, at+" own-tls")
		}
		for _, rule := range p.Ingress {
			d.ingress(p.Protocol, rule, at)
		}
	}
	d.Mesh.access(in.Others, mesh.TCP, "!named-port")
	if d.Permissive() && in.Others.Anyone {
		d.Entry.allow(mesh.TCP, anything, "!named-port")
	}
}

// Permissive reports whether something else than mesh TLS is taken from anybody, and
// Peeks whether it is from somebody.
func (d *document) Permissive() bool {
	return d.View.Proxy.Plaintext || d.View.Inbound.TLS == mesh.Permissive
}

// Peeks reports whether connections have to be looked at to know what they are.
func (d *document) Peeks() bool {
	return d.Permissive() || slices.ContainsFunc(d.View.Inbound.Ports, func(p mesh.InboundPort) bool { return len(p.Ingress) > 0 })
}

// allow lets pass what is asked for, where all of the parts hold.
func (f *frontend) allow(protocol mesh.Protocol, requests []mesh.HTTPMatch, where string, parts ...[]string) {
	name := func(list []rule, kind string) string { return fmt.Sprintf("%s%d", kind, len(list)) }
	if protocol.IsHTTP() {
		for _, m := range requests {
			f.Requests = append(f.Requests, when(name(f.Requests, "r"), where, m, parts...))
		}
	} else if slices.ContainsFunc(requests, func(m mesh.HTTPMatch) bool { return m.Matches(nil) }) {
		// Nothing else can let a connection in whose requests are not known.
		f.Connections = append(f.Connections, rule{name(f.Connections, "c"), where, parts})
	}
}

// access lets peers pass. A workload of the mesh is a member.
func (f *frontend) access(a mesh.Access, protocol mesh.Protocol, where string) {
	if a.Anyone {
		f.allow(protocol, anything, where+" member")
		return
	}
	for _, rule := range a.Rules {
		f.allow(protocol, rule.Requests, where, f.peers(rule.Sources))
	}
}

// peers are the identities, which HAProxy knows by their common names. One that another
// could have too is nobody's: a namespace has no dot, so the last one in a name begins it.
func (d *document) peers(ids []mesh.Identity) []string {
	var names []string
	for _, id := range ids {
		if id.Validate() == nil && id.TrustDomain == d.View.Settings.TrustDomain && !strings.Contains(id.Namespace, ".") {
			names = append(names, id.CommonName())
		}
	}
	return is("var(txn.peer) -m str", names...)
}

// ingress lets callers from outside the mesh pass.
func (d *document) ingress(protocol mesh.Protocol, rule mesh.Ingress, at string) {
	named := rule.AnyPrincipal || len(rule.Principals) > 0
	asked := named || !rule.SkipClientCert
	if len(rule.Ranges) == 0 && !named || named && !rule.TLS {
		return
	}
	var from [][]string
	if len(rule.Ranges) > 0 {
		from = append(from, is("src -m ip", prefixes(rule.Ranges)...))
	}
	if !rule.TLS {
		d.Entry.allow(protocol, rule.Requests, at+" plaintext", from...)
		return
	}
	if len(rule.Principals) > 0 && !rule.AnyPrincipal {
		from = append(from, d.peers(rule.Principals))
	} else if asked {
		at += " member"
	}
	if asked && len(rule.SNIHosts) == 0 {
		d.Mesh.allow(protocol, rule.Requests, at, from...)
	}
	if len(rule.SNIHosts) > 0 {
		from = append(from, hosts("var(sess.name)", 0, rule.SNIHosts...))
	}
	d.Ingress.allow(protocol, rule.Requests, at, from...)
}

// hosts is that what is fetched, in lower case, is one of the hosts, with or without the
// port if that is not 0.
func hosts(fetch string, port uint16, hosts ...string) []string {
	var exact, ends []string
	for _, host := range hosts {
		list, name := &exact, strings.ToLower(host)
		if isWildcard(host) {
			list, name = &ends, name[1:]
		}
		*list = append(*list, name)
		if port != 0 {
			*list = append(*list, fmt.Sprintf("%s:%d", name, port))
		}
	}
	return append(is(fetch+" -m str", exact...), is(fetch+" -m end", ends...)...)
}

func isWildcard(host string) bool { return strings.HasPrefix(host, "*.") }

// prefixes returns the ranges of IPv4, which is all that HAProxy sees.
func prefixes(ranges []netip.Prefix) []string {
	var out []string
	for _, r := range ranges {
		if r.IsValid() && r.Addr().Is4() {
			out = append(out, r.Masked().String())
		}
	}
	return out
}
