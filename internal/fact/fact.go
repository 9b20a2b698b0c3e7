// Package fact holds the content of the user's objects in the words of package mesh, one
// Fact for each object, and the Snapshot: the state of the mesh at one moment, in which
// all references between facts are resolved.
//
// Packages below internal/source make facts; internal/catalog makes Snapshots of them.
// Both are sealed and shared in the same way as the parts of a View. A driver sees Views
// only, so this package is not public. It does no I/O, has no Kubernetes types, and
// imports only package mesh and the standard library.
package fact

import (
	"net/netip"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Fact is the content of one of the user's objects, or the news that it was deleted.
type Fact struct {
	// Object identifies the object. A Fact replaces the former one with the same
	// APIVersion, Kind, namespace and name. If an object comes in several APIVersions, the
	// last one in sort order counts.
	Object mesh.ObjectRef
	// Content is one of *Settings, *Namespace, *Workload, *Service, *EndpointSlice,
	// *AccessRule, *RouteGroup, *Split, *Route, *ReferenceGrant, *EgressRule, *IngressRule,
	// *RetryRule, *UpstreamSetting, *AccessPolicy, *TokenPolicy, *TokenKeys, *Gateway, *GatewayClass, *ServerCertificate
	// and *Learned, sealed. It is nil if the object was deleted or is unusable.
	Content mesh.Digester
	// Problems are the errors found in the object alone.
	Problems []mesh.Problem
}

// Namespace is a Kubernetes namespace.
type Namespace struct {
	mesh.Sealed
	Name string `json:"name"`
	// Member reports whether the namespace's workloads and objects belong to the mesh.
	Member bool `json:"member"`
	// InboundTLS is the namespace's own mode. If empty, the mesh-wide mode applies.
	InboundTLS mesh.TLSMode `json:"inboundTLS,omitempty"`
	// AccessLog is the namespace's own. If nil, the mesh-wide one applies.
	AccessLog *mesh.AccessLog `json:"accessLog,omitempty"`
	// Labels are the namespace's.
	Labels map[string]string `json:"labels,omitempty"`
	// OutboundServices are those that the namespace's sidecars know of those that they may
	// call. Nil means all.
	OutboundServices Services `json:"outboundServices,omitempty"`
	// Audit asks to count what the rules for the namespace's workloads would refuse. It has
	// effect where everyone may call otherwise.
	Audit bool `json:"audit,omitempty"`
	// DefaultAccess is what happens to calls of the namespace's workloads about which no policy
	// decides. If empty, the mesh's traffic policy mode applies.
	DefaultAccess AccessAction `json:"defaultAccess,omitempty"`
}

// Workload is a pod or, where there are no pods, its equivalent.
type Workload struct {
	mesh.Sealed
	mesh.Name
	// UID is the pod's UID and the key of its proxy.
	UID            string `json:"uid"`
	ServiceAccount string `json:"serviceAccount"`
	// Labels are the pod's.
	Labels map[string]string `json:"labels,omitempty"`
	// Owner is the object that the pod belongs to, such as its Deployment. It is empty for
	// pods without a controller.
	Owner Owner `json:"owner,omitzero"`
	// Addresses are the pod's own IPv4 and IPv6 addresses. It is empty while the pod has
	// none and for pods in the host network.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Class is the name of the sidecar's driver. It is empty if there is no sidecar.
	Class string `json:"class,omitempty"`
	// Ports are the ports declared by the containers, sorted.
	Ports []WorkloadPort `json:"ports,omitempty"`
	// Zone is the zone of the pod's node, empty if unknown.
	Zone string `json:"zone,omitempty"`
	// InboundTLS is the pod's own mode. If empty, the namespace's mode applies.
	InboundTLS mesh.TLSMode `json:"inboundTLS,omitempty"`
	// ProxyProtocol are the ports whose application gets a header of the PROXY protocol,
	// sorted.
	ProxyProtocol []uint16 `json:"proxyProtocol,omitempty"`
	// AccessLog is the pod's own. If nil, the namespace's applies.
	AccessLog *mesh.AccessLog `json:"accessLog,omitempty"`
	// OutboundServices are the pod's own. If nil, the namespace's apply.
	OutboundServices Services `json:"outboundServices,omitempty"`
	// Redirection is set only for workloads with a sidecar.
	Redirection mesh.Redirection `json:"redirection,omitzero"`
	// Ended is true when all containers have terminated and will not restart.
	Ended bool `json:"ended,omitempty"`
	// Ready says that all its containers are ready and its readiness gates hold, as its
	// node last reported. Unlike an endpoint's it stays true while Kubernetes counts the
	// pods of a node as not ready because the node does not report.
	Ready bool `json:"ready,omitempty"`
}

// Owner is an object that a pod belongs to, in the pod's namespace.
type Owner struct {
	// Kind is the kind in lower case, as in kubectl's "deployment/web".
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// WorkloadPort is a TCP port of a container.
type WorkloadPort struct {
	// Name may be empty.
	Name   string `json:"name,omitempty"`
	Number uint16 `json:"number"`
}

// Service is a named group of workloads.
type Service struct {
	mesh.Sealed
	mesh.Name
	// Addresses are the virtual IPs, sorted. Headless and ExternalName services have none.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// External are the addresses and host names of a load balancer, and the external addresses.
	External []string `json:"external,omitempty"`
	// Headless services resolve to the addresses of their endpoints.
	Headless bool `json:"headless,omitempty"`
	// ExternalName is the DNS name that an ExternalName service resolves to, otherwise
	// empty.
	ExternalName string `json:"externalName,omitempty"`
	// Ports are the TCP ports, sorted by number.
	Ports []PortSpec `json:"ports,omitempty"`
	// StickyClients sends all connections of a client address to one endpoint (session
	// affinity ClientIP).
	StickyClients bool `json:"stickyClients,omitempty"`
	// PreferZone prefers endpoints in the client's zone.
	PreferZone bool `json:"preferZone,omitempty"`
}

// PortSpec is a port of a Service.
type PortSpec struct {
	// Name may be empty only if the service has a single port.
	Name string `json:"name,omitempty"`
	Port uint16 `json:"port"`
	// Target is the workloads' port number, or 0 if TargetName names the port.
	Target     uint16        `json:"target,omitempty"`
	TargetName string        `json:"targetName,omitempty"`
	Protocol   mesh.Protocol `json:"protocol"`
	// Assumed says that the user has not told the protocol.
	Assumed bool `json:"assumed,omitempty"`
}

// EndpointSlice is a part of a service's endpoints. An endpoint may be in several slices.
type EndpointSlice struct {
	mesh.Sealed
	mesh.Name
	// Service is the name of the service in the slice's namespace.
	Service string `json:"service"`
	// Ports are the endpoints' ports, by the names of the service's ports.
	Ports     []SlicePort     `json:"ports,omitempty"`
	Endpoints []SliceEndpoint `json:"endpoints,omitempty"`
}

// SlicePort is the port number of all endpoints of a slice for one named service port.
type SlicePort struct {
	Name string `json:"name,omitempty"`
	Port uint16 `json:"port"`
}

// SliceEndpoint is one endpoint of an EndpointSlice.
type SliceEndpoint struct {
	Addresses []netip.Addr `json:"addresses"`
	// Workload is the name of the workload in the slice's namespace, empty if the endpoint
	// is not a workload.
	Workload string `json:"workload,omitempty"`
	// Hostname is the first label of the endpoint's own DNS name, as pods of a StatefulSet
	// have. It is empty for other endpoints.
	Hostname string `json:"hostname,omitempty"`
	Zone     string `json:"zone,omitempty"`
	// Ready, Serving and Terminating are the conditions of the Kubernetes EndpointSlice: a
	// Serving endpoint accepts connections even while Terminating, a Ready one is not
	// Terminating.
	Ready       bool `json:"ready,omitempty"`
	Serving     bool `json:"serving,omitempty"`
	Terminating bool `json:"terminating,omitempty"`
}

// Age decides between conflicting objects: the oldest wins, and among equals the first by
// namespace and name.
type Age struct {
	// Created is the creation time in seconds since 1970, 0 if unknown.
	Created int64 `json:"created,omitempty"`
}
