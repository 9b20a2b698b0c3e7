package fact

import "github.com/outrigger-mesh/outrigger/mesh"

// TokenPolicy has the issuers of tokens that the AccessPolicies of its namespace may ask for.
type TokenPolicy struct {
	mesh.Sealed
	mesh.Name

	Issuers []TokenIssuer `json:"issuers"`
}

// TokenIssuer is an issuer with its public keys.
type TokenIssuer struct {
	// Field is its path in the object.
	Field  string          `json:"field"`
	Issuer string          `json:"issuer"`
	Keys   []mesh.TokenKey `json:"keys,omitempty"`
}
