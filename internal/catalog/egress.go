package catalog

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// makeEgress returns where a service account may go outside the mesh.
func (j *join) makeEgress(r *graph.Reader, account mesh.ServiceAccount) *mesh.Egress {
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

// egressRules returns the rules of an account by age. The oldest one of a port says
// which protocol it has.
func (j *join) egressRules(r *graph.Reader, account mesh.ServiceAccount) []*mesh.EgressRule {
	if !j.mustSettings(r).EgressPolicy {
		return nil
	}
	var rules []*mesh.EgressRule
	for _, a := range j.egressesOf.Get(r, account) {
		rule, _ := j.egresses.Get(r, a.key)
		if j.member(r, rule.Namespace) {
			rules = append(rules, rule)
		}
	}
	return rules
}

// addEgress adds what a rule lets through a port. TCP is matched by address, and HTTP
// and TLS by host where the rule has hosts: its addresses must not open what its hosts
// keep closed.
func (j *join) addEgress(r *graph.Reader, p *mesh.EgressRoutes, rule *mesh.EgressRule) {
	switch {
	case p.Protocol == mesh.EgressTCP && len(rule.Ranges) == 0:
		// Ranges that are left out mean any address, also beside those of another rule.
		addRanges(p, anywhere)
	case p.Protocol == mesh.EgressTCP, len(rule.Hosts) == 0 && len(rule.Groups) == 0:
		addRanges(p, rule.Ranges)
	default:
		j.addHosts(r, p, rule)
	}
}

func addRanges(p *mesh.EgressRoutes, ranges []netip.Prefix) {
	for _, prefix := range ranges {
		p.Ranges = append(p.Ranges, prefix.Masked())
	}
	slices.SortFunc(p.Ranges, netip.Prefix.Compare)
	p.Ranges = slices.Compact(p.Ranges)
}

// addHosts adds the hosts of a rule, and the services that are other names of them.
func (j *join) addHosts(r *graph.Reader, p *mesh.EgressRoutes, rule *mesh.EgressRule) {
	matches := []mesh.HTTPMatch{{}}
	if p.Protocol == mesh.EgressHTTP && len(rule.Groups) > 0 {
		matches = j.matchesOf(r, rule.Namespace, rule.Groups)
	}
	if len(matches) == 0 {
		return
	}
	for _, host := range rule.Hosts {
		host = strings.ToLower(host)
		j.addHost(p, mesh.EgressHost{Host: host, Matches: matches, Policy: j.egressPolicy(r, rule, host)})
		for _, alias := range j.aliasesOf.Get(r, host) {
			if j.member(r, alias.Namespace) {
				for _, name := range dnsNames(alias) {
					j.addHost(p, mesh.EgressHost{Host: name, Matches: matches, Policy: j.egressPolicy(r, rule, host)})
				}
			}
		}
	}
}

var anywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// addHost adds a host in its place, or what may be asked of one that is there.
func (j *join) addHost(p *mesh.EgressRoutes, host mesh.EgressHost) {
	i, found := slices.BinarySearchFunc(p.Hosts, host.Host, func(h mesh.EgressHost, name string) int { return strings.Compare(h.Host, name) })
	if found {
		p.Hosts[i].Matches = append(slices.Clone(p.Hosts[i].Matches), host.Matches...)
		return
	}
	p.Hosts = slices.Insert(p.Hosts, i, host)
}

// egressPolicy returns how the rule has a host called.
func (j *join) egressPolicy(r *graph.Reader, rule *mesh.EgressRule, host string) mesh.UpstreamPolicy {
	for _, name := range rule.Settings {
		setting, _ := j.upstreams.Get(r, mesh.Name{Namespace: rule.Namespace, Name: name}.String())
		if setting != nil && strings.EqualFold(setting.Host, host) {
			return setting.Policy
		}
	}
	return mesh.UpstreamPolicy{}
}

// dnsNames are the names of a service that are good in any namespace. The cluster's
// DNS domain is taken to be cluster.local, its default: no object says what it is.
func dnsNames(service mesh.Name) []string {
	// Without the svc it could be the name of a host outside.
	name := service.Name + "." + service.Namespace + ".svc"
	return []string{name, name + ".cluster.local"}
}

// serviceOfHost returns the service of a setting's host: <name>, <name>.<ns> or more.
// It need not be there, and may be in another namespace than the setting, which then
// does not count.
func serviceOfHost(s *mesh.UpstreamSetting) mesh.Name {
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
