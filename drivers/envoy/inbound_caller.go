package envoy

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// callersSecret returns a validation context that accepts client certificates with one
// of the names, of which there must be at least one: other clients fail the handshake.
// The roots are inlined, since Envoy cannot combine them with names from another
// source, and would need an inotify instance per secret to watch them in a file. Envoy
// rejects a secret without roots.
func callersSecret(name, roots string, sans []*tlsv3.SubjectAltNameMatcher) *tlsv3.Secret {
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa:                 &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: roots}},
			MatchTypedSubjectAltNames: sans,
		},
	}}
}

func uriSAN(m *matcherv3.StringMatcher) *tlsv3.SubjectAltNameMatcher {
	return &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: m}
}

// matchesAny reports whether one of the conditions matches every request. No other
// condition can admit a connection whose requests are unknown.
func matchesAny(requests []mesh.HTTPMatch) bool {
	return slices.ContainsFunc(requests, func(m mesh.HTTPMatch) bool {
		return m.Path == mesh.StringMatch{} && len(m.Methods) == 0 && len(m.Headers) == 0 && len(m.Query) == 0
	})
}
