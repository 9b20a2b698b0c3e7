package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// UpstreamTrafficSetting is how the traffic to one host is treated.
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

	// Spec is how the traffic is treated.
	// +optional
	Spec UpstreamTrafficSettingSpec `json:"spec,omitzero"`

	// Status is what the controller found in the spec.
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

// UpstreamTrafficSettingSpec is how the traffic to one host is treated. What is left
// out stays as it is without the object.
type UpstreamTrafficSettingSpec struct {
	// Host is the host that the traffic goes to: a service's name in the object's
	// namespace, its DNS name within the cluster, or a host of an Egress that
	// refers to the object.
	Host string `json:"host"`

	// ConnectionSettings limits the connections and requests of each client's
	// sidecar.
	// +optional
	ConnectionSettings *ConnectionSettings `json:"connectionSettings,omitempty"`

	// RateLimit limits the rate at which the host's sidecars take connections and
	// requests.
	// +optional
	RateLimit *RateLimit `json:"rateLimit,omitempty"`

	// HTTPRoutes are settings for some paths of the host.
	// +optional
	HTTPRoutes []HTTPRoute `json:"httpRoutes,omitempty"`

	// LoadBalancing is how a client's sidecar chooses among the host's endpoints. It
	// is Outrigger's own.
	// +optional
	LoadBalancing *LoadBalancing `json:"loadBalancing,omitempty"`

	// OutlierDetection takes endpoints that fail out of use for a while. It is
	// Outrigger's own.
	// +optional
	OutlierDetection *OutlierDetection `json:"outlierDetection,omitempty"`

	// Timeouts limit how long a request may take and a connection may be idle. It is
	// Outrigger's own; the time to connect is in connectionSettings.
	// +optional
	Timeouts *Timeouts `json:"timeouts,omitempty"`
}

// HTTPRoute is settings for one path of a host.
type HTTPRoute struct {
	// Path is a regular expression that the whole path must match, as in an
	// HTTPRouteGroup.
	// +optional
	// +kubebuilder:validation:MinLength=1
	Path string `json:"path,omitempty"`

	// RateLimit limits the rate at which the host's sidecars take requests for the
	// path, instead of the host's own limit.
	// +optional
	RateLimit *HTTPRouteRateLimit `json:"rateLimit,omitempty"`
}
