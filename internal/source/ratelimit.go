package source

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// rateLimits reads the local rate limits. Invalid limits are ignored, since any guess
// could stop the service.
func (n *notes) rateLimits(spec *policy.UpstreamTrafficSettingSpec) mesh.RateLimits {
	var limits mesh.RateLimits
	if declared := spec.RateLimit; declared != nil {
		if declared.Global != nil {
			n.add(ReasonNotSupported, "spec.rateLimit.global", "Outrigger asks no service about limits, so there is none; use local")
		}
		if local := declared.Local; local != nil {
			if tcp := local.TCP; tcp != nil {
				limits.Connections = n.tokenBucket("spec.rateLimit.local.tcp", "connections", tcp.Connections, tcp.Unit, tcp.Burst)
			}
			if local.HTTP != nil {
				limits.Requests = n.requestLimit("spec.rateLimit.local.http", local.HTTP)
			}
		}
	}
	limits.Routes = n.routeLimits(spec.HTTPRoutes)
	return limits
}

func (n *notes) routeLimits(routes []policy.HTTPRoute) []mesh.RouteLimit {
	var limits []mesh.RouteLimit
	for i, route := range routes {
		path := index("spec.httpRoutes", i)
		if err := n.checkRegex(route.Path); err != nil {
			n.add(ReasonInvalidRegex, path+".path", "%q is not usable, so the route has no separate limit: %v", route.Path, err)
			continue
		}
		declared := route.RateLimit
		if declared == nil {
			continue
		}
		if declared.Global != nil {
			n.add(ReasonNotSupported, path+".rateLimit.global", "Outrigger asks no service about limits, so there is none; use local")
		}
		if declared.Local == nil {
			continue
		}
		if slices.ContainsFunc(limits, func(l mesh.RouteLimit) bool { return l.Path == route.Path }) {
			n.add(ReasonDuplicate, path+".path", "another route with a limit also has the path %q, so this one is ignored; remove one of the two", route.Path)
			continue
		}
		if limit := n.requestLimit(path+".rateLimit.local", declared.Local); limit != nil {
			limits = append(limits, mesh.RouteLimit{Path: route.Path, Limit: *limit})
		}
	}
	return limits
}

const (
	// Envoy's limits for headers that it adds to the response to a rate-limited
	// request.
	maxAddedHeaders = 10
	maxHeaderValue  = 16 << 10
)

// requestLimit returns nil for no limit.
func (n *notes) requestLimit(path string, declared *policy.HTTPLocalRateLimit) *mesh.RequestLimit {
	bucket := n.tokenBucket(path, "requests", declared.Requests, declared.Unit, declared.Burst)
	if bucket == nil {
		return nil
	}
	limit := &mesh.RequestLimit{TokenBucket: *bucket}
	if status := declared.ResponseStatusCode; isErrorStatus(status) {
		limit.Status = uint32(status)
	} else if status != 0 {
		n.add(ReasonInvalid, path+".responseStatusCode", "%d is not an HTTP status from 400 to 599 that every proxy supports; 429 is used", status)
	}
	for i, h := range declared.ResponseHeadersToAdd {
		name := strings.ToLower(h.Name)
		if !isHeaderName(name) || slices.Contains(framing, name) || hasControl(h.Value) {
			n.add(ReasonInvalid, index(path+".responseHeadersToAdd", i), "%q with the value %q is not a response header, so it is ignored", h.Name, h.Value)
			continue
		}
		if len(h.Value) > maxHeaderValue || len(limit.AddHeaders) == maxAddedHeaders {
			n.add(ReasonInvalid, index(path+".responseHeadersToAdd", i), "%q is ignored, because proxies add at most %d headers of at most %d bytes; remove it", h.Name, maxAddedHeaders, maxHeaderValue)
			continue
		}
		limit.AddHeaders = append(limit.AddHeaders, mesh.Header{Name: name, Value: h.Value})
	}
	slices.SortStableFunc(limit.AddHeaders, func(a, b mesh.Header) int { return cmp.Compare(a.Name, b.Name) })
	return limit
}

// isErrorStatus reports whether Open Service Mesh accepts the status.
func isErrorStatus(status int32) bool {
	switch status {
	case 421, 422, 423, 424, 426, 428, 429, 431, 510, 511:
		return true
	}
	return status >= 400 && status <= 417 || status >= 500 && status <= 508
}

// tokenBucket returns nil for no limit.
func (n *notes) tokenBucket(path, field string, number int64, unit policy.RateLimitUnit, burst int64) *mesh.TokenBucket {
	if number < 1 || number > math.MaxUint32 {
		n.add(ReasonInvalid, path+"."+field, "%d is not a rate, so there is no limit; use 1 to %d", number, uint32(math.MaxUint32))
		return nil
	}
	bucket := &mesh.TokenBucket{Tokens: uint32(number)}
	switch unit {
	case policy.RateLimitSecond:
		bucket.Interval = time.Second
	case policy.RateLimitMinute:
		bucket.Interval = time.Minute
	case policy.RateLimitHour:
		bucket.Interval = time.Hour
	default:
		n.add(ReasonInvalid, path+".unit", "%q is not a unit, so there is no limit; use %s, %s or %s", string(unit), policy.RateLimitSecond, policy.RateLimitMinute, policy.RateLimitHour)
		return nil
	}
	// Proxies add the two.
	if most := math.MaxUint32 - number; burst < 0 || burst > most {
		n.add(ReasonInvalid, path+".burst", "%d is not a burst, 0 is used; use 0 to %d", burst, most)
	} else {
		bucket.Burst = uint32(burst)
	}
	return bucket
}
