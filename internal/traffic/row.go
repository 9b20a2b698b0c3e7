package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// Query selects the Rows of a Report.
type Query struct {
	// Kind is the kind of the objects, each of which has a Row.
	Kind string
	// Namespace is their namespace; empty means all.
	Namespace string
	// Names are their names; empty means all.
	Names []string
	// To, if set, asks for what the objects send to another one, and From for what they
	// receive from another one. Without them, Rows have all that the objects receive.
	To, From *Object
}

// Row is the traffic of an object.
type Row struct {
	Object
	// Pods is how many pods with a sidecar it has, and Read how many of them were read. Both
	// are 0 for a Service, which its callers' proxies count.
	Pods int `json:"pods,omitempty"`
	Read int `json:"read,omitempty"`
	// Classes are the classes of its pods' sidecars or, for a Service, its callers'.
	Classes []string `json:"classes,omitempty"`
	// PerSecond has the rates.
	PerSecond Counts `json:"perSecond"`
	// Success is the share of requests that did not fail, and MutualTLS the share of requests
	// and connections with mutual TLS. They are nil without requests.
	Success   *float64 `json:"success,omitempty"`
	MutualTLS *float64 `json:"mutualTLS,omitempty"`
	// P50, P95 and P99 are quantiles of durations in seconds, nil without any.
	P50 *float64 `json:"p50Seconds,omitempty"`
	P95 *float64 `json:"p95Seconds,omitempty"`
	P99 *float64 `json:"p99Seconds,omitempty"`
}

// ErrQuery is the error of a Query that nobody can answer.
var ErrQuery = errors.New("this can't be answered")

// Check returns an ErrQuery if proxies do not count what the Query asks for.
func (q *Query) Check() error {
	switch {
	case q.To != nil && q.From != nil:
		return fmt.Errorf("%w: give either --to or --from", ErrQuery)
	case q.Kind == KindService && q.To != nil:
		return fmt.Errorf("%w: a Service sends no requests; ask for the workload behind it", ErrQuery)
	case q.From != nil && q.From.Kind == KindService:
		return fmt.Errorf("%w: a Service sends no requests; name the workload behind it", ErrQuery)
	case q.To != nil && q.To.Kind == KindPod:
		return fmt.Errorf("%w: callers do not count by pod; ask for the pod with --from, or name its workload", ErrQuery)
	case q.Kind != KindService && q.From != nil && q.From.Kind == KindPod:
		return fmt.Errorf("%w: the called proxies see only the service account of the caller's pod; name its workload", ErrQuery)
	}
	return nil
}

// selects reports whether the Query asks for an object.
func (q *Query) selects(object Object) bool {
	namespace := object.Namespace
	if object.Kind == KindNamespace {
		namespace = object.Name
	}
	return object.Name != "" && (q.Namespace == "" || namespace == q.Namespace) &&
		(len(q.Names) == 0 || slices.Contains(q.Names, object.Name))
}

// Unread returns the pods whose numbers are missing in the Rows of a Query, because their
// proxies could not be read.
func (r *Report) Unread(q *Query) []Pod {
	var unread []Pod
	for _, pod := range r.Pods {
		if pod.Problem != "" && (q.Kind == KindService || q.selects(objectOf(&pod, q.Kind))) {
			unread = append(unread, pod)
		}
	}
	return unread
}

// Rows returns the Rows that a Query asks for, sorted by namespace and name, and notes about
// what the numbers contain. Objects without traffic have a Row, too.
func (r *Report) Rows(q *Query) (rows []Row, notes []string, err error) {
	if err := q.Check(); err != nil {
		return nil, nil, err
	}
	t := &table{query: q, rows: make(map[Object]*Row)}
	if of := cmp.Or(q.To, q.From); of != nil {
		if t.other, err = newPeer(r, *of); err != nil {
			return nil, nil, err
		}
	}
	if q.Kind == KindService {
		t.addServices(r)
	} else {
		t.addPods(r)
		if t.other != nil {
			if note := t.other.shared(r); note != "" {
				notes = append(notes, note)
			}
		}
	}
	if err := t.missing(); err != nil {
		return nil, nil, err
	}
	for _, row := range t.rows {
		row.finish()
		rows = append(rows, *row)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return rows, notes, nil
}

// table is what Rows builds.
type table struct {
	query *Query
	other *peer
	rows  map[Object]*Row
}

// row returns the Row of an object, or nil if the Query does not ask for it.
func (t *table) row(object Object) *Row {
	if !t.query.selects(object) {
		return nil
	}
	if t.rows[object] == nil {
		t.rows[object] = &Row{Object: object}
	}
	return t.rows[object]
}

// missing returns an error for names without a Row.
func (t *table) missing() error {
	var errs []error
	for _, name := range t.query.Names {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(t.rows)), func(o Object) bool { return o.Name == name }) {
			object := Object{Kind: t.query.Kind, Namespace: t.query.Namespace, Name: name}
			if object.Kind == KindService {
				errs = append(errs, fmt.Errorf("there is no %s in the mesh", object))
			} else {
				errs = append(errs, unknown(object))
			}
		}
	}
	return errors.Join(errs...)
}

// addPods adds the pods of objects that are not Services, with what their own proxies have
// counted.
func (t *table) addPods(r *Report) {
	for i := range r.Pods {
		pod := &r.Pods[i]
		row := t.row(objectOf(pod, t.query.Kind))
		if row == nil {
			continue
		}
		row.Pods++
		if pod.Read {
			row.Read++
		}
		for j := range pod.Flows {
			if t.wants(&pod.Flows[j]) {
				row.add(pod, &pod.Flows[j])
			}
		}
		insert(&row.Classes, pod.Class)
	}
}

// objectOf returns the object of a kind that a pod belongs to. It has no name if there is none.
func objectOf(pod *Pod, kind string) Object {
	switch {
	case kind == KindNamespace:
		return Object{Kind: kind, Name: pod.Namespace}
	case kind == KindPod:
		return Object{kind, pod.Namespace, pod.Name.Name}
	case pod.Owner.Name == "":
		if kind == KindAny {
			return Object{KindPod, pod.Namespace, pod.Name.Name}
		}
		return Object{}
	case kind == KindAny:
		return Object{cmp.Or(pod.Owner.Kind, "workload"), pod.Namespace, pod.Owner.Name}
	case pod.Owner.Kind == kind || pod.Owner.Kind == "":
		return Object{kind, pod.Namespace, pod.Owner.Name}
	}
	return Object{}
}

// wants reports whether a flow of the object's own proxies counts.
func (t *table) wants(f *Flow) bool {
	switch {
	case t.query.To != nil:
		return f.Reporter == telemetry.ReporterSource && t.other.receives(f)
	case t.query.From != nil:
		return f.Reporter == telemetry.ReporterDestination && t.other.is(f.Source)
	}
	return f.Reporter == telemetry.ReporterDestination
}

// addServices adds the Services, with what the proxies of their callers have counted.
func (t *table) addServices(r *Report) {
	for _, name := range r.Services {
		t.row(Object{KindService, name.Namespace, name.Name})
	}
	for i := range r.Pods {
		pod := &r.Pods[i]
		if t.other != nil && !t.other.object.has(pod) {
			continue
		}
		for j := range pod.Flows {
			f := &pod.Flows[j]
			name := mesh.Name{Namespace: f.Destination.Namespace, Name: f.Service}
			if f.Reporter != telemetry.ReporterSource || !r.hasService(name) {
				continue
			}
			if row := t.row(Object{KindService, name.Namespace, name.Name}); row != nil {
				row.add(pod, f)
				insert(&row.Classes, pod.Class)
			}
		}
	}
}

func (r *Report) hasService(name mesh.Name) bool {
	_, found := slices.BinarySearchFunc(r.Services, name, mesh.Name.Compare)
	return found
}

func (row *Row) add(pod *Pod, f *Flow) {
	if pod.Seconds > 0 {
		row.PerSecond.add(&f.Counts, 1/pod.Seconds)
	}
}

// finish computes shares and quantiles from the rates.
func (row *Row) finish() {
	c := &row.PerSecond
	if c.Requests > 0 {
		row.Success = new(1 - c.Failed/c.Requests)
	}
	row.MutualTLS = c.mutual()
	row.P50, row.P95, row.P99 = c.Durations.Quantile(0.5), c.Durations.Quantile(0.95), c.Durations.Quantile(0.99)
}

// mutual returns the share with mutual TLS, or nil if there is nothing.
func (c *Counts) mutual() *float64 {
	all := total(c.TLS)
	if all == 0 {
		return nil
	}
	return new(c.TLS[telemetry.MutualTLS] / all)
}

// SortByRate sorts rows by their requests and connections per second, the highest first.
func SortByRate(rows []Row) {
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Compare(b.PerSecond.Requests+b.PerSecond.Connections, a.PerSecond.Requests+a.PerSecond.Connections)
	})
}
