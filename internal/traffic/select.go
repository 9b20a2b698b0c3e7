package traffic

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// The kinds of objects that Rows can be about, beside those of workloads, such as
// "deployment".
const (
	KindNamespace = "namespace"
	KindService   = "service"
	KindPod       = "pod"
	// KindAny means workloads of all kinds.
	KindAny = "all"
)

// Object is an object of a mesh.
type Object struct {
	Kind string `json:"kind"`
	// Namespace is empty for a namespace.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String returns the object as messages name it.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// has reports whether a pod belongs to the object, which is not a Service.
func (o Object) has(pod *Pod) bool {
	switch o.Kind {
	case KindNamespace:
		return pod.Namespace == o.Name
	case KindPod:
		return pod.Namespace == o.Namespace && pod.Name.Name == o.Name
	}
	kind := pod.Owner.Kind
	return pod.Namespace == o.Namespace && pod.Owner.Name == o.Name && (kind == o.Kind || kind == "" || o.Kind == KindAny)
}

// peer finds an object among the other ends of flows. They name the service accounts of
// those, from verified certificates, but not always their workloads.
type peer struct {
	object   Object
	accounts map[string]bool
}

// newPeer returns the peer for an object of the report.
func newPeer(r *Report, object Object) (*peer, error) {
	p := &peer{object: object, accounts: make(map[string]bool)}
	if object.Kind == KindService {
		if !r.hasService(mesh.Name{Namespace: object.Namespace, Name: object.Name}) {
			return nil, fmt.Errorf("there is no %s in the mesh", object)
		}
		return p, nil
	}
	for i := range r.Pods {
		if pod := &r.Pods[i]; object.has(pod) {
			p.accounts[pod.ServiceAccount] = true
		}
	}
	if len(p.accounts) == 0 {
		return nil, unknown(object)
	}
	return p, nil
}

func unknown(object Object) error {
	if object.Kind == KindNamespace {
		return fmt.Errorf("namespace %s has no pod with a sidecar", object.Name)
	}
	return fmt.Errorf("there is no %s with a sidecar", object)
}

// receives reports whether the object is the destination of a flow that its source reports.
func (p *peer) receives(f *Flow) bool {
	if p.object.Kind == KindService {
		return f.Destination.Namespace == p.object.Namespace && f.Service == p.object.Name
	}
	return p.is(f.Destination)
}

// is reports whether an end belongs to the object.
func (p *peer) is(end End) bool {
	switch {
	case p.object.Kind == KindNamespace:
		return end.Namespace == p.object.Name
	case end.Namespace != p.object.Namespace:
		return false
	case end.Workload != "":
		return end.Workload == p.object.Name
	}
	return end.ServiceAccount != "" && p.accounts[end.ServiceAccount]
}

// shared returns a note if other workloads run as the service account of the object, since
// their traffic can't be told apart. It returns "" if there are none.
func (p *peer) shared(r *Report) string {
	if p.object.Kind == KindService || p.object.Kind == KindNamespace {
		return ""
	}
	others := make(map[string]bool)
	for i := range r.Pods {
		pod := &r.Pods[i]
		if pod.Namespace == p.object.Namespace && p.accounts[pod.ServiceAccount] && !p.object.has(pod) {
			others[nameOf(pod)] = true
		}
	}
	if len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("the numbers include %s: it has the same service account as %s, and other proxies see only the service account",
		strings.Join(slices.Sorted(maps.Keys(others)), ", "), p.object)
}

// nameOf returns the name of a pod's workload, or the pod's own.
func nameOf(pod *Pod) string {
	if pod.Owner.Name != "" {
		return pod.Owner.Kind + "/" + pod.Owner.Name
	}
	return "pod/" + pod.Name.Name
}
