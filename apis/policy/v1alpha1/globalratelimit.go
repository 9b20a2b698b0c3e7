package v1alpha1

// GlobalRateLimit is limits that a service keeps for all sidecars. The service speaks
// Envoy's rate limit protocol, and the descriptors are that protocol's.
type GlobalRateLimit struct {
	// TCP asks the service about new connections.
	// +optional
	TCP *TCPGlobalRateLimit `json:"tcp,omitempty"`

	// HTTP asks the service about requests.
	// +optional
	HTTP *HTTPGlobalRateLimit `json:"http,omitempty"`
}

// RateLimitService is where the service is.
type RateLimitService struct {
	// Host is the service's host name.
	// +kubebuilder:validation:MinLength=1
	Host string `json:"host"`

	// Port is the service's port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// TCPGlobalRateLimit asks a service about new connections.
type TCPGlobalRateLimit struct {
	// RateLimitService is where the service is.
	RateLimitService RateLimitService `json:"rateLimitService"`

	// Domain is which of the service's sets of limits is meant.
	Domain string `json:"domain"`

	// Descriptors are what the service is told of a connection.
	// +kubebuilder:validation:MinItems=1
	Descriptors []TCPRateLimitDescriptor `json:"descriptors"`

	// Timeout is how long the service may take to answer. Left out, it is 20ms.
	// +optional
	Timeout *Duration `json:"timeout,omitempty"`

	// FailOpen lets connections pass while the service does not answer. Left out, it
	// is on, as in Open Service Mesh.
	// +optional
	FailOpen *bool `json:"failOpen,omitempty"`
}

// TCPRateLimitDescriptor is what the service is told of a connection.
type TCPRateLimitDescriptor struct {
	// Entries are the parts of the descriptor.
	// +kubebuilder:validation:MinItems=1
	Entries []TCPRateLimitDescriptorEntry `json:"entries"`
}

// TCPRateLimitDescriptorEntry is one part of a descriptor.
type TCPRateLimitDescriptorEntry struct {
	// Key is the entry's key.
	Key string `json:"key"`

	// Value is the entry's value.
	Value string `json:"value"`
}

// HTTPGlobalRateLimit asks a service about requests.
type HTTPGlobalRateLimit struct {
	// RateLimitService is where the service is.
	RateLimitService RateLimitService `json:"rateLimitService"`

	// Domain is which of the service's sets of limits is meant.
	Domain string `json:"domain"`

	// Descriptors are what the service is told of a request, whatever its path.
	// +optional
	// +kubebuilder:validation:MinItems=1
	Descriptors []HTTPRateLimitDescriptor `json:"descriptors,omitempty"`

	// Timeout is how long the service may take to answer. Left out, it is 20ms.
	// +optional
	Timeout *Duration `json:"timeout,omitempty"`

	// FailOpen lets requests pass while the service does not answer. Left out, it is
	// on, as in Open Service Mesh.
	// +optional
	FailOpen *bool `json:"failOpen,omitempty"`

	// EnableXRateLimitHeaders tells the client of its limit in the headers
	// X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset. Left out, it is
	// off.
	// +optional
	EnableXRateLimitHeaders *bool `json:"enableXRateLimitHeaders,omitempty"`

	// ResponseStatusCode is the status of the answer to a request over the limit.
	// Left out, it is 429.
	// +optional
	// +kubebuilder:validation:Minimum=400
	// +kubebuilder:validation:Maximum=599
	ResponseStatusCode int32 `json:"responseStatusCode,omitempty"`
}

// HTTPRouteGlobalRateLimit is what a service is told of the requests for one path.
type HTTPRouteGlobalRateLimit struct {
	// Descriptors are what the service is told of a request.
	// +kubebuilder:validation:MinItems=1
	Descriptors []HTTPRateLimitDescriptor `json:"descriptors"`
}

// HTTPRateLimitDescriptor is what the service is told of a request.
type HTTPRateLimitDescriptor struct {
	// Entries are the parts of the descriptor.
	// +kubebuilder:validation:MinItems=1
	Entries []HTTPRateLimitDescriptorEntry `json:"entries"`
}

// HTTPRateLimitDescriptorEntry is one part of a descriptor, exactly one of its fields.
type HTTPRateLimitDescriptorEntry struct {
	// GenericKey is a fixed key and value.
	// +optional
	GenericKey *GenericKeyEntry `json:"genericKey,omitempty"`

	// RemoteAddress is the key remote_address with the client's IP address, which is
	// taken from the X-Forwarded-For header.
	// +optional
	RemoteAddress *RemoteAddressEntry `json:"remoteAddress,omitempty"`

	// RequestHeader is a header's value. Without the header there is no entry.
	// +optional
	RequestHeader *RequestHeaderEntry `json:"requestHeader,omitempty"`

	// HeaderValueMatch is a fixed key and value for requests whose headers match.
	// +optional
	HeaderValueMatch *HeaderValueMatchEntry `json:"headerValueMatch,omitempty"`
}

// GenericKeyEntry is a fixed key and value.
type GenericKeyEntry struct {
	// Value is the entry's value.
	// +kubebuilder:validation:MinLength=1
	Value string `json:"value"`

	// Key is the entry's key. Empty means generic_key.
	// +optional
	Key string `json:"key,omitempty"`
}

// RemoteAddressEntry is the client's IP address. It has no settings.
type RemoteAddressEntry struct{}

// RequestHeaderEntry is a header's value.
type RequestHeaderEntry struct {
	// Name is the header's name.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// Key is the entry's key.
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key"`
}

// HeaderValueMatchEntry is a fixed key and value for requests whose headers match.
type HeaderValueMatchEntry struct {
	// Value is the entry's value.
	// +kubebuilder:validation:MinLength=1
	Value string `json:"value"`

	// Headers describe headers; all of them must match.
	// +kubebuilder:validation:MinItems=1
	Headers []HTTPHeaderMatch `json:"headers"`

	// Key is the entry's key. Empty means header_match.
	// +optional
	Key string `json:"key,omitempty"`

	// ExpectMatch, set to false, makes the entry for requests that do not match. Left
	// out, it is true.
	// +optional
	ExpectMatch *bool `json:"expectMatch,omitempty"`
}

// HTTPHeaderMatch describes a header, by its name and exactly one other field.
type HTTPHeaderMatch struct {
	// Name is the header's name.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// Exact is the whole value.
	// +optional
	Exact string `json:"exact,omitempty"`

	// Prefix is what the value begins with.
	// +optional
	Prefix string `json:"prefix,omitempty"`

	// Suffix is what the value ends with.
	// +optional
	Suffix string `json:"suffix,omitempty"`

	// Regex is a regular expression that the whole value must match.
	// +optional
	Regex string `json:"regex,omitempty"`

	// Contains is a part of the value.
	// +optional
	Contains string `json:"contains,omitempty"`

	// Present says whether there must be such a header, or must not.
	// +optional
	Present *bool `json:"present,omitempty"`
}
