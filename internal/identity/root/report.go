package root

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/outrigger-mesh/outrigger/internal/pki"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Types of a MeshRootCertificate's conditions, in addition to those of package source.
const (
	// conditionSigning is True while it signs.
	conditionSigning = "Signing"
	// conditionTrusted is True while all proxies should trust it, Unknown while some may not
	// have received it yet, and False while it is not trusted.
	conditionTrusted = "Trusted"
	// conditionNeeded is True while certificates that it signed may be valid, so that it
	// must not be deleted.
	conditionNeeded = "Needed"
)

// Report is the state of all roots.
type Report struct {
	// Verdicts are those of MeshRootCertificates, sorted by name.
	Verdicts []Verdict
	// Problems are those of Secrets.
	Problems []mesh.Problem
	// Signing describes the signing root; Trusted is the number of trusted roots.
	Signing string
	Trusted int
	// Overlap are the roots that are no longer desired but still trusted, because of the
	// certificates that they signed.
	Overlap []Overlap
}

// Overlap is a former root.
type Overlap struct {
	Source, Subject string
	Until           time.Time
}

// Verdict is the state of one MeshRootCertificate.
type Verdict struct {
	Namespace, Name string
	UID             types.UID
	Generation      int64
	// State is active, passive or error.
	State    string
	Problems []mesh.Problem
	// Conditions are Signing, Trusted and Needed, without transition times.
	Conditions []metav1.Condition
}

// updateReport creates the report. If it has changed, it logs new problems and notifies the
// observers.
func (r *Roots) updateReport(roots []*rootSource, s state, now time.Time) {
	report := Report{Signing: s.Signer.Source, Trusted: len(s.Roots)}
	for _, t := range s.Roots {
		if t.Needed.After(now) && !slices.ContainsFunc(roots, func(found *rootSource) bool {
			return found.candidate != nil && slices.Contains(found.candidate.signer.Roots, pki.Fingerprint(t.root))
		}) {
			report.Overlap = append(report.Overlap, Overlap{t.Source, t.root.Subject.String(), t.Needed})
		}
	}
	for _, found := range roots {
		var problems []mesh.Problem
		for _, p := range found.problems {
			problems = append(problems, mesh.Problem{Object: r.objectRef(found), Reason: p.reason, Field: p.field, Message: p.message})
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
			r.opts.Log.Warn("problem with a root of the mesh", "problem", p.String())
		}
	}
	for _, f := range r.observers {
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

func (r *Roots) verdict(found *rootSource, problems []mesh.Problem, s state, now time.Time) Verdict {
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
		if t.Source != found.source && (found.candidate == nil || !slices.Contains(found.candidate.signer.Roots, pki.Fingerprint(t.root))) {
			continue
		}
		trusts++
		since, needed = latest(since, t.Since), latest(needed, t.Needed)
	}
	switch {
	case signs:
		v.State = "active"
		set(conditionSigning, metav1.ConditionTrue, "Signing", "it signs new certificates")
	case found.candidate == nil:
		v.State = "error"
		set(conditionSigning, metav1.ConditionFalse, reasonUnusable, "it cannot be used; see the condition "+source.ConditionAccepted)
	case !found.active:
		set(conditionSigning, metav1.ConditionFalse, "Passive", "its intent is passive, so it is only trusted")
	case slices.ContainsFunc(problems, func(p mesh.Problem) bool { return p.Reason == source.ReasonConflict }):
		set(conditionSigning, metav1.ConditionFalse, "OlderSigns", "an older one is also active")
	default:
		set(conditionSigning, metav1.ConditionFalse, "Distributing", "until "+formatTime(since.Add(r.opts.Propagation))+" "+s.Signer.Source+" continues to sign, so that every proxy trusts this one first")
	}
	distributed := since.Add(r.opts.Propagation)
	switch {
	case trusts == 0:
		set(conditionTrusted, metav1.ConditionFalse, "NotTrusted", "it is not in the trust bundle")
	case now.Before(distributed):
		set(conditionTrusted, metav1.ConditionUnknown, "Distributing", "it is in the trust bundle, which every proxy receives by "+formatTime(distributed))
	default:
		set(conditionTrusted, metav1.ConditionTrue, "Trusted", "it has been in the trust bundle since "+formatTime(since))
	}
	switch {
	case signs:
		set(conditionNeeded, metav1.ConditionTrue, "Signing", "it signs")
	case needed.After(now):
		set(conditionNeeded, metav1.ConditionTrue, "CertificatesAlive", "certificates that it signed may be valid until "+formatTime(needed))
	default:
		set(conditionNeeded, metav1.ConditionFalse, "NoCertificates", "no certificate that it signed is valid")
	}
	return v
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
