package catalog

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// single is the key of inputs with a single value.
var single struct{}

// objectKey identifies an object by kind and name.
type objectKey struct {
	kind string
	mesh.Name
}

func keyOf(object mesh.ObjectRef) objectKey {
	return objectKey{object.FullKind(), mesh.Name{Namespace: object.Namespace, Name: object.Name}}
}

func (k objectKey) compare(other objectKey) int {
	return cmp.Or(strings.Compare(k.kind, other.kind), k.Name.Compare(other.Name))
}

// join holds the facts and everything derived from them. Objects are keyed by name,
// within their kind.
type join struct {
	graph graph.Graph

	// inputs set an object's content by kind; nil deletes it.
	inputs map[string]func(mesh.Name, mesh.Digester)
	// settings are the Settings of the MeshConfig named meshConfig (configured), with the
	// roots added.
	settings   *graph.Input[struct{}, *mesh.Settings]
	configured *mesh.Settings
	meshConfig mesh.Name
	roots      string
	namespaces *graph.Input[mesh.Name, *fact.Namespace]
	workloads  *graph.Input[mesh.Name, *fact.Workload]
	services   *graph.Input[mesh.Name, *fact.Service]
	slices     *graph.Input[mesh.Name, *fact.EndpointSlice]
	accesses   *graph.Input[mesh.Name, *fact.AccessRule]
	httpGroups *graph.Input[mesh.Name, *fact.RouteGroup]
	tcpGroups  *graph.Input[mesh.Name, *fact.RouteGroup]
	splits     *graph.Input[mesh.Name, *fact.Split]
	// routes are in the order of precedence of their kinds.
	routes          []*routeInput
	referenceGrants *graph.Input[mesh.Name, *fact.ReferenceGrant]
	egresses        *graph.Input[mesh.Name, *fact.EgressRule]
	ingresses       *graph.Input[mesh.Name, *fact.IngressRule]
	retries         *graph.Input[mesh.Name, *fact.RetryRule]
	upstreams       *graph.Input[mesh.Name, *fact.UpstreamSetting]
	learned         *graph.Input[mesh.Name, *fact.Learned]
	// faults has the Problems that objects have by themselves. Objects of a kind with an
	// inspector always have an entry.
	faults *graph.Input[objectKey, *fact.Problems]
	// facts has the facts of each object, one per apiVersion in their order. The last one
	// counts.
	facts map[objectKey][]fact.Fact
	// reported has the Problems from Report.
	reported map[objectKey][]mesh.Problem
	// inspectors find Problems between objects, by kind.
	inspectors map[string]inspector

	// By service: its slices, the splits whose root it is, and the ingress rules and settings
	// for it.
	slicesOf    *graph.Index[mesh.Name, mesh.Name]
	splitsOf    *graph.Index[mesh.Name, aged]
	ingressesOf *graph.Index[mesh.Name, aged]
	upstreamsOf *graph.Index[mesh.Name, aged]
	// By workload: the services whose endpoint it is.
	servicesOf *graph.Index[mesh.Name, mesh.Name]
	// By service account: the access, egress and retry rules for it, and whether a
	// workload uses it.
	accessesOf *graph.Index[fact.ServiceAccount, aged]
	egressesOf *graph.Index[fact.ServiceAccount, aged]
	retriesOf  *graph.Index[fact.ServiceAccount, aged]
	used       *graph.Index[fact.ServiceAccount, struct{}]
	// By entry of the Services: the clients that know only such services, in permissive mode.
	limitedTo, limitedToIn *graph.Index[mesh.Name, clients]
	// By virtual IP and port: the services that have it. By address: the workloads.
	servicesAt  *graph.Index[netip.AddrPort, mesh.Name]
	workloadsAt *graph.Index[netip.Addr, mesh.Name]
	// By DNS name outside the mesh: the ExternalName services for it.
	aliasesOf *graph.Index[string, mesh.Name]
	// By UpstreamSetting: the EgressRules that refer to it.
	egressesUsing *graph.Index[mesh.Name, mesh.Name]
	// By namespace: its ReferenceGrants.
	referenceGrantsIn *graph.Index[string, mesh.Name]
	// By namespace, or for all namespaces: the classes of running sidecars, each with a
	// service account. By service account: the classes of its pods. By service: the splits
	// that send to it.
	runningIn *graph.Index[string, classAt]
	runningAs *graph.Index[fact.ServiceAccount, string]
	splitsTo  *graph.Index[mesh.Name, mesh.Name]
	// featuresOf is Options.Features, and declared caches its results. proxyless is
	// Options.Proxyless.
	featuresOf FeaturesOf
	proxyless  func(class string) bool
	declared   map[string][]mesh.Feature

	peers        *graph.Memo[mesh.Name, peer]
	policies     *graph.Memo[mesh.Name, *policy]
	backends     *graph.Memo[mesh.ServicePort, *backends]
	filtered     *graph.Memo[filter, *backends]
	destinations *graph.Memo[audience, *destinations]
	grants       *graph.Memo[fact.ServiceAccount, *grants]
	inboundOf    *graph.Memo[mesh.Name, *mesh.Inbound]
	inbounds     *graph.Memo[inboundKey, *mesh.Inbound]
	egress       *graph.Memo[fact.ServiceAccount, *mesh.Egress]
	shared       *graph.Memo[clients, clients]
	outbounds    *graph.Memo[clients, *mesh.Outbound]
	usedBy       *graph.Memo[fact.ServiceAccount, *used]
	proxies      *graph.Memo[mesh.Name, *mesh.Proxy]
	// logged are the settings with the access logs of namespaces and pods.
	logged *graph.Memo[mesh.AccessLog, *mesh.Settings]
	// The classes that lack a feature: by namespace or for all namespaces, and among the
	// callers of a service port.
	limited *graph.Memo[string, *classes]
	callers *graph.Memo[mesh.ServicePort, *classes]

	// By the clients that may call them.
	destinationTables *graph.Tables[clients, *mesh.Destination]
	backendTables     *graph.Tables[clients, *mesh.Backend]
	// retried are the Destinations that RetryRules change, by source.
	retried *graph.Tables[fact.ServiceAccount, *mesh.Destination]
	// ranges have the addresses of all Destinations, by their prefix.
	ranges *graph.Table[*addressRange]
	// accepted are the Inbounds of the workloads of a service account, if they have its rules,
	// by acceptedName.
	accepted *graph.Tables[fact.ServiceAccount, *mesh.Inbound]

	// sharers are the clients whose Outbounds are in outboundsTable.
	sharers         *graph.Keys[clients]
	viewers         *graph.Table[*fact.Viewer]
	outboundsTable  *graph.Table[*mesh.Outbound]
	namespacesTable *graph.Table[*fact.Namespace]
	servicesTable   *graph.Table[*fact.Service]
	workloadsTable  *graph.Table[*fact.Workload]
	problems        *graph.Table[*fact.Problems]
}

// aged is a key that sorts by age.
type aged struct {
	created int64
	key     mesh.Name
}

func compareAged(a, b aged) int {
	return cmp.Or(cmp.Compare(a.created, b.created), a.key.Compare(b.key))
}

func newJoin(options Options) *join {
	j := &join{
		facts: map[objectKey][]fact.Fact{}, reported: map[objectKey][]mesh.Problem{},
		inputs: map[string]func(mesh.Name, mesh.Digester){}, inspectors: map[string]inspector{},
		featuresOf: options.Features, proxyless: options.Proxyless, declared: map[string][]mesh.Feature{},
	}
	g := &j.graph
	j.namespaces = input[*fact.Namespace](j, "Namespace")
	j.workloads = input(j, kindPod, j.inspectWorkload, j.checkWorkloadFeatures)
	j.services = input(j, kindService, j.inspectService, j.checkServiceFeatures)
	j.slices = input[*fact.EndpointSlice](j, "EndpointSlice")
	j.accesses = input(j, kindTrafficTarget, j.inspectAccess, j.checkAccessFeatures)
	j.httpGroups = input[*fact.RouteGroup](j, kindHTTPRouteGroup)
	j.tcpGroups = input[*fact.RouteGroup](j, kindTCPRoute)
	j.splits = input(j, kindTrafficSplit, j.inspectSplit, j.checkSplitFeatures)
	for _, kind := range fact.RouteKinds() {
		full := mesh.ObjectRef{APIVersion: gatewayVersion, Kind: string(kind)}.FullKind()
		in := input(j, full, j.inspectRoute, j.checkRouteFeatures)
		j.routes = append(j.routes, newRouteInput(in))
		j.inspectOutsiders(full, in)
	}
	j.referenceGrants = input[*fact.ReferenceGrant](j, "ReferenceGrant")
	j.egresses = input(j, kindEgress, j.inspectEgress, j.checkEgressFeatures)
	j.ingresses = input(j, kindIngressBackend, j.inspectIngress, j.checkIngressFeatures)
	j.retries = input(j, kindRetry, j.inspectRetry, j.checkRetryFeatures)
	j.upstreams = input(j, kindUpstreamTrafficSetting, j.inspectUpstream, j.checkUpstreamFeatures)
	j.learned = input[*fact.Learned](j, "ConfigMap")
	j.inspectors["Namespace"] = func(r *graph.Reader, name mesh.Name, f *fault) {
		if ns, ok := j.namespaces.Get(r, name); ok && ns.Member {
			j.inspectNamespace(r, ns, f)
			j.checkNamespaceFeatures(r, ns, f)
		}
	}
	j.settings = graph.NewInput[struct{}, *mesh.Settings](g)
	j.inputs["MeshConfig"], j.inspectors["MeshConfig"] = j.configure, j.checkSettingsFeatures
	j.faults = graph.NewInput[objectKey, *fact.Problems](g)
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
	j.shared = graph.NewMemo(g, j.makeShared)
	j.outbounds = graph.NewMemo(g, j.makeOutbound)
	j.usedBy = graph.NewMemo(g, j.makeUsed)
	j.proxies = graph.NewMemo(g, j.makeProxy)
	j.logged = graph.NewMemo(g, j.makeLogged)
	j.limited = graph.NewMemo(g, j.makeLimited)
	j.callers = graph.NewMemo(g, j.makeCallers)

	j.destinationTables = graph.NewTables[clients, *mesh.Destination](g)
	j.backendTables = graph.NewTables[clients, *mesh.Backend](g)
	j.retried = graph.NewTables[fact.ServiceAccount, *mesh.Destination](g)
	j.ranges = graph.NewTable[*addressRange](g)
	j.accepted = graph.NewTables[fact.ServiceAccount, *mesh.Inbound](g)
	j.sharers = graph.NewKeys[clients](g)
	j.viewers = graph.NewTable[*fact.Viewer](g)
	j.outboundsTable = graph.NewTable[*mesh.Outbound](g)
	j.namespacesTable = graph.NewTable[*fact.Namespace](g)
	j.servicesTable = graph.NewTable[*fact.Service](g)
	j.workloadsTable = graph.NewTable[*fact.Workload](g)
	j.problems = graph.NewTable[*fact.Problems](g)

	// The order matters: rules read tables that earlier rules fill.
	graph.NewRule(j.namespaces, j.offerNamespace)
	graph.NewRule(j.services, j.offerService)
	graph.NewRule(j.workloads, j.offerWorkload)
	graph.NewRule(j.retries, j.retry)
	graph.NewRule(j.workloads, j.offerProxy)
	graph.NewRule(j.sharers.Input, j.offerOutbound)
	graph.NewRule(j.faults, j.inspect)
	return j
}

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
	j.inputs[kind] = func(name mesh.Name, content mesh.Digester) {
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

// service returns a service of the mesh, or nil.
func (j *join) service(r *graph.Reader, name mesh.Name) *fact.Service {
	if !j.member(r, name.Namespace) {
		return nil
	}
	s, _ := j.services.Get(r, name)
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
