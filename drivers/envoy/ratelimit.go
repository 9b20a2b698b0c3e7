package envoy

import (
	"math"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httplimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	tcplimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/local_ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	requestLimitFilter = "envoy.filters.http.local_ratelimit"
	limitStats         = "rate_limit"
)

// noRequestLimit sets no limit by itself; limits are in the routes.
var noRequestLimit = httpFilterOf(requestLimitFilter, &httplimitv3.LocalRateLimit{StatPrefix: limitStats})

// requestLimit returns the limit as per-route configuration.
func requestLimit(l mesh.RequestLimit) *anypb.Any {
	return pack(&httplimitv3.LocalRateLimit{
		StatPrefix:           limitStats,
		TokenBucket:          tokenBucket(l.TokenBucket),
		Status:               &typev3.HttpStatus{Code: limitStatus(l.Status)},
		ResponseHeadersToAdd: addHeaders(l.AddHeaders),
		FilterEnabled:        always,
		FilterEnforced:       always,
	})
}

var always = &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{Numerator: 100}}

// limitStatus returns 429 for a status that Envoy cannot send.
func limitStatus(status uint32) typev3.StatusCode {
	if _, known := typev3.StatusCode_name[int32(status)]; !known || status < 400 {
		return typev3.StatusCode_TooManyRequests
	}
	return typev3.StatusCode(status)
}

// addHeaders returns headers to add, without those that Envoy would reject.
func addHeaders(headers []mesh.Header) []*corev3.HeaderValueOption {
	var out []*corev3.HeaderValueOption
	for _, h := range headers {
		option := setHeader(h.Name, literal(h.Value))
		if len(out) < maxAddedHeaders && isToken(h.Name) && h.Name != "host" && isText(h.Value) && option.ValidateAll() == nil {
			out = append(out, option)
		}
	}
	return out
}

// maxAddedHeaders is Envoy's limit.
const maxAddedHeaders = 10

// connectionLimit is the filter that limits new connections to a port, shared by all of its filter
// chains. It is there even without a limit, and apart from the listener, so that the connections
// that there are do not end when the limit changes.
func connectionLimit(port string) []*listenerv3.Filter {
	return []*listenerv3.Filter{{Name: port + limitSuffix, ConfigType: apart(&tcplimitv3.LocalRateLimit{})}}
}

// limitSuffix ends the names of filters that limit connections.
const limitSuffix = "/limit"

// limitOf returns the configuration of a port's connectionLimit; nil means no limit.
func limitOf(b *mesh.TokenBucket, port string) *Resource {
	limit := &tcplimitv3.LocalRateLimit{StatPrefix: limitStats, ShareKey: port}
	if b == nil {
		// Envoy requires a bucket.
		limit.TokenBucket = tokenBucket(mesh.TokenBucket{Interval: time.Second})
		limit.RuntimeEnabled = &corev3.RuntimeFeatureFlag{DefaultValue: wrapperspb.Bool(false), RuntimeKey: "outrigger.no_connection_limit"}
	} else {
		limit.TokenBucket = tokenBucket(*b)
	}
	name := port + limitSuffix
	return newResource(extensionType, name, &corev3.TypedExtensionConfig{Name: name, TypedConfig: pack(limit)})
}

// minFill is the shortest fill interval that Envoy accepts.
const minFill = 50 * time.Millisecond

// tokenBucket returns a bucket of at least one token, the minimum of Envoy.
func tokenBucket(b mesh.TokenBucket) *typev3.TokenBucket {
	tokens := max(b.Tokens, 1)
	return &typev3.TokenBucket{
		MaxTokens:     uint32(min(uint64(tokens)+uint64(b.Burst), math.MaxUint32)),
		TokensPerFill: wrapperspb.UInt32(tokens),
		FillInterval:  duration(max(b.Interval, minFill)),
	}
}
