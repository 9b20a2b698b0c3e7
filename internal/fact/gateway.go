package fact

import "github.com/outrigger-mesh/outrigger/mesh"

// GatewayLabel is the label, defined by Gateway API, with which pods and other objects say of which Gateway
// in their namespace they are.
const GatewayLabel = "gateway.networking.k8s.io/gateway-name"

// GatewayClass is a class of Gateway API's gateways that the mesh implements.
type GatewayClass struct {
	mesh.Sealed
	Name string `json:"name"`
	// Class is the name of the driver of its gateways' proxies.
	Class string `json:"class"`
}

// Gateway is a gateway of Gateway API, of any class.
type Gateway struct {
	mesh.Sealed
	mesh.Name
	Age
	// Class is the name of its GatewayClass. Gateways of classes that are no facts are not the
	// mesh's.
	Class     string            `json:"class"`
	Listeners []GatewayListener `json:"listeners"`
}

// GatewayListener takes connections at a port. Those of HTTP at one port have different Hosts.
type GatewayListener struct {
	// Index is the listener's index in the object's list.
	Index int    `json:"index"`
	Name  string `json:"name"`
	Port  uint16 `json:"port"`
	// Host is exact, or "*." and a suffix, in lower case; empty means all hosts.
	Host string `json:"host,omitempty"`
	// Protocol is HTTP or TCP. ByServerName says of TCP that connections begin with TLS, and that
	// routes choose them by server name.
	Protocol     mesh.Protocol `json:"protocol"`
	ByServerName bool          `json:"byServerName,omitempty"`
	// Terminates says that TLS ends at the proxy, which presents one of the Certificates.
	Terminates   bool             `json:"terminates,omitempty"`
	Certificates []CertificateRef `json:"certificates,omitempty"`
	// Kinds are the kinds of routes that may attach.
	Kinds []RouteKind `json:"kinds"`
	// All says that routes of all namespaces may attach. Otherwise those of the gateway's namespace
	// may if Same is set, and those of the selected Namespaces.
	All        bool     `json:"all,omitempty"`
	Same       bool     `json:"same,omitempty"`
	Namespaces Selector `json:"namespaces,omitzero"`
	// Unusable says that part of the listener is invalid or not supported. It takes no
	// connections.
	Unusable bool `json:"unusable,omitempty"`
}

// CertificateRef is a listener's reference to a Secret with a certificate.
type CertificateRef struct {
	// Field is its path in the Gateway.
	Field  string    `json:"field"`
	Secret mesh.Name `json:"secret"`
}

// ServerCertificate is what is known of a Secret with a certificate for clients of gateways, but for
// the private key.
type ServerCertificate struct {
	mesh.Sealed
	// Hosts are the certificate's DNS names in lower case: exact, or "*." and a suffix.
	Hosts []string `json:"hosts,omitempty"`
	// Chain is the digest of the certificate and its chain.
	Chain mesh.Digest `json:"chain"`
	// Flaw is set if the Secret cannot be used. It is a Problem of the Gateways that refer to it.
	Flaw *Flaw `json:"flaw,omitempty"`
}

// GatewayState is what the mesh has made of a Gateway.
type GatewayState struct {
	// Class is the name of the driver of its proxies.
	Class string `json:"class"`
	// Ports are those of the listeners that can be used, sorted.
	Ports []uint16 `json:"ports,omitempty"`
	// Addresses are those of the Services that lead to its pods: those outside the cluster if
	// there are any, otherwise those inside. They are IP addresses or host names.
	Addresses []string `json:"addresses,omitempty"`
	// Pods is the number of its pods with a proxy.
	Pods int `json:"pods"`
	// Listeners are in the order of the object's.
	Listeners []ListenerState `json:"listeners"`
}

// ListenerState is what the mesh has made of a listener.
type ListenerState struct {
	// Routes is the number of attached routes.
	Routes int `json:"routes"`
	// Closed says that the proxies take no connections, since they have no certificate to present.
	Closed bool `json:"closed,omitempty"`
	// Kinds are the kinds of routes that may attach.
	Kinds []RouteKind `json:"kinds"`
}

// GatewayParent is a gateway to which a Route attaches.
type GatewayParent struct {
	// Index is the parent's index in the object's list.
	Index   int       `json:"index"`
	Gateway mesh.Name `json:"gateway"`
	// Listener and Port are those of the listeners meant: empty and 0 mean all.
	Listener string `json:"listener,omitempty"`
	Port     uint16 `json:"port,omitempty"`
}

// The reasons of Problems of gateways and of routes attached to them, as Gateway API defines them.
const (
	// ReasonNotAllowedByListeners: no listener admits the kind or the namespace of the route.
	ReasonNotAllowedByListeners = "NotAllowedByListeners"
	// ReasonNoMatchingListenerHostname: no host of the route is one of a listener.
	ReasonNoMatchingListenerHostname = "NoMatchingListenerHostname"
	// ReasonHostnameConflict: an earlier listener of the port has the same host.
	ReasonHostnameConflict = "HostnameConflict"
	// ReasonProtocolConflict: an earlier listener of the port has another protocol.
	ReasonProtocolConflict = "ProtocolConflict"
	// ReasonPortUnavailable: the proxy or the agent uses the port itself.
	ReasonPortUnavailable = "PortUnavailable"
	// ReasonInvalidRouteKinds: the listener allows kinds of routes that its protocol does not have.
	ReasonInvalidRouteKinds = "InvalidRouteKinds"
	// ReasonInvalidCertificateRef: a Secret is missing, or is no certificate that can be used.
	ReasonInvalidCertificateRef = "InvalidCertificateRef"
	// ReasonUnsupportedAddress: the gateway asks for an address.
	ReasonUnsupportedAddress = "UnsupportedAddress"
	// ReasonInvalidParameters: the class refers to parameters that cannot be used.
	ReasonInvalidParameters = "InvalidParameters"
)
