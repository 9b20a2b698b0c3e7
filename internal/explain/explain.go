// Package explain describes what the mesh does with one request: which proxy sends
// it, which destination and route match, which endpoints it may reach and with which
// transport security, and which rule allows it or why none does.
//
// It reads a Snapshot as drivers read Views and makes no decisions itself: all of
// them are defined by package mesh. It must not import drivers or Kubernetes.
package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/fact"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Verdict is the outcome for a request.
type Verdict string

const (
	// Allowed: the request reaches an application, or a host outside the mesh, whichever
	// endpoint is chosen.
	Allowed Verdict = "Allowed"
	// Denied: a proxy rejects the request.
	Denied Verdict = "Denied"
	// Unreachable: there is no endpoint to call.
	Unreachable Verdict = "Unreachable"
	// Mixed: the outcome depends on the chosen endpoint, on the resolved address of a
	// host, or on the requests sent over a connection.
	Mixed Verdict = "Mixed"
)

// Explanation is the answer to a Question.
type Explanation struct {
	// From, To and Request repeat the question. Request is empty for a connection.
	From    string `json:"from"`
	To      string `json:"to"`
	Request string `json:"request,omitempty"`

	Verdict Verdict `json:"verdict"`
	// Steps are in the order in which the request passes them.
	Steps []Step `json:"steps"`
	// Problems are those of the objects involved. If the request is not Allowed, they
	// include those of policies that might have allowed it.
	Problems []mesh.Problem `json:"problems,omitempty"`
}

// Step is one step on the path of the request.
type Step struct {
	// Topic is one word: caller, redirection, destination, route, retries, rewrite,
	// backend, limits, connection, access or egress.
	Topic string `json:"topic"`
	// Text describes the step.
	Text string `json:"text"`
	// Details are parts of the step or reasons, one per line.
	Details []string `json:"details,omitempty"`
	// Verdict is set if the request's path ends here.
	Verdict Verdict `json:"verdict,omitempty"`
	// Reason is set if a sidecar refuses the request here: the name of the reason in its access
	// log and its metrics, which package telemetry lists.
	Reason string `json:"reason,omitempty"`
}

// Explain answers the question. The facts are those that the Snapshot was made of. They
// add what the Snapshot lacks: namespaces and services outside the mesh, and endpoints
// without a sidecar. Policies are the kinds of traffic policies; an invalid one may be
// the reason why a request is not allowed. Explain returns an error if the question names
// a caller, a target or a port that does not exist; the error lists those that do.
func Explain(s *fact.Snapshot, facts []fact.Fact, policies []string, q Question) (*Explanation, error) {
	x := &inquiry{
		snapshot: s, surroundings: surroundingsOf(facts), request: q.Request, involved: make(map[string]bool),
		answer: &Explanation{From: q.From.String(), To: q.To.String(), Request: strings.TrimSpace(q.Request.Method + " " + q.Request.Path)},
	}
	if caller, ok := x.findCaller(q.From); ok {
		x.callTarget(caller, q.To)
	}
	if x.err != nil {
		return nil, x.err
	}
	x.answer.Verdict = x.verdict()
	x.findProblems(policies)
	return x.answer, nil
}

// inquiry builds one answer.
type inquiry struct {
	snapshot     *fact.Snapshot
	surroundings surroundings
	// request has only a host if the question is about a connection; see asked.
	request mesh.Request
	// err is set if the question can't be answered.
	err      error
	answer   *Explanation
	verdicts []Verdict
	// involved are the objects on the path of the request, as "Kind namespace/name".
	// Namespaces are those whose rules might have allowed it.
	involved   map[string]bool
	namespaces []string
	// aliases counts the ExternalName services on the path.
	aliases int
	// passed are the pods of gateways that the request is passing.
	passed map[string]bool
}

// asked returns the request, or nil if the question is about a connection.
func (x *inquiry) asked() *mesh.Request {
	if x.request.Method == "" {
		return nil
	}
	return &x.request
}

// fail reports that the question names something that does not exist.
func (x *inquiry) fail(format string, args ...any) { x.err = fmt.Errorf(format, args...) }

func (x *inquiry) say(topic, text string, details ...string) {
	x.answer.Steps = append(x.answer.Steps, Step{Topic: topic, Text: text, Details: details})
}

// end adds the last step of a possible path of the request.
func (x *inquiry) end(v Verdict, topic, text string, details ...string) {
	x.answer.Steps = append(x.answer.Steps, Step{Topic: topic, Text: text, Details: details, Verdict: v})
	x.verdicts = append(x.verdicts, v)
}

// refuse is end for a request that a sidecar refuses.
func (x *inquiry) refuse(v Verdict, reason, topic, text string, details ...string) {
	x.end(v, topic, text, details...)
	x.answer.Steps[len(x.answer.Steps)-1].Reason = reason
}

// involve adds objects to those on the path of the request.
func (x *inquiry) involve(objects ...mesh.ObjectRef) {
	for _, object := range objects {
		x.involved[object.String()] = true
	}
}

// involveName adds an object that the question or the path names.
func (x *inquiry) involveName(kind string, name mesh.Name) {
	x.involve(mesh.ObjectRef{Kind: kind, Namespace: name.Namespace, Name: name.Name})
}

func (x *inquiry) verdict() Verdict {
	if len(x.verdicts) == 0 {
		return Unreachable
	}
	for _, v := range x.verdicts[1:] {
		if v != x.verdicts[0] {
			return Mixed
		}
	}
	return x.verdicts[0]
}

func (x *inquiry) findProblems(policies []string) {
	for _, key := range x.snapshot.Problems.Names() {
		problems, _ := x.snapshot.Problems.Get(key)
		object := problems.Object
		concerned := x.involved[object.String()] ||
			x.answer.Verdict != Allowed && slices.Contains(x.namespaces, object.Namespace) && slices.Contains(policies, object.Kind)
		if concerned {
			x.answer.Problems = append(x.answer.Problems, problems.List...)
		}
	}
}

// list joins the first words and counts the rest.
func list(words []string, most int) string {
	if len(words) <= most {
		return strings.Join(words, ", ")
	}
	return strings.Join(words[:most], ", ") + " and " + count(len(words)-most, "other")
}
