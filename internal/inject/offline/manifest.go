package offline

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/apis/metadata"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/manifest"
)

// Manifests are files parsed into documents and objects. Inject and Uninject report
// the files and documents that could not be parsed.
type Manifests struct {
	files      []file
	namespaces map[string]*inject.Namespace
}

type file struct {
	source *Source
	// err says why the file was not parsed at all.
	err       error
	documents []document
}

// Parse parses the sources. Inject and Uninject report the errors, with the file and
// the document.
func Parse(sources []Source) *Manifests {
	m := &Manifests{files: make([]file, len(sources)), namespaces: make(map[string]*inject.Namespace)}
	for i := range sources {
		f := &m.files[i]
		f.source = &sources[i]
		if f.err = f.source.check(); f.err != nil {
			continue
		}
		for _, d := range manifest.Split(f.source.Data) {
			f.documents = append(f.documents, document{Document: d})
		}
		for d := range f.documents {
			f.documents[d].read()
			for _, o := range f.documents[d].objects {
				if o.declares != nil {
					m.namespaces[o.declares.Name] = o.declares
				}
			}
		}
	}
	return m
}

// check rejects a source that is too large or not UTF-8.
func (s *Source) check() error {
	if len(s.Data) > MaxFileSize {
		return fmt.Errorf("the file is larger than %d MiB; split it", MaxFileSize>>20)
	}
	if !utf8.Valid(s.Data) {
		return fmt.Errorf("the file is not UTF-8 text; convert it")
	}
	return nil
}

// Namespaces returns the namespaces that the manifests declare, by name. Of two with
// the same name the last wins, as it would if both were applied. The caller owns the
// map.
func (m *Manifests) Namespaces() map[string]*inject.Namespace { return maps.Clone(m.namespaces) }

// NamespaceLookup returns a function for inject.Options.Namespace. Namespaces missing
// from the input are treated as monitored by the mesh and enabled for injection. Every
// namespace gets the label kubernetes.io/metadata.name, which the API server would
// set.
func NamespaceLookup(namespaces map[string]*inject.Namespace, meshName string) func(context.Context, string) (*inject.Namespace, error) {
	return func(_ context.Context, name string) (*inject.Namespace, error) {
		ns := &inject.Namespace{
			Name:        name,
			Labels:      map[string]string{metadata.MonitoredBy: meshName},
			Annotations: map[string]string{metadata.Injection: "enabled"},
		}
		if written, ok := namespaces[name]; ok {
			ns.Labels, ns.Annotations = maps.Clone(written.Labels), maps.Clone(written.Annotations)
		}
		if ns.Labels == nil {
			ns.Labels = make(map[string]string, 1)
		}
		ns.Labels["kubernetes.io/metadata.name"] = name
		return ns, nil
	}
}

// edit applies the operations that decide returns for each pod.
func (m *Manifests) edit(ctx context.Context, decide func(*object, *Row) []inject.Operation) (*Result, error) {
	r := &Result{}
	outputs := make([]Output, len(m.files))
	for i := range m.files {
		f := &m.files[i]
		if f.err != nil {
			row := Row{File: f.source.Name}
			row.fail(reasonInvalid, f.err)
			r.Rows = append(r.Rows, row)
			continue
		}
		out := &outputs[i]
		out.Source = f.source
		allJSON := true
		for n := range f.documents {
			if err := ctx.Err(); err != nil {
				return r, err
			}
			d := &f.documents[n]
			text, rows := f.edit(d, decide)
			r.Rows = append(r.Rows, rows...)
			out.Data = append(append(append(out.Data, d.Before...), text...), d.After...)
			out.values = append(out.values, text)
			allJSON = allJSON && d.Format == manifest.JSON
		}
		if !allJSON {
			out.values = nil
		}
	}
	refused := func(row Row) bool { return row.Outcome == Denied || row.Outcome == Failed }
	if first := slices.IndexFunc(r.Rows, refused); first >= 0 {
		return r, fmt.Errorf("nothing written: %d denied, %d failed; the first: %s", r.Count(Denied), r.Count(Failed), &r.Rows[first])
	}
	r.Outputs = outputs
	return r, nil
}

// edit returns a document's new text and the rows of its objects.
func (f *file) edit(d *document, decide func(*object, *Row) []inject.Operation) ([]byte, []Row) {
	var rows []Row
	var operations []inject.Operation
	located := func(err error) error { return fmt.Errorf("document %d (from line %d): %w", d.Number, d.Line, err) }
	fail := func(row Row, reason inject.Reason, err error) {
		row.fail(reason, located(err))
		rows = append(rows, row)
	}
	if d.err != nil {
		fail(Row{File: f.source.Name, Document: d.Number}, reasonInvalid, d.err)
	}
	for i := range d.objects {
		o := &d.objects[i]
		row := Row{File: f.source.Name, Document: d.Number, Kind: o.kind, Namespace: o.namespace, Name: o.name}
		switch {
		case o.err != nil:
			fail(row, o.reason, o.err)
			continue
		case o.declares != nil:
			continue
		case o.pod == nil:
			row.Outcome, row.Reason, row.Message = Unchanged, ReasonUnsupportedKind, o.message
		default:
			for _, op := range decide(o, &row) {
				operations = append(operations, o.inDocument(op))
			}
		}
		rows = append(rows, row)
	}
	text := d.Text
	if len(operations) > 0 {
		var err error
		if text, err = d.patch(operations); err != nil {
			for i := range rows {
				if rows[i].Outcome == Injected || rows[i].Outcome == Uninjected {
					rows[i].fail(reasonPatch, located(err))
				}
			}
		}
	}
	return text, rows
}

// inDocument converts an operation on the object's pod to one on the document.
func (o *object) inDocument(op inject.Operation) inject.Operation {
	op.Path = o.path + op.Path
	if op.Op == "move" {
		op.From = o.path + op.From
	}
	return op
}
