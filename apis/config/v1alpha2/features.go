package v1alpha2

// FeatureFlags turns optional parts of the mesh on and off. An omitted flag means
// Outrigger's default, not off.
type FeatureFlags struct {
	// EnableWASMStats adds metrics about pods and services with a WASM filter.
	// +optional
	EnableWASMStats *bool `json:"enableWASMStats,omitempty"`

	// EnableEgressPolicy enables Egress objects.
	// +optional
	EnableEgressPolicy *bool `json:"enableEgressPolicy,omitempty"`

	// EnableMulticlusterMode no longer had an effect in Open Service Mesh.
	// +optional
	EnableMulticlusterMode *bool `json:"enableMulticlusterMode,omitempty"`

	// EnableSnapshotCacheMode chose an implementation of Open Service Mesh's xDS
	// server.
	// +optional
	EnableSnapshotCacheMode *bool `json:"enableSnapshotCacheMode,omitempty"`

	// EnableAsyncProxyServiceMapping chose an implementation of Open Service
	// Mesh's mapping of proxies to services.
	// +optional
	EnableAsyncProxyServiceMapping *bool `json:"enableAsyncProxyServiceMapping,omitempty"`

	// EnableValidatingWebhook was in Open Service Mesh 0.9 only.
	// +optional
	EnableValidatingWebhook *bool `json:"enableValidatingWebhook,omitempty"`

	// EnableIngressBackendPolicy enables IngressBackend objects.
	// +optional
	EnableIngressBackendPolicy *bool `json:"enableIngressBackendPolicy,omitempty"`

	// EnableAccessControlPolicy enables AccessControl objects (osm-edge).
	// +optional
	EnableAccessControlPolicy *bool `json:"enableAccessControlPolicy,omitempty"`

	// EnableAccessCertPolicy enables AccessCert objects (osm-edge).
	// +optional
	EnableAccessCertPolicy *bool `json:"enableAccessCertPolicy,omitempty"`

	// EnableEnvoyActiveHealthChecks makes a proxy probe its upstream endpoints.
	// +optional
	EnableEnvoyActiveHealthChecks *bool `json:"enableEnvoyActiveHealthChecks,omitempty"`

	// EnableSidecarActiveHealthChecks is osm-edge's name for
	// EnableEnvoyActiveHealthChecks.
	// +optional
	EnableSidecarActiveHealthChecks *bool `json:"enableSidecarActiveHealthChecks,omitempty"`

	// EnableRetryPolicy enables Retry objects.
	// +optional
	EnableRetryPolicy *bool `json:"enableRetryPolicy,omitempty"`

	// EnablePluginPolicy enables Plugin objects (osm-edge).
	// +optional
	EnablePluginPolicy *bool `json:"enablePluginPolicy,omitempty"`
}
