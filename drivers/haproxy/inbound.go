package haproxy

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// frontend has the rules of one frontend for connections to the application.
type frontend struct {
	*document
	// Rules allow what they match, and Audited let the rest through.
	Rules, Audited []rule
}

var anything = []mesh.HTTPMatch{{}}

// addInbound adds the rules of the inbound frontends, which refuse everything else.
func (d *document) addInbound() {
	in := d.View.Inbound
	d.Mesh, d.Ingress, d.Entry = &frontend{document: d}, &frontend{document: d}, &frontend{document: d}
	permissive := d.View.Proxy.Plaintext || in.TLS == mesh.Permissive
	d.Peeks = permissive
	for _, p := range in.Ports {
		at := fmt.Sprintf("port-%d", p.Port)
		d.Mesh.access(p.Access, p.Protocol, at)
		if permissive {
			d.Entry.open(p.Access, p.Protocol, at+" plaintext")
			d.Entry.open(p.Access, mesh.TCP, at+" own-tls")
		}
		for _, rule := range p.Ingress {
			d.Peeks = true
			d.ingress(p.Protocol, rule, at)
		}
	}
	d.Mesh.access(in.Others, mesh.TCP, "!named-port")
	if permissive {
		d.Entry.open(in.Others, mesh.TCP, "!named-port")
	}
}

// open adds the rule for everyone, if there is one.
func (f *frontend) open(a mesh.Access, protocol mesh.Protocol, where string) {
	if a.Anyone && a.Audit {
		f.Audited = append(f.Audited, rule{Where: where, HTTP: protocol.IsHTTP()})
	} else if a.Anyone {
		f.allow(protocol, anything, where)
	}
}

// allow adds rules that allow the requests if where and all parts hold.
func (f *frontend) allow(protocol mesh.Protocol, requests []mesh.HTTPMatch, where string, parts ...[]string) {
	for _, m := range requests {
		// Only a match of all requests can allow a connection whose requests are not known.
		if protocol.IsHTTP() || m.Matches(nil) {
			r := when(fmt.Sprintf("r%d", len(f.Rules)), where, m, parts...)
			r.HTTP = protocol.IsHTTP()
			f.Rules = append(f.Rules, r)
		}
	}
}

// access adds the rules for peers in mesh TLS. A workload of the mesh is a member.
func (f *frontend) access(a mesh.Access, protocol mesh.Protocol, where string) {
	f.open(a, protocol, where+" member")
	for _, rule := range a.Evaluated() {
		f.allow(protocol, rule.Requests, where, f.peers(rule.Sources))
	}
}

// peers returns the condition that the peer's certificate has one of the identities.
func (d *document) peers(ids []mesh.Identity) []string {
	var names []string
	for _, id := range ids {
		if id.Validate() == nil && id.TrustDomain == d.View.Settings.TrustDomain {
			names = append(names, id.String())
		}
	}
	return is("var(txn.peer) -m str", names)
}

// ingress adds the rules for callers outside the mesh.
func (d *document) ingress(protocol mesh.Protocol, rule mesh.Ingress, at string) {
	named := rule.AnyPrincipal || len(rule.Principals) > 0
	authenticated := named || !rule.SkipClientCert
	var from [][]string
	switch {
	case len(rule.Ranges) > 0:
		from = append(from, is("src -m ip", prefixes(rule.Ranges)))
	case !named:
		return
	}
	switch {
	case !rule.TLS && !named:
		d.Entry.allow(protocol, rule.Requests, at+" plaintext", from...)
		return
	case !rule.TLS:
		return
	case len(rule.Principals) > 0 && !rule.AnyPrincipal:
		from = append(from, d.peers(rule.Principals))
	case authenticated:
		at += " member"
	}
	if len(rule.SNIHosts) > 0 {
		from = append(from, hosts("var(sess.name)", rule.SNIHosts))
	} else if authenticated {
		d.Mesh.allow(protocol, rule.Requests, at, from...)
	}
	d.Ingress.allow(protocol, rule.Requests, at, from...)
}

// hosts returns the condition that the fetched name, in lower case, matches one of the hosts.
func hosts(fetch string, hosts []string) []string {
	var part []string
	for _, host := range hosts {
		name, wild := strings.CutPrefix(strings.ToLower(host), "*")
		how := map[bool]string{false: " -m str", true: " -m end"}[wild]
		part = append(part, is(fetch+how, []string{name})...)
	}
	return part
}

// prefixes returns the ranges as text.
func prefixes(ranges []netip.Prefix) []string {
	var out []string
	for _, r := range ranges {
		if r.IsValid() {
			out = append(out, r.Masked().String())
		}
	}
	return out
}
