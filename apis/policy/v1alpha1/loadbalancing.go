package v1alpha1

import "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"

// LoadBalancing configures how a client's sidecar chooses among a host's endpoints.
//
// +kubebuilder:validation:XValidation:rule="!has(self.hashOn) || !has(self.policy) || self.policy in ['RingHash', 'Maglev']",message="hashOn needs the policy RingHash or Maglev; leave the policy out for RingHash"
// +kubebuilder:validation:XValidation:rule="has(self.hashOn) || !has(self.policy) || !(self.policy in ['RingHash', 'Maglev'])",message="the policies RingHash and Maglev need hashOn, which says what to hash"
type LoadBalancing struct {
	// Policy is the load balancing policy. Empty means RoundRobin, or RingHash if hashOn
	// is set.
	// +optional
	Policy LoadBalancingPolicy `json:"policy,omitempty"`

	// HashOn sends requests with the same property to the same endpoint, for session
	// affinity. The first property that a request has is used. Only valid with the
	// policies RingHash and Maglev.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	HashOn []HashOn `json:"hashOn,omitempty"`

	// ZoneAware prefers endpoints in the client's zone as long as there are enough of
	// them.
	// +optional
	ZoneAware bool `json:"zoneAware,omitempty"`
}

// LoadBalancingPolicy is an algorithm for choosing an endpoint, per request for HTTP and
// per connection for TCP.
//
// +kubebuilder:validation:Enum=RoundRobin;LeastRequest;Random;RingHash;Maglev
type LoadBalancingPolicy string

const (
	// LoadBalancingRoundRobin uses the endpoints in turn.
	LoadBalancingRoundRobin LoadBalancingPolicy = "RoundRobin"
	// LoadBalancingLeastRequest chooses the one of two random endpoints with fewer active
	// requests.
	LoadBalancingLeastRequest LoadBalancingPolicy = "LeastRequest"
	// LoadBalancingRandom chooses a random endpoint.
	LoadBalancingRandom LoadBalancingPolicy = "Random"
	// LoadBalancingRingHash chooses an endpoint by a hash of the request on a ring
	// (Ketama).
	LoadBalancingRingHash LoadBalancingPolicy = "RingHash"
	// LoadBalancingMaglev chooses an endpoint by a hash of the request in a table of fixed
	// size (Maglev). It is faster than RingHash, but more requests move when endpoints
	// change.
	LoadBalancingMaglev LoadBalancingPolicy = "Maglev"
)

// HashOn is a property of requests to hash, exactly one of its fields.
//
// +kubebuilder:validation:XValidation:rule="(has(self.header) ? 1 : 0) + (has(self.cookie) ? 1 : 0) + (has(self.sourceIP) && self.sourceIP ? 1 : 0) == 1",message="set exactly one of header, cookie and sourceIP"
type HashOn struct {
	// Header is the name of a header whose value is hashed.
	// +optional
	// +kubebuilder:validation:MinLength=1
	Header string `json:"header,omitempty"`

	// Cookie is a cookie whose value is hashed.
	// +optional
	Cookie *HashCookie `json:"cookie,omitempty"`

	// SourceIP hashes the client's address, which every connection has. It is the only
	// choice for TCP.
	// +optional
	SourceIP bool `json:"sourceIP,omitempty"`
}

// HashCookie is a cookie whose value is hashed. The sidecar sets it on responses to
// requests without it.
type HashCookie struct {
	// Name is the cookie's name.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// TTL is the lifetime of the cookie that the sidecar sets. Empty or 0s makes it a
	// session cookie.
	// +optional
	TTL v1alpha2.Duration `json:"ttl,omitempty"`
}
