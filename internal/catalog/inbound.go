package catalog

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"unique"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// inboundKey has all properties of a workload that affect its Inbound. Workloads with
// equal keys, such as replicas, share an Inbound.
type inboundKey struct {
	account fact.ServiceAccount
	tls     mesh.TLSMode
	// targets are sorted by port. The zero Handle is the empty list.
	targets unique.Handle[targets]
	// proxied are the ports with the PROXY protocol.
	proxied portSet
	// policies are the AccessPolicies for it. limited says that its class lacks the feature, and
	// tokenless that it verifies no tokens.
	policies           unique.Handle[appliedPolicies]
	limited, tokenless bool
}

// portSet is a comparable list of ports, two bytes for each.
type portSet string

func newPortSet(ports []uint16) portSet {
	var packed []byte
	for _, port := range ports {
		packed = binary.BigEndian.AppendUint16(packed, port)
	}
	return portSet(packed)
}

func (s portSet) list() []uint16 {
	var ports []uint16
	for packed := []byte(s); len(packed) > 0; packed = packed[2:] {
		ports = append(ports, binary.BigEndian.Uint16(packed))
	}
	return ports
}

// targets is a comparable linked list.
type targets struct {
	target
	rest unique.Handle[targets]
}

// target is a port of the workload and a service port that leads to it.
type target struct {
	port    uint16
	service mesh.ServicePort
}

func compareIdentity(a, b mesh.Identity) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.ServiceAccount, b.ServiceAccount), strings.Compare(a.TrustDomain, b.TrustDomain))
}

// inbound returns the Inbound of a workload.
func (j *join) inbound(r *graph.Reader, workload mesh.Name) *mesh.Inbound {
	w, _ := j.workloads.Get(r, workload)
	key := j.inboundKeyOf(r, w)
	key.limited = key.hasPolicies() && !j.supports(w.Class, mesh.FeatureAccessPolicies)
	key.tokenless = key.hasPolicies() && !j.supports(w.Class, mesh.FeatureTokens)
	return j.inbounds.Get(r, key)
}

// inboundKeyOf returns the key of a workload whose class lacks nothing.
func (j *join) inboundKeyOf(r *graph.Reader, w *fact.Workload) inboundKey {
	key := inboundKey{account: accountOf(w), tls: j.tlsMode(r, w), proxied: newPortSet(w.ProxyProtocol)}
	for _, t := range slices.Backward(j.targets(r, w)) {
		key.targets = unique.Make(targets{t, key.targets})
	}
	key.policies = j.applied.Get(r, w.Name)
	return key
}

func (k inboundKey) hasPolicies() bool { return k.policies != (unique.Handle[appliedPolicies]{}) }

// targets returns the ports of a workload that its services target, sorted.
func (j *join) targets(r *graph.Reader, w *fact.Workload) []target {
	var all []target
	for _, name := range j.servicesOf.Get(r, w.Name) {
		svc := j.service(r, name)
		if svc == nil {
			continue
		}
		for _, spec := range svc.Ports {
			if port := targetOf(w, spec); port != 0 {
				all = append(all, target{port, mesh.ServicePort{Name: name, Port: spec.Port}})
			}
		}
	}
	slices.SortFunc(all, func(a, b target) int {
		return cmp.Or(cmp.Compare(a.port, b.port), a.service.Compare(b.service))
	})
	return all
}

// tlsMode returns the mode of a workload. Classes without mesh TLS accept only plaintext.
func (j *join) tlsMode(r *graph.Reader, w *fact.Workload) mesh.TLSMode {
	ns, _ := j.namespaces.Get(r, mesh.Name{Name: w.Namespace})
	settings := j.mustSettings(r)
	if slices.Contains(settings.PlaintextClasses, w.Class) {
		return mesh.Permissive
	}
	return cmp.Or(w.InboundTLS, ns.InboundTLS, settings.InboundTLS, mesh.Strict)
}

func (j *join) makeInbound(r *graph.Reader, key inboundKey) *mesh.Inbound {
	made := &mesh.Inbound{TLS: key.tls, Others: j.access(r, key, 0, mesh.TCP)}
	for at := key.targets; at != (unique.Handle[targets]{}); at = at.Value().rest {
		t := at.Value().target
		spec, _ := portOf(j.service(r, t.service.Name), t.service.Port)
		last := len(made.Ports) - 1
		if last < 0 || made.Ports[last].Port != t.port {
			made.Ports = append(made.Ports, mesh.InboundPort{Port: t.port, Protocol: spec.Protocol})
			last++
		}
		p := &made.Ports[last]
		p.Services = append(p.Services, t.service)
		if policy := j.policies.Get(r, t.service.Name); isZeroLimits(p.Limits) {
			p.Limits, p.Origins = policy.Limits, policy.LimitOrigins
		}
		for _, in := range j.ingressOf(r, t) {
			// One rule may name several Services of the same pods.
			if !slices.ContainsFunc(p.Ingress, func(other mesh.Ingress) bool { return isSameIngress(in, other) }) {
				p.Ingress = append(p.Ingress, in)
			}
		}
	}
	if j.usesRules(r, key.account) || key.hasPolicies() {
		made.Ports = j.tcpPorts(r, key.account, made.Ports)
	}
	made.Ports = j.policyPorts(r, key, made.Ports)
	proxied := key.proxied.list()
	for _, port := range proxied {
		made.Ports = withPort(made.Ports, port)
	}
	slices.SortFunc(made.Ports, func(a, b mesh.InboundPort) int { return cmp.Compare(a.Port, b.Port) })
	for i := range made.Ports {
		p := &made.Ports[i]
		p.ProxyProtocol = slices.Contains(proxied, p.Port)
		p.Access = j.access(r, key, p.Port, p.Protocol)
		p.Ingress = append(p.Ingress, j.ingressByPolicy(r, key, p.Port, p.Protocol)...)
		if key.limited && len(j.denials(r, key, p.Port, p.Protocol)) > 0 {
			p.Ingress = nil
		}
	}
	made.Issuers = j.issuersFor(r, key, made.Ports)
	return mesh.Seal(made)
}

func isZeroLimits(l mesh.RateLimits) bool {
	return l.Connections == nil && l.Requests == nil && len(l.Routes) == 0
}

// tcpPorts adds the ports that a rule but no service refers to.
func (j *join) tcpPorts(r *graph.Reader, account fact.ServiceAccount, ports []mesh.InboundPort) []mesh.InboundPort {
	for _, g := range j.grants.Get(r, account).List {
		for _, match := range g.TCP {
			for _, port := range match.Ports {
				ports = withPort(ports, port)
			}
		}
	}
	return ports
}

// withPort adds a port unless it is there.
func withPort(ports []mesh.InboundPort, port uint16) []mesh.InboundPort {
	if slices.ContainsFunc(ports, func(p mesh.InboundPort) bool { return p.Port == port }) {
		return ports
	}
	return append(ports, mesh.InboundPort{Port: port, Protocol: mesh.TCP})
}

// isSameIngress reports whether two entries of IngressBackends at a port are equal. Those of the same
// object have the same sources and requests.
func isSameIngress(a, b mesh.Ingress) bool {
	return a.Origin == b.Origin && a.TLS == b.TLS && a.SkipClientCert == b.SkipClientCert && slices.Equal(a.SNIHosts, b.SNIHosts)
}

// ingressOf returns the traffic from outside the mesh that rules allow to a target.
func (j *join) ingressOf(r *graph.Reader, t target) []mesh.Ingress {
	settings := j.mustSettings(r)
	if !settings.IngressPolicy {
		return nil
	}
	var made []mesh.Ingress
	for _, a := range j.ingressesOf.Get(r, t.service.Name) {
		rule, _ := j.ingresses.Get(r, a.key)
		requests := []mesh.HTTPMatch{{}}
		if len(rule.Groups) > 0 {
			requests = j.matchesOf(r, rule.Namespace, rule.Groups)
		}
		in := mesh.Ingress{Origin: originOf(kindIngressBackend, rule.Name, ""), Requests: requests}
		for _, source := range rule.Sources {
			switch {
			case source.Principal == "*":
				in.AnyPrincipal = true
			case source.Principal != "":
				if id, ok := parsePrincipal(settings, source.Principal); ok {
					in.Principals = append(in.Principals, id)
				}
			case source.Range.IsValid():
				in.Ranges = append(in.Ranges, source.Range.Masked())
			default:
				in.Ranges = append(in.Ranges, j.addressesOf(r, source.Service)...)
			}
		}
		slices.SortFunc(in.Ranges, netip.Prefix.Compare)
		in.Ranges = slices.Compact(in.Ranges)
		slices.SortFunc(in.Principals, compareIdentity)
		in.Principals = slices.Compact(in.Principals)
		principals := in.AnyPrincipal || len(in.Principals) > 0
		if len(requests) == 0 || len(in.Ranges) == 0 && (!principals || namesAddress(rule)) || !principals && namesPrincipal(rule) {
			continue
		}
		for _, backend := range rule.Backends {
			// Callers in plaintext have no principal.
			if backend.Service != t.service.Name.Name || backend.Port != t.port || principals && !backend.TLS {
				continue
			}
			in := in
			in.TLS, in.SNIHosts, in.SkipClientCert = backend.TLS, backend.SNIHosts, backend.SkipClientCert
			made = append(made, in)
		}
	}
	return made
}

// namesAddress reports whether the rule has sources by address. They may have no
// addresses at the moment.
func namesAddress(rule *fact.IngressRule) bool {
	return slices.ContainsFunc(rule.Sources, func(s fact.IngressSource) bool { return s.Principal == "" })
}

// namesPrincipal reports whether the rule has principals. None of them may be valid.
func namesPrincipal(rule *fact.IngressRule) bool {
	return slices.ContainsFunc(rule.Sources, func(s fact.IngressSource) bool { return s.Principal != "" })
}

// parsePrincipal parses <sa>.<ns>.<trust domain>, Open Service Mesh's form of identities.
// The service account may contain dots.
func parsePrincipal(settings *mesh.Settings, principal string) (mesh.Identity, bool) {
	account, ok := strings.CutSuffix(principal, "."+settings.TrustDomain)
	i := strings.LastIndexByte(account, '.')
	if !ok || i <= 0 || i == len(account)-1 {
		return mesh.Identity{}, false
	}
	return identityOf(settings, fact.ServiceAccount{Namespace: account[i+1:], Name: account[:i]}), true
}

// addressesOf returns the addresses of a service's endpoints, inside or outside the mesh.
func (j *join) addressesOf(r *graph.Reader, service mesh.Name) []netip.Prefix {
	var ranges []netip.Prefix
	for _, key := range j.slicesOf.Get(r, service) {
		slice, _ := j.slices.Get(r, key)
		for _, e := range slice.Endpoints {
			// The address of a pod that has ended may be another pod's before its slice changes.
			if e.Workload != "" && j.peers.Get(r, mesh.Name{Namespace: service.Namespace, Name: e.Workload}).ended {
				continue
			}
			for _, address := range e.Addresses {
				if e.Ready || e.Serving {
					ranges = append(ranges, netip.PrefixFrom(address, address.BitLen()))
				}
			}
		}
	}
	return ranges
}
