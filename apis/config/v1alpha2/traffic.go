package v1alpha2

// TrafficSpec configures what the sidecars capture and let pass.
type TrafficSpec struct {
	// InboundTLSMode says what a sidecar takes from outside its pod besides mesh
	// TLS. Empty means Strict. It is Outrigger's own; Open Service Mesh was
	// always strict.
	// +optional
	// +kubebuilder:default=Strict
	InboundTLSMode InboundTLSMode `json:"inboundTLSMode,omitempty"`

	// InterceptionMode is how a pod's traffic gets to its sidecar (osm-edge). Empty
	// means iptables.
	// +optional
	InterceptionMode InterceptionMode `json:"interceptionMode,omitempty"`

	// EnableEgress lets traffic to destinations outside the mesh pass.
	// +optional
	EnableEgress bool `json:"enableEgress,omitempty"`

	// The ranges have a format and not a rule with isCIDR, because Kubernetes 1.30
	// does not take that function in new rules.

	// OutboundIPRangeExclusionList holds IPv4 and IPv6 ranges in CIDR notation
	// that go out without the sidecar, in every pod.
	// +optional
	// +kubebuilder:validation:items:Format=cidr
	OutboundIPRangeExclusionList []string `json:"outboundIPRangeExclusionList,omitempty"`

	// OutboundIPRangeInclusionList holds IPv4 and IPv6 ranges in CIDR notation. If
	// there is one, all other destinations go out without the sidecar, in every pod.
	// +optional
	// +kubebuilder:validation:items:Format=cidr
	OutboundIPRangeInclusionList []string `json:"outboundIPRangeInclusionList,omitempty"`

	// OutboundPortExclusionList holds destination ports that go out without the
	// sidecar, in every pod.
	// +optional
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	OutboundPortExclusionList []int32 `json:"outboundPortExclusionList,omitempty"`

	// InboundPortExclusionList holds ports of the pod that are reached without the
	// sidecar, in every pod.
	// +optional
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=65535
	InboundPortExclusionList []int32 `json:"inboundPortExclusionList,omitempty"`

	// NetworkInterfaceExclusionList holds names of network interfaces whose
	// traffic passes without the sidecar, in every pod.
	// +optional
	NetworkInterfaceExclusionList []string `json:"networkInterfaceExclusionList,omitempty"`

	// EnablePermissiveTrafficPolicyMode lets every identity of the mesh call every
	// service of it, over mTLS all the same. Left out, it is off, as it was in Open
	// Service Mesh; the chart's own MeshConfig turns it on.
	// +optional
	EnablePermissiveTrafficPolicyMode *bool `json:"enablePermissiveTrafficPolicyMode,omitempty"`

	// InboundExternalAuthorization asks a service of the user's about each inbound
	// request.
	// +optional
	InboundExternalAuthorization ExternalAuthzSpec `json:"inboundExternalAuthorization,omitzero"`

	// HTTP1PerRequestLoadBalancing balances HTTP/1 by request and not by
	// connection (osm-edge).
	// +optional
	HTTP1PerRequestLoadBalancing *bool `json:"http1PerRequestLoadBalancing,omitempty"`

	// HTTP2PerRequestLoadBalancing balances HTTP/2 by request and not by
	// connection (osm-edge).
	// +optional
	HTTP2PerRequestLoadBalancing *bool `json:"http2PerRequestLoadBalancing,omitempty"`

	// UseHTTPSIngress was in Open Service Mesh up to 0.11, before IngressBackend.
	// +optional
	UseHTTPSIngress bool `json:"useHTTPSIngress,omitempty"`
}

// InboundTLSMode says what a sidecar takes from outside its pod besides mesh TLS.
//
// +kubebuilder:validation:Enum=Strict;Permissive
type InboundTLSMode string

const (
	// InboundTLSStrict takes mesh TLS and nothing else.
	InboundTLSStrict InboundTLSMode = "Strict"
	// InboundTLSPermissive also takes plaintext and an application's own TLS, for
	// moving workloads into the mesh one by one.
	InboundTLSPermissive InboundTLSMode = "Permissive"
)

// InterceptionMode is how a pod's traffic gets to its sidecar.
//
// +kubebuilder:validation:Enum=iptables;ebpf;none
type InterceptionMode string

const (
	// InterceptionModeIPTables is rules in the pod's own network namespace, which
	// the init container writes.
	InterceptionModeIPTables InterceptionMode = "iptables"
	// InterceptionModeEBPF is programs that an agent on each node loads.
	InterceptionModeEBPF InterceptionMode = "ebpf"
	// InterceptionModeNone is not at all, for pods that address their sidecar
	// themselves or that something else redirects.
	InterceptionModeNone InterceptionMode = "none"
)

// ExternalAuthzSpec asks a service of the user's about each inbound request.
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

	// StatPrefix begins the names of the metrics about it. Empty means
	// inboundExtAuthz.
	// +optional
	// +kubebuilder:default=inboundExtAuthz
	StatPrefix string `json:"statPrefix,omitempty"`

	// Timeout is how long the service may take to answer. Empty means 1s.
	// +optional
	// +kubebuilder:default="1s"
	Timeout Duration `json:"timeout,omitempty"`

	// FailureModeAllow lets requests pass while the service does not answer.
	// +optional
	FailureModeAllow bool `json:"failureModeAllow,omitempty"`
}
