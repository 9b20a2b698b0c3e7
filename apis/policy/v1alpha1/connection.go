package v1alpha1

import "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"

// ConnectionSettings limits the connections and requests of each client's sidecar.
type ConnectionSettings struct {
	// TCP limits connections, including those of HTTP.
	// +optional
	TCP *TCPConnectionSettings `json:"tcp,omitempty"`

	// HTTP limits HTTP requests.
	// +optional
	HTTP *HTTPConnectionSettings `json:"http,omitempty"`
}

// TCPConnectionSettings limits connections.
type TCPConnectionSettings struct {
	// MaxConnections limits concurrent connections. By default there is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxConnections *int64 `json:"maxConnections,omitempty"`

	// ConnectTimeout limits the time to connect. Defaults to 5s.
	// +optional
	ConnectTimeout *Duration `json:"connectTimeout,omitempty"`
}

// HTTPConnectionSettings limits HTTP requests.
type HTTPConnectionSettings struct {
	// MaxRequests limits concurrent requests. By default there is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxRequests *int64 `json:"maxRequests,omitempty"`

	// MaxRequestsPerConnection limits the number of requests on one connection. By default
	// there is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxRequestsPerConnection *int64 `json:"maxRequestsPerConnection,omitempty"`

	// MaxPendingRequests limits the requests that wait for a connection. By default there
	// is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxPendingRequests *int64 `json:"maxPendingRequests,omitempty"`

	// MaxRetries limits concurrent retries. By default there is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxRetries *int64 `json:"maxRetries,omitempty"`

	// CircuitBreaking blocks requests while too many are slow or fail (osm-edge).
	// +optional
	CircuitBreaking *CircuitBreaking `json:"circuitBreaking,omitempty"`
}

// CircuitBreaking blocks requests while too many are slow or fail (osm-edge).
type CircuitBreaking struct {
	// StatTimeWindow is the time window in which requests are counted.
	// +optional
	StatTimeWindow *Duration `json:"statTimeWindow,omitempty"`

	// MinRequestAmount is the minimum number of requests in that window.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MinRequestAmount int64 `json:"minRequestAmount,omitempty"`

	// DegradedTimeWindow is how long requests are blocked.
	// +optional
	DegradedTimeWindow *Duration `json:"degradedTimeWindow,omitempty"`

	// SlowTimeThreshold is the duration from which a request counts as slow.
	// +optional
	SlowTimeThreshold *Duration `json:"slowTimeThreshold,omitempty"`

	// SlowAmountThreshold is the number of slow requests that triggers blocking.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SlowAmountThreshold *int64 `json:"slowAmountThreshold,omitempty"`

	// SlowRatioThreshold is the share of slow requests that triggers blocking.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SlowRatioThreshold *float64 `json:"slowRatioThreshold,omitempty"`

	// ErrorAmountThreshold is the number of failed requests that triggers blocking.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ErrorAmountThreshold *int64 `json:"errorAmountThreshold,omitempty"`

	// ErrorRatioThreshold is the share of failed requests that triggers blocking.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ErrorRatioThreshold *float64 `json:"errorRatioThreshold,omitempty"`

	// DegradedStatusCode is the status of the response to a blocked request.
	// +optional
	DegradedStatusCode *int64 `json:"degradedStatusCode,omitempty"`

	// DegradedResponseContent is the body of the response to a blocked request.
	// +optional
	DegradedResponseContent *string `json:"degradedResponseContent,omitempty"`
}

// OutlierDetection temporarily ejects failing endpoints.
type OutlierDetection struct {
	// ConsecutiveErrors is the number of consecutive failures (a 5xx response, or a
	// refused or lost connection) after which an endpoint is ejected. Defaults to 5.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ConsecutiveErrors int32 `json:"consecutiveErrors,omitempty"`

	// Interval is how often ejected endpoints are checked for their return. Empty means
	// 10s.
	// +optional
	Interval v1alpha2.Duration `json:"interval,omitempty"`

	// BaseEjectionTime is the duration of an endpoint's first ejection; later ones are
	// longer. Empty means 30s.
	// +optional
	BaseEjectionTime v1alpha2.Duration `json:"baseEjectionTime,omitempty"`

	// MaxEjectionPercent limits the share of endpoints that are ejected at the same time,
	// in percent. At least one can always be ejected. Defaults to 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxEjectionPercent int32 `json:"maxEjectionPercent,omitempty"`
}

// Timeouts limit the duration of requests and the idle time of connections.
type Timeouts struct {
	// Request limits the duration of a request including retries, until the complete
	// response has been received. Empty or 0s means no limit.
	// +optional
	Request v1alpha2.Duration `json:"request,omitempty"`

	// Idle is how long a connection may be without requests, or without data for TCP,
	// before it is closed. 0s means no limit. Empty means 1h.
	// +optional
	Idle v1alpha2.Duration `json:"idle,omitempty"`
}
