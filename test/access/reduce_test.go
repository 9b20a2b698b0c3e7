package access

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// reduce returns the smallest difference of the same kind that it finds. Each step tries all
// smaller ones at once, each with a port of its own.
func (w *workshop) reduce(ctx context.Context, d difference) (difference, error) {
	for {
		smaller := d.smaller()
		if len(smaller) == 0 {
			return d, nil
		}
		r := round{in: &mesh.Inbound{TLS: d.mode, Others: d.others, Issuers: issuers()}}
		for i := range smaller {
			s := &smaller[i]
			if s.port.Port != othersPort {
				s.port.Port = uint16(firstPort + i)
				s.request.Port = s.port.Port
				r.in.Ports = append(r.in.Ports, s.port)
			}
			r.requests = append(r.requests, s.request)
		}
		r.in = mesh.Seal(r.in)
		found, err := w.run(ctx, d.class, r, newTally())
		if err != nil {
			return d, err
		}
		// The first one in the order of smaller removes most.
		at := slices.IndexFunc(smaller, func(s difference) bool {
			return slices.ContainsFunc(found, func(f difference) bool { return f.request.Port == s.request.Port && f.kind() == d.kind() })
		})
		if at < 0 {
			return d, nil
		}
		for _, f := range found {
			if f.request.Port == smaller[at].request.Port {
				d = f
			}
		}
	}
}

// kind is what two differences have in common that have one reason.
func (d difference) kind() string {
	kind, _, _ := strings.Cut(d.fault, ",")
	return kind
}

// smaller returns differences with one part less.
func (d difference) smaller() []difference {
	var out []difference
	add := func(change func(*difference)) {
		c := d
		c.port = clonePort(d.port)
		c.request.Fields = slices.Clone(d.request.Fields)
		change(&c)
		out = append(out, c)
	}
	if d.port.Port != othersPort {
		out = append(out, d.smallerPorts()...)
	}
	r := d.request
	for i, f := range r.Fields {
		add(func(c *difference) { c.request.Fields = slices.Delete(c.request.Fields, i, i+1) })
		if len(f[1]) > 8 {
			add(func(c *difference) { c.request.Fields[i][1] = f[1][:len(f[1])/2] })
			add(func(c *difference) { c.request.Fields[i][1] = f[1][len(f[1])/2:] })
		}
	}
	if r.Body != "" {
		add(func(c *difference) {
			c.request.Body = ""
			c.request.Fields = slices.DeleteFunc(c.request.Fields, func(f [2]string) bool { return strings.EqualFold(f[0], "content-length") })
		})
	}
	if r.Method != "GET" && r.Protocol == "" {
		add(func(c *difference) { c.request.Method = "GET" })
	}
	if r.Version != "1.1" && r.Protocol == "" {
		add(func(c *difference) { c.request.Version = "1.1" })
	}
	if r.Six {
		add(func(c *difference) { c.request.Six = false })
	}
	if r.Caller != "shop/web" && r.Caller != "plaintext" {
		add(func(c *difference) { c.request.Caller = "shop/web" })
	}
	if path, _, ok := strings.Cut(r.Target, "?"); ok {
		add(func(c *difference) { c.request.Target = path })
	}
	if r.Target != "/" {
		add(func(c *difference) { c.request.Target = "/" })
	}
	for i := range min(len(r.Target), 60) {
		add(func(c *difference) { c.request.Target = r.Target[:i] + r.Target[i+1:] })
	}
	return out
}

func (d difference) smallerPorts() []difference {
	var out []difference
	add := func(change func(*mesh.InboundPort)) {
		c := d
		c.port = clonePort(d.port)
		change(&c.port)
		out = append(out, c)
	}
	for i := range d.port.Ingress {
		add(func(p *mesh.InboundPort) { p.Ingress = slices.Delete(p.Ingress, i, i+1) })
		for _, change := range smallerMatches(d.port.Ingress[i].Requests) {
			add(func(p *mesh.InboundPort) { p.Ingress[i].Requests = change })
		}
	}
	if len(d.port.Access.Rules) > 0 {
		add(func(p *mesh.InboundPort) { p.Access.Rules = nil })
	}
	if len(d.port.Access.Denials) > 0 {
		add(func(p *mesh.InboundPort) { p.Access.Denials = nil })
	}
	for i, rule := range d.port.Access.Rules {
		add(func(p *mesh.InboundPort) { p.Access.Rules = slices.Delete(p.Access.Rules, i, i+1) })
		for j := range rule.Sources {
			add(func(p *mesh.InboundPort) {
				p.Access.Rules[i].Sources = slices.Delete(slices.Clone(rule.Sources), j, j+1)
			})
		}
		for j := range rule.Except {
			add(func(p *mesh.InboundPort) { p.Access.Rules[i].Except = slices.Delete(slices.Clone(rule.Except), j, j+1) })
		}
		for _, change := range smallerMatches(rule.Requests) {
			add(func(p *mesh.InboundPort) { p.Access.Rules[i].Requests = change })
		}
	}
	for i, rule := range d.port.Access.Denials {
		add(func(p *mesh.InboundPort) { p.Access.Denials = slices.Delete(p.Access.Denials, i, i+1) })
		for j := range rule.Sources {
			add(func(p *mesh.InboundPort) {
				p.Access.Denials[i].Sources = slices.Delete(slices.Clone(rule.Sources), j, j+1)
			})
		}
		for j := range rule.Except {
			add(func(p *mesh.InboundPort) {
				p.Access.Denials[i].Except = slices.Delete(slices.Clone(rule.Except), j, j+1)
			})
		}
		for _, change := range smallerMatches(rule.Requests) {
			add(func(p *mesh.InboundPort) { p.Access.Denials[i].Requests = change })
		}
	}
	if d.port.Access.Audit {
		add(func(p *mesh.InboundPort) { p.Access.Audit = false })
	}
	if d.port.Protocol.IsHTTP() && d.port.Protocol != mesh.HTTP {
		add(func(p *mesh.InboundPort) { p.Protocol = mesh.HTTP })
	}
	return out
}

// smallerMatches returns lists with one match or one condition less.
func smallerMatches(all []mesh.HTTPMatch) [][]mesh.HTTPMatch {
	var out [][]mesh.HTTPMatch
	for i, m := range all {
		if len(all) > 1 {
			out = append(out, slices.Delete(slices.Clone(all), i, i+1))
		}
		with := func(m mesh.HTTPMatch) {
			changed := slices.Clone(all)
			changed[i] = m
			out = append(out, changed)
		}
		if m.Path != (mesh.StringMatch{}) {
			c := m
			c.Path = mesh.StringMatch{}
			with(c)
		}
		if len(m.Methods) > 0 {
			c := m
			c.Methods = nil
			with(c)
		}
		if len(m.Headers) > 0 {
			c := m
			c.Headers = nil
			with(c)
		}
		if len(m.Query) > 0 {
			c := m
			c.Query = nil
			with(c)
		}
	}
	return out
}

func clonePort(p mesh.InboundPort) mesh.InboundPort {
	p.Ingress = slices.Clone(p.Ingress)
	p.Access.Rules, p.Access.Denials = slices.Clone(p.Access.Rules), slices.Clone(p.Access.Denials)
	return p
}

// describe returns the rules of a port in words.
func describe(d difference) string {
	var out strings.Builder
	a := d.port.Access
	fmt.Fprintf(&out, "mode %s, %s", d.mode, d.port.Protocol)
	if a.Anyone {
		out.WriteString("; anyone")
	}
	if a.Audit {
		out.WriteString("; audited")
	}
	for _, r := range a.Rules {
		fmt.Fprintf(&out, "; allow %s but %s: %s", names(r.Sources), names(r.Except), matches(r.Requests))
	}
	for _, r := range a.Denials {
		fmt.Fprintf(&out, "; deny everyone %t, %s but %s: %s", r.Everyone, names(r.Sources), names(r.Except), matches(r.Requests))
	}
	for _, i := range d.port.Ingress {
		fmt.Fprintf(&out, "; from outside, TLS %t for %q, no certificate %t, any %t or %s, from %v: %s", i.TLS, i.SNIHosts, i.SkipClientCert, i.AnyPrincipal, names(i.Principals), i.Ranges, matches(i.Requests))
	}
	return out.String()
}

func names(ids []mesh.Identity) []string {
	out := []string{}
	for _, id := range ids {
		text := id.Namespace + "/" + id.ServiceAccount
		if id.TrustDomain != trustDomain {
			text = id.TrustDomain + ":" + text
		}
		out = append(out, text)
	}
	return out
}

func matches(all []mesh.HTTPMatch) string {
	text := func(m mesh.StringMatch) string {
		switch {
		case m.Exact != "":
			return fmt.Sprintf("=%q", m.Exact)
		case m.Prefix != "":
			return fmt.Sprintf("^%q", m.Prefix)
		case m.Regex != "":
			return fmt.Sprintf("~%q", m.Regex)
		}
		return " any"
	}
	out := []string{}
	for _, m := range all {
		one := "path" + text(m.Path)
		if len(m.Methods) > 0 {
			one += fmt.Sprintf(" methods %q", m.Methods)
		}
		for _, h := range m.Headers {
			one += " header " + h.Name + text(h.StringMatch)
		}
		for _, q := range m.Query {
			one += " parameter " + q.Name + text(q.StringMatch)
		}
		if m.Token != nil {
			one += fmt.Sprintf(" token %+v", *m.Token)
		}
		out = append(out, one)
	}
	return strings.Join(out, " or ")
}
