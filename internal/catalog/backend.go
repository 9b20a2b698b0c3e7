package catalog

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// backends are the Backends of a service port: one, or one for each endpoint if the
// service is headless.
type backends struct {
	list []*mesh.Backend
	// accounts are the service accounts of the endpoints, sorted.
	accounts []mesh.ServiceAccount
	// outside are endpoints outside the mesh that are left out, for a Problem.
	outside []string
	digest  mesh.Digest
}

func (b *backends) Digest() mesh.Digest { return b.digest }

// done computes the digest, after which nothing is changed any more.
func (b *backends) done() *backends {
	digests := make([]mesh.Digest, 0, len(b.list)+2)
	for _, one := range b.list {
		digests = append(digests, one.Digest())
	}
	digests = append(digests, mesh.DigestOf(b.accounts), mesh.DigestOf(b.outside))
	b.digest = mesh.JoinDigests(digests...)
	return b
}

// peer is what others know of a workload.
type peer struct {
	account    mesh.ServiceAccount
	serverName string
	// member says that it has a sidecar, with or without mesh TLS.
	member bool
}

func (j *join) peer(r *graph.Reader, key string) peer {
	w, ok := j.workloads.Get(r, key)
	if !ok || w.Class == "" || !j.member(r, w.Namespace) {
		return peer{}
	}
	settings := j.mustSettings(r)
	p := peer{account: accountOf(w), member: true}
	if !slices.Contains(settings.PlaintextClasses, w.Class) {
		p.serverName = identityOf(settings, p.account).DNSName()
	}
	return p
}

func identityOf(settings *mesh.Settings, account mesh.ServiceAccount) mesh.Identity {
	return mesh.Identity{TrustDomain: settings.TrustDomain, Namespace: account.Namespace, ServiceAccount: account.Name}
}

// policy is how a service is called.
type policy struct {
	mesh.Sealed
	Upstream mesh.UpstreamPolicy `json:"upstream"`
	Limits   mesh.RateLimits     `json:"limits,omitzero"`
}

func (j *join) policy(r *graph.Reader, service string) *policy {
	p := &policy{}
	if settings := j.upstreamsOf.Get(r, service); len(settings) > 0 {
		setting, _ := j.upstreams.Get(r, settings[0].key)
		p.Upstream, p.Limits = setting.Policy, setting.Limits
	}
	svc, _ := j.services.Get(r, service)
	if svc != nil {
		p.Upstream.LoadBalancing.PreferZone = p.Upstream.LoadBalancing.PreferZone || svc.PreferZone
		if svc.StickyClients && p.Upstream.LoadBalancing.Policy == "" {
			p.Upstream.LoadBalancing.Policy = mesh.RingHash
			p.Upstream.LoadBalancing.HashOn = []mesh.HashOn{{SourceIP: true}}
		}
	}
	return mesh.Seal(p)
}

// found is an endpoint and whose it is.
type found struct {
	mesh.Endpoint
	account mesh.ServiceAccount
	member  bool
	ready   bool
}

// makeBackends joins the slices of a service with the workloads that they name.
func (j *join) makeBackends(r *graph.Reader, port mesh.ServicePort) *backends {
	svc := j.service(r, port.Name)
	spec, ok := portOf(svc, port.Port)
	if !ok {
		return (&backends{}).done()
	}
	settings := j.mustSettings(r)
	made := &backends{}
	base := mesh.Backend{
		Service: port, Protocol: spec.Protocol,
		Policy: j.policies.Get(r, port.Name.String()).Upstream, HealthChecks: settings.HealthChecks,
	}
	if svc.ExternalName != "" {
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
		if !e.member && !settings.Egress {
			made.outside = append(made.outside, cmp.Or(e.Workload, e.Addresses[0].String()))
			continue
		}
		if e.member {
			made.accounts = append(made.accounts, e.account)
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
		made.list = append(made.list, named(one, port.String()+"@"+cmp.Or(workloadName(e.Workload), e.Addresses[0].String())))
	}
	return made.done()
}

func named(b mesh.Backend, name string) *mesh.Backend {
	b.Name = name
	return mesh.Seal(&b)
}

func workloadName(key string) string { return parseName(key).Name }

func portOf(svc *mesh.Service, port uint16) (mesh.PortSpec, bool) {
	if svc != nil {
		for _, spec := range svc.Ports {
			if spec.Port == port {
				return spec, true
			}
		}
	}
	return mesh.PortSpec{}, false
}

// endpoints returns those that take connections, sorted by address: the ready ones,
// with those that end after them as Draining; if none is ready, those that still
// serve while they end.
func (j *join) endpoints(r *graph.Reader, svc *mesh.Service, spec mesh.PortSpec) []found {
	// A workload with addresses of both families is in two slices.
	byName := map[string]*found{}
	for _, key := range j.slicesOf.Get(r, svc.String()) {
		slice, _ := j.slices.Get(r, key)
		i := slices.IndexFunc(slice.Ports, func(p mesh.SlicePort) bool { return p.Name == spec.Name })
		if i < 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 || !e.Ready && !e.Serving {
				continue
			}
			address := e.Addresses[0].Unmap()
			workload := ""
			name := address.String()
			if e.Workload != "" {
				workload = mesh.Name{Namespace: svc.Namespace, Name: e.Workload}.String()
				name = workload
			}
			f := byName[name]
			if f == nil {
				p := peer{}
				if workload != "" {
					p = j.peers.Get(r, workload)
				}
				f = &found{
					Endpoint: mesh.Endpoint{Port: slice.Ports[i].Port, ServerName: p.serverName, Workload: workload, Zone: e.Zone},
					account:  p.account, member: p.member,
				}
				byName[name] = f
			}
			f.ready = f.ready || e.Ready
			f.Draining = f.Draining || e.Terminating
			if !slices.Contains(f.Addresses, address) {
				f.Addresses = append(f.Addresses, address)
			}
		}
	}
	all := make([]found, 0, len(byName))
	ready := false
	for _, f := range byName {
		slices.SortFunc(f.Addresses, netip.Addr.Compare)
		// One of each family is all that a client tries.
		f.Addresses = slices.CompactFunc(f.Addresses, func(a, b netip.Addr) bool { return a.Is4() == b.Is4() })
		ready = ready || f.ready
		all = append(all, *f)
	}
	if !ready {
		for i := range all {
			all[i].Draining = false
		}
	}
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(a.Addresses[0].Compare(b.Addresses[0]), cmp.Compare(a.Port, b.Port), strings.Compare(a.Workload, b.Workload))
	})
	return all
}

// filter is a service port as one service account sees it.
type filter struct {
	port   mesh.ServicePort
	source mesh.ServiceAccount
}

// makeFiltered leaves out the endpoints that would refuse the source. If all would,
// it leaves them in: their refusal says more than that there is nobody.
func (j *join) makeFiltered(r *graph.Reader, f filter) *backends {
	all := j.backends.Get(r, f.port)
	settings := j.mustSettings(r)
	denied := map[string]bool{}
	allowed := 0
	for _, account := range all.accounts {
		if j.grants.Get(r, account).allows(f.source) {
			allowed++
		} else {
			denied[identityOf(settings, account).DNSName()] = true
		}
	}
	if allowed == 0 || len(denied) == 0 {
		return all
	}
	some := &backends{accounts: all.accounts, outside: all.outside}
	for _, b := range all.list {
		kept := slices.DeleteFunc(slices.Clone(b.Endpoints), func(e mesh.Endpoint) bool { return denied[e.ServerName] })
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
