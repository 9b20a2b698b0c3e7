package classmove

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Outcome is how a move has ended.
type Outcome string

const (
	// Planned: it was only planned.
	Planned Outcome = "planned"
	// Refused: nothing was changed, because the other class lacks what policies ask for.
	Refused Outcome = "refused"
	// Complete: no pod of the move has the former class.
	Complete Outcome = "moved"
	// Partly: some pods have the former class, or it is not known of all that they do not.
	Partly Outcome = "partly"
	// WentBack: the traffic got worse, and everything was changed back.
	WentBack Outcome = "went back"
	// Interrupted: it was ended before it was complete. The same move continues it.
	Interrupted Outcome = "interrupted"
)

// Result is what a move has done.
type Result struct {
	Move
	Outcome Outcome `json:"outcome"`
	// Reason is a sentence, empty if the move was complete.
	Reason string `json:"reason,omitempty"`
	// Lacks are the Problems that the other class causes.
	Lacks []mesh.Problem `json:"lacks,omitempty"`
	// Changes are the changes of MeshConfig and namespaces.
	Changes   []Change         `json:"changes,omitempty"`
	Workloads []WorkloadResult `json:"workloads,omitempty"`
	// Left are workloads and pods that are not touched, and Namespaces those that keep the
	// former class or went back to it.
	Left       []Left     `json:"left,omitempty"`
	Namespaces []Left     `json:"keptNamespaces,omitempty"`
	Measured   []Measured `json:"measured,omitempty"`
	Proof      *Proof     `json:"proof,omitempty"`
}

// WorkloadResult is what has become of a workload.
type WorkloadResult struct {
	Key
	Pods  int    `json:"pods"`
	Image string `json:"image,omitempty"`
	State State  `json:"state"`
	// Reason says what the workload waits for, if it has not moved.
	Reason string `json:"reason,omitempty"`
}

// IsComplete reports whether no pod has the former class, as far as the move was to change that.
func (r *Result) IsComplete() bool { return r.Outcome == Complete || r.Outcome == Planned }

// sort sorts what has no order of its own.
func (r *Result) sort() {
	slices.SortFunc(r.Workloads, func(a, b WorkloadResult) int { return a.compare(b.Key) })
	for _, list := range [][]Left{r.Left, r.Namespaces} {
		slices.SortFunc(list, func(a, b Left) int {
			switch {
			case a.Object < b.Object:
				return -1
			case a.Object > b.Object:
				return 1
			}
			return 0
		})
	}
}
