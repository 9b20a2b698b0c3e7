package catalog

import (
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// index makes the indexes of the inputs.
func (j *join) index() {
	j.slicesOf = graph.NewIndex(j.slices, mesh.Name.Compare, func(key mesh.Name, s *fact.EndpointSlice) iter.Seq2[mesh.Name, mesh.Name] {
		return one(mesh.Name{Namespace: s.Namespace, Name: s.Service}, key)
	})
	j.servicesOf = graph.NewIndex(j.slices, mesh.Name.Compare, func(_ mesh.Name, s *fact.EndpointSlice) iter.Seq2[mesh.Name, mesh.Name] {
		return func(yield func(workload, service mesh.Name) bool) {
			for _, endpoint := range s.Endpoints {
				workload := mesh.Name{Namespace: s.Namespace, Name: endpoint.Workload}
				if endpoint.Workload != "" && !yield(workload, mesh.Name{Namespace: s.Namespace, Name: s.Service}) {
					return
				}
			}
		}
	})
	j.splitsOf = graph.NewIndex(j.splits, compareAged, func(key mesh.Name, s *fact.Split) iter.Seq2[mesh.Name, aged] {
		return one(mesh.Name{Namespace: s.Namespace, Name: s.Root}, aged{s.Created, key})
	})
	j.referenceGrantsIn = graph.NewIndex(j.referenceGrants, mesh.Name.Compare, func(key mesh.Name, grant *fact.ReferenceGrant) iter.Seq2[string, mesh.Name] {
		return one(grant.Namespace, key)
	})
	j.ingressesOf = graph.NewIndex(j.ingresses, compareAged, func(key mesh.Name, rule *fact.IngressRule) iter.Seq2[mesh.Name, aged] {
		return each(rule.Backends, func(b fact.IngressBackend) (mesh.Name, aged) {
			return mesh.Name{Namespace: rule.Namespace, Name: b.Service}, aged{rule.Created, key}
		})
	})
	j.upstreamsOf = graph.NewIndex(j.upstreams, compareAged, func(key mesh.Name, s *fact.UpstreamSetting) iter.Seq2[mesh.Name, aged] {
		return one(s.Service(), aged{s.Created, key})
	})
	j.accessesOf = graph.NewIndex(j.accesses, compareAged, func(key mesh.Name, rule *fact.AccessRule) iter.Seq2[fact.ServiceAccount, aged] {
		return one(rule.Destination, aged{rule.Created, key})
	})
	j.accessPoliciesIn = graph.NewIndex(j.accessPolicies, compareAged, func(key mesh.Name, p *fact.AccessPolicy) iter.Seq2[string, aged] {
		return one(p.Namespace, aged{p.Created, key})
	})
	j.tokenPoliciesIn = graph.NewIndex(j.tokenPolicies, mesh.Name.Compare, func(key mesh.Name, p *fact.TokenPolicy) iter.Seq2[string, mesh.Name] {
		return one(p.Namespace, key)
	})
	j.accountsIn = graph.NewIndex(j.workloads, fact.ServiceAccount.Compare, func(_ mesh.Name, w *fact.Workload) iter.Seq2[string, fact.ServiceAccount] {
		return each([]string{"", w.Namespace}, func(namespace string) (string, fact.ServiceAccount) { return namespace, accountOf(w) })
	})
	j.podsOf = graph.NewIndex(j.workloads, mesh.Name.Compare, func(key mesh.Name, w *fact.Workload) iter.Seq2[mesh.Name, mesh.Name] {
		return func(yield func(gateway, pod mesh.Name) bool) {
			if name := w.Labels[fact.GatewayLabel]; name != "" {
				yield(mesh.Name{Namespace: w.Namespace, Name: name}, key)
			}
		}
	})
	j.workloadsOf = graph.NewIndex(j.workloads, mesh.Name.Compare, func(key mesh.Name, w *fact.Workload) iter.Seq2[fact.ServiceAccount, mesh.Name] {
		return one(accountOf(w), key)
	})
	j.namespaceNames = graph.NewIndex(j.namespaces, strings.Compare, func(key mesh.Name, _ *fact.Namespace) iter.Seq2[struct{}, string] {
		return one(struct{}{}, key.Name)
	})
	j.egressesOf = graph.NewIndex(j.egresses, compareAged, func(key mesh.Name, rule *fact.EgressRule) iter.Seq2[fact.ServiceAccount, aged] {
		return each(rule.Sources, func(source fact.ServiceAccount) (fact.ServiceAccount, aged) {
			return source, aged{rule.Created, key}
		})
	})
	j.egressesUsing = graph.NewIndex(j.egresses, mesh.Name.Compare, func(key mesh.Name, rule *fact.EgressRule) iter.Seq2[mesh.Name, mesh.Name] {
		return each(rule.Settings, func(setting string) (mesh.Name, mesh.Name) {
			return mesh.Name{Namespace: rule.Namespace, Name: setting}, key
		})
	})
	j.retriesOf = graph.NewIndex(j.retries, compareAged, func(key mesh.Name, rule *fact.RetryRule) iter.Seq2[fact.ServiceAccount, aged] {
		return one(rule.Source, aged{rule.Created, key})
	})
	j.used = graph.NewIndex(j.workloads, func(_, _ struct{}) int { return 0 }, func(_ mesh.Name, w *fact.Workload) iter.Seq2[fact.ServiceAccount, struct{}] {
		return one(accountOf(w), struct{}{})
	})
	j.limitedTo = graph.NewIndex(j.workloads, clients.compare, func(_ mesh.Name, w *fact.Workload) iter.Seq2[mesh.Name, clients] {
		return entriesOf(w.Namespace, w.OutboundServices)
	})
	j.limitedToIn = graph.NewIndex(j.namespaces, clients.compare, func(_ mesh.Name, ns *fact.Namespace) iter.Seq2[mesh.Name, clients] {
		return entriesOf(ns.Name, ns.OutboundServices)
	})
	j.servicesAt = graph.NewIndex(j.services, mesh.Name.Compare, func(_ mesh.Name, s *fact.Service) iter.Seq2[netip.AddrPort, mesh.Name] {
		return func(yield func(netip.AddrPort, mesh.Name) bool) {
			for _, address := range s.Addresses {
				for _, port := range s.Ports {
					if !yield(netip.AddrPortFrom(address, port.Port), s.Name) {
						return
					}
				}
			}
		}
	})
	j.workloadsAt = graph.NewIndex(j.workloads, mesh.Name.Compare, func(key mesh.Name, w *fact.Workload) iter.Seq2[netip.Addr, mesh.Name] {
		return func(yield func(netip.Addr, mesh.Name) bool) {
			for _, address := range w.Addresses {
				if !w.Ended && !yield(address, key) {
					return
				}
			}
		}
	})
	j.aliasesOf = graph.NewIndex(j.services, mesh.Name.Compare, func(_ mesh.Name, s *fact.Service) iter.Seq2[string, mesh.Name] {
		if s.ExternalName == "" {
			return func(func(string, mesh.Name) bool) {}
		}
		return one(strings.ToLower(strings.TrimSuffix(s.ExternalName, ".")), s.Name)
	})
}

// each yields the entry of each element.
func each[E, K, V any](list []E, entry func(E) (K, V)) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, e := range list {
			if !yield(entry(e)) {
				return
			}
		}
	}
}

func one[K, V any](key K, value V) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { yield(key, value) }
}

// input makes the Input for the objects of a kind. The inspects functions find Problems
// of an object in the context of others. They are called only for members of the mesh.
func input[V mesh.Digester](j *join, kind string, inspects ...func(*graph.Reader, V, *fault)) *graph.Input[mesh.Name, V] {
	in := graph.NewInput[mesh.Name, V](&j.graph)
	// ConfigMaps have different facts, by their names.
	other := j.inputs[kind]
	j.inputs[kind] = func(name mesh.Name, content mesh.Digester) {
		if other != nil {
			other(name, content)
		}
		if c, ok := content.(V); ok {
			in.Set(name, c)
		} else {
			in.Delete(name)
		}
	}
	if len(inspects) > 0 {
		j.inspectors[kind] = func(r *graph.Reader, name mesh.Name, f *fault) {
			value, ok := in.Get(r, name)
			if !ok || !j.member(r, name.Namespace) {
				return
			}
			for _, inspect := range inspects {
				inspect(r, value, f)
			}
		}
	}
	return in
}

// set adds, replaces or deletes the fact of an object.
func (j *join) set(stated fact.Fact) {
	key := keyOf(stated.Object)
	facts := j.facts[key]
	i, found := slices.BinarySearchFunc(facts, stated, func(a, b fact.Fact) int {
		return strings.Compare(a.Object.APIVersion, b.Object.APIVersion)
	})
	if found {
		facts = slices.Delete(facts, i, i+1)
	}
	if stated.Content != nil || len(stated.Problems) > 0 {
		facts = slices.Insert(facts, i, stated)
	}
	if j.facts[key] = facts; len(facts) == 0 {
		delete(j.facts, key)
	}
	if put := j.inputs[key.kind]; put != nil {
		put(key.Name, lastOf(facts).Content)
	}
	j.setFault(key)
}

// report implements Catalog.Report.
func (j *join) report(object mesh.ObjectRef, problems []mesh.Problem) {
	key := keyOf(object)
	if j.reported[key] = problems; len(problems) == 0 {
		delete(j.reported, key)
	}
	j.setFault(key)
}

// setFault updates the Problems that the object has by itself.
func (j *join) setFault(key objectKey) {
	stated := lastOf(j.facts[key])
	problems := slices.Clip(stated.Problems)
	if len(j.facts[key]) > 0 {
		for _, p := range j.reported[key] {
			p.Object = stated.Object
			problems = append(problems, p)
		}
	}
	if len(problems) > 0 || j.inspects(stated) {
		j.faults.Set(key, problemsOf(stated.Object, problems))
	} else {
		j.faults.Delete(key)
	}
}

// factsOf returns the facts of the kinds, sorted by key.
func (j *join) factsOf(kinds []string) []fact.Fact {
	var keys []objectKey
	for key := range j.facts {
		if slices.Contains(kinds, key.kind) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, objectKey.compare)
	facts := make([]fact.Fact, 0, len(keys))
	for _, key := range keys {
		facts = append(facts, lastOf(j.facts[key]))
	}
	return facts
}

func lastOf(facts []fact.Fact) fact.Fact {
	if len(facts) == 0 {
		return fact.Fact{}
	}
	return facts[len(facts)-1]
}

// configure sets the content of a MeshConfig. Deleting one that was already replaced by
// another has no effect.
func (j *join) configure(name mesh.Name, content mesh.Digester) {
	settings, ok := content.(*mesh.Settings)
	if ok || name == j.meshConfig {
		j.configured, j.meshConfig = settings, name
		j.putSettings()
	}
}

// trust sets the roots in the settings.
func (j *join) trust(roots string) {
	if j.roots != roots {
		j.roots = roots
		j.putSettings()
	}
}

// putSettings combines the MeshConfig's settings and the roots.
func (j *join) putSettings() {
	settings := j.configured
	if settings != nil && j.roots != "" {
		with := *settings
		with.Sealed, with.Roots = mesh.Sealed{}, j.roots
		settings = mesh.Seal(&with)
	}
	if settings == nil {
		j.settings.Delete(single)
	} else {
		j.settings.Set(single, settings)
	}
}

// member reports whether the namespace belongs to the mesh.
func (j *join) member(r *graph.Reader, namespace string) bool {
	ns, ok := j.namespaces.Get(r, mesh.Name{Name: namespace})
	return ok && ns.Member
}

// service returns a service of the mesh, with the protocols that its ports speak, or nil.
func (j *join) service(r *graph.Reader, name mesh.Name) *fact.Service {
	if !j.member(r, name.Namespace) {
		return nil
	}
	s, ok := j.services.Get(r, name)
	if ok && slices.ContainsFunc(s.Ports, func(p fact.PortSpec) bool { return p.Assumed }) {
		return j.spoken.Get(r, name)
	}
	return s
}

// mustSettings returns the settings. If there are none, it returns defaults that allow
// nothing.
func (j *join) mustSettings(r *graph.Reader) *mesh.Settings {
	if s, ok := j.settings.Get(r, single); ok {
		return s
	}
	return defaultSettings
}

var defaultSettings = mesh.Seal(&mesh.Settings{
	TrustDomain: "cluster.local",
	InboundTLS:  mesh.Strict,
	TLS:         mesh.TLS{Min: "1.3", Max: "1.3"},
	AccessLog:   mesh.FullAccessLog(),
})

func accountOf(w *fact.Workload) fact.ServiceAccount {
	return fact.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount}
}
