package v1alpha2

// RepoServerSpec is the address of a Pipy repository outside the controller (osm-edge).
type RepoServerSpec struct {
	// IPAddr is the repository's IP address.
	// +optional
	IPAddr string `json:"ipaddr,omitempty"`

	// Codebase is the folder of the repository that the mesh uses.
	// +optional
	Codebase string `json:"codebase,omitempty"`
}

// ClusterSetSpec identifies the cluster within a set of clusters (osm-edge).
type ClusterSetSpec struct {
	// Properties are the cluster's name, region and so on.
	// +optional
	Properties []ClusterPropertySpec `json:"properties,omitempty"`
}

// ClusterPropertySpec is one property of the cluster.
type ClusterPropertySpec struct {
	// Name is the property's name.
	// +optional
	Name string `json:"name,omitempty"`

	// Value is the property's value.
	// +optional
	Value string `json:"value,omitempty"`
}

// PluginChainsSpec lists the modules of osm-edge's Pipy scripts by direction and
// protocol.
type PluginChainsSpec struct {
	// InboundTCPChains are for inbound TCP.
	// +optional
	InboundTCPChains []PluginChainSpec `json:"inbound-tcp,omitempty"`

	// InboundHTTPChains are for inbound HTTP.
	// +optional
	InboundHTTPChains []PluginChainSpec `json:"inbound-http,omitempty"`

	// OutboundTCPChains are for outbound TCP.
	// +optional
	OutboundTCPChains []PluginChainSpec `json:"outbound-tcp,omitempty"`

	// OutboundHTTPChains are for outbound HTTP.
	// +optional
	OutboundHTTPChains []PluginChainSpec `json:"outbound-http,omitempty"`
}

// PluginChainSpec is one module.
type PluginChainSpec struct {
	// Plugin is the module's name.
	Plugin string `json:"plugin"`

	// Priority orders the modules of a chain, the highest first. It is floating-point, as
	// in osm-edge.
	Priority float64 `json:"priority"`

	// Disable removes the module from the chain.
	// +optional
	Disable bool `json:"disable,omitempty"`
}
