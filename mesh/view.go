package mesh

import (
	"net/netip"
	"slices"
	"time"
)

// View is all that one proxy may see of the mesh, and all that a driver sees. It is
// immutable. Its parts are shared with the Views of other proxies.
type View struct {
	Proxy    *Proxy    `json:"proxy"`
	Settings *Settings `json:"settings"`
	Inbound  *Inbound  `json:"inbound"`
	Outbound *Outbound `json:"outbound"`
	Egress   *Egress   `json:"egress"`

	digest Digest
}

// NewView returns a View of sealed parts.
func NewView(proxy *Proxy, settings *Settings, inbound *Inbound, outbound *Outbound, egress *Egress) *View {
	return &View{
		Proxy: proxy, Settings: settings, Inbound: inbound, Outbound: outbound, Egress: egress,
		digest: JoinDigests(proxy.Digest(), settings.Digest(), inbound.Digest(), outbound.Digest(), egress.Digest()),
	}
}

// Digest returns a digest of all parts.
func (v *View) Digest() Digest { return v.digest }

// Proxy is one sidecar.
type Proxy struct {
	Sealed
	// Name is that of its pod.
	Name
	// UID is the UID of its pod, which is the proxy's key everywhere.
	UID string `json:"uid"`
	// Class is the name of the driver that serves it.
	Class string `json:"class"`
	// Identity is what its certificate says.
	Identity Identity `json:"identity"`
	// Zone is the zone of its node; empty if that is not known.
	Zone string `json:"zone,omitempty"`
	// Addresses are its pod's.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Plaintext says that its class speaks no mesh TLS: it calls in plaintext, and
	// knows nobody who calls it.
	Plaintext bool `json:"plaintext,omitempty"`
}

// Outbound is what a proxy calls inside the mesh. Proxies that may call the same
// share one.
type Outbound struct {
	// Scope names whose it is: "*" for what everybody may call, or a service account.
	// Two Outbounds of one Scope are two states of the same thing.
	Scope string `json:"scope"`
	// Destinations are what an application can connect to, by their names.
	Destinations Table[*Destination] `json:"destinations,omitzero"`
	// Backends are where Destinations send to, by their names.
	Backends Table[*Backend] `json:"backends,omitzero"`

	digest Digest
}

// NewOutbound returns an Outbound.
func NewOutbound(scope string, destinations Table[*Destination], backends Table[*Backend]) *Outbound {
	return &Outbound{
		Scope: scope, Destinations: destinations, Backends: backends,
		digest: JoinDigests(DigestBytes([]byte(scope)), destinations.Digest(), backends.Digest()),
	}
}

// Digest returns a digest of all parts.
func (o *Outbound) Digest() Digest { return o.digest }

// Destination is addresses and a port that an application connects to: a port of a
// service at its virtual addresses, or a port of one endpoint of a headless service
// at the endpoint's own. No two Destinations of an Outbound have an address and a
// port in common.
type Destination struct {
	Sealed
	// Name is its name in the Table: that of the service port, and for an endpoint of
	// a headless service that, "@" and the workload's name or the address.
	Name string `json:"name"`
	// Service is the service's port.
	Service ServicePort `json:"service"`
	// Addresses, of either family and sorted, and Port are what is connected to.
	Addresses []netip.Addr `json:"addresses"`
	Port      uint16       `json:"port"`
	Protocol  Protocol     `json:"protocol"`
	// Routes are for HTTP protocols. The first whose match holds is taken, and the
	// last one holds for every request.
	Routes []Route `json:"routes,omitempty"`
	// Backends are for other protocols.
	Backends []WeightedBackend `json:"backends,omitempty"`
	// HashOn is what the backends' LoadBalancing needs to know of a request.
	HashOn []HashOn `json:"hashOn,omitempty"`
}

// Route is where requests go that match.
type Route struct {
	// Name is for people, the object that it comes from; empty for the service's own.
	Name  string    `json:"name,omitempty"`
	Match HTTPMatch `json:"match,omitzero"`
	// Backends have at least one weight that is not 0. A Route with none answers
	// 503: there is nothing to send to.
	Backends []WeightedBackend `json:"backends,omitempty"`
	// Timeout limits a request with its retries; 0 means no limit.
	Timeout time.Duration `json:"timeout,omitempty"`
	Retry   *Retry        `json:"retry,omitempty"`
}

// WeightedBackend is a Backend's share.
type WeightedBackend struct {
	// Backend is its name in the Outbound's Table.
	Backend string `json:"backend"`
	Weight  uint32 `json:"weight"`
}

// Backend is endpoints that are called in one way.
type Backend struct {
	Sealed
	// Name is its name in the Table, made like a Destination's.
	Name     string      `json:"name"`
	Service  ServicePort `json:"service"`
	Protocol Protocol    `json:"protocol"`
	// Endpoints are sorted by their first address and port.
	Endpoints []Endpoint     `json:"endpoints,omitempty"`
	Policy    UpstreamPolicy `json:"policy,omitzero"`
	// HealthChecks makes the proxy probe the endpoints by connecting to them.
	HealthChecks bool `json:"healthChecks,omitempty"`
	// ExternalName is the DNS name to call, in plaintext and at the service's port,
	// instead of endpoints. It is empty but for a service that stands for a name
	// outside the mesh.
	ExternalName string `json:"externalName,omitempty"`
}

// Endpoint is one workload behind a Backend.
type Endpoint struct {
	// Addresses has one address, or one of each family, IPv4 first.
	Addresses []netip.Addr `json:"addresses"`
	Port      uint16       `json:"port"`
	// ServerName is the DNS name of the endpoint's identity: what a client sends as
	// SNI and verifies. It is empty for an endpoint that is called in plaintext.
	ServerName string `json:"serverName,omitempty"`
	// Workload is the workload's name, namespace/name, for people.
	Workload string `json:"workload,omitempty"`
	Zone     string `json:"zone,omitempty"`
	// Draining says that it takes no new clients, but goes on for those it has.
	Draining bool `json:"draining,omitempty"`
}

// Egress is what a proxy may call outside the mesh.
type Egress struct {
	Sealed
	// AllowAll lets everything out that Ports do not name. Otherwise it is closed.
	AllowAll bool `json:"allowAll,omitempty"`
	// Ports are sorted by number, and each has its own.
	Ports []EgressRoutes `json:"ports,omitempty"`
}

// EgressRoutes are where connections to a port outside the mesh may go.
type EgressRoutes struct {
	Port     uint16         `json:"port"`
	Protocol EgressProtocol `json:"protocol"`
	// Hosts, for HTTP and TLS, are sorted by host, each once. Requests to other hosts
	// are as if the port were not named.
	Hosts []EgressHost `json:"hosts,omitempty"`
	// Ranges, for any protocol, are where connections go whatever their host, sorted;
	// what they carry is then not looked at. For TCP, no Ranges means any address.
	Ranges []netip.Prefix `json:"ranges,omitempty"`
}

// EgressHost is a host outside the mesh.
type EgressHost struct {
	// Host is exact or begins with "*.", which stands for one or more labels. An
	// exact host goes before the others, and a longer one before a shorter one.
	Host string `json:"host"`
	// Within are the requests that may pass to addresses, and go before Matches. Matches
	// are those that may pass to the addresses that the host's name resolves to, whatever
	// address the application connected to. Any of them is enough, and none lets nothing
	// pass. TLS has those that hold for everything.
	Within  []EgressWithin `json:"within,omitempty"`
	Matches []HTTPMatch    `json:"matches"`
	Policy  UpstreamPolicy `json:"policy,omitzero"`
}

// EgressWithin lets requests pass to the address that the application connected to, if
// it is in one of the Ranges.
type EgressWithin struct {
	// Ranges are sorted. None is no address.
	Ranges  []netip.Prefix `json:"ranges"`
	Matches []HTTPMatch    `json:"matches"`
}

// Contains reports whether an address is in one of the Ranges.
func (w EgressWithin) Contains(address netip.Addr) bool {
	return slices.ContainsFunc(w.Ranges, func(r netip.Prefix) bool { return contains(r, address) })
}

// Inbound is what a proxy takes for its application. Workloads that differ in
// nothing that matters share one.
type Inbound struct {
	Sealed
	// TLS says whether mesh TLS is all that is taken. Permissive also takes what
	// comes in plaintext or in an application's own TLS, but only where Access is for
	// Anyone: a caller without an identity never gets past rules. A proxy that is
	// Plaintext is always Permissive.
	TLS TLSMode `json:"tls"`
	// Ports are the ports that a service, a rule or the workload itself names,
	// sorted by number.
	Ports []InboundPort `json:"ports,omitempty"`
	// Others is who may connect to ports that are not among Ports. Their protocol is
	// TCP.
	Others Access `json:"others"`
}

// InboundPort is a port of the application.
type InboundPort struct {
	Port     uint16   `json:"port"`
	Protocol Protocol `json:"protocol"`
	// Services are the service ports that lead here, sorted; there may be none.
	Services []ServicePort `json:"services,omitempty"`
	Access   Access        `json:"access"`
	// Ingress is what may come from outside the mesh.
	Ingress []Ingress  `json:"ingress,omitempty"`
	Limits  RateLimits `json:"limits,omitzero"`
}

// Access says which peers of the mesh may call. The zero Access lets nobody.
type Access struct {
	// Anyone lets every identity of the mesh call.
	Anyone bool `json:"anyone,omitempty"`
	// Rules are who may call otherwise: any of them is enough.
	Rules []Permission `json:"rules,omitempty"`
}

// Permission lets its sources do something.
type Permission struct {
	// Name is the rule's object, namespace/name, for people and metrics.
	Name string `json:"name"`
	// Sources are sorted. None means nobody.
	Sources []Identity `json:"sources"`
	// Requests are what may be asked, any of them is enough; for protocols without
	// requests there is one that holds for everything. None allows nothing.
	Requests []HTTPMatch `json:"requests"`
}

// Ingress lets callers from outside the mesh send to a port.
type Ingress struct {
	// Name is the rule's object, namespace/name.
	Name string `json:"name"`
	// TLS, SNIHosts and SkipClientCert are as in IngressBackend.
	TLS            bool     `json:"tls,omitempty"`
	SNIHosts       []string `json:"sniHosts,omitempty"`
	SkipClientCert bool     `json:"skipClientCert,omitempty"`
	// Ranges are the addresses that may call, sorted. None means any only if there
	// are Principals or AnyPrincipal.
	Ranges []netip.Prefix `json:"ranges,omitempty"`
	// AnyPrincipal asks for any certificate of the mesh, Principals for one of them.
	// Either asks for TLS: nothing in plaintext has a principal.
	AnyPrincipal bool       `json:"anyPrincipal,omitempty"`
	Principals   []Identity `json:"principals,omitempty"`
	// Requests are what may be asked, as in a Permission.
	Requests []HTTPMatch `json:"requests"`
}

// Snapshot is the whole mesh at one moment. It is immutable: whoever holds one may
// read it from any goroutine for as long as it likes.
type Snapshot struct {
	Settings *Settings
	// Views are those of all proxies, by the UIDs of their pods.
	Views Table[*View]
	// Services are those of the mesh, by namespace/name, and Workloads likewise.
	Services  Table[*Service]
	Workloads Table[*Workload]
	// Problems are what is wrong, by the objects' String and how it was found.
	Problems Table[*Problems]
}

// Digest returns a digest of everything in the Snapshot.
func (s *Snapshot) Digest() Digest {
	return JoinDigests(s.Settings.Digest(), s.Views.Digest(), s.Services.Digest(), s.Workloads.Digest(), s.Problems.Digest())
}

// Problems are what is wrong with one object, sorted by field and reason.
type Problems struct {
	Sealed
	Object ObjectRef `json:"object"`
	List   []Problem `json:"list"`
}
