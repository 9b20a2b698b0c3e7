package catalog

import (
	"cmp"
	"net/netip"
	"strings"
	"unique"

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
	// accessPolicies are the AccessPolicies and, without a namespace, the ClusterAccessPolicies.
	accessPolicies *graph.Input[mesh.Name, *fact.AccessPolicy]
	tokenPolicies  *graph.Input[mesh.Name, *fact.TokenPolicy]

	httpGroups *graph.Input[mesh.Name, *fact.RouteGroup]
	tcpGroups  *graph.Input[mesh.Name, *fact.RouteGroup]
	splits     *graph.Input[mesh.Name, *fact.Split]
	// routes are in the order of precedence of their kinds.
	routes             []*routeInput
	referenceGrants    *graph.Input[mesh.Name, *fact.ReferenceGrant]
	gateways           *graph.Input[mesh.Name, *fact.Gateway]
	serverCertificates *graph.Input[mesh.Name, *fact.ServerCertificate]
	gatewayClasses     *graph.Input[mesh.Name, *fact.GatewayClass]
	egresses           *graph.Input[mesh.Name, *fact.EgressRule]
	ingresses          *graph.Input[mesh.Name, *fact.IngressRule]
	retries            *graph.Input[mesh.Name, *fact.RetryRule]
	upstreams          *graph.Input[mesh.Name, *fact.UpstreamSetting]
	// learned and tokenKeys are of ConfigMaps with different names.
	learned   *graph.Input[mesh.Name, *fact.Learned]
	tokenKeys *graph.Input[mesh.Name, *fact.TokenKeys]
	// fetchedKeys are by fact.KeyAddress.
	fetchedKeys *graph.Input[mesh.Name, *fact.TokenKeys]
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
	// By Gateway: the workloads that are its pods.
	podsOf *graph.Index[mesh.Name, mesh.Name]
	// By workload: the services whose endpoint it is.
	servicesOf *graph.Index[mesh.Name, mesh.Name]
	// By service account: the access, egress and retry rules for it, and whether a
	// workload uses it.
	accessesOf *graph.Index[fact.ServiceAccount, aged]
	egressesOf *graph.Index[fact.ServiceAccount, aged]
	retriesOf  *graph.Index[fact.ServiceAccount, aged]
	used       *graph.Index[fact.ServiceAccount, struct{}]
	// By namespace: its AccessPolicies and TokenPolicies, and the service accounts of its workloads,
	// which are those of all namespaces without a name. All namespaces.
	accessPoliciesIn *graph.Index[string, aged]
	tokenPoliciesIn  *graph.Index[string, mesh.Name]
	accountsIn       *graph.Index[string, fact.ServiceAccount]
	workloadsOf      *graph.Index[fact.ServiceAccount, mesh.Name]
	namespaceNames   *graph.Index[struct{}, string]
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
	// service account. By service account: the classes of its pods.
	runningIn *graph.Index[string, classAt]
	runningAs *graph.Index[fact.ServiceAccount, string]
	// By namespace, or for all namespaces: the running proxies of pods with the label of gateways,
	// which runningIn and runningAs do not have.
	labelledIn *graph.Index[string, mesh.Name]
	// featuresOf is Options.Features, and declared caches its results. fetches is Options.Fetches, and proxyless is
	// Options.Proxyless.
	featuresOf FeaturesOf
	proxyless  func(class string) bool
	fetches    bool
	declared   map[string][]mesh.Feature

	spoken       *graph.Memo[mesh.Name, *fact.Service]
	peers        *graph.Memo[mesh.Name, peer]
	policies     *graph.Memo[mesh.Name, *policy]
	backends     *graph.Memo[mesh.ServicePort, *backends]
	filtered     *graph.Memo[filter, *backends]
	destinations *graph.Memo[audience, *destinations]
	grants       *graph.Memo[fact.ServiceAccount, *grants]
	policyRules  *graph.Memo[mesh.Name, *policyRules]
	policiesIn   *graph.Memo[string, *policyNames]
	applied      *graph.Memo[mesh.Name, unique.Handle[appliedPolicies]]
	inboundOf    *graph.Memo[mesh.Name, *mesh.Inbound]
	inbounds     *graph.Memo[inboundKey, *mesh.Inbound]
	egress       *graph.Memo[fact.ServiceAccount, *mesh.Egress]
	shared       *graph.Memo[clients, clients]
	outbounds    *graph.Memo[clients, *mesh.Outbound]
	// By Gateway of the mesh: its routes, and those that are refused.
	atGateways *graph.Memo[mesh.Name, *atGateway]
	refusedAt  *graph.Memo[mesh.Name, *refusedRoutes]
	usedBy     *graph.Memo[fact.ServiceAccount, *used]
	proxies    *graph.Memo[mesh.Name, *mesh.Proxy]
	// logged are the settings with the access logs of namespaces and pods.
	logged *graph.Memo[mesh.AccessLog, *mesh.Settings]
	// limited are the classes that lack a feature, by namespace or for all namespaces.
	limited *graph.Memo[string, *classes]

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
	// lacking are the features that an object asks for and that a class lacks, by object. The
	// MeshConfig has no name there.
	lacking *graph.Tables[objectKey, *lack]

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
		featuresOf: options.Features, proxyless: options.Proxyless, fetches: options.Fetches, declared: map[string][]mesh.Feature{},
	}
	g := &j.graph
	j.namespaces = input[*fact.Namespace](j, kindNamespace)
	j.workloads = input(j, kindPod, j.inspectWorkload)
	j.services = input(j, kindService, j.inspectService)
	j.slices = input[*fact.EndpointSlice](j, "EndpointSlice")
	j.accesses = input(j, kindTrafficTarget, j.inspectAccess)
	j.accessPolicies = input(j, kindAccessPolicy, j.inspectAccessPolicy)
	// They have no namespace, so their names differ.
	j.inputs[kindClusterAccessPolicy] = j.inputs[kindAccessPolicy]
	j.tokenPolicies = input(j, kindTokenPolicy, j.inspectTokenPolicy)
	j.httpGroups = input[*fact.RouteGroup](j, kindHTTPRouteGroup)
	j.tcpGroups = input[*fact.RouteGroup](j, kindTCPRoute)
	j.splits = input(j, kindTrafficSplit, j.inspectSplit)
	for _, kind := range fact.RouteKinds() {
		full := mesh.ObjectRef{APIVersion: gatewayVersion, Kind: string(kind)}.FullKind()
		in := input(j, full, j.inspectRoute)
		j.routes = append(j.routes, newRouteInput(in))
		j.inspectOutsiders(full, in)
	}
	j.referenceGrants = input[*fact.ReferenceGrant](j, "ReferenceGrant")
	j.gateways = input[*fact.Gateway](j, kindGateway)
	j.serverCertificates = input[*fact.ServerCertificate](j, "Secret")
	j.inspectors[kindGateway] = j.inspectGateway
	j.gatewayClasses = input[*fact.GatewayClass](j, kindGatewayClass)
	j.inspectors[kindGatewayClass] = j.inspectGatewayClass
	j.egresses = input(j, kindEgress, j.inspectEgress)
	j.ingresses = input(j, kindIngressBackend, j.inspectIngress)
	j.retries = input(j, kindRetry, j.inspectRetry)
	j.upstreams = input(j, kindUpstreamTrafficSetting, j.inspectUpstream)
	j.learned = input[*fact.Learned](j, "ConfigMap")
	j.tokenKeys = input[*fact.TokenKeys](j, "ConfigMap")
	j.fetchedKeys = input[*fact.TokenKeys](j, fact.KeyAddress{}.Object().FullKind())
	j.inspectors[kindNamespace] = func(r *graph.Reader, name mesh.Name, f *fault) {
		if ns, ok := j.namespaces.Get(r, name); ok && ns.Member {
			j.inspectNamespace(r, ns, f)
		}
	}
	j.inspectors[kindClusterAccessPolicy] = func(r *graph.Reader, name mesh.Name, f *fault) {
		if policy, ok := j.accessPolicies.Get(r, name); ok {
			j.inspectAccessPolicy(r, policy, f)
		}
	}
	j.settings = graph.NewInput[struct{}, *mesh.Settings](g)
	j.inputs[kindMeshConfig] = j.configure
	j.faults = graph.NewInput[objectKey, *fact.Problems](g)
	j.index()
	j.indexClasses()

	j.spoken = graph.NewMemo(g, j.makeSpoken)
	j.peers = graph.NewMemo(g, j.peer)
	j.policies = graph.NewMemo(g, j.policy)
	j.backends = graph.NewMemo(g, j.makeBackends)
	j.filtered = graph.NewMemo(g, j.makeFiltered)
	j.destinations = graph.NewMemo(g, j.makeDestinations)
	j.grants = graph.NewMemo(g, j.makeGrants)
	j.policyRules = graph.NewMemo(g, j.makePolicyRules)
	j.policiesIn = graph.NewMemo(g, j.makePoliciesIn)
	j.applied = graph.NewMemo(g, j.makeApplied)
	j.inboundOf = graph.NewMemo(g, j.inbound)
	j.inbounds = graph.NewMemo(g, j.makeInbound)
	j.egress = graph.NewMemo(g, j.makeEgress)
	j.shared = graph.NewMemo(g, j.makeShared)
	j.outbounds = graph.NewMemo(g, j.makeOutbound)
	j.atGateways = graph.NewMemo(g, j.makeAtGateway)
	j.refusedAt = graph.NewMemo(g, j.makeRefusedAt)
	j.usedBy = graph.NewMemo(g, j.makeUsed)
	j.proxies = graph.NewMemo(g, j.makeProxy)
	j.logged = graph.NewMemo(g, j.makeLogged)
	j.limited = graph.NewMemo(g, j.makeLimited)

	j.destinationTables = graph.NewTables[clients, *mesh.Destination](g)
	j.backendTables = graph.NewTables[clients, *mesh.Backend](g)
	j.retried = graph.NewTables[fact.ServiceAccount, *mesh.Destination](g)
	j.ranges = graph.NewTable[*addressRange](g)
	j.accepted = graph.NewTables[fact.ServiceAccount, *mesh.Inbound](g)
	j.lacking = graph.NewTables[objectKey, *lack](g)
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
