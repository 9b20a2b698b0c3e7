package v1alpha2

// TrafficSpec configures which traffic the sidecars capture and allow.
type TrafficSpec struct {
	// InboundTLSMode says which traffic a sidecar accepts besides mesh TLS. Empty means
	// Strict. Added by Outrigger; Open Service Mesh was always strict.
	// +optional
	// +kubebuilder:default=Strict
	InboundTLSMode InboundTLSMode `json:"inboundTLSMode,omitempty"`

	// InterceptionMode is how a pod's traffic is redirected to its sidecar (osm-edge).
	// Empty means iptables.
	// +optional
	InterceptionMode InterceptionMode `json:"interceptionMode,omitempty"`

	// EnableEgress allows traffic to destinations outside the mesh.
	// +optional
	EnableEgress bool `json:"enableEgress,omitempty"`

	// The ranges have a format instead of a rule with isCIDR, because Kubernetes 1.30
	// does not accept that function in new rules.

	// OutboundIPRangeExclusionList has IPv4 and IPv6 ranges in CIDR notation. Connections
	// to them bypass the sidecar, in every pod.
	// +optional
	// +kubebuilder:validation:items:Format=cidr
	OutboundIPRangeExclusionList []string `json:"outboundIPRangeExclusionList,omitempty"`

	// OutboundIPRangeInclusionList has IPv4 and IPv6 ranges in CIDR notation. If not
	// empty, connections to all other destinations bypass the sidecar, in every pod.
	// +optional
	// +kubebuilder:validation:items:Format=cidr
	OutboundIPRangeInclusionList []string `json:"outboundIPRangeInclusionList,omitempty"`

	// OutboundPortExclusionList has destination ports. Connections to them bypass the
	// sidecar, in every pod.
	// +optional
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	OutboundPortExclusionList []int32 `json:"outboundPortExclusionList,omitempty"`

	// InboundPortExclusionList has ports of the pod. Connections to them bypass the
	// sidecar, in every pod.
	// +optional
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	InboundPortExclusionList []int32 `json:"inboundPortExclusionList,omitempty"`

	// NetworkInterfaceExclusionList has names of network interfaces whose traffic bypasses
	// the sidecar, in every pod.
	// +optional
	NetworkInterfaceExclusionList []string `json:"networkInterfaceExclusionList,omitempty"`

	// EnablePermissiveTrafficPolicyMode allows every mesh identity to call every mesh
	// service, still over mTLS. Off by default, as in Open Service Mesh; the chart's
	// MeshConfig turns it on.
	// +optional
	EnablePermissiveTrafficPolicyMode *bool `json:"enablePermissiveTrafficPolicyMode,omitempty"`

	// EnableForwardedFor adds the address of the caller to the header x-forwarded-for of the
	// requests that applications get. Added by Outrigger.
	// +optional
	EnableForwardedFor bool `json:"enableForwardedFor,omitempty"`
	// ConnectTimeout is how long a sidecar waits for a connection to an endpoint of a service,
	// with its TLS handshake, before it tries another one. An UpstreamTrafficSetting's own
	// takes precedence. Empty means 5s. Added by Outrigger.
	// +optional
	ConnectTimeout Duration `json:"connectTimeout,omitempty"`

	// InboundExternalAuthorization checks each inbound request with an external service.
	// +optional
	InboundExternalAuthorization ExternalAuthzSpec `json:"inboundExternalAuthorization,omitzero"`

	// TokenKeys says from which hosts the controller may fetch the keys of tokens' issuers. Added by
	// Outrigger.
	// +optional
	TokenKeys TokenKeysSpec `json:"tokenKeys,omitzero"`

	// HTTP1PerRequestLoadBalancing balances HTTP/1 per request instead of per connection
	// (osm-edge).
	// +optional
	HTTP1PerRequestLoadBalancing *bool `json:"http1PerRequestLoadBalancing,omitempty"`

	// HTTP2PerRequestLoadBalancing balances HTTP/2 per request instead of per connection
	// (osm-edge).
	// +optional
	HTTP2PerRequestLoadBalancing *bool `json:"http2PerRequestLoadBalancing,omitempty"`

	// UseHTTPSIngress was in Open Service Mesh up to 0.11, before IngressBackend.
	// +optional
	UseHTTPSIngress bool `json:"useHTTPSIngress,omitempty"`
}

// InboundTLSMode says which traffic a sidecar accepts besides mesh TLS.
//
// +kubebuilder:validation:Enum=Strict;Permissive
type InboundTLSMode string

const (
	// InboundTLSStrict accepts only mesh TLS.
	InboundTLSStrict InboundTLSMode = "Strict"
	// InboundTLSPermissive also accepts plaintext and an application's own TLS, for moving
	// workloads into the mesh one by one.
	InboundTLSPermissive InboundTLSMode = "Permissive"
)

// InterceptionMode is how a pod's traffic is redirected to its sidecar.
//
// +kubebuilder:validation:Enum=iptables;ebpf;none
type InterceptionMode string

const (
	// InterceptionModeIPTables uses rules in the pod's network namespace, written by the
	// init container.
	InterceptionModeIPTables InterceptionMode = "iptables"
	// InterceptionModeEBPF uses programs loaded by an agent on each node.
	InterceptionModeEBPF InterceptionMode = "ebpf"
	// InterceptionModeNone does not redirect, for pods that address their sidecar
	// themselves or that are redirected otherwise.
	InterceptionModeNone InterceptionMode = "none"
)

// TokenKeysSpec says from which hosts the controller may fetch the keys of tokens' issuers, which
// TokenPolicies of all namespaces name. Without hosts it fetches none.
type TokenKeysSpec struct {
	// Hosts are names such as login.example.com, *.example.com for all names below it, or
	// login.example.com:8443 for another port than 443. They are never called at addresses that are not
	// public.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Hosts []string `json:"hosts,omitempty"`

	// InsideHosts are such names or IP addresses, without *, that may be called at any address, such as
	// one of the cluster or of a private network.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	InsideHosts []string `json:"insideHosts,omitempty"`

	// CABundle has the certificates in PEM of the CAs that vouch for the hosts. Empty means the CAs that
	// the controller's system trusts; Outrigger's images contain none.
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	CABundle string `json:"caBundle,omitempty"`
}

// ExternalAuthzSpec checks each inbound request with an external service.
type ExternalAuthzSpec struct {
	// Enable turns it on.
	// +optional
	Enable bool `json:"enable,omitempty"`

	// Address is the service's host name or IP address.
	// +optional
	Address string `json:"address,omitempty"`

	// Port is the service's port.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// StatPrefix is the prefix of the service's metrics. Empty means inboundExtAuthz.
	// +optional
	// +kubebuilder:default=inboundExtAuthz
	StatPrefix string `json:"statPrefix,omitempty"`

	// Timeout limits the time for the service's response. Empty means 1s.
	// +optional
	// +kubebuilder:default="1s"
	Timeout Duration `json:"timeout,omitempty"`

	// FailureModeAllow lets requests pass if the service does not respond.
	// +optional
	FailureModeAllow bool `json:"failureModeAllow,omitempty"`
}
