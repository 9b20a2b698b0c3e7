package source

import (
	"slices"
	"strings"

	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const (
	defaultRetries = 1
	// maxRetries bounds what one failing request can cost a service.
	maxRetries = 100
)

// retryRule returns nil for a rule that retries nothing.
func retryRule(obj *policy.Retry, n *notes) mesh.Digester {
	spec := &obj.Spec
	rule := &fact.RetryRule{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta)}
	source, ok := n.serviceAccount("spec.source", spec.Source.Kind, spec.Source.Namespace, spec.Source.Name)
	rule.Source = source
	rule.Destinations = n.retryDestinations(spec.Destinations)
	rule.Retry = n.retry("spec.retryPolicy", &spec.RetryPolicy)
	if !ok || len(rule.Destinations) == 0 || len(rule.Retry.On) == 0 {
		return nil
	}
	return mesh.Seal(rule)
}

func (n *notes) retryDestinations(declared []policy.RetrySubject) []mesh.Name {
	n.needed("spec.destinations", len(declared), "destination, so nothing is retried")
	var services []mesh.Name
	for i, d := range declared {
		path := index("spec.destinations", i)
		if d.Kind != policy.RetryDestination {
			n.add(ReasonUnknownKind, path+".kind", "%q is not a kind of destination, so it is ignored; use %s", d.Kind, policy.RetryDestination)
			continue
		}
		if service, ok := n.service(path, d.Namespace, d.Name); ok {
			services = append(services, service)
		}
	}
	return unique(services)
}

func (n *notes) retry(path string, declared *policy.RetryPolicy) mesh.Retry {
	retry := mesh.Retry{
		On:       n.retryOn(path+".retryOn", declared.RetryOn),
		Attempts: defaultRetries,
		PerTry:   n.duration(path+".perTryTimeout", deref(declared.PerTryTimeout, "")),
		Backoff:  n.duration(path+".retryBackoffBaseInterval", deref(declared.RetryBackoffBaseInterval, "")),
	}
	if number := declared.NumRetries; number != nil {
		if *number < 0 || *number > maxRetries {
			n.add(ReasonInvalid, path+".numRetries", "%d is not a number of retries, %d is used; use 0 to %d", *number, defaultRetries, maxRetries)
		} else {
			retry.Attempts = uint32(*number)
		}
	}
	return retry
}

// retryOn parses a list of conditions of Envoy's headers x-envoy-retry-on and
// x-envoy-retry-grpc-on. All drivers use these names.
func (n *notes) retryOn(path, list string) []string {
	known := []string{
		"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "envoy-ratelimited", "retriable-4xx",
		"refused-stream", "http3-post-connect-failure",
		"cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable",
	}
	var words []string
	for word := range strings.SplitSeq(list, ",") {
		word = strings.TrimSpace(word)
		switch {
		case word == "":
		case word == "retriable-status-codes", word == "retriable-headers":
			n.add(ReasonNoEffect, path, "%q is ignored, because the status codes or headers can't be configured; use: %s", word, strings.Join(known, ", "))
		case slices.Contains(known, word):
			words = append(words, word)
		default:
			n.add(ReasonInvalid, path, "%q is not a retry condition and is ignored; use: %s", word, strings.Join(known, ", "))
		}
	}
	if len(words) == 0 {
		n.add(ReasonMissing, path, "%q has no retry condition, so nothing is retried; write a list such as 5xx,connect-failure", list)
	}
	return sortedSet(words, strings.Compare)
}
