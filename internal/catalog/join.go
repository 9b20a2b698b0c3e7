package catalog

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// only is the key of inputs and groups that there is one of.
const only = ""

// join is the facts and everything that is made of them. Keys of objects are
// namespace/name.
type join struct {
	graph graph.Graph

	// settings are what the MeshConfig says, told, with the roots.
	settings   *graph.Input[string, *mesh.Settings]
	told       *mesh.Settings
	roots      string
	namespaces *graph.Input[string, *mesh.Namespace]
	workloads  *graph.Input[string, *mesh.Workload]
	services   *graph.Input[string, *mesh.Service]
	slices     *graph.Input[string, *mesh.EndpointSlice]
	accesses   *graph.Input[string, *mesh.AccessRule]
	httpGroups *graph.Input[string, *mesh.RouteGroup]
	tcpGroups  *graph.Input[string, *mesh.RouteGroup]
	splits     *graph.Input[string, *mesh.Split]
	egresses   *graph.Input[string, *mesh.EgressRule]
	ingresses  *graph.Input[string, *mesh.IngressRule]
	retries    *graph.Input[string, *mesh.RetryRule]
	upstreams  *graph.Input[string, *mesh.UpstreamSetting]
	// faults are what is wrong with objects by themselves, by kind and key. Of kinds
	// that have an inspector each object has an entry.
	faults *graph.Input[string, *mesh.Problems]
	// said is what objects say, by kind and key, in the order of their apiVersions: of
	// an object that comes in several the last counts.
	said map[string][]mesh.Fact
	// reported is what others have to say of objects, by kind and key.
	reported map[string][]mesh.Problem
	// inspectors find what is wrong with an object among others, by its kind.
	inspectors map[string]inspector

	// Of a service: its slices, splits of which it is the root, rules that open it,
	// settings of it.
	slicesOf    *graph.Index[string, string]
	splitsOf    *graph.Index[string, aged]
	ingressesOf *graph.Index[string, aged]
	upstreamsOf *graph.Index[string, aged]
	// Of a workload: the services that it serves.
	servicesOf *graph.Index[mesh.Name, mesh.Name]
	// Of a service account: rules that let others call it, that let it out, that retry
	// for it, and whether a workload runs as it.
	accessesOf *graph.Index[mesh.ServiceAccount, aged]
	egressesOf *graph.Index[mesh.ServiceAccount, aged]
	retriesOf  *graph.Index[mesh.ServiceAccount, aged]
	used       *graph.Index[mesh.ServiceAccount, struct{}]
	// Of a virtual address and port: the services that have it; of an address: the
	// workloads.
	servicesAt  *graph.Index[netip.AddrPort, mesh.Name]
	workloadsAt *graph.Index[netip.Addr, string]
	// Of a DNS name outside the mesh: the services that stand for it.
	aliasesOf *graph.Index[string, mesh.Name]
	// Of an UpstreamSetting: the EgressRules that name it.
	egressesUsing *graph.Index[string, string]
	// Of a namespace, or of the whole mesh: the classes that run, and whose they are; of
	// a service account: the classes of its pods. Of a service: splits that send to it.
	runningIn *graph.Index[string, classAt]
	runningAs *graph.Index[mesh.ServiceAccount, string]
	splitsTo  *graph.Index[string, string]
	// featuresOf says what classes can do, and declared is what it has said; if it is
	// nil all can do everything.
	featuresOf FeaturesOf
	declared   map[string][]mesh.Feature

	peers        *graph.Memo[string, peer]
	policies     *graph.Memo[string, *policy]
	backends     *graph.Memo[mesh.ServicePort, *backends]
	filtered     *graph.Memo[filter, *backends]
	destinations *graph.Memo[mesh.ServicePort, *destinations]
	grants       *graph.Memo[mesh.ServiceAccount, *grants]
	inboundOf    *graph.Memo[string, *mesh.Inbound]
	inbounds     *graph.Memo[string, *mesh.Inbound]
	egress       *graph.Memo[mesh.ServiceAccount, *mesh.Egress]
	outbounds    *graph.Memo[mesh.ServiceAccount, *mesh.Outbound]
	proxies      *graph.Memo[string, *mesh.Proxy]
	// Classes that lack a feature: of a namespace or the whole mesh, and of those who call
	// a service port.
	limited *graph.Memo[string, *classes]
	callers *graph.Memo[mesh.ServicePort, *classes]

	// By scope.
	destinationTables *graph.Tables[*mesh.Destination]
	backendTables     *graph.Tables[*mesh.Backend]
	// retried are the Destinations that a service account sees otherwise, by its name.
	retried *graph.Tables[*mesh.Destination]
	// taking are what the workloads of a service account take while rules say who may
	// call, by its name.
	taking *graph.Tables[*mesh.Inbound]
	// There is one group of each.
	views          *graph.Tables[*mesh.View]
	servicesTable  *graph.Tables[*mesh.Service]
	workloadsTable *graph.Tables[*mesh.Workload]
	problems       *graph.Tables[*mesh.Problems]
}

// aged is a key in the order of age.
type aged struct {
	created int64
	key     string
}

func compareAged(a, b aged) int {
	return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.key, b.key))
}

func newJoin(features FeaturesOf) *join {
	j := &join{
		said: map[string][]mesh.Fact{}, reported: map[string][]mesh.Problem{},
		featuresOf: features, declared: map[string][]mesh.Feature{},
	}
	g := &j.graph
	j.settings = graph.NewInput[string, *mesh.Settings](g)
	j.namespaces = graph.NewInput[string, *mesh.Namespace](g)
	j.workloads = graph.NewInput[string, *mesh.Workload](g)
	j.services = graph.NewInput[string, *mesh.Service](g)
	j.slices = graph.NewInput[string, *mesh.EndpointSlice](g)
	j.accesses = graph.NewInput[string, *mesh.AccessRule](g)
	j.httpGroups = graph.NewInput[string, *mesh.RouteGroup](g)
	j.tcpGroups = graph.NewInput[string, *mesh.RouteGroup](g)
	j.splits = graph.NewInput[string, *mesh.Split](g)
	j.egresses = graph.NewInput[string, *mesh.EgressRule](g)
	j.ingresses = graph.NewInput[string, *mesh.IngressRule](g)
	j.retries = graph.NewInput[string, *mesh.RetryRule](g)
	j.upstreams = graph.NewInput[string, *mesh.UpstreamSetting](g)
	j.faults = graph.NewInput[string, *mesh.Problems](g)
	j.index()
	j.indexClasses()

	j.peers = graph.NewMemo(g, j.peer)
	j.policies = graph.NewMemo(g, j.policy)
	j.backends = graph.NewMemo(g, j.makeBackends)
	j.filtered = graph.NewMemo(g, j.makeFiltered)
	j.destinations = graph.NewMemo(g, j.makeDestinations)
	j.grants = graph.NewMemo(g, j.makeGrants)
	j.inboundOf = graph.NewMemo(g, j.inbound)
	j.inbounds = graph.NewMemo(g, j.makeInbound)
	j.egress = graph.NewMemo(g, j.makeEgress)
	j.outbounds = graph.NewMemo(g, j.makeOutbound)
	j.proxies = graph.NewMemo(g, j.makeProxy)
	j.limited = graph.NewMemo(g, j.makeLimited)
	j.callers = graph.NewMemo(g, j.makeCallers)

	j.destinationTables = graph.NewTables[*mesh.Destination](g)
	j.backendTables = graph.NewTables[*mesh.Backend](g)
	j.retried = graph.NewTables[*mesh.Destination](g)
	j.taking = graph.NewTables[*mesh.Inbound](g)
	j.views = graph.NewTables[*mesh.View](g)
	j.servicesTable = graph.NewTables[*mesh.Service](g)
	j.workloadsTable = graph.NewTables[*mesh.Workload](g)
	j.problems = graph.NewTables[*mesh.Problems](g)

	// What a later one reads of tables, an earlier one has put there.
	graph.NewRule(j.services, j.offer)
	graph.NewRule(j.workloads, j.offerWorkload)
	graph.NewRule(j.retries, j.retry)
	graph.NewRule(j.workloads, j.view)
	j.inspectors = j.makeInspectors()
	graph.NewRule(j.faults, j.inspect)
	return j
}

func (j *join) index() {
	byAge := compareAged
	j.slicesOf = graph.NewIndex(j.slices, strings.Compare, func(key string, s *mesh.EndpointSlice) iter.Seq2[string, string] {
		return one(mesh.Name{Namespace: s.Namespace, Name: s.Service}.String(), key)
	})
	j.servicesOf = graph.NewIndex(j.slices, mesh.Name.Compare, func(_ string, s *mesh.EndpointSlice) iter.Seq2[mesh.Name, mesh.Name] {
		return func(yield func(workload, service mesh.Name) bool) {
			for _, endpoint := range s.Endpoints {
				workload := mesh.Name{Namespace: s.Namespace, Name: endpoint.Workload}
				if endpoint.Workload != "" && !yield(workload, mesh.Name{Namespace: s.Namespace, Name: s.Service}) {
					return
				}
			}
		}
	})
	j.splitsOf = graph.NewIndex(j.splits, byAge, func(key string, s *mesh.Split) iter.Seq2[string, aged] {
		return one(mesh.Name{Namespace: s.Namespace, Name: s.Root}.String(), aged{s.Created, key})
	})
	j.ingressesOf = graph.NewIndex(j.ingresses, byAge, func(key string, rule *mesh.IngressRule) iter.Seq2[string, aged] {
		return func(yield func(string, aged) bool) {
			for _, backend := range rule.Backends {
				if !yield(mesh.Name{Namespace: rule.Namespace, Name: backend.Service}.String(), aged{rule.Created, key}) {
					return
				}
			}
		}
	})
	j.upstreamsOf = graph.NewIndex(j.upstreams, byAge, func(key string, s *mesh.UpstreamSetting) iter.Seq2[string, aged] {
		return one(serviceOfHost(s).String(), aged{s.Created, key})
	})
	j.accessesOf = graph.NewIndex(j.accesses, byAge, func(key string, rule *mesh.AccessRule) iter.Seq2[mesh.ServiceAccount, aged] {
		return one(rule.Destination, aged{rule.Created, key})
	})
	j.egressesOf = graph.NewIndex(j.egresses, byAge, func(key string, rule *mesh.EgressRule) iter.Seq2[mesh.ServiceAccount, aged] {
		return func(yield func(mesh.ServiceAccount, aged) bool) {
			for _, source := range rule.Sources {
				if !yield(source, aged{rule.Created, key}) {
					return
				}
			}
		}
	})
	j.egressesUsing = graph.NewIndex(j.egresses, strings.Compare, func(key string, rule *mesh.EgressRule) iter.Seq2[string, string] {
		return func(yield func(string, string) bool) {
			for _, setting := range rule.Settings {
				if !yield(mesh.Name{Namespace: rule.Namespace, Name: setting}.String(), key) {
					return
				}
			}
		}
	})
	j.retriesOf = graph.NewIndex(j.retries, byAge, func(key string, rule *mesh.RetryRule) iter.Seq2[mesh.ServiceAccount, aged] {
		return one(rule.Source, aged{rule.Created, key})
	})
	j.used = graph.NewIndex(j.workloads, func(_, _ struct{}) int { return 0 }, func(_ string, w *mesh.Workload) iter.Seq2[mesh.ServiceAccount, struct{}] {
		return one(accountOf(w), struct{}{})
	})
	j.servicesAt = graph.NewIndex(j.services, mesh.Name.Compare, func(_ string, s *mesh.Service) iter.Seq2[netip.AddrPort, mesh.Name] {
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
	j.workloadsAt = graph.NewIndex(j.workloads, strings.Compare, func(key string, w *mesh.Workload) iter.Seq2[netip.Addr, string] {
		return func(yield func(netip.Addr, string) bool) {
			for _, address := range w.Addresses {
				if !w.Ended && !yield(address, key) {
					return
				}
			}
		}
	})
	j.aliasesOf = graph.NewIndex(j.services, mesh.Name.Compare, func(_ string, s *mesh.Service) iter.Seq2[string, mesh.Name] {
		if s.ExternalName == "" {
			return func(func(string, mesh.Name) bool) {}
		}
		return one(strings.ToLower(strings.TrimSuffix(s.ExternalName, ".")), s.Name)
	})
}

func one[K, V any](key K, value V) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { yield(key, value) }
}

// set takes in what an object says, or that it is gone.
func (j *join) set(fact mesh.Fact) {
	name, key := keysOf(fact.Object)
	facts := j.said[key]
	former := lastOf(facts)
	i, found := slices.BinarySearchFunc(facts, fact, func(a, b mesh.Fact) int {
		return strings.Compare(a.Object.APIVersion, b.Object.APIVersion)
	})
	if found {
		facts = slices.Delete(facts, i, i+1)
	}
	if fact.Content != nil || len(fact.Problems) > 0 {
		facts = slices.Insert(facts, i, fact)
	}
	if j.said[key] = facts; len(facts) == 0 {
		delete(j.said, key)
	}
	next := lastOf(facts)
	if next.Content != nil {
		j.put(name, next.Content, true)
	} else {
		j.put(name, former.Content, false)
	}
	j.blame(key)
}

// keysOf returns the key of an object among its kind, and among all.
func keysOf(object mesh.ObjectRef) (name, key string) {
	name = mesh.Name{Namespace: object.Namespace, Name: object.Name}.String()
	return name, object.Kind + " " + name
}

// report takes in what others have to say of an object.
func (j *join) report(object mesh.ObjectRef, problems []mesh.Problem) {
	_, key := keysOf(object)
	if j.reported[key] = problems; len(problems) == 0 {
		delete(j.reported, key)
	}
	j.blame(key)
}

// blame notes what is wrong with an object without regard to others.
func (j *join) blame(key string) {
	said := lastOf(j.said[key])
	problems := slices.Clip(said.Problems)
	if len(j.said[key]) > 0 {
		for _, p := range j.reported[key] {
			p.Object = said.Object
			problems = append(problems, p)
		}
	}
	if len(problems) > 0 || j.inspects(said) {
		j.faults.Set(key, problemsOf(said.Object, problems))
	} else {
		j.faults.Delete(key)
	}
}

// facts returns what objects of the kinds say, in the order of their keys.
func (j *join) facts(kinds []string) []mesh.Fact {
	var keys []string
	for key := range j.said {
		if kind, _, _ := strings.Cut(key, " "); slices.Contains(kinds, kind) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	facts := make([]mesh.Fact, 0, len(keys))
	for _, key := range keys {
		facts = append(facts, lastOf(j.said[key]))
	}
	return facts
}

func lastOf(facts []mesh.Fact) mesh.Fact {
	if len(facts) == 0 {
		return mesh.Fact{}
	}
	return facts[len(facts)-1]
}

// put gives a key its content, or takes the content away. There may be none.
func (j *join) put(key string, content mesh.Content, has bool) {
	switch c := content.(type) {
	case *mesh.Settings:
		j.told = nil
		if has {
			j.told = c
		}
		j.putSettings()
	case *mesh.Namespace:
		put(j.namespaces, c.Name, c, has)
	case *mesh.Workload:
		put(j.workloads, key, c, has)
	case *mesh.Service:
		put(j.services, key, c, has)
	case *mesh.EndpointSlice:
		put(j.slices, key, c, has)
	case *mesh.AccessRule:
		put(j.accesses, key, c, has)
	case *mesh.RouteGroup:
		if c.TCP != nil {
			put(j.tcpGroups, key, c, has)
		} else {
			put(j.httpGroups, key, c, has)
		}
	case *mesh.Split:
		put(j.splits, key, c, has)
	case *mesh.EgressRule:
		put(j.egresses, key, c, has)
	case *mesh.IngressRule:
		put(j.ingresses, key, c, has)
	case *mesh.RetryRule:
		put(j.retries, key, c, has)
	case *mesh.UpstreamSetting:
		put(j.upstreams, key, c, has)
	}
}

// trust sets the roots that are in the settings.
func (j *join) trust(roots string) {
	if j.roots != roots {
		j.roots = roots
		j.putSettings()
	}
}

// putSettings joins what the MeshConfig says with the roots.
func (j *join) putSettings() {
	settings := j.told
	if settings != nil && j.roots != "" {
		with := *settings
		with.Sealed, with.Roots = mesh.Sealed{}, j.roots
		settings = mesh.Seal(&with)
	}
	put(j.settings, only, settings, settings != nil)
}

func put[V mesh.Digester](in *graph.Input[string, V], key string, value V, has bool) {
	if has {
		in.Set(key, value)
	} else {
		in.Delete(key)
	}
}

// member reports whether what is in the namespace belongs to the mesh.
func (j *join) member(r *graph.Reader, namespace string) bool {
	ns, ok := j.namespaces.Get(r, namespace)
	return ok && ns.Member
}

// service returns a service of the mesh, or nil.
func (j *join) service(r *graph.Reader, name mesh.Name) *mesh.Service {
	if !j.member(r, name.Namespace) {
		return nil
	}
	s, _ := j.services.Get(r, name.String())
	return s
}

// mustSettings returns the settings, or those under which nothing is let through
// while there are none.
func (j *join) mustSettings(r *graph.Reader) *mesh.Settings {
	if s, ok := j.settings.Get(r, only); ok {
		return s
	}
	return defaultSettings
}

var defaultSettings = mesh.Seal(&mesh.Settings{
	TrustDomain: "cluster.local",
	InboundTLS:  mesh.Strict,
	TLS:         mesh.TLS{Min: "1.3", Max: "1.3"},
	AccessLog:   mesh.AccessLog{Enabled: true},
})

func accountOf(w *mesh.Workload) mesh.ServiceAccount {
	return mesh.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount}
}

// parseName reads namespace/name.
func parseName(key string) mesh.Name {
	namespace, name, _ := strings.Cut(key, "/")
	return mesh.Name{Namespace: namespace, Name: name}
}
