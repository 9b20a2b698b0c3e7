package fact

import (
	"encoding/json"
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// AccessAction is what an AccessPolicy does to what it matches.
type AccessAction string

// The actions of AccessPolicies.
const (
	Allow AccessAction = "Allow"
	Deny  AccessAction = "Deny"
	Audit AccessAction = "Audit"
)

// AccessPolicy allows, denies or audits what its rules match at workloads of its namespace or, if it
// has none, of the namespaces with labels. Such a policy of the cluster comes before the others.
type AccessPolicy struct {
	mesh.Sealed
	mesh.Name
	Age
	Namespaces Selector `json:"namespaces,omitzero"`

	Action  AccessAction   `json:"action"`
	Targets []AccessTarget `json:"targets"`
	Rules   []PolicyRule   `json:"rules"`
}

// AccessTarget are workloads: those with labels, those of a service account or, if Service is set, the
// endpoints of a service at the ports to which it leads.
type AccessTarget struct {
	Pods           Selector `json:"pods,omitzero"`
	ServiceAccount string   `json:"serviceAccount,omitempty"`
	Service        string   `json:"service,omitempty"`
}

// PolicyRule matches callers and what they send.
type PolicyRule struct {
	// Field is its path in the object.
	Field string `json:"field"`
	// Everyone means all callers. Otherwise they are the Sources and, without an identity, those
	// whose addresses are in Ranges. Except are never meant.
	Everyone bool           `json:"everyone,omitempty"`
	Sources  []PolicySource `json:"sources,omitempty"`
	Except   []PolicySource `json:"except,omitempty"`
	Ranges   []netip.Prefix `json:"ranges,omitempty"`
	// Ports are ports of the workload. AnyPort means all of them.
	AnyPort bool     `json:"anyPort,omitempty"`
	Ports   []uint16 `json:"ports,omitempty"`
	// Requests are the matched requests, of which the zero HTTPMatch is one for all requests and,
	// unless OnlyRequests, connections. Empty matches nothing.
	Requests     []mesh.HTTPMatch `json:"requests,omitempty"`
	OnlyRequests bool             `json:"onlyRequests,omitempty"`
}

// PolicySource is a set of identities.
type PolicySource struct {
	// Identity is one, or all of a namespace without a ServiceAccount. Without a TrustDomain it is
	// in the mesh's own.
	Identity mesh.Identity `json:"identity,omitzero"`
	// Namespaces, unless they are nil, select namespaces by label, all of whose identities are meant.
	Namespaces *Selector `json:"namespaces,omitempty"`
}

// Selector selects objects by their labels. The zero Selector selects nothing. It is immutable.
type Selector struct{ selector labels.Selector }

// NewSelector returns a Selector. One that selects nothing becomes the zero Selector, since its text
// is that of one that selects everything.
func NewSelector(s labels.Selector) Selector {
	if _, selectable := s.Requirements(); !selectable {
		return Selector{}
	}
	return Selector{s}
}

// Matches reports whether an object with these labels is selected.
func (s Selector) Matches(object map[string]string) bool {
	return s.selector != nil && s.selector.Matches(labels.Set(object))
}

// IsZero reports whether the Selector is the zero one.
func (s Selector) IsZero() bool { return s.selector == nil }

// MarshalJSON writes the selector's text, by which digests tell selectors apart.
func (s Selector) MarshalJSON() ([]byte, error) {
	if s.selector == nil {
		return []byte("null"), nil
	}
	return json.Marshal("=" + s.selector.String())
}
