package haproxy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/drivers/haproxy/syntax"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// frontend has the rules of one frontend for connections to the application.
type frontend struct {
	*document
	// Rules allow what they match, and Audited let the rest through. Denied refuse what they
	// match, whatever allows it.
	Rules, Audited, Denied []rule
}

// IsClear reports whether a rule asks whether a path is normal or clear.
func (f *frontend) IsClear() bool {
	return slices.ContainsFunc(append(slices.Clip(f.Rules), f.Denied...), func(r rule) bool {
		return slices.ContainsFunc(r.Parts, func(p part) bool {
			return slices.ContainsFunc(append(p.unless, p), func(sub part) bool {
				return slices.Equal(sub.Lines, clearPath.Lines) || slices.Equal(sub.Lines, normalPath.Lines)
			})
		})
	})
}

var anything = []mesh.HTTPMatch{{}}

// unnamed is the condition for ports without rules of their own.
var unnamed = syntax.Literal("!named-port")

// addInbound adds the rules of the inbound frontends, which refuse everything else.
func (d *document) addInbound() {
	in := d.View.Inbound
	d.Mesh, d.Ingress, d.Entry = &frontend{document: d}, &frontend{document: d}, &frontend{document: d}
	permissive := d.View.Proxy.Plaintext || in.TLS == mesh.Permissive
	d.Peeks = permissive
	for _, p := range in.Ports {
		at := syntax.Fill("port-{}", syntax.Number(p.Port))
		d.Mesh.access(p.Access, p.Protocol, at)
		for _, f := range []*frontend{d.Mesh, d.Ingress, d.Entry} {
			f.deny(p.Access, p.Protocol, at)
		}
		if permissive {
			d.Entry.open(p.Access, p.Protocol, syntax.Fill("{} plaintext", at))
			d.Entry.open(p.Access, mesh.TCP, syntax.Fill("{} own-tls", at))
			if p.Protocol.IsHTTP() {
				d.Entry.deny(p.Access, mesh.TCP, syntax.Fill("{} own-tls", at))
			}
		}
		for _, rule := range p.Ingress {
			d.Peeks = true
			d.ingress(p.Protocol, rule, at)
		}
	}
	d.Mesh.access(in.Others, mesh.TCP, unnamed)
	d.Mesh.deny(in.Others, mesh.TCP, unnamed)
	d.Entry.deny(in.Others, mesh.TCP, unnamed)
	if permissive {
		d.Entry.open(in.Others, mesh.TCP, unnamed)
	}
}

// Proxied returns the ports whose application gets a header of the PROXY protocol.
func (d *document) Proxied() []mesh.InboundPort {
	return slices.DeleteFunc(slices.Clone(d.View.Inbound.Ports), func(p mesh.InboundPort) bool { return !p.ProxyProtocol })
}

// open adds the rule for everyone, if there is one.
func (f *frontend) open(a mesh.Access, protocol mesh.Protocol, where syntax.Text) {
	if a.Anyone && a.Audit {
		f.Audited = append(f.Audited, rule{Where: where, HTTP: protocol.IsHTTP()})
	} else if a.Anyone {
		f.allow(protocol, anything, where)
	}
}

// allow adds rules that allow the requests if where and all parts hold.
func (f *frontend) allow(protocol mesh.Protocol, requests []mesh.HTTPMatch, where syntax.Text, parts ...part) {
	for _, m := range requests {
		// Only a match of all requests can allow a connection whose requests are not known.
		if protocol.IsHTTP() || m.Matches(nil) {
			r := when(syntax.Fill("r{}", syntax.Number(len(f.Rules))), where, m, parts...)
			r.HTTP = protocol.IsHTTP()
			f.Rules = append(f.Rules, r)
		}
	}
}

// access adds the rules for peers in mesh TLS. A workload of the mesh is a member.
func (f *frontend) access(a mesh.Access, protocol mesh.Protocol, where syntax.Text) {
	f.open(a, protocol, members(where))
	for _, rule := range a.Evaluated() {
		parts := []part{f.peers(rule.Sources)}
		if len(rule.Except) > 0 {
			parts = append(parts, not(f.peers(rule.Except)))
		}
		f.allow(protocol, rule.Requests, where, parts...)
	}
}

// deny adds the rules of the denials. Only what everyone is denied is denied to callers without an
// identity.
func (f *frontend) deny(a mesh.Access, protocol mesh.Protocol, where syntax.Text) {
	for _, d := range a.Denials {
		var who []part
		if !d.Everyone {
			who = append(who, f.peers(d.Sources))
		}
		if len(d.Except) > 0 {
			who = append(who, not(f.peers(d.Except)))
		}
		requests := d.Requests
		if !protocol.IsHTTP() && len(requests) > 0 {
			requests = anything
		}
		for _, m := range requests {
			r := denying(syntax.Fill("d{}", syntax.Number(len(f.Denied))), where, m, who...)
			r.HTTP = protocol.IsHTTP()
			f.Denied = append(f.Denied, r)
		}
	}
}

func members(where syntax.Text) syntax.Text { return syntax.Fill("{} member", where) }

// peers returns the condition that the peer's certificate has one of the identities.
func (d *document) peers(ids []mesh.Identity) part {
	var names, groups []string
	for _, id := range ids {
		group, isGroup := id.GroupPrefix()
		switch {
		case id.TrustDomain != d.View.Settings.TrustDomain:
		case isGroup:
			groups = append(groups, group)
		case id.Validate() == nil:
			names = append(names, id.String())
		}
	}
	byName := is(syntax.Literal("var(txn.peer) -m str"), names)
	if len(groups) == 0 {
		return byName
	}
	byGroup := is(syntax.Literal("var(txn.peer) -m beg"), groups)
	if len(names) == 0 {
		return byGroup
	}
	return or(byName, byGroup)
}

// ingress adds the rules for callers outside the mesh.
func (d *document) ingress(protocol mesh.Protocol, rule mesh.Ingress, at syntax.Text) {
	named := rule.AnyPrincipal || len(rule.Principals) > 0
	authenticated := named || !rule.SkipClientCert
	var from []part
	switch {
	case len(rule.Ranges) > 0:
		from = append(from, within(syntax.Literal("src -m ip"), rule.Ranges))
	case !named:
		return
	}
	switch {
	case !rule.TLS && !named:
		d.Entry.allow(protocol, rule.Requests, syntax.Fill("{} plaintext", at), from...)
		return
	case !rule.TLS:
		return
	case len(rule.Principals) > 0 && !rule.AnyPrincipal:
		from = append(from, d.peers(rule.Principals))
	case authenticated:
		at = members(at)
	}
	if len(rule.SNIHosts) > 0 {
		from = append(from, hosts(syntax.Literal("var(sess.name)"), rule.SNIHosts...))
	} else if authenticated {
		d.Mesh.allow(protocol, rule.Requests, at, from...)
	}
	d.Ingress.allow(protocol, rule.Requests, at, from...)
}

// hosts returns the condition that the fetched name, in lower case, matches one of the hosts.
func hosts(fetch syntax.Text, hosts ...string) part {
	var parts []part
	for _, host := range hosts {
		name, wild := strings.CutPrefix(strings.ToLower(host), "*")
		how := syntax.Literal("-m str")
		if wild {
			how = syntax.Literal("-m end")
		}
		parts = append(parts, is(syntax.Fill("{} {}", fetch, how), []string{name}))
	}
	return or(parts...)
}

// within returns the condition that the fetched address is in one of the ranges.
func within(fetch syntax.Text, ranges []netip.Prefix) part {
	var patterns []syntax.Text
	for _, r := range ranges {
		if r.IsValid() {
			patterns = append(patterns, syntax.Range(r))
		}
	}
	return anyOf(fetch, patterns)
}
