package v1alpha1

// RateLimit limits the rate of connections and requests to a host's sidecars.
type RateLimit struct {
	// Local has limits that each sidecar counts on its own.
	// +optional
	Local *LocalRateLimit `json:"local,omitempty"`

	// Global has limits that a service counts for all sidecars. Open Service Mesh added it
	// after 1.2.
	// +optional
	Global *GlobalRateLimit `json:"global,omitempty"`
}

// LocalRateLimit has limits that each sidecar counts on its own, as a token bucket.
type LocalRateLimit struct {
	// TCP limits new connections; connections over the limit are closed.
	// +optional
	TCP *TCPLocalRateLimit `json:"tcp,omitempty"`

	// HTTP limits requests to the host, regardless of their path.
	// +optional
	HTTP *HTTPLocalRateLimit `json:"http,omitempty"`
}

// RateLimitUnit is the time unit of a rate.
//
// +kubebuilder:validation:Enum=second;minute;hour
type RateLimitUnit string

const (
	// RateLimitSecond is a rate per second.
	RateLimitSecond RateLimitUnit = "second"
	// RateLimitMinute is a rate per minute.
	RateLimitMinute RateLimitUnit = "minute"
	// RateLimitHour is a rate per hour.
	RateLimitHour RateLimitUnit = "hour"
)

// TCPLocalRateLimit limits new connections. Without connections or unit, which the API
// server accepts as Open Service Mesh did, there is no limit.
type TCPLocalRateLimit struct {
	// Connections is the number of connections accepted per unit of time.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Connections int64 `json:"connections,omitempty"`

	// Unit is the unit of time.
	// +optional
	Unit RateLimitUnit `json:"unit,omitempty"`

	// Burst is the number of additional connections that may come at once. Defaults to 0.
	// +optional
	Burst int64 `json:"burst,omitempty"`
}

// HTTPLocalRateLimit limits requests. Without requests or unit, which the API server
// accepts as Open Service Mesh did, there is no limit.
type HTTPLocalRateLimit struct {
	// Requests is the number of requests accepted per unit of time.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Requests int64 `json:"requests,omitempty"`

	// Unit is the unit of time.
	// +optional
	Unit RateLimitUnit `json:"unit,omitempty"`

	// Burst is the number of additional requests that may come at once. Defaults to 0.
	// +optional
	Burst int64 `json:"burst,omitempty"`

	// ResponseStatusCode is the status of the response to a request over the limit.
	// Defaults to 429.
	// +optional
	// +kubebuilder:validation:Minimum=400
	// +kubebuilder:validation:Maximum=599
	ResponseStatusCode int32 `json:"responseStatusCode,omitempty"`

	// ResponseHeadersToAdd are headers of the response to a request over the limit.
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
	// Local is a limit that each sidecar counts on its own.
	// +optional
	Local *HTTPLocalRateLimit `json:"local,omitempty"`

	// Global describes the requests to the service that counts for all sidecars.
	// +optional
	Global *HTTPRouteGlobalRateLimit `json:"global,omitempty"`
}
