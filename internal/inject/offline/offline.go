// Package offline injects sidecars into manifests, files of YAML and JSON documents.
// It uses the admission webhook's engine and applies the engine's JSON patch to the
// text, so that comments, order, unknown fields and formatting of everything else are
// preserved.
//
// It contacts no cluster and reads no clock; package cli connects it to files and to an
// engine.
package offline

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// Engine decides about one pod and builds its patch. *inject.Injector implements it.
type Engine interface {
	Inject(ctx context.Context, req inject.Request) inject.Result
}

// UninjectFunc returns the operations that remove the injection from a pod, given as
// JSON; none for a pod that was never injected. inject.Uninject is one.
type UninjectFunc func(pod []byte) ([]inject.Operation, error)

// Options are the settings of an injection.
type Options struct {
	// Namespace is the namespace of objects that name none; "default" if empty.
	Namespace string
}

// Outcome is the result for one object.
type Outcome string

// The outcomes. After Denied or Failed no file is written.
const (
	Injected   Outcome = "inject"
	Uninjected Outcome = "uninject"
	Skipped    Outcome = "skip"
	Denied     Outcome = "deny"
	Unchanged  Outcome = "unchanged"
	Failed     Outcome = "error"
)

// The reasons that this package adds to the engine's.
const (
	ReasonUnsupportedKind = inject.Reason("unsupported_kind")
	reasonAlreadyInjected = inject.Reason("already_injected")
	reasonUninjected      = inject.Reason("uninjected")
	reasonNotInjected     = inject.Reason("not_injected")
	reasonInvalid         = inject.Reason("document_invalid")
	reasonNoPod           = inject.Reason("no_pod_template")
	reasonStatus          = inject.Reason("status_invalid")
	reasonPatch           = inject.Reason("patch_failed")
)

// WarningMisplaced is the code of the warning about labels and annotations of the mesh on a
// workload, where they have no effect.
const WarningMisplaced = inject.Reason("not_on_template")

// Row is the report of one object, or of one document that could not be read.
type Row struct {
	// File is the Source's name.
	File string `json:"file"`
	// Document is the number of the document in the file, from 1, without empty
	// documents; 0 if the file could not be read.
	Document int `json:"document,omitempty"`
	// Kind, Namespace and Name are the object's. Namespace is the one used for the
	// decision, or empty for a kind without a pod.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`

	Outcome Outcome       `json:"outcome"`
	Reason  inject.Reason `json:"reason"`
	Message string        `json:"message,omitempty"`
	// Added are the names of the added containers.
	Added    []string         `json:"added,omitempty"`
	Warnings []inject.Warning `json:"warnings,omitempty"`
}

// Output is one file to write.
type Output struct {
	// Source is the file's input.
	Source *Source
	// Data is the whole text; equal to the source's if nothing changed.
	Data []byte

	// values are the documents if all are JSON.
	values [][]byte
}

// Result is the outcome for a set of files.
type Result struct {
	// Outputs has one entry per source, in order; none if anything was denied or
	// failed.
	Outputs []Output
	// Rows has one entry per object except namespaces, in the order of the input.
	Rows []Row
}

// Count returns how many objects had the outcome.
func (r *Result) Count(outcome Outcome) int {
	n := 0
	for i := range r.Rows {
		if r.Rows[i].Outcome == outcome {
			n++
		}
	}
	return n
}

// Inject injects sidecars into all pods of the manifests. It is all or nothing: if an
// object is denied or cannot be read, it returns an error and a result with the rows
// of all objects but no outputs.
func (m *Manifests) Inject(ctx context.Context, engine Engine, opts Options) (*Result, error) {
	return m.edit(ctx, func(o *object, row *Row) []inject.Operation {
		row.Namespace = o.namespaceOr(opts.Namespace)
		request := inject.Request{Namespace: row.Namespace, Pod: o.pod}
		if o.owner != "" {
			request.OwnerKind, request.OwnerName = o.kind, o.owner
		}
		r := engine.Inject(ctx, request)
		row.Reason, row.Message, row.Warnings = r.Decision.Reason, r.Decision.Message, o.warnings(r.Warnings)
		switch {
		case r.Decision.Outcome == inject.Deny:
			row.Outcome = Denied
		case r.Decision.Outcome == inject.Skip:
			row.Outcome = Skipped
		case r.Decision.Outcome != inject.Inject:
			row.fail(reasonPatch, fmt.Errorf("the engine returned the unknown outcome %q", r.Decision.Outcome))
		case len(r.Patch) == 0:
			row.Outcome, row.Reason, row.Message = Unchanged, reasonAlreadyInjected, "the pod is injected and up to date"
		default:
			row.Outcome, row.Added = Injected, r.Added
			return r.Patch
		}
		return nil
	})
}

// warnings returns those of the engine, and one about labels and annotations that are not where
// the engine looks for them.
func (o *object) warnings(of []inject.Warning) []inject.Warning {
	if len(o.misplaced) == 0 {
		return of
	}
	return append(slices.Clip(of), inject.Warning{Code: WarningMisplaced, Message: fmt.Sprintf(
		"labels and annotations of the %s itself have no effect on its pods: %s; move them to the metadata of the pod template",
		o.kind, strings.Join(o.misplaced, ", "))})
}

// Uninject removes the injection from all pods of the manifests. Like Inject it is all
// or nothing.
func (m *Manifests) Uninject(ctx context.Context, uninject UninjectFunc) (*Result, error) {
	return m.edit(ctx, func(o *object, row *Row) []inject.Operation {
		row.Namespace = o.namespace
		operations, err := uninject(o.pod)
		switch {
		case err != nil:
			row.fail(reasonStatus, err)
		case len(operations) == 0:
			row.Outcome, row.Reason, row.Message = Unchanged, reasonNotInjected, "the pod is not injected"
		default:
			row.Outcome, row.Reason = Uninjected, reasonUninjected
			return operations
		}
		return nil
	})
}

// UninjectFiles is Parse and Uninject in one.
func UninjectFiles(ctx context.Context, uninject UninjectFunc, sources []Source) (*Result, error) {
	return Parse(sources).Uninject(ctx, uninject)
}

func (r *Row) fail(reason inject.Reason, err error) {
	r.Outcome, r.Reason, r.Message = Failed, reason, err.Error()
}
