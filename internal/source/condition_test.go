package source_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

func TestConditions(t *testing.T) {
	monday := metav1.NewTime(time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC))
	tuesday := metav1.NewTime(monday.Add(24 * time.Hour))
	other := metav1.Condition{Type: "Other", Status: metav1.ConditionTrue, Reason: "Foreign", LastTransitionTime: monday}

	clean := source.Conditions([]metav1.Condition{other}, nil, 1, monday)
	want := []metav1.Condition{
		other,
		{Type: "Accepted", Status: "True", Reason: "Accepted", Message: "every value can be used", ObservedGeneration: 1, LastTransitionTime: monday},
		{Type: "Degraded", Status: "False", Reason: "NotDegraded", Message: "nothing is turned off that protects the mesh", ObservedGeneration: 1, LastTransitionTime: monday},
		{Type: "NoEffect", Status: "False", Reason: "AllInEffect", Message: "no field is set in vain", ObservedGeneration: 1, LastTransitionTime: monday},
	}
	if diff := cmp.Diff(want, clean); diff != "" {
		t.Errorf("without Problems (-want +got):\n%s", diff)
	}

	problems := []mesh.Problem{
		{Reason: "UnknownClass", Field: "spec.b", Message: "no such\nclass"},
		{Reason: "Invalid", Field: "spec.a", Message: "bad"},
		{Reason: "NoEffect", Field: "spec.d", Message: "later"},
		{Reason: "NoEffect", Field: "spec.c", Message: "never"},
		{Reason: "Conflict", Message: "not of one field"},
		{Reason: "NoEffect", Field: "spec.e", Message: "later"},
	}
	got := source.Conditions(clean, problems, 2, tuesday)
	want = []metav1.Condition{
		other,
		{Type: "Accepted", Status: "False", Reason: "Invalid,UnknownClass", Message: "spec.a: bad\nspec.b: no such class", ObservedGeneration: 2, LastTransitionTime: tuesday},
		{Type: "Degraded", Status: "False", Reason: "NotDegraded", Message: "nothing is turned off that protects the mesh", ObservedGeneration: 2, LastTransitionTime: monday},
		{Type: "NoEffect", Status: "True", Reason: "Conflict,NoEffect", Message: "not of one field\nspec.c: never\nspec.d: later\nspec.e: later", ObservedGeneration: 2, LastTransitionTime: tuesday},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("with Problems (-want +got):\n%s", diff)
	}
	for _, p := range problems {
		if !source.Reported(got, p) || source.Reported(clean, p) {
			t.Errorf("Reported of %v: %v with it and %v without", p, source.Reported(got, p), source.Reported(clean, p))
		}
	}

	advised := source.Conditions(clean, []mesh.Problem{{Reason: "Advice", Field: "spec.g", Message: "better so"}}, 3, monday)
	if c := meta.FindStatusCondition(advised, "Advised"); c == nil || c.Status != "True" || !meta.IsStatusConditionTrue(advised, "Accepted") {
		t.Errorf("with advice: %+v", advised)
	}
	if c := meta.FindStatusCondition(source.Conditions(advised, nil, 4, monday), "Advised"); c != nil {
		t.Errorf("with the advice followed: %+v", c)
	}

	degraded := source.Conditions(got, []mesh.Problem{{Reason: "MTLSDisabled", Field: "spec.f", Message: "off"}}, 3, monday)
	if c := meta.FindStatusCondition(degraded, "Degraded"); c.Status != "True" || c.Reason != "MTLSDisabled" {
		t.Errorf("with mesh TLS off: %+v", c)
	}
}

func TestConditionMessageIsBounded(t *testing.T) {
	var problems []mesh.Problem
	for i := range 1000 {
		problems = append(problems, mesh.Problem{Reason: "Invalid", Field: fmt.Sprintf("spec.f[%03d]", i), Message: strings.Repeat("ä", 50)})
	}
	for _, last := range []string{"", strings.Repeat("x", 100_000)} {
		got := source.Conditions(nil, append(problems, mesh.Problem{Reason: "Invalid", Message: last}), 1, metav1.Now())
		message := got[0].Message
		if len(message) > 32768 {
			t.Errorf("the message has %d bytes", len(message))
		}
		lines := strings.Split(message, "\n")
		if want := fmt.Sprintf("and %d more", 1001-(len(lines)-1)); lines[len(lines)-1] != want {
			t.Errorf("the last line is %q, want %q", lines[len(lines)-1], want)
		}
		if !source.Reported(got, problems[0]) || source.Reported(got, problems[999]) {
			t.Error("the message lacks the first Problems, or has the last ones")
		}
	}
}
