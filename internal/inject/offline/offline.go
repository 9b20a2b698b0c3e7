// Package offline injects sidecars into manifests: files of YAML and JSON
// documents go in, the same files with injected pod templates come out. It asks
// the same engine as the admission webhook and applies the engine's JSON patch to
// the text, so that comments, order, unknown fields and formatting of everything
// else stay as they are.
//
// It talks to no cluster and reads no clock; package cli wires it to files and to
// an engine.
package offline

import (
	"context"
	"fmt"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// Engine decides about one pod and makes its patch. *inject.Injector is one.
type Engine interface {
	Inject(ctx context.Context, req inject.Request) inject.Result
}

// UninjectFunc returns the operations that take an injected pod, given as JSON,
// back to what it was; none for a pod that was never injected. inject.Uninject is
// one.
type UninjectFunc func(pod []byte) ([]inject.Operation, error)

// Options are what injection needs beside the engine.
type Options struct {
	// Namespace is where objects that name no namespace belong; "default" if
	// empty.
	Namespace string
}

// Outcome is what happened to one object.
type Outcome string

// The outcomes. Denied and Failed mean that nothing at all is written.
const (
	Injected   Outcome = "inject"
	Uninjected Outcome = "uninject"
	Skipped    Outcome = "skip"
	Denied     Outcome = "deny"
	Unchanged  Outcome = "unchanged"
	Failed     Outcome = "error"
)

// Reasons of this package's own; all others are the engine's.
const (
	ReasonUnsupportedKind = inject.Reason("unsupported_kind")
	ReasonAlreadyInjected = inject.Reason("already_injected")
	ReasonUninjected      = inject.Reason("uninjected")
	ReasonNotInjected     = inject.Reason("not_injected")
	ReasonInvalid         = inject.Reason("document_invalid")
	ReasonNoPod           = inject.Reason("no_pod_template")
	ReasonStatus          = inject.Reason("status_invalid")
	ReasonPatch           = inject.Reason("patch_failed")
)

// Row is the report of one object, or of one document that could not be read.
type Row struct {
	// File is the Source's name.
	File string `json:"file"`
	// Document counts the documents of the file from 1, without empty ones; 0
	// where the whole file could not be read.
	Document int `json:"document,omitempty"`
	// Kind, Namespace and Name are the object's; Namespace is the one that was
	// decided with, or empty for a kind that has no pod.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`

	Outcome Outcome       `json:"outcome"`
	Reason  inject.Reason `json:"reason"`
	Message string        `json:"message,omitempty"`
	// Added are the names of the containers that the object gets.
	Added    []string  `json:"added,omitempty"`
	Warnings []Warning `json:"warnings,omitempty"`
}

// Warning is something that the user should know though the object is injected.
type Warning struct {
	Code    inject.Reason `json:"code"`
	Message string        `json:"message"`
}

// Output is one file as it is to be written.
type Output struct {
	// Source is what it was made of.
	Source *Source
	// Data is the whole text; equal to the source's where nothing changed.
	Data []byte

	// values are the documents if all are JSON.
	values [][]byte
}

// Result is what became of a set of files.
type Result struct {
	// Outputs has one entry a source, in order; none if anything was denied or
	// failed.
	Outputs []Output
	// Rows has one entry an object, in the order of the input. Namespaces have
	// none.
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

// Inject puts sidecars into all pods of the manifests. It is all or nothing: if
// any object is denied or cannot be read, the error says so, the result has the
// rows of all objects and no outputs.
func (m *Manifests) Inject(ctx context.Context, engine Engine, opts Options) (*Result, error) {
	return m.edit(ctx, func(o *object, row *Row) []inject.Operation {
		row.Namespace = o.namespaceOr(opts.Namespace)
		r := engine.Inject(ctx, inject.Request{Namespace: row.Namespace, Pod: o.pod})
		row.Reason, row.Message = r.Decision.Reason, r.Decision.Message
		for _, w := range r.Warnings {
			row.Warnings = append(row.Warnings, Warning(w))
		}
		switch {
		case r.Decision.Outcome == inject.Deny:
			row.Outcome = Denied
		case r.Decision.Outcome == inject.Skip:
			row.Outcome = Skipped
		case r.Decision.Outcome != inject.Inject:
			row.fail(ReasonPatch, fmt.Errorf("the engine answered with the unknown outcome %q", r.Decision.Outcome))
		case len(r.Patch) == 0:
			row.Outcome, row.Reason, row.Message = Unchanged, ReasonAlreadyInjected, "the pod is as injection would make it"
		default:
			row.Outcome, row.Added = Injected, r.Added
			return r.Patch
		}
		return nil
	})
}

// Uninject takes what injection added out of all pods of the manifests. It is all
// or nothing, as Inject is.
func (m *Manifests) Uninject(ctx context.Context, uninject UninjectFunc) (*Result, error) {
	return m.edit(ctx, func(o *object, row *Row) []inject.Operation {
		row.Namespace = o.namespace
		operations, err := uninject(o.pod)
		switch {
		case err != nil:
			row.fail(ReasonStatus, err)
		case len(operations) == 0:
			row.Outcome, row.Reason, row.Message = Unchanged, ReasonNotInjected, "the pod has nothing of an injection"
		default:
			row.Outcome, row.Reason = Uninjected, ReasonUninjected
			return operations
		}
		return nil
	})
}

// InjectFiles is Parse and Inject in one.
func InjectFiles(ctx context.Context, engine Engine, sources []Source, opts Options) (*Result, error) {
	return Parse(sources).Inject(ctx, engine, opts)
}

// UninjectFiles is Parse and Uninject in one.
func UninjectFiles(ctx context.Context, uninject UninjectFunc, sources []Source) (*Result, error) {
	return Parse(sources).Uninject(ctx, uninject)
}

func (r *Row) fail(reason inject.Reason, err error) {
	r.Outcome, r.Reason, r.Message = Failed, reason, err.Error()
}
