package mesh

import (
	"regexp"
	"slices"
	"strings"
)

// IdentityHeaders returns the request headers that could be used to claim an identity, in
// lower case and sorted. A server's proxy removes them in every spelling and then sets
// x-forwarded-client-cert to the identity in the verified client certificate.
func IdentityHeaders() []string {
	return []string{"serviceidentity", "x-envoy-peer-metadata", "x-envoy-peer-metadata-id", "x-forwarded-client-cert"}
}

// FramingHeaders returns the headers that say where the body of a request ends, in lower case
// and sorted. A server's proxy removes all other spellings of them: an application that does
// not distinguish underscores from hyphens would find another end than the proxy.
func FramingHeaders() []string { return []string{"content-length", "transfer-encoding"} }

const (
	// separator matches the characters that can replace a hyphen in a header name:
	// CGI-like gateways map all of them to an underscore.
	separator      = `[^a-z0-9]`
	otherSeparator = `[^a-z0-9-]`
)

// HeaderSpellings returns an unanchored RE2 and PCRE2 expression for the header names, in
// lower case, that some applications treat as equal to the given one. It matches the name
// itself and the spellings with an underscore or another separator in place of a hyphen.
// The name must be in lower case.
func HeaderSpellings(name string) string {
	words := strings.FieldsFunc(name, isSeparator)
	for i, word := range words {
		words[i] = regexp.QuoteMeta(word)
	}
	return strings.Join(words, separator)
}

// OtherSpellings returns the expression of HeaderSpellings without the name itself. It is
// empty if the name has no hyphen, or has characters other than letters, digits and
// hyphens.
func OtherSpellings(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return isSeparator(r) && r != '-' }) {
		return ""
	}
	words := strings.Split(name, "-")
	var first []string
	for i := 1; i < len(words); i++ {
		// In this alternative, the first separator other than a hyphen precedes word i.
		first = append(first, strings.Join(words[:i], "-")+otherSeparator+strings.Join(words[i:], separator))
	}
	return strings.Join(first, "|")
}

func isSeparator(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }

// ComparedHeaders returns the headers, except "host", whose values are compared by the
// port's rules, sorted and without duplicates. Drivers may change the form of these headers,
// so those of rules that are only audited are left out: an audit changes no request.
func (p *InboundPort) ComparedHeaders() []string {
	var names []string
	for _, rule := range p.Access.Denials {
		names = appendCompared(names, rule.Requests...)
	}
	if !p.Access.Anyone {
		for _, rule := range p.Access.Rules {
			names = appendCompared(names, rule.Requests...)
		}
	}
	for _, rule := range p.Ingress {
		names = appendCompared(names, rule.Requests...)
	}
	return once(names)
}

// ComparedHeaders returns the headers, except "host", whose values are compared by the
// routes, sorted and without duplicates.
func (d *Destination) ComparedHeaders() []string {
	var names []string
	for i := range d.Routes {
		names = appendCompared(names, d.Routes[i].Match)
		if d.Routes[i].CORS != nil {
			names = append(names, "origin")
		}
	}
	return once(names)
}

// ComparedHeaders returns the headers, except "host", whose values are compared by the
// matches of the hosts, sorted and without duplicates.
func (r *EgressRoutes) ComparedHeaders() []string {
	var names []string
	for i := range r.Hosts {
		names = appendCompared(names, r.Hosts[i].Matches...)
		for _, within := range r.Hosts[i].Within {
			names = appendCompared(names, within.Matches...)
		}
	}
	return once(names)
}

func appendCompared(names []string, matches ...HTTPMatch) []string {
	for _, m := range matches {
		for _, header := range m.Headers {
			if header.comparesValue() && header.Name != "host" {
				names = append(names, header.Name)
			}
		}
		if m.Token != nil {
			names = append(names, AuthorizationHeader)
		}
	}
	return names
}

func once(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
