package envoy

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// callersSecret verifies clients by the mesh's roots and by the names, of which there is
// at least one: a client with none of them does not get through the handshake. The roots
// are in it, since Envoy can't join them to names from elsewhere, and would watch a file
// of them with an inotify instance for each secret. Without roots Envoy refuses it.
func callersSecret(name, roots string, sans []*tlsv3.SubjectAltNameMatcher) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa:                 &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: roots}},
			MatchTypedSubjectAltNames: sans,
		},
	}}
}

// accessSANs returns the names of the peers that may connect.
func accessSANs(a mesh.Access, trustDomain string) []*tlsv3.SubjectAltNameMatcher {
	if a.Anyone {
		return memberSAN(trustDomain)
	}
	var ids []mesh.Identity
	for _, rule := range a.Rules {
		if holdsForAll(rule.Requests) {
			ids = append(ids, rule.Sources...)
		}
	}
	return identitySANs(ids)
}

// identitySANs returns the identities' names, and one that nobody has if there are
// none: Envoy takes an empty list for everybody.
func identitySANs(ids []mesh.Identity) []*tlsv3.SubjectAltNameMatcher {
	uris := []string{"spiffe://" + nobody}
	if len(ids) > 0 {
		uris = make([]string, len(ids))
	}
	for i, id := range ids {
		uris[i] = id.String()
	}
	slices.Sort(uris)
	var out []*tlsv3.SubjectAltNameMatcher
	for _, uri := range slices.Compact(uris) {
		out = append(out, uriSAN(exactly(uri)))
	}
	return out
}

// memberSAN is the name of whoever has a certificate of the mesh.
func memberSAN(trustDomain string) []*tlsv3.SubjectAltNameMatcher {
	return []*tlsv3.SubjectAltNameMatcher{uriSAN(&matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: memberPrefix(trustDomain)},
	})}
}

func uriSAN(m *matcherv3.StringMatcher) *tlsv3.SubjectAltNameMatcher {
	return &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: m}
}

// holdsForAll reports whether one of the conditions holds whatever is asked: nothing
// else can let a connection in whose requests are not known.
func holdsForAll(requests []mesh.HTTPMatch) bool {
	return slices.ContainsFunc(requests, func(m mesh.HTTPMatch) bool {
		return m.Path == mesh.StringMatch{} && len(m.Methods) == 0 && len(m.Headers) == 0 && len(m.Query) == 0
	})
}
