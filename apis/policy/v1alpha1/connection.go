package v1alpha1

import "github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"

// ConnectionSettings limits the connections and requests of each client's sidecar.
type ConnectionSettings struct {
	// TCP limits connections, those of HTTP too.
	// +optional
	TCP *TCPConnectionSettings `json:"tcp,omitempty"`

	// HTTP limits HTTP requests.
	// +optional
	HTTP *HTTPConnectionSettings `json:"http,omitempty"`
}

// TCPConnectionSettings limits connections.
type TCPConnectionSettings struct {
	// MaxConnections is how many connections there may be at a time. Left out, there
	// is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxConnections *int64 `json:"maxConnections,omitempty"`

	// ConnectTimeout is how long it may take to connect. Left out, it is 5s.
	// +optional
	ConnectTimeout *Duration `json:"connectTimeout,omitempty"`
}

// HTTPConnectionSettings limits HTTP requests.
type HTTPConnectionSettings struct {
	// MaxRequests is how many requests there may be at a time. Left out, there is no
	// limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxRequests *int64 `json:"maxRequests,omitempty"`

	// MaxRequestsPerConnection is how many requests one connection may carry, one
	// after the other. Left out, there is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxRequestsPerConnection *int64 `json:"maxRequestsPerConnection,omitempty"`

	// MaxPendingRequests is how many requests may wait for a connection. Left out,
	// there is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxPendingRequests *int64 `json:"maxPendingRequests,omitempty"`

	// MaxRetries is how many retries there may be at a time. Left out, there is no
	// limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxRetries *int64 `json:"maxRetries,omitempty"`

	// CircuitBreaking stops requests while too many are slow or fail (osm-edge).
	// +optional
	CircuitBreaking *CircuitBreaking `json:"circuitBreaking,omitempty"`
}

// CircuitBreaking stops requests while too many are slow or fail (osm-edge).
type CircuitBreaking struct {
	// StatTimeWindow is the time in which requests are counted.
	// +optional
	StatTimeWindow *Duration `json:"statTimeWindow,omitempty"`

	// MinRequestAmount is how many requests there must be in that time.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MinRequestAmount int64 `json:"minRequestAmount,omitempty"`

	// DegradedTimeWindow is how long requests are stopped.
	// +optional
	DegradedTimeWindow *Duration `json:"degradedTimeWindow,omitempty"`

	// SlowTimeThreshold is how long a request takes that is slow.
	// +optional
	SlowTimeThreshold *Duration `json:"slowTimeThreshold,omitempty"`

	// SlowAmountThreshold is how many slow requests stop requests.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SlowAmountThreshold *int64 `json:"slowAmountThreshold,omitempty"`

	// SlowRatioThreshold is which share of slow requests stops requests.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SlowRatioThreshold *float64 `json:"slowRatioThreshold,omitempty"`

	// ErrorAmountThreshold is how many failed requests stop requests.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ErrorAmountThreshold *int64 `json:"errorAmountThreshold,omitempty"`

	// ErrorRatioThreshold is which share of failed requests stops requests.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ErrorRatioThreshold *float64 `json:"errorRatioThreshold,omitempty"`

	// DegradedStatusCode is the status of the answer to a stopped request.
	// +optional
	DegradedStatusCode *int64 `json:"degradedStatusCode,omitempty"`

	// DegradedResponseContent is the body of the answer to a stopped request.
	// +optional
	DegradedResponseContent *string `json:"degradedResponseContent,omitempty"`
}

// OutlierDetection takes endpoints that fail out of use for a while.
type OutlierDetection struct {
	// ConsecutiveErrors is how many times in a row an endpoint must fail: answer with
	// a 5xx status, or refuse or lose the connection. Left out, it is 5.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ConsecutiveErrors int32 `json:"consecutiveErrors,omitempty"`

	// Interval is how often it is decided which endpoints come back. Empty means 10s.
	// +optional
	Interval v1alpha2.Duration `json:"interval,omitempty"`

	// BaseEjectionTime is how long an endpoint is out of use for the first time; it
	// grows with each time. Empty means 30s.
	// +optional
	BaseEjectionTime v1alpha2.Duration `json:"baseEjectionTime,omitempty"`

	// MaxEjectionPercent is how many of the endpoints may be out of use at a time, in
	// percent, but at least one. Left out, it is 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxEjectionPercent int32 `json:"maxEjectionPercent,omitempty"`
}

// Timeouts limit how long a request may take and a connection may be idle.
type Timeouts struct {
	// Request is how long a request may take, its retries included, until the whole
	// answer is there. 0s means no limit. Empty means no limit too.
	// +optional
	Request v1alpha2.Duration `json:"request,omitempty"`

	// Idle is how long a connection may carry no request, or for TCP no byte, before
	// it is closed. 0s means no limit. Empty means 1h.
	// +optional
	Idle v1alpha2.Duration `json:"idle,omitempty"`
}
