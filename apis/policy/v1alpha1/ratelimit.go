package v1alpha1

// RateLimit limits the rate at which a host's sidecars take connections and requests.
type RateLimit struct {
	// Local is limits that each sidecar keeps by itself.
	// +optional
	Local *LocalRateLimit `json:"local,omitempty"`

	// Global is limits that a service keeps for all sidecars. It was in Open Service
	// Mesh after 1.2.
	// +optional
	Global *GlobalRateLimit `json:"global,omitempty"`
}

// LocalRateLimit is limits that each sidecar keeps by itself, as a token bucket.
type LocalRateLimit struct {
	// TCP limits new connections; what is over the limit is closed.
	// +optional
	TCP *TCPLocalRateLimit `json:"tcp,omitempty"`

	// HTTP limits requests to the host, whatever their path.
	// +optional
	HTTP *HTTPLocalRateLimit `json:"http,omitempty"`
}

// RateLimitUnit is the time that a rate is counted in.
//
// +kubebuilder:validation:Enum=second;minute;hour
type RateLimitUnit string

const (
	// RateLimitSecond is a rate by the second.
	RateLimitSecond RateLimitUnit = "second"
	// RateLimitMinute is a rate by the minute.
	RateLimitMinute RateLimitUnit = "minute"
	// RateLimitHour is a rate by the hour.
	RateLimitHour RateLimitUnit = "hour"
)

// TCPLocalRateLimit limits new connections. The API server takes it without
// connections or unit, as Open Service Mesh did, but that is no limit.
type TCPLocalRateLimit struct {
	// Connections is how many connections are taken in each unit of time.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Connections int64 `json:"connections,omitempty"`

	// Unit is the unit of time.
	// +optional
	Unit RateLimitUnit `json:"unit,omitempty"`

	// Burst is how many connections above that may come at once. Left out, it is 0.
	// +optional
	Burst int64 `json:"burst,omitempty"`
}

// HTTPLocalRateLimit limits requests. The API server takes it without requests or
// unit, as Open Service Mesh did, but that is no limit.
type HTTPLocalRateLimit struct {
	// Requests is how many requests are taken in each unit of time.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Requests int64 `json:"requests,omitempty"`

	// Unit is the unit of time.
	// +optional
	Unit RateLimitUnit `json:"unit,omitempty"`

	// Burst is how many requests above that may come at once. Left out, it is 0.
	// +optional
	Burst int64 `json:"burst,omitempty"`

	// ResponseStatusCode is the status of the answer to a request over the limit.
	// Left out, it is 429.
	// +optional
	// +kubebuilder:validation:Minimum=400
	// +kubebuilder:validation:Maximum=599
	ResponseStatusCode int32 `json:"responseStatusCode,omitempty"`

	// ResponseHeadersToAdd are headers of the answer to a request over the limit.
	// +optional
	ResponseHeadersToAdd []HTTPHeader `json:"responseHeadersToAdd,omitempty"`
}

// HTTPHeader is a header and its value.
type HTTPHeader struct {
	// Name is the header's name.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`

	// Value is the header's value.
	// +kubebuilder:validation:MinLength=1
	Value string `json:"value"`
}

// HTTPRouteRateLimit limits the requests for one path.
type HTTPRouteRateLimit struct {
	// Local is a limit that each sidecar keeps by itself.
	// +optional
	Local *HTTPLocalRateLimit `json:"local,omitempty"`

	// Global is what a service that keeps limits for all sidecars is told of the
	// requests.
	// +optional
	Global *HTTPRouteGlobalRateLimit `json:"global,omitempty"`
}
