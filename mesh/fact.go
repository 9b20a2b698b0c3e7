package mesh

import "net/netip"

// Fact is what one object of the user's says, or that there is no such object any
// more.
type Fact struct {
	// Object names the object. Facts of one APIVersion, Kind, namespace and name
	// replace each other, and of an object that comes in several APIVersions the last
	// in their order counts.
	Object ObjectRef
	// Content is one of *Settings, *Namespace, *Workload, *Service,
	// *EndpointSlice, *AccessRule, *RouteGroup, *Split, *EgressRule, *IngressRule,
	// *RetryRule and *UpstreamSetting, sealed; nil if the object is gone or so wrong
	// that it says nothing.
	Content Content
	// Problems are what is wrong with the object by itself.
	Problems []Problem
}

// Content is what a Fact may hold.
type Content interface {
	Digester
	content()
}

// Namespace is a namespace of the mesh.
type Namespace struct {
	Sealed
	Name string `json:"name"`
	// Member says whether its workloads and objects belong to the mesh.
	Member bool `json:"member"`
	// InboundTLS is the namespace's own mode; empty means the mesh's.
	InboundTLS TLSMode `json:"inboundTLS,omitempty"`
}

// TLSMode says what a workload takes besides mesh TLS.
type TLSMode string

const (
	// Strict takes mesh TLS and nothing else.
	Strict TLSMode = "Strict"
	// Permissive also takes plaintext and an application's own TLS.
	Permissive TLSMode = "Permissive"
)

// Workload is a pod, or what stands for pods where there are none.
type Workload struct {
	Sealed
	Name
	// UID is the pod's, the key of its proxy.
	UID            string `json:"uid"`
	ServiceAccount string `json:"serviceAccount"`
	// Addresses are the pod's own, of either family, none if it has none yet or
	// shares its node's network.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Class is the name of the driver of its sidecar, empty if it has none.
	Class string `json:"class,omitempty"`
	// Ports are the ports that its containers name or number, sorted.
	Ports []WorkloadPort `json:"ports,omitempty"`
	// Zone is the zone of its node; empty if that is not known.
	Zone string `json:"zone,omitempty"`
	// InboundTLS is the pod's own mode; empty means its namespace's.
	InboundTLS TLSMode `json:"inboundTLS,omitempty"`
	// Redirection is of a workload with a sidecar.
	Redirection Redirection `json:"redirection,omitzero"`
	// Ended says that all its containers have ended for good.
	Ended bool `json:"ended,omitempty"`
}

// WorkloadPort is a TCP port of a container.
type WorkloadPort struct {
	// Name may be empty.
	Name   string `json:"name,omitempty"`
	Number uint16 `json:"number"`
}

// Service is a name and addresses for some workloads.
type Service struct {
	Sealed
	Name
	// Addresses are the virtual ones, sorted. There are none for a headless service
	// and for one that is only another name.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Headless says that clients get the addresses of the endpoints.
	Headless bool `json:"headless,omitempty"`
	// ExternalName is the DNS name that the service stands for, empty for others.
	ExternalName string `json:"externalName,omitempty"`
	// Ports are the TCP ports, sorted by number.
	Ports []PortSpec `json:"ports,omitempty"`
	// StickyClients says that one client address gets one endpoint.
	StickyClients bool `json:"stickyClients,omitempty"`
	// PreferZone says that endpoints of the client's zone are preferred.
	PreferZone bool `json:"preferZone,omitempty"`
}

// PortSpec is a port of a Service.
type PortSpec struct {
	// Name is empty only if it is the only port.
	Name string `json:"name,omitempty"`
	Port uint16 `json:"port"`
	// Target is the workloads' port; 0 if TargetName says which.
	Target     uint16   `json:"target,omitempty"`
	TargetName string   `json:"targetName,omitempty"`
	Protocol   Protocol `json:"protocol"`
}

// EndpointSlice is some of the endpoints of a service. Several slices may name
// one endpoint.
type EndpointSlice struct {
	Sealed
	Name
	// Service is the name of the service, in the same namespace.
	Service string `json:"service"`
	// Ports are the endpoints' ports, by the names of the service's ports.
	Ports     []SlicePort     `json:"ports,omitempty"`
	Endpoints []SliceEndpoint `json:"endpoints,omitempty"`
}

// SlicePort is the port that all endpoints of a slice have for a service's port.
type SlicePort struct {
	Name string `json:"name,omitempty"`
	Port uint16 `json:"port"`
}

// SliceEndpoint is an endpoint of a slice.
type SliceEndpoint struct {
	Addresses []netip.Addr `json:"addresses"`
	// Workload is the name of the workload in the same namespace, empty if the
	// endpoint is none.
	Workload string `json:"workload,omitempty"`
	// Hostname is the first label of the endpoint's own DNS name, as pods of a
	// StatefulSet have one; else empty.
	Hostname string `json:"hostname,omitempty"`
	Zone     string `json:"zone,omitempty"`
	// Ready says that it takes new connections. Serving says the same but that it
	// may be Terminating.
	Ready       bool `json:"ready,omitempty"`
	Serving     bool `json:"serving,omitempty"`
	Terminating bool `json:"terminating,omitempty"`
}

func (*Settings) content()        {}
func (*Namespace) content()       {}
func (*Workload) content()        {}
func (*Service) content()         {}
func (*EndpointSlice) content()   {}
func (*AccessRule) content()      {}
func (*RouteGroup) content()      {}
func (*Split) content()           {}
func (*EgressRule) content()      {}
func (*IngressRule) content()     {}
func (*RetryRule) content()       {}
func (*UpstreamSetting) content() {}
