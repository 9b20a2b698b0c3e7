// Package classmove moves the pods of a mesh from one sidecar class to another: it changes what
// decides the class of new pods, has the controllers of the workloads replace their pods, watches
// the traffic meanwhile, goes back if it gets worse, and asks every pod at the end.
//
// What to do next is decided by pure functions and types: PlanOf, Machine and Judge. Run connects
// them to a cluster. The package knows no driver and no flags.
package classmove

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/apis/config/v1alpha2"
)

// Move is what is to be done.
type Move struct {
	// From and To are the names of classes, in lower case.
	From string `json:"from"`
	To   string `json:"to"`
	// Namespaces limit the move; empty means the whole mesh, and its default class.
	Namespaces []string `json:"namespaces,omitempty"`
}

// Key identifies a workload. Its kind is in lower case, as in kubectl's deployment/web.
type Key struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
}

// String returns the key as messages name it.
func (k Key) String() string { return k.Kind + " " + k.Namespace + "/" + k.Name }

func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.Name, other.Name))
}

// Decision is what injection would do with a pod.
type Decision struct {
	// Class is the class of its sidecar, empty if it gets none, and Image the sidecar's image.
	Class, Image string
	// Denied reports whether the pod would not be created at all.
	Denied bool
	// Reason is a sentence.
	Reason string
}

// Decide returns what injection would do with a pod of one of the namespaces.
type Decide func(pod *corev1.Pod) Decision

// Deciding returns the Decide of a MeshConfig, which may be nil, and of namespaces.
type Deciding func(*v1alpha2.MeshConfig, []corev1.Namespace) (Decide, error)

// Limits are how much worse the traffic may get, and how patient the move is.
type Limits struct {
	// Pace is how many workloads are replaced at a time, after the first one alone.
	Pace int
	// Patience is how long a workload may take without any progress.
	Patience time.Duration
	// Failed is by how much the share of failed requests may rise, from 0 to 1.
	Failed float64
	// Slower is how many times the former p95 requests may take.
	Slower float64
}
