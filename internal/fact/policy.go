package fact

import (
	"net/netip"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// ServiceAccount is a source or destination of a rule. The trust domain is omitted, since
// all service accounts share it.
type ServiceAccount = mesh.Name

// AccessRule lets the sources call the workloads of the destination's service account
// (TrafficTarget).
type AccessRule struct {
	mesh.Sealed
	mesh.Name
	Age
	Destination ServiceAccount   `json:"destination"`
	Sources     []ServiceAccount `json:"sources"`
	// Rules say what is allowed. At HTTP ports a request must match one of the
	// HTTPRouteGroups. TCPRoutes list the ports that sources may connect to; if there are
	// any, requests are allowed only at these ports. If there are only TCPRoutes, no
	// requests are allowed.
	Rules []AccessRoutes `json:"rules"`
	// Audit asks to count what the rules for the destination, this and all others, would
	// refuse. It has effect where everyone may call otherwise.
	Audit bool `json:"audit,omitempty"`
}

// AccessRoutes refers to the routes of a RouteGroup that an AccessRule allows.
type AccessRoutes struct {
	// Kind is HTTPRouteGroup or TCPRoute, and Group the object's name in the rule's
	// namespace.
	Kind  string `json:"kind"`
	Group string `json:"group"`
	// Matches are names of the group's matches. Empty means all.
	Matches []string `json:"matches,omitempty"`
}

// RouteGroup has traffic matches that rules refer to by name (HTTPRouteGroup, TCPRoute).
type RouteGroup struct {
	mesh.Sealed
	mesh.Name
	// HTTP has the matches of an HTTPRouteGroup, and TCP that of a TCPRoute.
	HTTP []NamedMatch `json:"http,omitempty"`
	TCP  *TCPMatch    `json:"tcp,omitempty"`
}

// NamedMatch is a match of a RouteGroup.
type NamedMatch struct {
	Name string `json:"name"`
	mesh.HTTPMatch
}

// TCPMatch is a condition on a connection.
type TCPMatch struct {
	// Ports are the destination workload's ports, sorted. Empty means any.
	Ports []uint16 `json:"ports,omitempty"`
}

// Split distributes the traffic of a service over several services (TrafficSplit).
type Split struct {
	mesh.Sealed
	mesh.Name
	Age
	// Root and the backends are names of services in the split's namespace.
	Root     string         `json:"root"`
	Backends []SplitBackend `json:"backends"`
	// Matches are HTTPRouteGroups of the namespace; with them only requests that
	// match one are split.
	Matches []string `json:"matches,omitempty"`
}

// SplitBackend is the share of one service.
type SplitBackend struct {
	Service string `json:"service"`
	Weight  uint32 `json:"weight"`
}

// EgressRule lets sources call outside the mesh (Egress). HTTP and TLS ports match by
// Hosts and by Ranges: each that is not empty must match. TCP ports match only by Ranges;
// if empty, any address is allowed.
type EgressRule struct {
	mesh.Sealed
	mesh.Name
	Age
	Sources []ServiceAccount `json:"sources"`
	// Hosts are DNS names, either exact or starting with "*.".
	Hosts  []string       `json:"hosts,omitempty"`
	Ranges []netip.Prefix `json:"ranges,omitempty"`
	Ports  []EgressPort   `json:"ports"`
	// Groups name HTTPRouteGroups and Settings UpstreamSettings in the rule's namespace.
	Groups   []string `json:"groups,omitempty"`
	Settings []string `json:"settings,omitempty"`
}

// EgressPort is a port outside the mesh.
type EgressPort struct {
	Number uint16 `json:"number"`
	// Protocol is HTTP, TCP, or TLS. With TLS, the server name of the application's own
	// TLS is matched with the hosts.
	Protocol mesh.EgressProtocol `json:"protocol"`
}

// IngressRule lets traffic from outside the mesh into services (IngressBackend).
type IngressRule struct {
	mesh.Sealed
	mesh.Name
	Age
	Backends []IngressBackend `json:"backends"`
	Sources  []IngressSource  `json:"sources"`
	// Groups name HTTPRouteGroups in the rule's namespace. Empty allows every request.
	Groups []string `json:"groups,omitempty"`
}

// IngressBackend is a port that accepts traffic from outside the mesh.
type IngressBackend struct {
	// Service is a service in the rule's namespace.
	Service string `json:"service"`
	// Port is the workloads' port.
	Port uint16 `json:"port"`
	// TLS requires clients to use TLS to the sidecar, which presents its mesh certificate.
	// If SNIHosts are set, the client must name one of them. With SkipClientCert, clients
	// need no mesh certificate.
	TLS            bool     `json:"tls,omitempty"`
	SNIHosts       []string `json:"sniHosts,omitempty"`
	SkipClientCert bool     `json:"skipClientCert,omitempty"`
}

// IngressSource is one of: a service whose endpoints may call, an address range, or a
// principal. If a rule has principals, callers must have one of them in addition to an
// allowed address.
type IngressSource struct {
	Service mesh.Name    `json:"service,omitzero"`
	Range   netip.Prefix `json:"range,omitzero"`
	// Principal is the name of a mesh identity, <sa>.<ns>.<trust domain>, or "*" for any.
	Principal string `json:"principal,omitempty"`
}

// RetryRule retries the source's requests to the destinations (Retry).
type RetryRule struct {
	mesh.Sealed
	mesh.Name
	Age
	Source       ServiceAccount `json:"source"`
	Destinations []mesh.Name    `json:"destinations"`
	Retry        mesh.Retry     `json:"retry"`
}

// UpstreamSetting configures calls to a service or to a host outside the mesh
// (UpstreamTrafficSetting).
type UpstreamSetting struct {
	mesh.Sealed
	mesh.Name
	Age
	// Host is the DNS name of the service or the egress host.
	Host   string              `json:"host"`
	Policy mesh.UpstreamPolicy `json:"policy"`
	Limits mesh.RateLimits     `json:"limits,omitzero"`
}

// Service returns the service that the Host names: <name>, <name>.<namespace> or longer. It
// may not exist. The result is zero for services of another namespace than the setting's.
func (s *UpstreamSetting) Service() mesh.Name {
	name, rest, qualified := strings.Cut(strings.ToLower(s.Host), ".")
	if !qualified {
		return mesh.Name{Namespace: s.Namespace, Name: name}
	}
	namespace, domain, _ := strings.Cut(rest, ".")
	if domain != "" && domain != "svc" && !strings.HasPrefix(domain, "svc.") || namespace != s.Namespace {
		return mesh.Name{}
	}
	return mesh.Name{Namespace: namespace, Name: name}
}
