package mesh

import (
	"regexp"
	"slices"
	"strings"
)

// IdentityHeaders returns the headers, in lower case and sorted, by which a request could
// claim to come from somebody. A server's proxy takes them away in whatever spelling, and
// then says by x-forwarded-client-cert itself whose certificate it has verified.
func IdentityHeaders() []string {
	return []string{"serviceidentity", "x-envoy-peer-metadata", "x-envoy-peer-metadata-id", "x-forwarded-client-cert"}
}

const (
	// separator is what may stand for a hyphen in a header's name: gateways of the kind of
	// CGI make the same underscore of all of these.
	separator      = `[^a-z0-9]`
	otherSeparator = `[^a-z0-9-]`
)

// HeaderSpellings returns an expression of RE2 and PCRE2, without anchors, for the names
// in lower case that some applications take for that of the header, itself among them.
// They have an underscore or the like in place of a hyphen. The name is in lower case.
func HeaderSpellings(name string) string {
	words := strings.FieldsFunc(name, isSeparator)
	for i, word := range words {
		words[i] = regexp.QuoteMeta(word)
	}
	return strings.Join(words, separator)
}

// OtherSpellings returns the expression of HeaderSpellings without the name itself, for a
// name of letters, digits and hyphens. It is empty if there are no others, as it is for a
// name that has other characters.
func OtherSpellings(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return isSeparator(r) && r != '-' }) {
		return ""
	}
	words := strings.Split(name, "-")
	var first []string
	for i := 1; i < len(words); i++ {
		// The first separator that is no hyphen is that before this word.
		first = append(first, strings.Join(words[:i], "-")+otherSeparator+strings.Join(words[i:], separator))
	}
	return strings.Join(first, "|")
}

func isSeparator(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }

// ComparedHeaders returns the headers, without "host", whose values rules for what
// arrives at the port compare, each once and sorted.
func (p *InboundPort) ComparedHeaders() []string {
	var names []string
	for _, rule := range p.Access.Rules {
		names = appendCompared(names, rule.Requests...)
	}
	for _, rule := range p.Ingress {
		names = appendCompared(names, rule.Requests...)
	}
	return once(names)
}

// ComparedHeaders returns the headers, without "host", whose values the routes compare,
// each once and sorted.
func (d *Destination) ComparedHeaders() []string {
	var names []string
	for i := range d.Routes {
		names = appendCompared(names, d.Routes[i].Match)
	}
	return once(names)
}

// ComparedHeaders returns the headers, without "host", whose values the hosts' matches
// compare, each once and sorted.
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
	}
	return names
}

func once(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
