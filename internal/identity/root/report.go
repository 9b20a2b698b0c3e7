package root

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// The types of the conditions of a MeshRootCertificate, beside those of package source.
const (
	// ConditionSigning is True while it signs.
	ConditionSigning = "Signing"
	// ConditionTrusted is True while all proxies should trust it, Unknown for the time
	// that they may need to hear of it, and False where it is not trusted.
	ConditionTrusted = "Trusted"
	// ConditionNeeded is True while certificates may be alive that it signed, so that it
	// must not be deleted.
	ConditionNeeded = "Needed"
)

// Report is what was found of all roots.
type Report struct {
	// Verdicts are those of MeshRootCertificates, sorted by name.
	Verdicts []Verdict
	// Problems are those of Secrets.
	Problems []mesh.Problem
	// Signing says in words which root signs, and Trusted how many are trusted.
	Signing string
	Trusted int
	// Overlap are the roots that nobody asks for any more and that are still trusted,
	// because of the certificates that they signed.
	Overlap []Overlap
}

// Overlap is a former root.
type Overlap struct {
	Source, Subject string
	Until           time.Time
}

// Verdict is what was found of one MeshRootCertificate.
type Verdict struct {
	Namespace, Name string
	UID             types.UID
	Generation      int64
	// State is active, passive or error.
	State    string
	Problems []mesh.Problem
	// Conditions are Signing, Trusted and Needed. Their times are not set.
	Conditions []metav1.Condition
}

// tell makes the report, and passes it on if it says something new.
func (r *Roots) tell(roots []*root, s state, now time.Time) {
	report := Report{Signing: s.Signer.Source, Trusted: len(s.Roots)}
	for _, t := range s.Roots {
		if t.Needed.After(now) && !slices.ContainsFunc(roots, func(found *root) bool {
			return found.candidate != nil && slices.Contains(found.candidate.signer.Roots, fingerprint(t.root))
		}) {
			report.Overlap = append(report.Overlap, Overlap{t.Source, t.root.Subject.String(), t.Needed})
		}
	}
	for _, found := range roots {
		var problems []mesh.Problem
		for _, p := range found.problems {
			problems = append(problems, mesh.Problem{Object: r.refOf(found), Reason: p.reason, Field: p.field, Message: p.message})
		}
		slices.SortStableFunc(problems, func(a, b mesh.Problem) int {
			return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Reason, b.Reason))
		})
		if found.object == nil {
			report.Problems = append(report.Problems, problems...)
			continue
		}
		report.Verdicts = append(report.Verdicts, r.verdict(found, problems, s, now))
	}
	slices.SortFunc(report.Verdicts, func(a, b Verdict) int { return cmp.Compare(a.Name, b.Name) })

	r.mu.Lock()
	defer r.mu.Unlock()
	if reflect.DeepEqual(report, r.report) {
		return
	}
	was := r.report.all()
	r.report = report
	for _, p := range report.all() {
		if !slices.Contains(was, p) {
			r.opts.Log.Warn("a root of the mesh", "problem", p.String())
		}
	}
	for _, f := range r.told {
		f(report)
	}
}

// all returns the Problems, sorted by object.
func (r Report) all() []mesh.Problem {
	var all []mesh.Problem
	for _, v := range r.Verdicts {
		all = append(all, v.Problems...)
	}
	return append(all, r.Problems...)
}

func (r *Roots) verdict(found *root, problems []mesh.Problem, s state, now time.Time) Verdict {
	v := Verdict{
		Namespace: found.object.Namespace, Name: found.object.Name,
		UID: found.object.UID, Generation: found.object.Generation,
		State: "passive", Problems: problems,
	}
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		v.Conditions = append(v.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: v.Generation})
	}
	signs := s.Signer.Source == found.source
	var since, needed time.Time
	var trusts int
	for _, t := range s.Roots {
		if t.Source != found.source && (found.candidate == nil || !slices.Contains(found.candidate.signer.Roots, fingerprint(t.root))) {
			continue
		}
		trusts++
		since, needed = latest(since, t.Since), latest(needed, t.Needed)
	}
	switch {
	case signs:
		v.State = "active"
		set(ConditionSigning, metav1.ConditionTrue, "Signing", "new certificates are signed by it")
	case found.candidate == nil:
		v.State = "error"
		set(ConditionSigning, metav1.ConditionFalse, ReasonUnusable, "it cannot be used as it is; see the condition "+source.ConditionAccepted)
	case !found.active:
		set(ConditionSigning, metav1.ConditionFalse, "Passive", "its intent is to be trusted only")
	case slices.ContainsFunc(problems, func(p mesh.Problem) bool { return p.Reason == source.ReasonConflict }):
		set(ConditionSigning, metav1.ConditionFalse, "OlderSigns", "an older one is active too")
	default:
		set(ConditionSigning, metav1.ConditionFalse, "Distributing", "until "+word(since.Add(r.opts.Propagation))+" "+s.Signer.Source+" goes on signing, so that every proxy trusts this one before")
	}
	distributed := since.Add(r.opts.Propagation)
	switch {
	case trusts == 0:
		set(ConditionTrusted, metav1.ConditionFalse, "NotTrusted", "it is not in the trust bundle")
	case now.Before(distributed):
		set(ConditionTrusted, metav1.ConditionUnknown, "Distributing", "it is in the trust bundle, which every proxy has by "+word(distributed))
	default:
		set(ConditionTrusted, metav1.ConditionTrue, "Trusted", "it is in the trust bundle since "+word(since))
	}
	switch {
	case signs:
		set(ConditionNeeded, metav1.ConditionTrue, "Signing", "it signs")
	case needed.After(now):
		set(ConditionNeeded, metav1.ConditionTrue, "CertificatesAlive", "certificates that it signed may be alive until "+word(needed))
	default:
		set(ConditionNeeded, metav1.ConditionFalse, "NoCertificates", "no certificate is alive that it signed")
	}
	return v
}

func word(t time.Time) string { return t.UTC().Format(time.RFC3339) }
