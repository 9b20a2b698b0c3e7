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

// makeEgress returns the egress of a service account.
func (j *join) makeEgress(r *graph.Reader, account fact.ServiceAccount) *mesh.Egress {
	settings := j.mustSettings(r)
	made := &mesh.Egress{AllowAll: settings.Egress}
	for _, rule := range j.egressRules(r, account) {
		for _, port := range rule.Ports {
			i := slices.IndexFunc(made.Ports, func(p mesh.EgressRoutes) bool { return p.Port == port.Number })
			if i < 0 {
				made.Ports = append(made.Ports, mesh.EgressRoutes{Port: port.Number, Protocol: port.Protocol})
				i = len(made.Ports) - 1
			}
			if p := &made.Ports[i]; p.Protocol == port.Protocol {
				j.addEgress(r, p, rule)
			}
		}
	}
	slices.SortFunc(made.Ports, func(a, b mesh.EgressRoutes) int { return cmp.Compare(a.Port, b.Port) })
	return mesh.Seal(made)
}

// egressRules returns the account's rules by age. The oldest rule for a port determines
// its protocol.
func (j *join) egressRules(r *graph.Reader, account fact.ServiceAccount) []*fact.EgressRule {
	if !j.mustSettings(r).EgressPolicy {
		return nil
	}
	var rules []*fact.EgressRule
	for _, a := range j.egressesOf.Get(r, account) {
		rule, _ := j.egresses.Get(r, a.key)
		if j.member(r, rule.Namespace) && j.hasSettings(r, rule) && j.egressSize(r, rule) <= maxProduct {
			rules = append(rules, rule)
		}
	}
	return rules
}

// hasSettings reports whether the UpstreamSettings of a rule exist. Without them the rule
// would allow traffic that they should limit.
func (j *join) hasSettings(r *graph.Reader, rule *fact.EgressRule) bool {
	for _, name := range rule.Settings {
		if _, ok := j.upstreams.Get(r, mesh.Name{Namespace: rule.Namespace, Name: name}); !ok {
			return false
		}
	}
	return true
}

// addEgress adds what a rule allows at a port. TCP matches by address. HTTP and TLS match
// by host if the rule has hosts: its addresses then restrict the hosts and must not open
// other hosts.
func (j *join) addEgress(r *graph.Reader, p *mesh.EgressRoutes, rule *fact.EgressRule) {
	switch {
	case p.Protocol == mesh.EgressTCP && len(rule.Ranges) == 0:
		// No ranges mean any address, even if another rule has ranges.
		addRanges(p, rule, anywhere)
	case p.Protocol == mesh.EgressTCP, len(rule.Hosts) == 0 && len(rule.Groups) == 0:
		addRanges(p, rule, rule.Ranges)
	default:
		j.addHosts(r, p, rule)
	}
}

func addRanges(p *mesh.EgressRoutes, rule *fact.EgressRule, ranges []netip.Prefix) {
	p.Origins = withOrigin(p.Origins, originOf(kindEgress, rule.Name, "spec.ipAddresses"))
	p.Ranges = sortedRanges(slices.Concat(p.Ranges, ranges))
}

// sortedRanges masks, sorts and deduplicates the ranges.
func sortedRanges(ranges []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, len(ranges))
	for i, prefix := range ranges {
		sorted[i] = prefix.Masked()
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	return slices.Compact(sorted)
}

// addHosts adds the hosts of a rule and the ExternalName services for them.
func (j *join) addHosts(r *graph.Reader, p *mesh.EgressRoutes, rule *fact.EgressRule) {
	matches := []mesh.HTTPMatch{{}}
	if p.Protocol == mesh.EgressHTTP && len(rule.Groups) > 0 {
		matches = j.matchesOf(r, rule.Namespace, rule.Groups)
	}
	if len(matches) == 0 {
		return
	}
	for _, host := range rule.Hosts {
		host = strings.ToLower(host)
		policy, origins := j.egressPolicy(r, rule, host)
		to := mesh.EgressHost{Host: host, Policy: policy, Origins: append([]mesh.Origin{originOf(kindEgress, rule.Name, "")}, origins...)}
		if len(rule.Ranges) > 0 {
			to.Within = []mesh.EgressWithin{{Ranges: sortedRanges(rule.Ranges), Matches: matches}}
		} else {
			to.Matches = matches
		}
		j.addHost(p, to)
		for _, alias := range j.aliasesOf.Get(r, host) {
			if j.member(r, alias.Namespace) {
				for _, name := range dnsNames(alias) {
					to.Host = name
					j.addHost(p, to)
				}
			}
		}
	}
}

var anywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// addHost inserts a host in sorted order, or merges its matches into an existing one.
func (j *join) addHost(p *mesh.EgressRoutes, host mesh.EgressHost) {
	i, found := slices.BinarySearchFunc(p.Hosts, host.Host, func(h mesh.EgressHost, name string) int { return strings.Compare(h.Host, name) })
	if found {
		p.Hosts[i].Origins = withOrigin(slices.Clip(p.Hosts[i].Origins), host.Origins...)
		p.Hosts[i].Matches = slices.Concat(p.Hosts[i].Matches, host.Matches)
		p.Hosts[i].Within = slices.Concat(p.Hosts[i].Within, host.Within)
		return
	}
	p.Hosts = slices.Insert(p.Hosts, i, host)
}

// egressPolicy returns the rule's policy for calls to a host, and its origins.
func (j *join) egressPolicy(r *graph.Reader, rule *fact.EgressRule, host string) (mesh.UpstreamPolicy, []mesh.Origin) {
	for _, name := range rule.Settings {
		setting, _ := j.upstreams.Get(r, mesh.Name{Namespace: rule.Namespace, Name: name})
		if setting != nil && strings.EqualFold(setting.Host, host) {
			return setting.Policy, originsOfPolicy(setting)
		}
	}
	return mesh.UpstreamPolicy{}, nil
}

// dnsNames returns the service's names that resolve in any namespace. The cluster domain
// is assumed to be cluster.local, the default, since no object states it.
func dnsNames(service mesh.Name) []string {
	// Without "svc" it could be the name of a host outside the cluster.
	name := service.Name + "." + service.Namespace + ".svc"
	return []string{name, name + clusterDomain}
}

const clusterDomain = ".cluster.local"

// maxAliases limits chains of ExternalName services, as DNS limits CNAME chains.
const maxAliases = 8

// aliasTarget returns the service of the mesh that an ExternalName service refers to, by
// its own DNS name or that of one of its endpoints. It returns false for other services.
func (j *join) aliasTarget(r *graph.Reader, svc *fact.Service) (*fact.Service, bool) {
	for range maxAliases {
		if svc == nil || svc.ExternalName == "" {
			return nil, false
		}
		host, ok := strings.CutSuffix(strings.ToLower(strings.TrimSuffix(svc.ExternalName, ".")), ".svc"+clusterDomain)
		labels := strings.Split(host, ".")
		if !ok || len(labels) != 2 && len(labels) != 3 {
			return nil, false
		}
		svc = j.service(r, mesh.Name{Namespace: labels[len(labels)-1], Name: labels[len(labels)-2]})
		switch {
		case svc == nil, len(labels) == 3 && !svc.Headless:
			return nil, false
		case svc.ExternalName == "":
			return svc, true
		}
	}
	return nil, false
}
