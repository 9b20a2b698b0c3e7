package source

import (
	"slices"
	"strings"

	policy "github.com/outrigger-mesh/outrigger/apis/policy/v1alpha1"
	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// ingressRule returns nil for a rule that allows nothing.
func ingressRule(obj *policy.IngressBackend, n *notes) mesh.Digester {
	spec := &obj.Spec
	refs := n.references("spec.matches", spec.Matches, kindHTTPRouteGroup)
	rule := &fact.IngressRule{Name: nameOf(&obj.ObjectMeta), Age: ageOf(&obj.ObjectMeta), Groups: refs.groups}
	rule.Sources = n.ingressSources(spec.Sources)
	principals := slices.ContainsFunc(spec.Sources, func(s policy.IngressSource) bool { return s.Kind == policy.IngressSourceAuthenticatedPrincipal })
	rule.Backends = n.ingressBackends(spec.Backends, principals)
	if n.noGroup("spec.matches", refs) || len(rule.Backends) == 0 || len(rule.Sources) == 0 {
		return nil
	}
	return mesh.Seal(rule)
}

// ingressSources returns nil if the valid sources would allow more than all of them
// together: a rule with addresses and principals requires both.
func (n *notes) ingressSources(declared []policy.IngressSource) []fact.IngressSource {
	n.needed("spec.sources", len(declared), "source, so it allows nothing")
	var sources []fact.IngressSource
	type sorts struct{ addresses, principals bool }
	var given, left sorts
	unknown := false
	for i, s := range declared {
		path := index("spec.sources", i)
		switch s.Kind {
		case policy.IngressSourceService:
			given.addresses = true
			if service, ok := n.service(path, s.Namespace, s.Name); ok {
				left.addresses = true
				sources = append(sources, fact.IngressSource{Service: service})
			}
		case policy.IngressSourceIPRange:
			given.addresses = true
			if r, ok := n.addressRange(path+".name", s.Name); ok {
				left.addresses = true
				sources = append(sources, fact.IngressSource{Range: r})
			}
		case policy.IngressSourceAuthenticatedPrincipal:
			given.principals = true
			if n.principal(path+".name", s.Name) {
				left.principals = true
				sources = append(sources, fact.IngressSource{Principal: s.Name})
			}
		default:
			unknown = true
			n.add(ReasonUnknownKind, path+".kind", "%q is not a kind of source, so the rule allows nothing; use %s, %s or %s",
				s.Kind, policy.IngressSourceService, policy.IngressSourceIPRange, policy.IngressSourceAuthenticatedPrincipal)
		}
	}
	if unknown {
		return nil
	}
	if given != left {
		n.add(ReasonMissing, "spec.sources", "all sources of one type, addresses or principals, are invalid, so the rule allows nothing; correct or remove them")
		return nil
	}
	return sources
}

func (n *notes) principal(path, name string) bool {
	if name == "*" || strings.Count(name, ".") >= 2 && isDNSName(strings.ToLower(name)) {
		return true
	}
	n.add(ReasonInvalid, path, "%q is not the name of a mesh identity and is ignored; write <service account>.<namespace>.<trust domain>, or * for any", name)
	return false
}

func (n *notes) ingressBackends(declared []policy.Backend, principals bool) []fact.IngressBackend {
	n.needed("spec.backends", len(declared), "backend, so nothing is opened")
	type key struct {
		service string
		port    uint16
	}
	var backends []fact.IngressBackend
	seen := make(map[key]bool)
	for i := range declared {
		path := index("spec.backends", i)
		b, ok := n.ingressBackend(path, &declared[i])
		if !ok {
			continue
		}
		if seen[key{b.Service, b.Port}] {
			n.add(ReasonDuplicate, path, "port %d of %q is already a backend, so this one is ignored; remove one of the two", b.Port, b.Service)
			continue
		}
		if !b.TLS && principals {
			n.add(ReasonInvalid, path+".port.protocol",
				"clients have no certificate with protocol http and never match a principal, so the backend is ignored; use https, or a separate IngressBackend with sources by address only")
			continue
		}
		if b.TLS && !b.SkipClientCert && !principals {
			n.add(ReasonMissing, path+".tls",
				"a client certificate is required, but no source says whose, so the backend is ignored; add an AuthenticatedPrincipal to spec.sources, * for any mesh identity, or set skipClientCertValidation")
			continue
		}
		seen[key{b.Service, b.Port}] = true
		backends = append(backends, b)
	}
	return backends
}

func (n *notes) ingressBackend(path string, declared *policy.Backend) (fact.IngressBackend, bool) {
	b := fact.IngressBackend{Service: declared.Name}
	if !isObjectLabel(b.Service) {
		n.add(ReasonInvalid, path+".name", "%q is not the name of a service, so the backend is ignored", b.Service)
		return b, false
	}
	var ok bool
	if b.Port, ok = n.port(path+".port.number", int64(declared.Port.Number)); !ok {
		return b, false
	}
	switch strings.ToLower(declared.Port.Protocol) {
	case "http":
		return b, true
	case "https":
	default:
		n.add(ReasonUnknownProtocol, path+".port.protocol", "%q is not an ingress protocol, so the backend is ignored; use http or https", declared.Port.Protocol)
		return b, false
	}
	b.TLS = true
	if tls := declared.TLS; tls != nil {
		b.SkipClientCert = tls.SkipClientCertValidation
		b.SNIHosts = n.hosts(path+".tls.sniHosts", tls.SNIHosts)
		if len(tls.SNIHosts) > 0 && len(b.SNIHosts) == 0 {
			n.add(ReasonMissing, path+".tls.sniHosts", "none of the hosts is valid, so the backend is ignored; correct them, or remove them all for any server name")
			return b, false
		}
	}
	return b, true
}
