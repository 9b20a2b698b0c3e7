package v1alpha2

// ObservabilitySpec configures logs, traces and debug pages.
type ObservabilitySpec struct {
	// OSMLogLevel is the control plane's log level.
	// +optional
	OSMLogLevel string `json:"osmLogLevel,omitempty"`

	// EnableDebugServer serves the controller's debug pages.
	// +optional
	EnableDebugServer bool `json:"enableDebugServer,omitempty"`

	// PrometheusScraping was in Open Service Mesh 0.9 only.
	// +optional
	PrometheusScraping *bool `json:"prometheusScraping,omitempty"`

	// AccessLog says which requests and connections the sidecars write a line about: none,
	// errors, all, or, beside the errors, a share of the others as a decimal number from 0 to
	// 1, such as "0.1". Defaults to all. Added by Outrigger.
	// +optional
	AccessLog string `json:"accessLog,omitempty"`

	// Tracing sends spans to a collector.
	// +optional
	Tracing TracingSpec `json:"tracing,omitzero"`

	// RemoteLogging sends access logs to a collector (osm-edge).
	// +optional
	RemoteLogging RemoteLoggingSpec `json:"remoteLogging,omitzero"`
}

// TracingSpec sends spans to a collector.
type TracingSpec struct {
	// Enable turns it on.
	// +optional
	Enable bool `json:"enable,omitempty"`

	// Protocol is the collector's protocol. Empty means Zipkin. Added by Outrigger.
	// +optional
	Protocol TracingProtocol `json:"protocol,omitempty"`

	// Port is the collector's port; 0 means 9411 for Zipkin and 4317 for OTLP.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// Address is the collector's host name or IP address. Empty means jaeger in
	// the control plane's namespace.
	// +optional
	Address string `json:"address,omitempty"`

	// Endpoint is the path that Zipkin spans are posted to. Empty means /api/v2/spans.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// SampledFraction is the share of requests that is traced, a decimal number from 0 to
	// 1 in a string. Defaults to "1" (osm-edge).
	// +optional
	SampledFraction *string `json:"sampledFraction,omitempty"`
}

// TracingProtocol is the protocol for sending spans to a collector.
//
// +kubebuilder:validation:Enum=Zipkin;OTLP
type TracingProtocol string

const (
	// TracingZipkin is Zipkin's JSON over HTTP.
	TracingZipkin TracingProtocol = "Zipkin"
	// TracingOTLP is OpenTelemetry's protocol over gRPC.
	TracingOTLP TracingProtocol = "OTLP"
)

// RemoteLoggingSpec sends access logs to a collector (osm-edge).
type RemoteLoggingSpec struct {
	// Enable turns it on.
	// +optional
	Enable bool `json:"enable,omitempty"`

	// Level is the amount of data sent, from 0 for nothing to 2 for the most.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2
	Level int32 `json:"level,omitempty"`

	// Port is the collector's port; 0 means that it is not set.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// Address is the collector's host name or IP address.
	// +optional
	Address string `json:"address,omitempty"`

	// Endpoint is the path that logs are posted to.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// Authorization is the value of the Authorization header of the requests.
	// +optional
	Authorization string `json:"authorization,omitempty"`

	// SampledFraction is the share of requests that is logged, a decimal number from 0 to
	// 1 in a string. Defaults to "1".
	// +optional
	SampledFraction *string `json:"sampledFraction,omitempty"`
}
