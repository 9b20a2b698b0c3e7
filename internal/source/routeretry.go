package source

import (
	"regexp"
	"slices"
	"time"

	gateway "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// ruleLimits sets the rule's limits and retries.
func (n *notes) ruleLimits(path string, timeouts *gateway.HTTPRouteTimeouts, retry *gateway.HTTPRouteRetry, rule *fact.RouteRule) {
	var request, try *time.Duration
	if timeouts != nil {
		request = n.routeLimit(path+".timeouts.request", timeouts.Request, rule)
		try = n.routeLimit(path+".timeouts.backendRequest", timeouts.BackendRequest, rule)
	}
	if retry != nil {
		rule.Retry = n.routeRetry(path+".retry", retry, deref(try, 0), rule)
	}
	if request != nil && try != nil && *request > 0 && *try > *request {
		n.unusable(rule, fact.ReasonUnsupportedValue, path+".timeouts.backendRequest", "%s is longer than the timeout of the request, %s; shorten it", *try, *request)
	}
	rule.Timeout = request
	if rule.Retry != nil && rule.Retry.Attempts > 0 {
		return
	}
	// There is one try only, so the shorter limit applies.
	if try != nil && (request == nil || *request == 0 || *try > 0 && *try < *request) {
		rule.Timeout = try
	}
}

// routeLimit returns nil if there is none, and 0 if there is explicitly no limit.
func (n *notes) routeLimit(path string, value *gateway.Duration, rule *fact.RouteRule) *time.Duration {
	if value == nil {
		return nil
	}
	d, err := time.ParseDuration(string(*value))
	if err != nil || !routeDuration.MatchString(string(*value)) {
		n.unusable(rule, fact.ReasonUnsupportedValue, path, "%q is not a duration; write one such as 10s or 1m500ms, in whole numbers", string(*value))
		return nil
	}
	return &d
}

// routeDuration matches the durations of GEP-2257.
var routeDuration = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

// routeRetry returns the retries of a request that no server has processed, or that has one
// of the status codes. A limit on each try says that a request may be processed twice, so
// then tries that fail later are repeated too.
func (n *notes) routeRetry(path string, declared *gateway.HTTPRouteRetry, try time.Duration, rule *fact.RouteRule) *mesh.Retry {
	attempts := deref(declared.Attempts, defaultRetries)
	if attempts < 0 || attempts > maxRetries {
		n.unusable(rule, fact.ReasonUnsupportedValue, path+".attempts", "%d is not a number of retries from 0 to %d", attempts, maxRetries)
		return nil
	}
	if attempts == 0 {
		return new(mesh.Retry)
	}
	retry := &mesh.Retry{On: []string{"connect-failure", "refused-stream"}, Attempts: uint32(attempts), PerTry: try}
	if try > 0 {
		retry.On = []string{"connect-failure", "refused-stream", "reset"}
	}
	if backoff := n.routeLimit(path+".backoff", declared.Backoff, rule); backoff != nil {
		retry.Backoff = *backoff
	}
	for i, code := range declared.Codes {
		if code < 400 || code > 599 {
			n.unusable(rule, fact.ReasonUnsupportedValue, index(path+".codes", i), "%d is not a status code from 400 to 599", int(code))
			continue
		}
		retry.Codes = append(retry.Codes, uint16(code))
	}
	slices.Sort(retry.Codes)
	retry.Codes = slices.Compact(retry.Codes)
	return retry
}
