package catalog

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// backends has the Backends of a service port: a single one, or one for each endpoint if
// the service is headless.
type backends struct {
	list []*mesh.Backend
	// accounts are the service accounts of the endpoints, sorted.
	accounts []fact.ServiceAccount
	// direct are the endpoints of a headless service that sidecars call as destinations outside the
	// mesh.
	direct []mesh.Endpoint
	// outside has the endpoints that are left out because they are outside the mesh, for a
	// Problem.
	outside []string
	digest  mesh.Digest
}

func (b *backends) Digest() mesh.Digest { return b.digest }

// done computes the digest. Nothing may change afterwards.
func (b *backends) done() *backends {
	digests := make([]mesh.Digest, 0, len(b.list)+1)
	for _, one := range b.list {
		digests = append(digests, one.Digest())
	}
	// The separators occur in neither.
	rest := []byte(strings.Join(b.outside, "|"))
	for _, account := range b.accounts {
		rest = append(append(append(append(rest, '\n'), account.Namespace...), '/'), account.Name...)
	}
	b.digest = mesh.JoinDigests(append(digests, mesh.DigestBytes(rest), mesh.DigestOf(b.direct))...)
	return b
}

// peer has what other workloads need to know of a workload.
type peer struct {
	account    fact.ServiceAccount
	serverName string
	// known reports that the workload exists, and hasSidecar that it has one, with or
	// without mesh TLS.
	known, hasSidecar bool
	// ended reports that its containers have ended. Its address may be another's by now.
	ended bool
	// addresses are the workload's own, at most one of each family.
	addresses [2]netip.Addr
}

func (j *join) peer(r *graph.Reader, key mesh.Name) peer {
	w, ok := j.workloads.Get(r, key)
	if ok && w.Ended {
		return peer{known: true, ended: true}
	}
	if !ok || w.Class == "" || !j.member(r, w.Namespace) {
		return peer{known: ok}
	}
	settings := j.mustSettings(r)
	p := peer{account: accountOf(w), known: true, hasSidecar: true}
	copy(p.addresses[:], w.Addresses)
	// A gateway takes what comes from outside the mesh, which is not mesh TLS.
	if _, isGateway := j.gatewayOf(r, w); !isGateway && !slices.Contains(settings.PlaintextClasses, w.Class) {
		p.serverName = identityOf(settings, p.account).DNSName()
	}
	return p
}

func identityOf(settings *mesh.Settings, account fact.ServiceAccount) mesh.Identity {
	return mesh.Identity{TrustDomain: settings.TrustDomain, Namespace: account.Namespace, ServiceAccount: account.Name}
}

// policy configures calls to a service.
type policy struct {
	mesh.Sealed
	Upstream mesh.UpstreamPolicy `json:"upstream"`
	Limits   mesh.RateLimits     `json:"limits,omitzero"`
	// Origins are those of Upstream, and LimitOrigins those of Limits.
	Origins      []mesh.Origin `json:"origins,omitempty"`
	LimitOrigins []mesh.Origin `json:"limitOrigins,omitempty"`
}

func (j *join) policy(r *graph.Reader, service mesh.Name) *policy {
	p := &policy{}
	if settings := j.upstreamsOf.Get(r, service); len(settings) > 0 {
		setting, _ := j.upstreams.Get(r, settings[0].key)
		p.Upstream, p.Limits = setting.Policy, setting.Limits
		p.Origins = originsOfPolicy(setting)
		if !isZeroLimits(p.Limits) {
			p.LimitOrigins = []mesh.Origin{originOf(kindUpstreamTrafficSetting, setting.Name, "spec.rateLimit")}
		}
	}
	p.Upstream.ConnectTimeout = cmp.Or(p.Upstream.ConnectTimeout, j.mustSettings(r).ConnectTimeout)
	svc, _ := j.services.Get(r, service)
	if svc != nil {
		if svc.PreferZone {
			p.Upstream.LoadBalancing.PreferZone = true
			p.Origins = append(p.Origins, originOf(kindService, service, fieldTrafficDistribution))
		}
		if svc.StickyClients && p.Upstream.LoadBalancing.Policy == "" {
			p.Upstream.LoadBalancing.Policy = mesh.RingHash
			p.Upstream.LoadBalancing.HashOn = []mesh.HashOn{{SourceIP: true}}
			p.Origins = append(p.Origins, originOf(kindService, service, fieldSessionAffinity))
		}
	}
	return mesh.Seal(p)
}

// candidate is an endpoint with its readiness.
type candidate struct {
	mesh.Endpoint
	ready bool
}

// makeBackends joins a service's slices with the workloads that they refer to.
func (j *join) makeBackends(r *graph.Reader, port mesh.ServicePort) *backends {
	svc := j.service(r, port.Name)
	spec, ok := portOf(svc, port.Port)
	if !ok {
		return (&backends{}).done()
	}
	settings := j.mustSettings(r)
	made := &backends{}
	base := j.backendOf(r, port, spec)
	if svc.ExternalName != "" {
		if _, ok := j.aliasTarget(r, svc); ok {
			// Clients and splits use that service's Backends instead.
			return made.done()
		}
		if settings.Egress {
			base.ExternalName = svc.ExternalName
		} else {
			made.outside = []string{svc.ExternalName}
		}
		made.list = []*mesh.Backend{named(base, port.String())}
		return made.done()
	}
	var endpoints []mesh.Endpoint
	for _, e := range j.endpoints(r, svc, spec) {
		// An endpoint without a workload is outside the mesh. An unknown workload
		// may have a sidecar, so it must not be called in plaintext.
		p := peer{known: true}
		if e.Workload != "" {
			p = j.peers.Get(r, workloadOf(e.Endpoint))
		}
		switch {
		case p.ended:
			// Its EndpointSlice lags behind.
			continue
		case p.hasSidecar:
			// The author of a slice can claim any address for a workload.
			e.Addresses = slices.DeleteFunc(e.Addresses, func(a netip.Addr) bool { return !slices.Contains(p.addresses[:], a) })
			if len(e.Addresses) == 0 {
				// The pod's address may become known a moment after the slice.
				if p.addresses[0].IsValid() {
					made.outside = append(made.outside, e.Workload)
				}
				continue
			}
			made.accounts = append(made.accounts, p.account)
			e.ServerName = p.serverName
		case svc.Headless && settings.Egress:
			// Clients call its own address, which is outside the mesh.
			made.direct = append(made.direct, e.Endpoint)
			continue
		case !settings.Egress, !p.known:
			made.outside = append(made.outside, cmp.Or(e.Workload, e.Addresses[0].String()))
			continue
		}
		endpoints = append(endpoints, e.Endpoint)
	}
	slices.SortFunc(made.accounts, mesh.Name.Compare)
	made.accounts = slices.Compact(made.accounts)
	if !svc.Headless {
		base.Endpoints = endpoints
		made.list = []*mesh.Backend{named(base, port.String())}
		return made.done()
	}
	for _, e := range endpoints {
		one := base
		one.Endpoints = []mesh.Endpoint{e}
		made.list = append(made.list, named(one, port.String()+"@"+cmp.Or(workloadOf(e).Name, e.Addresses[0].String())))
	}
	return made.done()
}

// backendOf returns the Backend of a service port without its name and endpoints.
func (j *join) backendOf(r *graph.Reader, port mesh.ServicePort, spec fact.PortSpec) mesh.Backend {
	policy := j.policies.Get(r, port.Name)
	return mesh.Backend{
		Service: port, Protocol: spec.Protocol, Origins: append([]mesh.Origin{originOf(kindService, port.Name, "")}, policy.Origins...),
		Policy: policy.Upstream, HealthChecks: j.mustSettings(r).HealthChecks,
	}
}

func named(b mesh.Backend, name string) *mesh.Backend {
	b.Name = name
	return mesh.Seal(&b)
}

// together returns one Backend with all endpoints of a headless service.
func (b *backends) together(base mesh.Backend) *mesh.Backend {
	base.Endpoints = slices.Clone(b.direct)
	for _, one := range b.list {
		base.Endpoints = append(base.Endpoints, one.Endpoints...)
	}
	slices.SortFunc(base.Endpoints, compareEndpoints)
	return named(base, base.Service.String())
}

// workloadOf returns the name of the endpoint's workload, zero if it has none.
func workloadOf(e mesh.Endpoint) mesh.Name {
	namespace, name, _ := strings.Cut(e.Workload, "/")
	return mesh.Name{Namespace: namespace, Name: name}
}

func portOf(svc *fact.Service, port uint16) (fact.PortSpec, bool) {
	if svc != nil {
		for _, spec := range svc.Ports {
			if spec.Port == port {
				return spec, true
			}
		}
	}
	return fact.PortSpec{}, false
}

// endpoints returns the endpoints that accept connections, sorted by address: the ready
// ones and, as Draining, the terminating ones that still serve. If none is ready, it
// returns the terminating ones as normal endpoints. If there are none of these either, it
// returns the workloads that their nodes last reported as ready: Kubernetes marks all
// pods of unreachable nodes as not ready, for example after an outage of the API server,
// although they still serve.
func (j *join) endpoints(r *graph.Reader, svc *fact.Service, spec fact.PortSpec) []candidate {
	var all, reported []candidate
	ready := false
	for _, key := range j.slicesOf.Get(r, svc.Name) {
		slice, _ := j.slices.Get(r, key)
		i := slices.IndexFunc(slice.Ports, func(p fact.SlicePort) bool { return p.Name == spec.Name })
		if i < 0 {
			continue
		}
		all = slices.Grow(all, len(slice.Endpoints))
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			f := candidate{ready: e.Ready, Endpoint: mesh.Endpoint{
				Addresses: []netip.Addr{e.Addresses[0].Unmap()}, Port: slice.Ports[i].Port, Zone: e.Zone, Draining: e.Terminating,
			}}
			if e.Workload != "" {
				f.Workload = mesh.Name{Namespace: svc.Namespace, Name: e.Workload}.String()
			}
			switch {
			case e.Ready || e.Serving:
				ready = ready || e.Ready
				all = append(all, f)
			case e.Workload != "" && !e.Terminating:
				if w, ok := j.workloads.Get(r, workloadOf(f.Endpoint)); ok && w.Ready {
					reported = append(reported, f)
				}
			}
		}
	}
	if len(all) == 0 {
		all = reported
	}
	all = merged(all)
	for i := range all {
		// A service may publish terminating endpoints as ready.
		all[i].Draining = all[i].Draining && ready && !all[i].ready
	}
	slices.SortFunc(all, func(a, b candidate) int { return compareEndpoints(a.Endpoint, b.Endpoint) })
	return all
}

func compareEndpoints(a, b mesh.Endpoint) int {
	return cmp.Or(a.Addresses[0].Compare(b.Addresses[0]), cmp.Compare(a.Port, b.Port), strings.Compare(a.Workload, b.Workload))
}

// merged merges candidates of the same workload or, without a workload, of the same
// address. A workload with addresses of both families is in two slices, and an endpoint
// that moves between slices may be in both.
func merged(all []candidate) []candidate {
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(strings.Compare(a.Workload, b.Workload), compareEndpoints(a.Endpoint, b.Endpoint))
	})
	kept := all[:0]
	for _, f := range all {
		if last := len(kept) - 1; last >= 0 && kept[last].Workload == f.Workload && (f.Workload != "" || kept[last].Addresses[0] == f.Addresses[0]) {
			one := &kept[last]
			one.ready = one.ready || f.ready
			// Clients try only the first address of each family.
			if len(one.Addresses) == 1 && one.Addresses[0].Is4() != f.Addresses[0].Is4() {
				one.Addresses = append(one.Addresses, f.Addresses[0])
			}
			continue
		}
		kept = append(kept, f)
	}
	return kept
}

// filter is a service port as seen by one service account.
type filter struct {
	port   mesh.ServicePort
	source fact.ServiceAccount
}

// makeFiltered leaves out the endpoints that would reject the source. If all of them
// would, it keeps all: their refusal is a better error than a lack of endpoints.
func (j *join) makeFiltered(r *graph.Reader, f filter) *backends {
	all := j.backends.Get(r, f.port)
	settings := j.mustSettings(r)
	byName := map[string]*grants{}
	for _, account := range all.accounts {
		byName[identityOf(settings, account).DNSName()] = j.grants.Get(r, account)
	}
	// Endpoints in plaintext have no rules.
	type place struct {
		serverName string
		port       uint16
	}
	denied := map[place]bool{}
	anyAllowed, anyDenied, isNamed := false, false, map[string]bool{}
	for _, b := range all.list {
		for _, e := range b.Endpoints {
			at := place{e.ServerName, e.Port}
			if _, known := denied[at]; !known {
				rules := byName[e.ServerName]
				denied[at] = rules != nil && !rules.allowsAt(f.source, e.Port, b.Protocol)
				anyAllowed = anyAllowed || rules != nil && !denied[at]
			}
			isNamed[e.ServerName] = true
			anyDenied = anyDenied || denied[at]
		}
	}
	for name, rules := range byName {
		anyAllowed = anyAllowed || !isNamed[name] && rules.allows(f.source)
	}
	if !anyAllowed || !anyDenied {
		return all
	}
	some := &backends{accounts: all.accounts, direct: all.direct, outside: all.outside}
	for _, b := range all.list {
		kept := slices.DeleteFunc(slices.Clone(b.Endpoints), func(e mesh.Endpoint) bool { return denied[place{e.ServerName, e.Port}] })
		if len(kept) == len(b.Endpoints) {
			some.list = append(some.list, b)
			continue
		}
		if len(kept) == 0 && len(all.list) > 1 {
			continue
		}
		fewer := *b
		fewer.Endpoints = kept
		some.list = append(some.list, mesh.Seal(&fewer))
	}
	return some.done()
}
