package catalog

import (
	"cmp"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/internal/graph"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// lack is a feature that a field of an object asks a class for, and that the class lacks.
type lack struct {
	mesh.Sealed
	Field   string       `json:"field"`
	Feature mesh.Feature `json:"feature"`
	At      classAt      `json:"at"`
}

// featureProxy stands for a proxy as such. Pods of some classes have none: they serve gRPC
// only. No class declares it, so only pods without a proxy are asked for it.
const featureProxy mesh.Feature = "Proxy"

// putLacking puts, by object, the asks for features that a class lacks, of the classes that get the
// part. It calls asks only if a class of the mesh lacks anything, and classes only if one lacks
// what is asked for.
func (j *join) putLacking(r *graph.Reader, out *graph.Output, asks func() []ask, classes func() *classes) {
	j.putLackingOf(j.limited.Get(r, allNamespaces).List, out, asks, classes)
}

// putLackingOf is putLacking with all classes that may be among those that get the part.
func (j *join) putLackingOf(limited []classAt, out *graph.Output, asks func() []ask, classes func() *classes) {
	if len(limited) == 0 {
		return
	}
	lacked := slices.DeleteFunc(asks(), func(a ask) bool {
		return !slices.ContainsFunc(limited, func(at classAt) bool { return !j.supports(at.Class, a.feature) })
	})
	if len(lacked) == 0 {
		return
	}
	for _, at := range classes().List {
		for _, a := range lacked {
			if !j.supports(at.Class, a.feature) {
				// There is one name for each example, so that nobody puts another's value.
				name := strings.Join([]string{a.origin.Field, at.Class, string(a.feature), at.Account.String()}, " ")
				graph.Put(out, j.lacking.Of(keyOf(a.origin.Object)), name, mesh.Seal(&lack{Field: a.origin.Field, Feature: a.feature, At: at}))
			}
		}
	}
}

// offerLacking puts what the proxy of a workload lacks, and what a pod without a proxy lacks for the
// ports that it serves.
func (j *join) offerLacking(r *graph.Reader, w *fact.Workload, out *graph.Output) {
	if !j.lacksAny(w.Class) {
		return
	}
	own := []classAt{{w.Class, accountOf(w)}}
	j.putLackingOf(own, out, func() []ask {
		if g, ok := j.gatewayOf(r, w); ok {
			return j.asksOfGateway(r, g, w)
		}
		if j.proxyless == nil || !j.proxyless(w.Class) {
			return j.asksOfProxy(r, w)
		}
		return append(j.asksOfProxy(r, w), j.asksForProxy(r, w)...)
	}, func() *classes { return classesOf(own) })
}

// inspectLacking adds a Problem for each feature that a field of the object asks for and a class
// lacks, with one service account of the class as an example.
func (j *join) inspectLacking(r *graph.Reader, object mesh.ObjectRef, f *fault) {
	if object.Kind == kindMeshConfig {
		object = mesh.ObjectRef{Kind: kindMeshConfig}
	}
	var last *lack
	for _, l := range j.lacking.Of(keyOf(object)).Get(r).All() {
		if last != nil && last.Field == l.Field && last.At.Class == l.At.Class && last.Feature == l.Feature {
			continue
		}
		last = l
		if l.Feature == featureProxy {
			f.add(ReasonNotSupportedByProxy, l.Field,
				"pods of class %s, such as those of service account %s, run no proxy and serve gRPC only: they refuse all other clients; set the port's appProtocol to grpc if it is for gRPC, or use a class with a proxy",
				l.At.Class, l.At.Account)
			continue
		}
		without := cmp.Or(withoutFeature[l.Feature], "they ignore it, and deny traffic that would be unsafe without it; use a class that has it (docs/drivers.md), or remove it here")
		f.add(ReasonNotSupportedByProxy, l.Field, "proxies of class %s, such as those of service account %s, lack the feature %s: %s", l.At.Class, l.At.Account, l.Feature, without)
	}
}
