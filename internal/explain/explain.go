// Package explain says in words what the mesh does with one request: which proxy
// calls, which destination and route take it, which endpoints it may reach and in
// what security, and which rule lets it in or why none does.
//
// It reads a Snapshot as drivers read Views, and decides nothing itself: the
// decisions are those that package mesh defines. It imports no driver and nothing
// of Kubernetes.
package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// Verdict is what becomes of a request.
type Verdict string

const (
	// Allowed is a request that reaches an application, or a host outside the mesh,
	// whichever endpoint is chosen.
	Allowed Verdict = "Allowed"
	// Denied is one that a proxy refuses.
	Denied Verdict = "Denied"
	// Unreachable is one for which there is nobody to call.
	Unreachable Verdict = "Unreachable"
	// Mixed is one whose fate depends on the endpoint that is chosen, on the address
	// that a host turns out to have, or on what is asked through a connection.
	Mixed Verdict = "Mixed"
)

// Explanation is the answer to a Question.
type Explanation struct {
	// From, To and Request are the question. Request is empty for a connection.
	From    string `json:"from"`
	To      string `json:"to"`
	Request string `json:"request,omitempty"`

	Verdict Verdict `json:"verdict"`
	// Steps are in the order in which the request passes them.
	Steps []Step `json:"steps"`
	// Problems are those of the objects that have to do with it, and, if it is not
	// Allowed, of those that should have.
	Problems []mesh.Problem `json:"problems,omitempty"`
}

// Step is one thing that happens to the request.
type Step struct {
	// Topic is what it is about, one word: caller, redirection, destination, route,
	// retries, backend, limits, connection, access or egress.
	Topic string `json:"topic"`
	// Text says it in words.
	Text string `json:"text"`
	// Details are its parts or its reasons, a line each.
	Details []string `json:"details,omitempty"`
	// Verdict is set where the step ends the way of the request.
	Verdict Verdict `json:"verdict,omitempty"`
}

// Explain answers the question. The facts are those that the Snapshot was made of,
// for what it leaves out: namespaces and services outside the mesh, and endpoints
// without a sidecar; without them less is known. Policies are the kinds of traffic
// policies, of which a wrong one may be why a request is not allowed. An error means that the question
// names a caller, a target or a port that is not there, and says what is.
func Explain(s *mesh.Snapshot, facts []mesh.Fact, policies []string, q Question) (*Explanation, error) {
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

// inquiry is one answer in the making.
type inquiry struct {
	snapshot     *mesh.Snapshot
	surroundings surroundings
	// request has a host only if a connection is asked for; see asked.
	request mesh.Request
	// err says that the question cannot be answered.
	err      error
	answer   *Explanation
	verdicts []Verdict
	// involved are the objects that the request met, namespace/name, and namespaces
	// those whose rules should have let it pass.
	involved   map[string]bool
	namespaces []string
	// aliases counts the services on the way that stand for another name.
	aliases int
}

// asked returns the request, or nil if the question is about a connection.
func (x *inquiry) asked() *mesh.Request {
	if x.request.Method == "" {
		return nil
	}
	return &x.request
}

// fail says that the question names what is not there.
func (x *inquiry) fail(format string, args ...any) { x.err = fmt.Errorf(format, args...) }

func (x *inquiry) say(topic, text string, details ...string) {
	x.answer.Steps = append(x.answer.Steps, Step{Topic: topic, Text: text, Details: details})
}

// end says the last step of one way that the request may go.
func (x *inquiry) end(v Verdict, topic, text string, details ...string) {
	x.answer.Steps = append(x.answer.Steps, Step{Topic: topic, Text: text, Details: details, Verdict: v})
	x.verdicts = append(x.verdicts, v)
}

func (x *inquiry) involve(names ...string) {
	for _, name := range names {
		x.involved[name] = true
	}
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
		concerned := x.involved[object.Namespace+"/"+object.Name] ||
			x.answer.Verdict != Allowed && slices.Contains(x.namespaces, object.Namespace) && slices.Contains(policies, object.Kind)
		if concerned {
			x.answer.Problems = append(x.answer.Problems, problems.List...)
		}
	}
}

// list joins some of the words, and says how many there are besides.
func list(words []string, most int) string {
	if len(words) <= most {
		return strings.Join(words, ", ")
	}
	return strings.Join(words[:most], ", ") + " and " + count(len(words)-most, "other")
}
