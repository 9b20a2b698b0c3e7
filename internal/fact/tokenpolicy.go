package fact

import "github.com/outrigger-mesh/outrigger/mesh"

// TokenPolicy has the issuers of tokens that the AccessPolicies of its namespace may ask for.
type TokenPolicy struct {
	mesh.Sealed
	mesh.Name

	Issuers []TokenIssuer `json:"issuers"`
}

// TokenIssuer is an issuer with its public keys, or with their place.
type TokenIssuer struct {
	// Field is its path in the object.
	Field  string          `json:"field"`
	Issuer string          `json:"issuer"`
	Keys   []mesh.TokenKey `json:"keys,omitempty"`
	// ConfigMapKey is the name of a set of the namespace's TokenKeys, which then has the keys.
	ConfigMapKey string `json:"configMapKey,omitempty"`
	// Fetched is where the keys are fetched from, if that is set.
	Fetched KeyAddress `json:"fetched,omitzero"`
}

// KeyAddress is where public keys are fetched from by https.
type KeyAddress struct {
	URL string `json:"url,omitempty"`
	// Issuer is set if the URL is that of its OpenID configuration, which has the URL of the keys.
	Issuer string `json:"issuer,omitempty"`
}

// Object identifies the TokenKeys that were fetched. There is no such object in the cluster.
func (a KeyAddress) Object() mesh.ObjectRef {
	return mesh.ObjectRef{Kind: "TokenKeys", Namespace: a.Issuer, Name: a.URL}
}

// TokenKeysName is the name of the ConfigMap of a namespace with its TokenKeys.
const TokenKeysName = "outrigger-token-keys"

// TokenKeys are the sets of public keys that the TokenPolicies of a namespace can refer to, by name. Fetched
// ones are one set without a name.
type TokenKeys struct {
	mesh.Sealed
	Sets map[string]KeySet `json:"sets,omitempty"`
}

// KeySet is a set of public keys.
type KeySet struct {
	Keys []mesh.TokenKey `json:"keys,omitempty"`
	// Flaws are what is wrong with it. They are Problems of those that refer to it.
	Flaws []Flaw `json:"flaws,omitempty"`
}

// Flaw is a Problem without an object.
type Flaw struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}
