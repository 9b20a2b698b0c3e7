package v1alpha1

import "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"

// LoadBalancing is how a client's sidecar chooses among a host's endpoints.
//
// +kubebuilder:validation:XValidation:rule="!has(self.hashOn) || !has(self.policy) || self.policy in ['RingHash', 'Maglev']",message="hashOn needs the policy RingHash or Maglev; leave the policy out for RingHash"
// +kubebuilder:validation:XValidation:rule="has(self.hashOn) || !has(self.policy) || !(self.policy in ['RingHash', 'Maglev'])",message="the policies RingHash and Maglev need hashOn, which says what to hash"
type LoadBalancing struct {
	// Policy is the rule of choice. Empty means RoundRobin, or RingHash where hashOn
	// is set.
	// +optional
	Policy LoadBalancingPolicy `json:"policy,omitempty"`

	// HashOn sends requests that have something in common to the same endpoint, which
	// gives clients a session: the first of these that a request has. It goes with the
	// policies RingHash and Maglev only.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	HashOn []HashOn `json:"hashOn,omitempty"`

	// ZoneAware prefers endpoints in the client's own zone while there are enough of
	// them.
	// +optional
	ZoneAware bool `json:"zoneAware,omitempty"`
}

// LoadBalancingPolicy is a rule for choosing an endpoint, for each request of HTTP and
// for each connection of TCP.
//
// +kubebuilder:validation:Enum=RoundRobin;LeastRequest;Random;RingHash;Maglev
type LoadBalancingPolicy string

const (
	// LoadBalancingRoundRobin takes one endpoint after the other.
	LoadBalancingRoundRobin LoadBalancingPolicy = "RoundRobin"
	// LoadBalancingLeastRequest takes the one of two random endpoints that has fewer
	// requests in progress.
	LoadBalancingLeastRequest LoadBalancingPolicy = "LeastRequest"
	// LoadBalancingRandom takes a random endpoint.
	LoadBalancingRandom LoadBalancingPolicy = "Random"
	// LoadBalancingRingHash takes the endpoint that a hash of the request leads to, on
	// a ring of endpoints (Ketama).
	LoadBalancingRingHash LoadBalancingPolicy = "RingHash"
	// LoadBalancingMaglev takes the endpoint that a hash of the request leads to, in
	// a table of fixed size (Maglev). It is faster than RingHash, but more requests
	// move when endpoints change.
	LoadBalancingMaglev LoadBalancingPolicy = "Maglev"
)

// HashOn is what requests that go to the same endpoint have in common, exactly one of
// its fields.
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

	// SourceIP hashes the address that the connection comes from, which all have. It is
	// the only one for TCP.
	// +optional
	SourceIP bool `json:"sourceIP,omitempty"`
}

// HashCookie is a cookie whose value is hashed. The sidecar sets it where a request
// has none.
type HashCookie struct {
	// Name is the cookie's name.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// TTL is how long a client keeps the cookie that the sidecar sets. Empty or 0s
	// means until the client ends.
	// +optional
	TTL v1alpha2.Duration `json:"ttl,omitempty"`
}
