package traffic

import (
	"cmp"
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// Edge is the traffic from one service account to another, or to a service if no pod behind
// it was reached.
type Edge struct {
	// Source and Destination are the ends. The namespace of the Destination is empty if it is
	// outside the mesh, and the service account of an end if it has not shown an identity.
	Source      EdgeEnd `json:"source"`
	Destination EdgeEnd `json:"destination"`
	// Services are the services that were called.
	Services []string `json:"services,omitempty"`
	// Counts are those of the called proxy if it has counted any, and otherwise those of the
	// caller's. Denied is the sum of both, since a request that the caller's proxy denies does
	// not reach the other.
	Counts
	// MutualTLS is the share of requests and connections with mutual TLS, nil if there are
	// none.
	MutualTLS *float64 `json:"mutualTLS,omitempty"`
	// DeniedBySource is how many of the Denied the caller's proxy has denied.
	DeniedBySource float64 `json:"deniedBySource,omitempty"`
}

// EdgeEnd is an end of an Edge.
type EdgeEnd struct {
	Namespace      string `json:"namespace,omitempty"`
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// Workloads are those that have reported the traffic or, if none has, those with the
	// service account, sorted.
	Workloads []string `json:"workloads,omitempty"`
}

// Edges returns who talks to whom, sorted. With a namespace only its edges, and with an object
// only the edges at that object. The counts are rates by second if the report has a period,
// and otherwise sums.
func (r *Report) Edges(namespace string, object *Object) ([]Edge, error) {
	var at *peer
	if object != nil {
		var err error
		if at, err = newPeer(r, *object); err != nil {
			return nil, err
		}
	}
	edges := make(map[edgeKey]*edge)
	for i := range r.Pods {
		pod := &r.Pods[i]
		for j := range pod.Flows {
			f := &pod.Flows[j]
			inNamespace := namespace == "" || f.Source.Namespace == namespace || f.Destination.Namespace == namespace
			if inNamespace && (at == nil || at.is(f.Source) || at.receives(f)) {
				addEdge(edges, pod, f)
			}
		}
	}
	var all []Edge
	workloads := r.workloads()
	for _, e := range edges {
		done := e.finish()
		for _, end := range []*EdgeEnd{&done.Source, &done.Destination} {
			if len(end.Workloads) == 0 {
				end.Workloads = workloads[mesh.Name{Namespace: end.Namespace, Name: end.ServiceAccount}]
			}
		}
		all = append(all, done)
	}
	slices.SortFunc(all, func(a, b Edge) int {
		return cmp.Or(compareEdgeEnds(a.Source, b.Source), compareEdgeEnds(a.Destination, b.Destination), slices.Compare(a.Services, b.Services))
	})
	return all, nil
}

// workloads returns the workloads of each service account, by namespace and name.
func (r *Report) workloads() map[mesh.Name][]string {
	all := make(map[mesh.Name][]string)
	for i := range r.Pods {
		pod := &r.Pods[i]
		account := mesh.Name{Namespace: pod.Namespace, Name: pod.ServiceAccount}
		list := all[account]
		insert(&list, pod.Owner.Name)
		all[account] = list
	}
	return all
}

// edgeKey identifies an Edge. The service is empty if the service account of the destination
// is known.
type edgeKey struct{ sourceNamespace, sourceAccount, namespace, account, service string }

// edge is an Edge while flows are added.
type edge struct {
	Edge
	atSource, atDestination Counts
}

func addEdge(edges map[edgeKey]*edge, pod *Pod, f *Flow) {
	key := edgeKey{f.Source.Namespace, f.Source.ServiceAccount, f.Destination.Namespace, f.Destination.ServiceAccount, ""}
	if key.account == "" {
		key.service = f.Service
	}
	e := edges[key]
	if e == nil {
		e = &edge{Edge: Edge{
			Source:      EdgeEnd{Namespace: key.sourceNamespace, ServiceAccount: key.sourceAccount},
			Destination: EdgeEnd{Namespace: key.namespace, ServiceAccount: key.account},
		}}
		edges[key] = e
	}
	insert(&e.Source.Workloads, f.Source.Workload)
	insert(&e.Destination.Workloads, f.Destination.Workload)
	insert(&e.Services, f.Service)
	factor := 1.0
	if pod.Seconds > 0 {
		factor = 1 / pod.Seconds
	}
	if f.Reporter == telemetry.ReporterSource {
		e.atSource.add(&f.Counts, factor)
	} else {
		e.atDestination.add(&f.Counts, factor)
	}
}

// insert adds a text to a sorted list, unless it is empty or in the list.
func insert(list *[]string, text string) {
	if at, found := slices.BinarySearch(*list, text); text != "" && !found {
		*list = slices.Insert(*list, at, text)
	}
}

func (e *edge) finish() Edge {
	e.Counts = e.atDestination
	if e.Requests+e.Connections == 0 {
		e.Counts = e.atSource
	}
	// Only callers retry.
	e.Retries = e.atSource.Retries
	e.MutualTLS = e.mutual()
	e.DeniedBySource = total(e.atSource.Denied)
	e.Denied = nil
	addTo(&e.Denied, e.atSource.Denied, 1)
	addTo(&e.Denied, e.atDestination.Denied, 1)
	return e.Edge
}

func compareEdgeEnds(a, b EdgeEnd) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.ServiceAccount, b.ServiceAccount), slices.Compare(a.Workloads, b.Workloads))
}
