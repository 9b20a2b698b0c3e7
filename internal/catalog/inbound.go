package catalog

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// inboundKey is all of a workload that matters for what it takes. Workloads with
// equal keys, such as replicas, share an Inbound. As JSON it is a key of a Memo.
type inboundKey struct {
	Account mesh.ServiceAccount `json:"account"`
	TLS     mesh.TLSMode        `json:"tls"`
	Targets []target            `json:"targets,omitempty"`
}

// target is a port of the workload that a service port leads to.
type target struct {
	Port    uint16           `json:"port"`
	Service mesh.ServicePort `json:"service"`
}

func compareIdentity(a, b mesh.Identity) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.ServiceAccount, b.ServiceAccount), strings.Compare(a.TrustDomain, b.TrustDomain))
}

// inbound returns what a workload takes.
func (j *join) inbound(r *graph.Reader, workload string) *mesh.Inbound {
	w, _ := j.workloads.Get(r, workload)
	key := inboundKey{Account: accountOf(w), TLS: j.tlsMode(r, w)}
	for _, name := range j.servicesOf.Get(r, w.Name) {
		svc := j.service(r, name)
		if svc == nil {
			continue
		}
		for _, spec := range svc.Ports {
			if port := targetOf(w, spec); port != 0 {
				key.Targets = append(key.Targets, target{Port: port, Service: mesh.ServicePort{Name: name, Port: spec.Port}})
			}
		}
	}
	slices.SortFunc(key.Targets, func(a, b target) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), a.Service.Compare(b.Service))
	})
	content, err := json.Marshal(key)
	if err != nil {
		panic(err) // It is names and numbers.
	}
	return j.inbounds.Get(r, string(content))
}

// tlsMode returns the mode of a workload. One whose class speaks no mesh TLS can take
// nothing but plaintext.
func (j *join) tlsMode(r *graph.Reader, w *mesh.Workload) mesh.TLSMode {
	ns, _ := j.namespaces.Get(r, w.Namespace)
	settings := j.mustSettings(r)
	if slices.Contains(settings.PlaintextClasses, w.Class) {
		return mesh.Permissive
	}
	return cmp.Or(w.InboundTLS, ns.InboundTLS, settings.InboundTLS, mesh.Strict)
}

func (j *join) makeInbound(r *graph.Reader, content string) *mesh.Inbound {
	var key inboundKey
	if err := json.Unmarshal([]byte(content), &key); err != nil {
		panic(err) // inbound has written it.
	}
	made := &mesh.Inbound{TLS: key.TLS, Others: j.access(r, key.Account, 0, mesh.TCP)}
	for _, t := range key.Targets {
		spec, _ := portOf(j.service(r, t.Service.Name), t.Service.Port)
		last := len(made.Ports) - 1
		if last < 0 || made.Ports[last].Port != t.Port {
			made.Ports = append(made.Ports, mesh.InboundPort{Port: t.Port, Protocol: spec.Protocol})
			last++
		}
		p := &made.Ports[last]
		p.Services = append(p.Services, t.Service)
		limits := j.policies.Get(r, t.Service.Name.String()).Limits
		if isZeroLimits(p.Limits) {
			p.Limits = limits
		}
		p.Ingress = append(p.Ingress, j.ingressOf(r, t)...)
	}
	if !j.mustSettings(r).PermissivePolicy {
		made.Ports = j.tcpPorts(r, key.Account, made.Ports)
	}
	for i := range made.Ports {
		p := &made.Ports[i]
		p.Access = j.access(r, key.Account, p.Port, p.Protocol)
	}
	return mesh.Seal(made)
}

func isZeroLimits(l mesh.RateLimits) bool {
	return l.Connections == nil && l.Requests == nil && len(l.Routes) == 0
}

// tcpPorts adds the ports that no service leads to and a rule names.
func (j *join) tcpPorts(r *graph.Reader, account mesh.ServiceAccount, ports []mesh.InboundPort) []mesh.InboundPort {
	for _, g := range j.grants.Get(r, account).List {
		for _, match := range g.TCP {
			for _, port := range match.Ports {
				if !slices.ContainsFunc(ports, func(p mesh.InboundPort) bool { return p.Port == port }) {
					ports = append(ports, mesh.InboundPort{Port: port, Protocol: mesh.TCP})
				}
			}
		}
	}
	slices.SortFunc(ports, func(a, b mesh.InboundPort) int { return cmp.Compare(a.Port, b.Port) })
	return ports
}

// ingressOf returns what rules let in to a target from outside the mesh.
func (j *join) ingressOf(r *graph.Reader, t target) []mesh.Ingress {
	settings := j.mustSettings(r)
	if !settings.IngressPolicy {
		return nil
	}
	var made []mesh.Ingress
	for _, a := range j.ingressesOf.Get(r, t.Service.Name.String()) {
		rule, _ := j.ingresses.Get(r, a.key)
		requests := []mesh.HTTPMatch{{}}
		if len(rule.Groups) > 0 {
			requests = j.matchesOf(r, rule.Namespace, rule.Groups)
		}
		in := mesh.Ingress{Name: rule.String(), Requests: requests}
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
			// No caller in plaintext has a principal.
			if backend.Service != t.Service.Name.Name || backend.Port != t.Port || principals && !backend.TLS {
				continue
			}
			in := in
			in.TLS, in.SNIHosts, in.SkipClientCert = backend.TLS, backend.SNIHosts, backend.SkipClientCert
			made = append(made, in)
		}
	}
	return made
}

// namesAddress reports whether the rule asks for addresses, of which there may be
// none at the moment.
func namesAddress(rule *mesh.IngressRule) bool {
	return slices.ContainsFunc(rule.Sources, func(s mesh.IngressSource) bool { return s.Principal == "" })
}

// namesPrincipal reports whether the rule asks for principals, of which none may be
// one of the mesh.
func namesPrincipal(rule *mesh.IngressRule) bool {
	return slices.ContainsFunc(rule.Sources, func(s mesh.IngressSource) bool { return s.Principal != "" })
}

// parsePrincipal reads <sa>.<ns>.<trust domain>, as Open Service Mesh writes
// identities. The service account may hold dots.
func parsePrincipal(settings *mesh.Settings, principal string) (mesh.Identity, bool) {
	account, ok := strings.CutSuffix(principal, "."+settings.TrustDomain)
	i := strings.LastIndexByte(account, '.')
	if !ok || i <= 0 || i == len(account)-1 {
		return mesh.Identity{}, false
	}
	return identityOf(settings, mesh.ServiceAccount{Namespace: account[i+1:], Name: account[:i]}), true
}

// addressesOf returns the addresses of the endpoints of a service, in the mesh or
// not.
func (j *join) addressesOf(r *graph.Reader, service mesh.Name) []netip.Prefix {
	var ranges []netip.Prefix
	for _, key := range j.slicesOf.Get(r, service.String()) {
		slice, _ := j.slices.Get(r, key)
		for _, e := range slice.Endpoints {
			for _, address := range e.Addresses {
				if e.Ready || e.Serving {
					ranges = append(ranges, netip.PrefixFrom(address, address.BitLen()))
				}
			}
		}
	}
	return ranges
}
