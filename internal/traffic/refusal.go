package traffic

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// Refusal is what the audited policies of a server would refuse, from one caller and for one
// reason.
type Refusal struct {
	// Source and Destination are the ends. The Source is empty if the caller has shown no
	// identity.
	Source      EdgeEnd `json:"source"`
	Destination EdgeEnd `json:"destination"`
	Protocol    string  `json:"protocol"`
	// Reason is one of telemetry's reasons.
	Reason string `json:"reason"`
	// Count is a rate by second if the report has a period, and otherwise a sum.
	Count float64 `json:"count"`
}

// Refusals returns what the audited policies would refuse, sorted. With a namespace or an
// object, which is not a Service, only at the pods there, and with from only the object's
// requests and connections.
func (r *Report) Refusals(namespace string, object, client *Object) ([]Refusal, error) {
	if object != nil && object.Kind == KindService {
		return nil, fmt.Errorf("%w: the called proxies do not know the Service; name the workload behind it", ErrQuery)
	}
	q := Query{Kind: KindAny, From: client}
	if err := q.Check(); err != nil {
		return nil, err
	}
	var caller *peer
	if client != nil {
		var err error
		if caller, err = newPeer(r, *client); err != nil {
			return nil, err
		}
	}
	if object != nil {
		if _, err := newPeer(r, *object); err != nil {
			return nil, err
		}
	}
	type key struct {
		source           mesh.Name
		server           mesh.Name
		account          string
		protocol, reason string
	}
	sums := make(map[key]float64)
	for i := range r.Pods {
		pod := &r.Pods[i]
		if !isWithin(pod, namespace, object) {
			continue
		}
		factor := 1.0
		if pod.Seconds > 0 {
			factor = 1 / pod.Seconds
		}
		for j := range pod.Flows {
			f := &pod.Flows[j]
			if f.Reporter != telemetry.ReporterDestination || caller != nil && !caller.is(f.Source) {
				continue
			}
			for reason, n := range f.AuditDenied {
				sums[key{
					mesh.Name{Namespace: f.Source.Namespace, Name: f.Source.ServiceAccount},
					mesh.Name{Namespace: pod.Namespace, Name: cmp.Or(pod.Owner.Name, pod.Name.Name)}, pod.ServiceAccount, f.Protocol, reason,
				}] += n * factor
			}
		}
	}
	workloads := r.workloads()
	var all []Refusal
	for k, n := range sums {
		all = append(all, Refusal{
			Source:      EdgeEnd{Namespace: k.source.Namespace, ServiceAccount: k.source.Name, Workloads: workloads[k.source]},
			Destination: EdgeEnd{Namespace: k.server.Namespace, ServiceAccount: k.account, Workloads: []string{k.server.Name}},
			Protocol:    k.protocol, Reason: k.reason, Count: n,
		})
	}
	slices.SortFunc(all, func(a, b Refusal) int {
		return cmp.Or(compareEdgeEnds(a.Destination, b.Destination), compareEdgeEnds(a.Source, b.Source), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Reason, b.Reason))
	})
	return all, nil
}

// Audited returns how many pods of a namespace or an object are audited, those of them whose
// counts are not known, with the Problem, and the pods with a proxy that are not audited.
func (r *Report) Audited(namespace string, object *Object) (audited int, unknown, unaudited []Pod) {
	for i := range r.Pods {
		pod := r.Pods[i]
		if !isWithin(&pod, namespace, object) {
			continue
		}
		if !pod.Audited {
			if !pod.Proxyless {
				unaudited = append(unaudited, pod)
			}
			continue
		}
		audited++
		if pod.CountsAudits {
			continue
		}
		if pod.Read {
			pod.Problem = "its sidecar does not count audits: it is older than this version, so restart its workload, or its class lacks the feature Audit"
		}
		unknown = append(unknown, pod)
	}
	return audited, unknown, unaudited
}

// isWithin reports whether a pod belongs to the object or, without one, to the namespace,
// which may be empty for all.
func isWithin(pod *Pod, namespace string, object *Object) bool {
	if object != nil {
		return object.has(pod)
	}
	return namespace == "" || pod.Namespace == namespace
}
