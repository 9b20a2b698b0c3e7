package mesh

import (
	"iter"
	"net/netip"
	"slices"
	"time"
)

// View is the part of the mesh that one proxy may see. Drivers see nothing else. It is
// immutable, and its parts are shared with the Views of other proxies.
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
	// Name is the name of its pod.
	Name
	// UID is the UID of its pod, used as the proxy's key everywhere.
	UID string `json:"uid"`
	// Class is the name of its driver.
	Class string `json:"class"`
	// Identity is the identity in its certificate.
	Identity Identity `json:"identity"`
	// Zone is the zone of its node, empty if unknown.
	Zone string `json:"zone,omitempty"`
	// Addresses are the addresses of its pod.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Plaintext reports that its class does not use mesh TLS: it calls in plaintext and
	// can't authenticate callers.
	Plaintext bool `json:"plaintext,omitempty"`
	// Gateway reports that its pod is one of a gateway: it has no application. The proxy listens
	// at its Destinations' ports, accepts nothing else, and calls nothing but their Backends.
	Gateway bool `json:"gateway,omitempty"`
}

// Outbound has everything that a proxy calls inside the mesh. Proxies with the same
// permissions share one.
type Outbound struct {
	// Scope is "*" for the destinations that every proxy may call, "<namespace>/*" for
	// those of every proxy of a namespace, otherwise a service account. Outbounds with the
	// same Scope are versions of the same thing.
	Scope string `json:"scope"`
	// Destinations are the addresses and ports that applications connect to, by name.
	Destinations Table[*Destination] `json:"destinations,omitzero"`
	// Backends are the targets of Destinations, by name.
	Backends Table[*Backend] `json:"backends,omitzero"`
	// Unknown are address ranges in which the pod may call more than the Destinations. A
	// connection to such an address that belongs to no Destination is handed to the agent
	// (agentspec.OnDemand), which has the missing Destination added and hands the connection
	// back. It is sorted, and empty if the Outbound is complete.
	Unknown []netip.Prefix `json:"unknown,omitempty"`

	digest Digest
}

// NewOutbound returns an Outbound.
func NewOutbound(scope string, destinations Table[*Destination], backends Table[*Backend]) *Outbound {
	return &Outbound{
		Scope: scope, Destinations: destinations, Backends: backends,
		digest: JoinDigests(DigestBytes([]byte(scope)), destinations.Digest(), backends.Digest()),
	}
}

// WithUnknown returns the Outbound with these Unknown ranges.
func (o *Outbound) WithUnknown(ranges []netip.Prefix) *Outbound {
	with := *o
	with.Unknown, with.digest = ranges, JoinDigests(o.digest, DigestOf(ranges))
	return &with
}

// Digest returns a digest of all parts.
func (o *Outbound) Digest() Digest { return o.digest }

// Destination is a port and addresses that an application connects to: a service port at
// the service's virtual IPs, or the port of one endpoint of a headless service at the
// endpoint's own addresses. Destinations of an Outbound never share an address and port.
//
// A Destination of a gateway is one of its ports, to which clients outside the mesh connect.
type Destination struct {
	Sealed
	// Name is its key in the Table: the name of the service port. For an endpoint of a
	// headless service, "@" and the workload's name or address are appended.
	Name string `json:"name"`
	// Service is the service port.
	Service ServicePort `json:"service"`
	// Origins are those of the Destination itself: of the service, and of what divides its
	// connections or chooses what to hash. Routes and Servers have their own.
	Origins []Origin `json:"origins,omitempty"`
	// Addresses (IPv4 and IPv6, sorted) and Port are what applications connect to.
	Addresses []netip.Addr `json:"addresses"`
	Port      uint16       `json:"port"`
	Protocol  Protocol     `json:"protocol"`
	// Listens says that the proxy itself listens at the Port. Only Destinations of a gateway do. Their
	// Addresses are the unspecified ones of the families that the pod has.
	Listens bool `json:"listens,omitempty"`
	// Hosts, for HTTP protocols of a gateway, are those that it serves, in lower case: exact,
	// "*." and a suffix that one or more labels precede, or AnyHost. They are sorted by
	// CompareHosts, without duplicates. The first one that matches the host of a request chooses
	// the Routes with the same Host; if none matches, the answer is 404. Hosts of requests
	// that PlainHost does not match are refused.
	Hosts []string `json:"hosts,omitempty"`
	// Certificates, of a gateway, make the proxy the end of TLS: connections begin with TLS, and the
	// first one that matches the client's server name is presented. Connections that none matches are
	// closed. They are sorted by CompareHosts, each Host once. A request for one of the Hosts of another
	// listener (ListenerOf) than that of its connection's certificate is answered with 421. Without any,
	// connections are forwarded as they come.
	Certificates []ServerCertificate `json:"certificates,omitempty"`
	// Routes are for HTTP protocols. The first route that matches is used. If none matches,
	// the answer is 404.
	Routes []Route `json:"routes,omitempty"`
	// Backends are for other protocols. If there are Servers, there are no Backends.
	Backends []WeightedBackend `json:"backends,omitempty"`
	// Servers are for other protocols too: connections begin with TLS, and the first one
	// that matches the client's server name is used. Connections that none matches are
	// closed. Their backends get what is inside TLS if there are Certificates.
	Servers []ServerRoute `json:"servers,omitempty"`
	// HashOn has the request properties that the backends' LoadBalancing hashes.
	HashOn []HashOn `json:"hashOn,omitempty"`
}

// AllBackends yields the names of the backends that requests, connections and copies of
// requests may be sent to. A name may come several times.
func (d *Destination) AllBackends() iter.Seq[string] {
	return func(yield func(string) bool) {
		each := func(backends []WeightedBackend) bool {
			for _, b := range backends {
				if !yield(b.Backend) {
					return false
				}
			}
			return true
		}
		for _, r := range d.Routes {
			if !each(r.Backends) {
				return
			}
			for _, m := range r.Mirrors {
				if !yield(m.Backend) {
					return
				}
			}
		}
		for _, s := range d.Servers {
			if !each(s.Backends) {
				return
			}
		}
		each(d.Backends)
	}
}

// Route says where matching requests go.
type Route struct {
	// Origin is that of the rule. It is zero for the service's default route.
	Origin Origin `json:"origin,omitzero"`
	// Rule is the name that the rule has within its object, if any.
	Rule string `json:"rule,omitempty"`
	// Host is one of the Destination's Hosts, and empty if it has none.
	Host  string    `json:"host,omitempty"`
	Match HTTPMatch `json:"match,omitzero"`
	// At least one of the Backends has a weight other than 0. Those with the weight 0 are only
	// for requests of a Session. A Route with neither Backends nor a Redirect answers 503.
	Backends []WeightedBackend `json:"backends,omitempty"`
	Rewrite  *Rewrite          `json:"rewrite,omitempty"`
	Redirect *Redirect         `json:"redirect,omitempty"`
	CORS     *CORS             `json:"cors,omitempty"`
	// Mirrors get copies of the requests that are forwarded.
	Mirrors []Mirror `json:"mirrors,omitempty"`
	// Timeout limits a request including retries. 0 means no limit.
	Timeout time.Duration `json:"timeout,omitempty"`
	Retry   *Retry        `json:"retry,omitempty"`
	// Session is nil for a Route with a Redirect.
	Session *Session `json:"session,omitempty"`
}

// ServerRoute says where TLS connections with a server name go.
type ServerRoute struct {
	Origin Origin `json:"origin,omitzero"`
	// Host is in lower case. It is exact or starts with "*.", which matches one or more
	// labels. No two ServerRoutes of a Destination have the same Host; exact ones come before
	// wildcards, and longer wildcards before shorter ones.
	Host string `json:"host"`
	// At least one of the Backends has a weight other than 0.
	Backends []WeightedBackend `json:"backends"`
}

// WeightedBackend is the share of one Backend.
type WeightedBackend struct {
	// Backend is its key in the Outbound's Table. If it is empty, requests of the share are
	// answered with 500, gRPC calls (a content-type of application/grpc) with the status
	// UNAVAILABLE (14), and its connections are closed.
	Backend string `json:"backend"`
	Weight  uint32 `json:"weight"`
	// Request changes requests that are sent to the Backend, and is Joined. Response changes
	// its responses. Only Routes have them.
	Request  HeaderChanges `json:"request,omitzero"`
	Response HeaderChanges `json:"response,omitzero"`
}

// Backend is a group of endpoints that are called in the same way.
type Backend struct {
	Sealed
	// Name is its key in the Table, formed like that of a Destination.
	Name     string      `json:"name"`
	Service  ServicePort `json:"service"`
	Protocol Protocol    `json:"protocol"`
	// Origins are those of the service and of the Policy.
	Origins []Origin `json:"origins,omitempty"`
	// Endpoints are sorted by their first address and port.
	Endpoints []Endpoint     `json:"endpoints,omitempty"`
	Policy    UpstreamPolicy `json:"policy,omitzero"`
	// HealthChecks makes the proxy probe the endpoints by connecting to them.
	HealthChecks bool `json:"healthChecks,omitempty"`
	// ExternalName is the DNS name that is called instead of endpoints, in plaintext and
	// at the service's port. Only services of type ExternalName have it.
	ExternalName string `json:"externalName,omitempty"`
}

// Endpoint is one workload behind a Backend.
type Endpoint struct {
	// Addresses has one address, or one of each family, IPv4 first.
	Addresses []netip.Addr `json:"addresses"`
	Port      uint16       `json:"port"`
	// ServerName is the DNS name of the endpoint's identity. Clients send it as SNI and
	// verify it. It is empty for endpoints that are called in plaintext.
	ServerName string `json:"serverName,omitempty"`
	// Workload is namespace/name of the workload, for display.
	Workload string `json:"workload,omitempty"`
	Zone     string `json:"zone,omitempty"`
	// Draining endpoints get no new clients but keep serving those they have.
	Draining bool `json:"draining,omitempty"`
}

// Egress has everything that a proxy may call outside the mesh.
type Egress struct {
	Sealed
	// AllowAll allows all traffic that Ports don't mention. Otherwise it is denied.
	AllowAll bool `json:"allowAll,omitempty"`
	// Ports are sorted by number, without duplicates.
	Ports []EgressRoutes `json:"ports,omitempty"`
}

// EgressRoutes are the allowed destinations at one port outside the mesh.
type EgressRoutes struct {
	Port     uint16         `json:"port"`
	Protocol EgressProtocol `json:"protocol"`
	// Origins are those of the Ranges, each once. Hosts have their own.
	Origins []Origin `json:"origins,omitempty"`
	// Hosts, for HTTP and TLS, are sorted and unique. Requests to other hosts are treated
	// as if the port were not listed.
	Hosts []EgressHost `json:"hosts,omitempty"`
	// Ranges, for any protocol, are addresses to which connections are allowed regardless
	// of host; their content is not inspected. For TCP, empty Ranges allow any address.
	// Sorted.
	Ranges []netip.Prefix `json:"ranges,omitempty"`
}

// EgressHost is a host outside the mesh.
type EgressHost struct {
	// Host is exact or starts with "*.", which matches one or more labels. Exact hosts
	// take precedence over wildcards, and longer wildcards over shorter ones.
	Host string `json:"host"`
	// Origins are those of the matches and of the Policy, each once.
	Origins []Origin `json:"origins,omitempty"`
	// Within allows requests to the address the application connected to, and is checked
	// before Matches. Matches allows requests to the addresses that the host name resolves
	// to, whatever address the application connected to. One match is enough; without
	// matches nothing passes. For TLS, matches are the zero HTTPMatch.
	Within  []EgressWithin `json:"within,omitempty"`
	Matches []HTTPMatch    `json:"matches"`
	Policy  UpstreamPolicy `json:"policy,omitzero"`
}

// EgressWithin allows requests to the address that the application connected to, if it is
// in one of the Ranges.
type EgressWithin struct {
	// Ranges are sorted. Empty means no address.
	Ranges  []netip.Prefix `json:"ranges"`
	Matches []HTTPMatch    `json:"matches"`
}

// Contains reports whether the address is in one of the Ranges.
func (w EgressWithin) Contains(address netip.Addr) bool {
	return slices.ContainsFunc(w.Ranges, func(r netip.Prefix) bool { return contains(r, address) })
}

// Inbound has everything that a proxy accepts for its application. Workloads with equal
// rules share one.
type Inbound struct {
	Sealed
	// TLS is the mode. Permissive also accepts plaintext and the application's own TLS,
	// but only on ports whose Access allows Anyone: callers without an identity never
	// satisfy rules. Plaintext proxies are always Permissive.
	TLS TLSMode `json:"tls"`
	// Ports are the ports named by a service, a rule or the workload itself, sorted by
	// number.
	Ports []InboundPort `json:"ports,omitempty"`
	// Others is the access to all other ports. Their protocol is TCP.
	Others Access `json:"others"`
	// Issuers are those of the tokens that rules of the Ports have conditions on, empty without
	// such rules. An issuer may be listed several times, with different keys.
	Issuers []TokenIssuer `json:"issuers,omitempty"`
}

// InboundPort is one port of the application.
type InboundPort struct {
	Port     uint16   `json:"port"`
	Protocol Protocol `json:"protocol"`
	// Services are the service ports that target this port, sorted. It may be empty.
	Services []ServicePort `json:"services,omitempty"`
	// Origins are those of the Limits and of ProxyProtocol. Rules have their own.
	Origins []Origin `json:"origins,omitempty"`
	Access  Access   `json:"access"`
	// Ingress has the traffic allowed from outside the mesh.
	Ingress []Ingress  `json:"ingress,omitempty"`
	Limits  RateLimits `json:"limits,omitzero"`
	// ProxyProtocol begins each connection to the application with a header of the PROXY
	// protocol, version 2, that contains the addresses of the connection that it serves.
	ProxyProtocol bool `json:"proxyProtocol,omitempty"`
}

// Access says which mesh peers may call. The zero Access denies everything.
type Access struct {
	// Anyone allows every mesh identity.
	Anyone bool `json:"anyone,omitempty"`
	// Rules apply unless Anyone is set. One rule that matches is enough.
	Rules []Permission `json:"rules,omitempty"`
	// Denials refuse what they match, whatever Anyone, Rules and the port's Ingress allow. They
	// come first, and they also apply to callers from outside the mesh. An audit does not count
	// what they refuse.
	Denials []Denial `json:"denials,omitempty"`
	// Audit is set only with Anyone. The proxy then evaluates Rules without enforcing them,
	// and counts what they would refuse; see Inbound.Audit.
	Audit bool `json:"audit,omitempty"`
}

// Permission allows its sources to send certain requests.
type Permission struct {
	// Origin is that of the rule. Its name is also that of the rule in metrics.
	Origin Origin `json:"origin,omitzero"`
	// Sources are sorted. Empty means nobody. One without a ServiceAccount stands for all of its
	// namespace, see Identity's Covers.
	Sources []Identity `json:"sources"`
	// Except are identities that the rule does not allow even if Sources has them, in the same
	// form.
	Except []Identity `json:"except,omitempty"`
	// Requests are the allowed requests; one match is enough, and empty allows nothing.
	// For non-HTTP protocols it is the zero HTTPMatch.
	Requests []HTTPMatch `json:"requests"`
}

// Denial refuses its callers certain requests.
type Denial struct {
	// Origin is that of the rule. Its name is also that of the rule in metrics.
	Origin Origin `json:"origin,omitzero"`
	// Everyone means all callers, also those without an identity of the mesh. Otherwise Sources
	// are identities in the form of Permission's Sources, sorted.
	Everyone bool       `json:"everyone,omitempty"`
	Sources  []Identity `json:"sources,omitempty"`
	// Except are identities that the rule does not refuse, in the same form.
	Except []Identity `json:"except,omitempty"`
	// Requests are refused if one match denies them, see HTTPMatch's Denies. Empty refuses
	// nothing. A connection whose requests are not visible is refused whatever the matches are.
	Requests []HTTPMatch `json:"requests"`
}

// Ingress allows callers from outside the mesh to send to a port.
type Ingress struct {
	// Origin is that of the rule.
	Origin Origin `json:"origin,omitzero"`
	// TLS, SNIHosts and SkipClientCert are as in IngressBackend.
	TLS            bool     `json:"tls,omitempty"`
	SNIHosts       []string `json:"sniHosts,omitempty"`
	SkipClientCert bool     `json:"skipClientCert,omitempty"`
	// Ranges are the caller's allowed addresses, sorted. Empty means any, but only if
	// AnyPrincipal or Principals is set.
	Ranges []netip.Prefix `json:"ranges,omitempty"`
	// AnyPrincipal requires a mesh certificate, Principals one of these identities. Both
	// require TLS.
	AnyPrincipal bool       `json:"anyPrincipal,omitempty"`
	Principals   []Identity `json:"principals,omitempty"`
	// Requests are the allowed requests, as in Permission.
	Requests []HTTPMatch `json:"requests"`
}
