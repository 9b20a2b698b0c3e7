package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/apis/status"
)

// TokenPolicy names the issuers whose tokens the AccessPolicies of its namespace may ask for, with the
// keys by which proxies verify the tokens. By itself it neither allows nor denies anything.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type TokenPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec has the issuers.
	Spec TokenPolicySpec `json:"spec"`
	// Status is the controller's report about the spec.
	// +optional
	Status status.Status `json:"status,omitzero"`
}

// TokenPolicyList is a list of TokenPolicies.
//
// +kubebuilder:object:root=true
type TokenPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the TokenPolicies.
	Items []TokenPolicy `json:"items"`
}

// TokenPolicySpec has issuers of tokens.
type TokenPolicySpec struct {
	// Issuers are added to those of the other TokenPolicies of the namespace. An issuer of several
	// policies has the keys of all of them.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Issuers []TokenIssuer `json:"issuers"`
}

// TokenIssuer issues JSON Web Tokens. Its keys are in exactly one of jwks and jwksFrom.
//
// +kubebuilder:validation:XValidation:rule="has(self.jwks) != has(self.jwksFrom)",message="set either jwks or jwksFrom"
type TokenIssuer struct {
	// Issuer is the claim "iss" of the tokens, such as https://login.example.com.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Issuer string `json:"issuer"`
	// JWKS is the issuer's set of public keys as JSON (RFC 7517): {"keys": [...]}, at most 16 keys. The
	// keys are for RS256, RS384, RS512, ES256, ES384, ES512, PS256, PS384, PS512 or EdDSA with Ed25519. An
	// RSA key without "alg" is for RS256. Keys for encryption and of other kinds are left out; a private
	// key or a secret one is refused.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	// +optional
	JWKS string `json:"jwks,omitempty"`
	// JWKSFrom says where such a set of keys is. Changes of it are followed. As long as there is none, or
	// it cannot be read, none of the issuer's tokens is verified.
	// +optional
	JWKSFrom *TokenKeysSource `json:"jwksFrom,omitempty"`
}

// TokenKeysSource is the place of an issuer's public keys: exactly one of its fields.
//
// +kubebuilder:validation:XValidation:rule="[has(self.configMapKey), has(self.url), has(self.discovery)].exists_one(x, x)",message="set exactly one of configMapKey, url and discovery"
type TokenKeysSource struct {
	// ConfigMapKey is a key of the ConfigMap with the name outrigger-token-keys in the policy's namespace.
	// The controller may read no ConfigMap of another name there. Its value is a set of keys as in jwks, of
	// at most 64 KiB.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +optional
	ConfigMapKey string `json:"configMapKey,omitempty"`
	// URL is where the issuer publishes the keys, its jwks_uri. The controller fetches them by https every
	// five minutes, if spec.traffic.tokenKeys of the MeshConfig allows the host.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^https://[^/?#@\s]+(/[^#\s]*)?$`
	// +optional
	URL string `json:"url,omitempty"`
	// Discovery asks the issuer for that URL, by OpenID Connect Discovery: the controller fetches it from
	// <issuer>/.well-known/openid-configuration. The MeshConfig must allow both hosts.
	// +optional
	Discovery *TokenKeysDiscovery `json:"discovery,omitempty"`
}

// TokenKeysDiscovery has no fields yet.
type TokenKeysDiscovery struct{}

// AccessToken is a condition on the user's token: a JSON Web Token in the header "Authorization", after
// "Bearer" and a space, that an issuer of a TokenPolicy of the namespace has signed, and that has not
// expired. All of its fields must match. A request without such a token never matches; a Deny also
// refuses requests whose header "Authorization" has no token that proxies can verify.
type AccessToken struct {
	// Issuer is that of the token. Without the field it may be any issuer of the namespace's
	// TokenPolicies.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Issuer string `json:"issuer,omitempty"`
	// Audiences are those of which the token must have one in its claim "aud". Without the field every
	// token matches, and an empty list matches none.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +optional
	Audiences []string `json:"audiences,omitzero"`
	// Claims are conditions that must all hold. Without the field every token matches, and an empty list
	// matches none.
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Claims []AccessClaim `json:"claims,omitzero"`
}

// AccessClaim is a condition on a claim of a token.
type AccessClaim struct {
	// Path leads to the claim: its name or, if it is within an object, the names of the objects before
	// it, such as [realm_access, roles].
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Path []string `json:"path"`
	// Values are those of which the claim must be one or, if it is a list, have one. The claim "scope"
	// is a list of words. The values "true" and "false" also stand for these two in JSON; numbers are
	// never equal to a value. Without the field the token must have the claim, and an empty list matches
	// nothing.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +optional
	Values []string `json:"values,omitzero"`
}
