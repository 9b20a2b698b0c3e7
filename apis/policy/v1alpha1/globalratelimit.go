package v1alpha1

// GlobalRateLimit uses a service that counts for all sidecars. The service implements
// Envoy's rate limit protocol, which also defines the descriptors.
type GlobalRateLimit struct {
	// TCP queries the service for new connections.
	// +optional
	TCP *TCPGlobalRateLimit `json:"tcp,omitempty"`

	// HTTP queries the service for requests.
	// +optional
	HTTP *HTTPGlobalRateLimit `json:"http,omitempty"`
}

// RateLimitService is the address of the service.
type RateLimitService struct {
	// Host is the service's host name.
	// +kubebuilder:validation:MinLength=1
	Host string `json:"host"`

	// Port is the service's port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// TCPGlobalRateLimit queries a service for new connections.
type TCPGlobalRateLimit struct {
	// RateLimitService is the address of the service.
	RateLimitService RateLimitService `json:"rateLimitService"`

	// Domain selects one of the service's sets of limits.
	Domain string `json:"domain"`

	// Descriptors describe a connection to the service.
	// +kubebuilder:validation:MinItems=1
	Descriptors []TCPRateLimitDescriptor `json:"descriptors"`

	// Timeout limits the time for the service's response. Defaults to 20ms.
	// +optional
	Timeout *Duration `json:"timeout,omitempty"`

	// FailOpen allows connections if the service does not respond. On by default, as in
	// Open Service Mesh.
	// +optional
	FailOpen *bool `json:"failOpen,omitempty"`
}

// TCPRateLimitDescriptor describes a connection to the service.
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

// HTTPGlobalRateLimit queries a service for requests.
type HTTPGlobalRateLimit struct {
	// RateLimitService is the address of the service.
	RateLimitService RateLimitService `json:"rateLimitService"`

	// Domain selects one of the service's sets of limits.
	Domain string `json:"domain"`

	// Descriptors describe a request to the service, regardless of its path.
	// +optional
	// +kubebuilder:validation:MinItems=1
	Descriptors []HTTPRateLimitDescriptor `json:"descriptors,omitempty"`

	// Timeout limits the time for the service's response. Defaults to 20ms.
	// +optional
	Timeout *Duration `json:"timeout,omitempty"`

	// FailOpen allows requests if the service does not respond. On by default, as in Open
	// Service Mesh.
	// +optional
	FailOpen *bool `json:"failOpen,omitempty"`

	// EnableXRateLimitHeaders reports the limit to the client in the headers
	// X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset. Off by default.
	// +optional
	EnableXRateLimitHeaders *bool `json:"enableXRateLimitHeaders,omitempty"`

	// ResponseStatusCode is the status of the response to a request over the limit.
	// Defaults to 429.
	// +optional
	// +kubebuilder:validation:Minimum=400
	// +kubebuilder:validation:Maximum=599
	ResponseStatusCode int32 `json:"responseStatusCode,omitempty"`
}

// HTTPRouteGlobalRateLimit describes the requests for one path to the service.
type HTTPRouteGlobalRateLimit struct {
	// Descriptors describe a request to the service.
	// +kubebuilder:validation:MinItems=1
	Descriptors []HTTPRateLimitDescriptor `json:"descriptors"`
}

// HTTPRateLimitDescriptor describes a request to the service.
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

	// ExpectMatch, if false, makes the entry for requests that do not match. Defaults to
	// true.
	// +optional
	ExpectMatch *bool `json:"expectMatch,omitempty"`
}

// HTTPHeaderMatch matches a header by its name and exactly one other field.
type HTTPHeaderMatch struct {
	// Name is the header's name.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// Exact must equal the value.
	// +optional
	Exact string `json:"exact,omitempty"`

	// Prefix is a prefix of the value.
	// +optional
	Prefix string `json:"prefix,omitempty"`

	// Suffix is a suffix of the value.
	// +optional
	Suffix string `json:"suffix,omitempty"`

	// Regex is a regular expression that the whole value must match.
	// +optional
	Regex string `json:"regex,omitempty"`

	// Contains is a substring of the value.
	// +optional
	Contains string `json:"contains,omitempty"`

	// Present says whether the header must be present or absent.
	// +optional
	Present *bool `json:"present,omitempty"`
}
