package v1alpha2

// FeatureFlags turns optional parts of the mesh on and off. Left out, a flag is not
// off: it leaves the choice to Outrigger.
type FeatureFlags struct {
	// EnableWASMStats adds metrics about pods and services by a WASM filter.
	// +optional
	EnableWASMStats *bool `json:"enableWASMStats,omitempty"`

	// EnableEgressPolicy honours Egress objects.
	// +optional
	EnableEgressPolicy *bool `json:"enableEgressPolicy,omitempty"`

	// EnableMulticlusterMode had no effect in Open Service Mesh any more.
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

	// EnableIngressBackendPolicy honours IngressBackend objects.
	// +optional
	EnableIngressBackendPolicy *bool `json:"enableIngressBackendPolicy,omitempty"`

	// EnableAccessControlPolicy honours AccessControl objects (osm-edge).
	// +optional
	EnableAccessControlPolicy *bool `json:"enableAccessControlPolicy,omitempty"`

	// EnableAccessCertPolicy honours AccessCert objects (osm-edge).
	// +optional
	EnableAccessCertPolicy *bool `json:"enableAccessCertPolicy,omitempty"`

	// EnableEnvoyActiveHealthChecks makes a proxy probe its upstream endpoints.
	// +optional
	EnableEnvoyActiveHealthChecks *bool `json:"enableEnvoyActiveHealthChecks,omitempty"`

	// EnableSidecarActiveHealthChecks is osm-edge's name for
	// EnableEnvoyActiveHealthChecks.
	// +optional
	EnableSidecarActiveHealthChecks *bool `json:"enableSidecarActiveHealthChecks,omitempty"`

	// EnableRetryPolicy honours Retry objects.
	// +optional
	EnableRetryPolicy *bool `json:"enableRetryPolicy,omitempty"`

	// EnablePluginPolicy honours Plugin objects (osm-edge).
	// +optional
	EnablePluginPolicy *bool `json:"enablePluginPolicy,omitempty"`
}
