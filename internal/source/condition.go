package source

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// The types of the conditions that Problems become.
const (
	// ConditionAccepted is False if part of the object is invalid.
	ConditionAccepted = "Accepted"
	// ConditionDegraded is True if the object reduces the mesh's security.
	ConditionDegraded = "Degraded"
	// ConditionNoEffect is True if fields are set that have no effect.
	ConditionNoEffect = "NoEffect"
	// ConditionAdvised is True while there is advice about a valid object, and absent
	// otherwise.
	ConditionAdvised = "Advised"
)

// maxMessage is the API server's limit for the message of a condition, in bytes.
const maxMessage = 32768

// Conditions returns the conditions of an object with these Problems: Accepted, Degraded
// and NoEffect always, and Advised while there is advice. Existing conditions of other
// types are kept. A condition's reason lists the reasons of its Problems, and its message
// has one line for each Problem; both are sorted. If lines don't fit, the last line says
// how many are missing. LastTransitionTime is kept if the status does not change,
// otherwise it is now.
func Conditions(existing []metav1.Condition, problems []mesh.Problem, generation int64, now metav1.Time) []metav1.Condition {
	byType := make(map[string][]mesh.Problem)
	for _, p := range problems {
		byType[conditionType(p.Reason)] = append(byType[conditionType(p.Reason)], p)
	}
	conditions := slices.Clone(existing)
	set := func(kind string, found, none metav1.ConditionStatus, noneReason, noneMessage string) {
		condition := metav1.Condition{
			Type: kind, Status: none, Reason: noneReason, Message: noneMessage,
			ObservedGeneration: generation, LastTransitionTime: now,
		}
		if of := byType[kind]; len(of) > 0 {
			condition.Status, condition.Reason, condition.Message = found, reasons(of), message(of)
		}
		meta.SetStatusCondition(&conditions, condition)
	}
	set(ConditionAccepted, metav1.ConditionFalse, metav1.ConditionTrue, "Accepted", "every value can be used")
	set(ConditionDegraded, metav1.ConditionTrue, metav1.ConditionFalse, "NotDegraded", "nothing is turned off that protects the mesh")
	set(ConditionNoEffect, metav1.ConditionTrue, metav1.ConditionFalse, "AllInEffect", "no field is set in vain")
	if len(byType[ConditionAdvised]) > 0 {
		set(ConditionAdvised, metav1.ConditionTrue, metav1.ConditionFalse, "", "")
	} else {
		meta.RemoveStatusCondition(&conditions, ConditionAdvised)
	}
	return conditions
}

// Reported reports whether conditions made by Conditions include the Problem.
func Reported(conditions []metav1.Condition, p mesh.Problem) bool {
	condition := meta.FindStatusCondition(conditions, conditionType(p.Reason))
	return condition != nil && slices.Contains(strings.Split(condition.Message, "\n"), line(p))
}

func conditionType(reason string) string {
	switch reason {
	case ReasonMTLSDisabled:
		return ConditionDegraded
	case ReasonNoEffect, ReasonConflict:
		return ConditionNoEffect
	case mesh.ReasonAdvice:
		return ConditionAdvised
	default:
		return ConditionAccepted
	}
}

func line(p mesh.Problem) string {
	text := p.Message
	if p.Field != "" {
		text = p.Field + ": " + text
	}
	return strings.ReplaceAll(text, "\n", " ")
}

func reasons(problems []mesh.Problem) string {
	var all []string
	for _, p := range problems {
		all = append(all, p.Reason)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

func message(problems []mesh.Problem) string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, line(p))
	}
	slices.Sort(lines)
	all := strings.Join(lines, "\n")
	if len(all) <= maxMessage {
		return all
	}
	const more = "and %d more"
	limit := maxMessage - len(more) - 20
	var b strings.Builder
	for i, l := range lines {
		if b.Len()+len(l)+1 > limit {
			fmt.Fprintf(&b, more, len(lines)-i)
			break
		}
		b.WriteString(l + "\n")
	}
	return b.String()
}
