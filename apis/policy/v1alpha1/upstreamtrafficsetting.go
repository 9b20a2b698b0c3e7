package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// UpstreamTrafficSetting configures the traffic to one host.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=upstreamtrafficsettings,singular=upstreamtrafficsetting,scope=Namespaced
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.spec.host`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type UpstreamTrafficSetting struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// Spec configures the traffic.
	// +optional
	Spec UpstreamTrafficSettingSpec `json:"spec,omitzero"`

	// Status is the controller's report about the spec.
	// +optional
	Status PolicyStatus `json:"status,omitzero"`
}

// UpstreamTrafficSettingList is a list of UpstreamTrafficSettings.
//
// +kubebuilder:object:root=true
type UpstreamTrafficSettingList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`

	Items []UpstreamTrafficSetting `json:"items"`
}

// UpstreamTrafficSettingSpec configures the traffic to one host. Omitted fields keep
// their defaults.
type UpstreamTrafficSettingSpec struct {
	// Host is the destination host: a service's name in the object's namespace, its DNS
	// name in the cluster, or a host of an Egress that refers to the object.
	Host string `json:"host"`

	// ConnectionSettings limits the connections and requests of each client's
	// sidecar.
	// +optional
	ConnectionSettings *ConnectionSettings `json:"connectionSettings,omitempty"`

	// RateLimit limits the rate of connections and requests to the host's sidecars.
	// +optional
	RateLimit *RateLimit `json:"rateLimit,omitempty"`

	// HTTPRoutes configure individual paths of the host.
	// +optional
	HTTPRoutes []HTTPRoute `json:"httpRoutes,omitempty"`

	// LoadBalancing configures how a client's sidecar chooses among the host's endpoints.
	// Added by Outrigger.
	// +optional
	LoadBalancing *LoadBalancing `json:"loadBalancing,omitempty"`

	// OutlierDetection temporarily ejects failing endpoints. Added by Outrigger.
	// +optional
	OutlierDetection *OutlierDetection `json:"outlierDetection,omitempty"`

	// Timeouts limit the duration of requests and the idle time of connections. Added by
	// Outrigger; the connect timeout is in connectionSettings.
	// +optional
	Timeouts *Timeouts `json:"timeouts,omitempty"`
}

// HTTPRoute configures one path of a host.
type HTTPRoute struct {
	// Path is a regular expression that the whole path must match, as in an
	// HTTPRouteGroup.
	// +optional
	// +kubebuilder:validation:MinLength=1
	Path string `json:"path,omitempty"`

	// RateLimit limits the rate of requests for the path, instead of the host's limit.
	// +optional
	RateLimit *HTTPRouteRateLimit `json:"rateLimit,omitempty"`
}
