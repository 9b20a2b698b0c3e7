package inject

import "fmt"

// Reason is the code of a decision. Admission warnings, metrics, logs, offline reports
// and docs/injection.md use the same codes.
type Reason string

// Outcome is the result of a decision.
type Outcome string

// The outcomes.
const (
	Inject Outcome = "inject"
	Skip   Outcome = "skip"
	Deny   Outcome = "deny"
)

// Decision is the outcome for a pod and the reason for it.
type Decision struct {
	Outcome Outcome
	Reason  Reason
	// Message is the reason as a sentence, with the names and values that decided.
	Message string
	// Steps are the rules that were evaluated, in order; the last one decided.
	Steps []Step
}

// Step is the evaluation of one rule of the decision table for a pod.
type Step struct {
	// Rule is the rule's name in docs/injection.md.
	Rule string `json:"rule"`
	// Saw is what the rule found.
	Saw string `json:"saw"`
	// Decided says that this rule decided.
	Decided bool `json:"decided"`
}

// Warning is a message to the user about a pod that is admitted.
type Warning struct {
	Code    Reason `json:"code"`
	Message string `json:"message"`
}

// String returns the warning as in an admission response.
func (w Warning) String() string { return fmt.Sprintf("outrigger: %s: %s", w.Code, w.Message) }
