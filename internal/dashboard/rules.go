package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/explain"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// rules finds out which rule refuses the requests of an edge. Answers are kept for a short
// time, because the page asks every few seconds.
type rules struct {
	ask Ask
	mu  sync.Mutex
	// known are the answers by question.
	known map[question]rule
}

type question struct{ from, to string }

type rule struct {
	allowed bool
	text    []string
	until   time.Time
}

// ruleLife is how long an answer is kept.
const ruleLife = 10 * time.Second

func newRules(ask Ask) *rules { return &rules{ask: ask, known: make(map[question]rule)} }

// explain adds the Rule to each edge that is refused.
func (r *rules) explain(ctx context.Context, edges []Edge, shown *Mesh) []Edge {
	for i := range edges {
		e := &edges[i]
		if e.Refused == 0 {
			continue
		}
		from, to := accountOf(shown, e.Client), cmp.Or(e.Service, podOf(shown, e.Server))
		meaning, decided := meaningOf(e.Reason)
		switch {
		case !decided:
			e.Rule = []string{meaning}
		case from == "":
			e.Rule = []string{"The caller is not known: it has no identity in the mesh."}
		case to == "":
			e.Rule = r.findAny(ctx, from, shown.Services)
		default:
			e.Rule = r.find(ctx, question{from, to}).text
		}
	}
	return edges
}

// meaningOf returns what a reason means, and whether a rule decided it, or the lack of one.
func meaningOf(reason string) (meaning string, decided bool) {
	for _, known := range telemetry.Reasons() {
		if known.Name == reason {
			meaning = known.Meaning
		}
	}
	return meaning, meaning == "" || slices.Contains([]string{telemetry.ReasonAccess, telemetry.ReasonEgress, telemetry.ReasonNoRoute}, reason)
}

// find returns why the mesh refuses what the question is about.
func (r *rules) find(ctx context.Context, q question) rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for known, rule := range r.known {
		if rule.until.Before(now) {
			delete(r.known, known)
		}
	}
	if known, ok := r.known[q]; ok {
		return known
	}
	found := r.explained(ctx, q)
	found.until = now.Add(ruleLife)
	r.known[q] = found
	return found
}

func (r *rules) explained(ctx context.Context, q question) rule {
	answer, err := explained(ctx, r.ask, q.from, q.to, "", "")
	if err != nil {
		return rule{text: strings.Split(err.Error(), "\n")}
	}
	var explanation explain.Explanation
	if err := json.Unmarshal(answer, &explanation); err != nil {
		return rule{text: []string{err.Error()}}
	}
	text := []string{}
	for _, step := range explanation.Steps {
		if step.Verdict != "" && step.Verdict != explain.Allowed {
			text = append(text, step.Text)
		}
		if step.Topic == "destination" || step.Topic == "route" || step.Topic == "access" || step.Topic == "egress" {
			text = append(text, step.Details...)
		}
	}
	if explanation.Verdict == explain.Allowed || len(text) == 0 {
		return rule{allowed: true, text: []string{"The policies allow calls from " + q.from + " to " + q.to + " now. They were refused before, or for what the requests contain."}}
	}
	return rule{text: text}
}

// maxAny is for how many services findAny asks.
const maxAny = 5

// findAny says why a client's own sidecar closes connections. The sidecar does not know the
// services that the client may not call, so these are the ones that could have been meant.
func (r *rules) findAny(ctx context.Context, caller string, services []Service) []string {
	text := []string{"Its own sidecar closes connections to what no rule lets " + caller + " call."}
	asked := 0
	for _, s := range services {
		if asked == maxAny {
			return append(text, "There are more services that it may not call.")
		}
		rule := r.find(ctx, question{caller, s.ID})
		if !rule.allowed {
			asked++
			text = append(append(text, s.ID+":"), rule.text...)
		}
	}
	return text
}

// accountOf returns namespace/name of the service account of a workload.
func accountOf(shown *Mesh, id string) string {
	for i := range shown.Workloads {
		if w := &shown.Workloads[i]; w.ID == id {
			return w.Namespace + "/" + w.ServiceAccount
		}
	}
	return ""
}

// podOf returns namespace/name of a pod of a workload.
func podOf(shown *Mesh, id string) string {
	for i := range shown.Workloads {
		if w := &shown.Workloads[i]; w.ID == id && len(w.Pods) > 0 {
			return w.Namespace + "/" + w.Pods[0].Name
		}
	}
	return ""
}
