package envoy

import (
	"slices"

	mutationrulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const mutationFilter = "envoy.filters.http.header_mutation"

// removeOwn removes the headers that Outrigger's proxies use among themselves. No end may send
// them. Prefixes take less memory than an expression, and every listener has them.
var removeOwn = []*mutationrulesv3.HeaderMutation{removePrefix("x-outrigger-"), removePrefix("x_outrigger_")}

// sanitizeEarly removes them from requests before Envoy records anything, and the headers from which
// it would take the name, the caller and the URL of a span.
var sanitizeEarly = earlyMutations(slices.Concat(removeOwn, []*mutationrulesv3.HeaderMutation{
	removeName(spanName), removeName("x-envoy-downstream-service-cluster"), removeName("x-envoy-downstream-service-node"), removeName("x-envoy-original-path"),
})...)

// chunkedHeader is the header by which routes recognize a request in chunks: Envoy removes
// transfer-encoding before it chooses a route. It removes this one afterwards.
const chunkedHeader = "x-outrigger-chunked"

// markChunked sets it, after any that the client has sent was removed.
var markChunked = earlyMutations(&mutationrulesv3.HeaderMutation{Action: &mutationrulesv3.HeaderMutation_Append{
	Append: &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: chunkedHeader, Value: "%REQ(transfer-encoding)%"}},
}})

// spanName is the header of requests and answers from which Envoy would take the name of a span.
const spanName = "x-envoy-decorator-operation"

// sanitizeAnswers does the same for answers.
var sanitizeAnswers = slices.Concat(removeOwn, []*mutationrulesv3.HeaderMutation{removeName(spanName)})

// stripAnswers is for the client's side. What trailers contain is removed at the server's.
var stripAnswers = httpFilterOf(mutationFilter, &mutationv3.HeaderMutation{
	Mutations: &mutationv3.Mutations{ResponseMutations: sanitizeAnswers},
})

// stripIdentity is for the server's side. It also removes the headers in which a client claims an
// identity, and other spellings of those that say where a body ends, and all of these from trailers.
var stripIdentity = httpFilterOf(mutationFilter, &mutationv3.HeaderMutation{
	Mutations: &mutationv3.Mutations{
		RequestMutations:         identityMutations(),
		RequestTrailersMutations: slices.Concat(identityMutations(), removeOwn, []*mutationrulesv3.HeaderMutation{remove(clientCertHeader)}),
		ResponseMutations:        sanitizeAnswers, ResponseTrailersMutations: removeOwn,
	},
})

func identityMutations() []*mutationrulesv3.HeaderMutation {
	var out []*mutationrulesv3.HeaderMutation
	for _, name := range mesh.IdentityHeaders() {
		spellings := mesh.HeaderSpellings(name)
		if name == clientCertHeader {
			// The connection manager has already replaced the client's value.
			spellings = mesh.OtherSpellings(name)
		}
		out = append(out, remove(expression(spellings)))
	}
	for _, name := range mesh.FramingHeaders() {
		out = append(out, remove(expression(mesh.OtherSpellings(name))))
	}
	return out
}

// clientCertHeader is where the connection manager writes the verified client
// certificate's identity.
const clientCertHeader = "x-forwarded-client-cert"

// normalizeHeaders leaves one line, in one spelling, of each header that rules compare.
// Envoy compares lines one by one, and a single match would suffice. Multiple lines are
// joined as in RFC 9110, and the result is both compared and passed on.
func normalizeHeaders(names []string) *anypb.Any {
	mutations := joinLines(names)
	for _, name := range names {
		if others := mesh.OtherSpellings(name); others != "" {
			mutations = append(mutations, remove(expression(others)))
		}
	}
	return pack(&mutationv3.HeaderMutationPerRoute{Mutations: &mutationv3.Mutations{RequestMutations: mutations}})
}

// normalizeEarly joins the lines of the headers before a route is chosen.
func normalizeEarly(names []string) *hcmv3.HttpConnectionManager {
	if names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !isToken(name) }); len(names) == 0 {
		return new(hcmv3.HttpConnectionManager)
	}
	return &hcmv3.HttpConnectionManager{EarlyHeaderMutationExtensions: []*corev3.TypedExtensionConfig{earlyMutations(joinLines(names)...)}}
}

// earlyMutations change a request before Envoy looks at it.
func earlyMutations(mutations ...*mutationrulesv3.HeaderMutation) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{
		Name: "envoy.http.early_header_mutation.header_mutation", TypedConfig: pack(&earlyv3.HeaderMutation{Mutations: mutations}),
	}
}

func joinLines(names []string) []*mutationrulesv3.HeaderMutation {
	var out []*mutationrulesv3.HeaderMutation
	for _, name := range names {
		if !isToken(name) {
			continue
		}
		// One line is left even if the joined value is empty.
		joined := headerOption(name, allLines(name), corev3.HeaderValueOption_OVERWRITE_IF_EXISTS)
		out = append(out, &mutationrulesv3.HeaderMutation{Action: &mutationrulesv3.HeaderMutation_Append{Append: joined}})
	}
	return out
}

// allLines is the format of the lines of a request's header, joined by commas.
func allLines(name string) format {
	return "%CEL(request.headers['" + format(inCEL(name)) + "'])%"
}

// remove removes headers whose whole name matches.
func remove(names expression) *mutationrulesv3.HeaderMutation { return removeMatching(regex(names)) }

func removePrefix(prefix string) *mutationrulesv3.HeaderMutation {
	return removeMatching(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}})
}

func removeMatching(names *matcherv3.StringMatcher) *mutationrulesv3.HeaderMutation {
	return &mutationrulesv3.HeaderMutation{Action: &mutationrulesv3.HeaderMutation_RemoveOnMatch_{
		RemoveOnMatch: &mutationrulesv3.HeaderMutation_RemoveOnMatch{KeyMatcher: names},
	}}
}

func removeName(name string) *mutationrulesv3.HeaderMutation {
	return &mutationrulesv3.HeaderMutation{Action: &mutationrulesv3.HeaderMutation_Remove{Remove: name}}
}
