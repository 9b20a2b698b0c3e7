package source

import (
	"math"
	"slices"
	"strings"

	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	"github.com/outrigger-mesh/outrigger/mesh"
)

const defaultRetries = 1

// retryRule returns nothing for a rule that tries nothing again.
func retryRule(obj *policy.Retry, n *notes) mesh.Content {
	spec := &obj.Spec
	rule := &mesh.RetryRule{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta)}
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
	n.needed("spec.destinations", len(declared), "destination, so nothing is tried again")
	var services []mesh.Name
	for i, d := range declared {
		path := index("spec.destinations", i)
		if d.Kind != policy.RetryDestination {
			n.add(ReasonUnknownKind, path+".kind", "%q is not a kind of destination, so it is left out; use %s", d.Kind, policy.RetryDestination)
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
		if *number < 0 || *number > math.MaxUint32 {
			n.add(ReasonInvalid, path+".numRetries", "%d is not a number of retries, %d is used; use 0 or more", *number, defaultRetries)
		} else {
			retry.Attempts = uint32(*number)
		}
	}
	return retry
}

// retryOn reads a list of the words of Envoy's headers x-envoy-retry-on and
// x-envoy-retry-grpc-on, of which no other proxy has its own.
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
			n.add(ReasonNoEffect, path, "%q is left out, because nothing says which status codes or headers it is about; use words of: %s", word, strings.Join(known, ", "))
		case slices.Contains(known, word):
			words = append(words, word)
		default:
			n.add(ReasonInvalid, path, "%q is not something to try again on and is left out; use words of: %s", word, strings.Join(known, ", "))
		}
	}
	if len(words) == 0 {
		n.add(ReasonMissing, path, "%q names nothing to try again on, so nothing is tried again; write a list such as 5xx,connect-failure", list)
	}
	return sortedSet(words, strings.Compare)
}
