package inject

import "fmt"

// Reason is the code of a decision: the same word in the admission warning, the
// metric's label, the log, the offline report and docs/injection.md.
type Reason string

// Outcome is what a decision comes to.
type Outcome string

// The outcomes.
const (
	Inject Outcome = "inject"
	Skip   Outcome = "skip"
	Deny   Outcome = "deny"
)

// Decision says what happens to a pod and why.
type Decision struct {
	Outcome Outcome
	Reason  Reason
	// Message is the reason in a sentence, with the names and values that
	// decided.
	Message string
	// Steps are the rules that were looked at, in order; the last one decided.
	Steps []Step
}

// Step is one rule of the decision table as it applied to a pod.
type Step struct {
	// Rule is the rule's name in docs/injection.md.
	Rule string `json:"rule"`
	// Saw is what the rule looked at and found.
	Saw string `json:"saw"`
	// Decided says that this rule ended the search.
	Decided bool `json:"decided"`
}

// Warning is something that the user should know.
type Warning struct {
	Code    Reason `json:"code"`
	Message string `json:"message"`
}

// String returns the warning as it stands in an admission answer.
func (w Warning) String() string { return fmt.Sprintf("outrigger: %s: %s", w.Code, w.Message) }
