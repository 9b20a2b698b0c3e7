package catalog

import (
	"cmp"
	"iter"
	"slices"
	"sort"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// FeaturesOf returns the features of a class's proxies. The result for a class must never
// change.
type FeaturesOf func(class string) []mesh.Feature

// classAt is a sidecar class and a service account with pods of that class. It has the
// account, not a pod, since pods change with every rollout.
type classAt struct {
	Class   string              `json:"class"`
	Account fact.ServiceAccount `json:"account"`
}

func compareClassAt(a, b classAt) int {
	return cmp.Or(strings.Compare(a.Class, b.Class), a.Account.Compare(b.Account))
}

// classes are sidecar classes that lack a feature, each once with an example.
type classes struct {
	mesh.Sealed
	List []classAt `json:"list"`
}

// classesOf keeps the first entry of each class.
func classesOf(all []classAt) *classes {
	slices.SortFunc(all, compareClassAt)
	all = slices.CompactFunc(all, func(a, b classAt) bool { return a.Class == b.Class })
	return mesh.Seal(&classes{List: all})
}

// allNamespaces is the key for all namespaces of the mesh. Other keys are namespaces.
const allNamespaces = ""

func (j *join) indexClasses() {
	// Pods of gateways get other parts than sidecars. Which pods these are depends on other objects.
	runs := func(w *fact.Workload) bool { return w.Class != "" && !w.Ended && w.Labels[fact.GatewayLabel] == "" }
	j.labelledIn = graph.NewIndex(j.workloads, mesh.Name.Compare, func(key mesh.Name, w *fact.Workload) iter.Seq2[string, mesh.Name] {
		return func(yield func(string, mesh.Name) bool) {
			if w.Class != "" && !w.Ended && w.Labels[fact.GatewayLabel] != "" && yield(allNamespaces, key) {
				yield(w.Namespace, key)
			}
		}
	})
	j.runningIn = graph.NewIndex(j.workloads, compareClassAt, func(_ mesh.Name, w *fact.Workload) iter.Seq2[string, classAt] {
		return func(yield func(string, classAt) bool) {
			if at := (classAt{w.Class, accountOf(w)}); runs(w) && yield(allNamespaces, at) {
				yield(w.Namespace, at)
			}
		}
	})
	j.runningAs = graph.NewIndex(j.workloads, strings.Compare, func(_ mesh.Name, w *fact.Workload) iter.Seq2[fact.ServiceAccount, string] {
		return func(yield func(fact.ServiceAccount, string) bool) {
			if runs(w) {
				yield(accountOf(w), w.Class)
			}
		}
	})
}

// withoutFeature says what happens without a feature, if it is not that proxies ignore it and
// deny what would be unsafe.
var withoutFeature = map[mesh.Feature]string{
	mesh.FeatureHTTP2Resets: "if the sender of a message of HTTP/2 breaks it off, the part that was sent can look complete to the receiver; use a class that has it (docs/drivers.md), or have the receiver check the length of messages",
	mesh.FeatureTokens:      "they verify no token, so a rule that asks for one allows nothing to their pods, and denies everything that it could deny; use a class that has it (docs/drivers.md)",
	mesh.FeatureTokensPSS:   "they verify no token that is signed with RSASSA-PSS; have the issuer sign with RS256 or ES256, or use a class that has it (docs/drivers.md)",
	mesh.FeatureTokensEdDSA: "they verify no token that is signed with EdDSA; have the issuer sign with RS256 or ES256, or use a class that has it (docs/drivers.md)",
}

// supports reports whether the proxies of a class have a feature.
func (j *join) supports(class string, feature mesh.Feature) bool {
	return slices.Contains(j.featuresHad(class), feature)
}

// featuresHad returns the features that the proxies of a class have.
func (j *join) featuresHad(class string) []mesh.Feature {
	has, ok := j.declared[class]
	if !ok {
		has = mesh.Features()
		if j.featuresOf != nil {
			has = j.featuresOf(class)
		}
		j.declared[class] = has
	}
	return has
}

// lacksAny reports whether the proxies of a class lack any feature.
func (j *join) lacksAny(class string) bool {
	return slices.ContainsFunc(mesh.Features(), func(f mesh.Feature) bool { return !j.supports(class, f) })
}

// running returns the classes of sidecars in a namespace or in all, each with each of its accounts,
// sorted by class.
func (j *join) running(r *graph.Reader, namespace string) []classAt {
	all, labelled := j.runningIn.Get(r, namespace), j.labelledIn.Get(r, namespace)
	if len(labelled) == 0 {
		return all
	}
	all = slices.Clone(all)
	for _, key := range labelled {
		w, _ := j.workloads.Get(r, key)
		if _, isGateway := j.gatewayOf(r, w); !isGateway {
			all = append(all, classAt{w.Class, accountOf(w)})
		}
	}
	slices.SortFunc(all, compareClassAt)
	return slices.Compact(all)
}

// makeLimited returns the classes in a namespace, or in all, that lack any feature. If
// there are none, nobody asks what they lack.
func (j *join) makeLimited(r *graph.Reader, namespace string) *classes {
	all := j.running(r, namespace)
	var found []classAt
	for len(all) > 0 {
		// There may be thousands of accounts of one class.
		ofClass := all[:sort.Search(len(all), func(i int) bool { return all[i].Class > all[0].Class })]
		all = all[len(ofClass):]
		if !j.lacksAny(ofClass[0].Class) {
			continue
		}
		if i := slices.IndexFunc(ofClass, func(at classAt) bool { return j.member(r, at.Account.Namespace) }); i >= 0 {
			found = append(found, ofClass[i])
		}
	}
	return classesOf(found)
}

// limitedOf returns the classes, among the pods of the accounts, that lack any feature.
func (j *join) limitedOf(r *graph.Reader, accounts []fact.ServiceAccount) *classes {
	limited := j.limited.Get(r, allNamespaces).List
	var found []classAt
	add := func(class string, account fact.ServiceAccount) {
		if slices.ContainsFunc(limited, func(l classAt) bool { return l.Class == class }) {
			found = append(found, classAt{class, account})
		}
	}
	for _, account := range accounts {
		if !j.member(r, account.Namespace) {
			continue
		}
		for _, class := range j.runningAs.Get(r, account) {
			add(class, account)
		}
		for _, key := range j.labelledIn.Get(r, account.Namespace) {
			w, _ := j.workloads.Get(r, key)
			if _, isGateway := j.gatewayOf(r, w); !isGateway && accountOf(w) == account {
				add(w.Class, account)
			}
		}
	}
	return classesOf(found)
}

// limitedIn returns the classes, among the pods of an audience in permissive mode, that lack any
// feature.
func (j *join) limitedIn(r *graph.Reader, of audience) *classes {
	consumers := j.consumersOf(r, of.port.Name)
	if of.namespace != "" || len(consumers) == 0 {
		return j.limited.Get(r, of.namespace)
	}
	var accounts []fact.ServiceAccount
	for _, at := range j.running(r, allNamespaces) {
		if !slices.Contains(consumers, at.Account.Namespace) {
			accounts = append(accounts, at.Account)
		}
	}
	return j.limitedOf(r, accounts)
}

// endpointsOf returns the workloads with a proxy among the endpoints of a service.
func (j *join) endpointsOf(r *graph.Reader, service mesh.Name) iter.Seq[*fact.Workload] {
	return func(yield func(*fact.Workload) bool) {
		for _, key := range j.slicesOf.Get(r, service) {
			slice, _ := j.slices.Get(r, key)
			for _, e := range slice.Endpoints {
				w, _ := j.workloads.Get(r, mesh.Name{Namespace: slice.Namespace, Name: e.Workload})
				if w != nil && j.hasProxy(r, w) && !yield(w) {
					return
				}
			}
		}
	}
}
