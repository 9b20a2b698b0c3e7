package offline

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// Manifests are files taken apart into documents, and documents into objects. A
// text that cannot be read is kept as such: Inject and Uninject report it.
type Manifests struct {
	files      []file
	namespaces map[string]*inject.Namespace
}

type file struct {
	source *Source
	// err says why the file was not taken apart at all.
	err       error
	documents []document
}

// Parse takes the sources apart. What is wrong with them is reported by Inject
// and Uninject, with the file and the document.
func Parse(sources []Source) *Manifests {
	m := &Manifests{files: make([]file, len(sources)), namespaces: make(map[string]*inject.Namespace)}
	for i := range sources {
		f := &m.files[i]
		f.source = &sources[i]
		if f.err = f.source.check(); f.err != nil {
			continue
		}
		f.documents = split(f.source.Data)
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

// check refuses a source that is no text that this package can take apart.
func (s *Source) check() error {
	if len(s.Data) > MaxFileSize {
		return fmt.Errorf("the file is larger than %d MiB; split it", MaxFileSize>>20)
	}
	if !utf8.Valid(s.Data) {
		return fmt.Errorf("the file is not UTF-8 text; convert it")
	}
	return nil
}

// Namespaces returns the namespaces that the manifests declare, by name, wherever
// they stand. Of two with one name the last wins, as it would when both are
// applied. The map is the caller's.
func (m *Manifests) Namespaces() map[string]*inject.Namespace { return maps.Clone(m.namespaces) }

// NamespaceLookup returns a function for inject.Options.Namespace: a namespace of
// the given ones is as it was written, any other one counts as monitored by the
// mesh and enabled. Every namespace bears the label kubernetes.io/metadata.name,
// which the API server would give it.
func NamespaceLookup(namespaces map[string]*inject.Namespace, meshName string) func(context.Context, string) (*inject.Namespace, error) {
	return func(_ context.Context, name string) (*inject.Namespace, error) {
		ns := &inject.Namespace{
			Name:        name,
			Labels:      map[string]string{inject.MonitoredByLabel: meshName},
			Annotations: map[string]string{inject.InjectionKey: "enabled"},
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

// edit asks for the operations on every pod and applies them.
func (m *Manifests) edit(ctx context.Context, ask func(*object, *Row) []inject.Operation) (*Result, error) {
	r := &Result{}
	outputs := make([]Output, len(m.files))
	for i := range m.files {
		f := &m.files[i]
		if f.err != nil {
			row := Row{File: f.source.Name}
			row.fail(ReasonInvalid, f.err)
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
			text, rows := f.edit(d, ask)
			r.Rows = append(r.Rows, rows...)
			out.Data = append(append(append(out.Data, d.before...), text...), d.after...)
			out.values = append(out.values, text)
			allJSON = allJSON && d.format == formatJSON
		}
		if !allJSON {
			out.values = nil
		}
	}
	refused := func(row Row) bool { return row.Outcome == Denied || row.Outcome == Failed }
	if first := slices.IndexFunc(r.Rows, refused); first >= 0 {
		return r, fmt.Errorf("nothing is written: %d denied, %d failed; the first: %s", r.Count(Denied), r.Count(Failed), &r.Rows[first])
	}
	r.Outputs = outputs
	return r, nil
}

// edit returns a document's new text, and the rows of its objects.
func (f *file) edit(d *document, ask func(*object, *Row) []inject.Operation) ([]byte, []Row) {
	var rows []Row
	var operations []inject.Operation
	fail := func(row Row, reason inject.Reason, err error) {
		row.fail(reason, fmt.Errorf("document %d (from line %d): %w", d.number, d.line, err))
		rows = append(rows, row)
	}
	if d.err != nil {
		fail(Row{File: f.source.Name, Document: d.number}, ReasonInvalid, d.err)
	}
	for i := range d.objects {
		o := &d.objects[i]
		row := Row{File: f.source.Name, Document: d.number, Kind: o.kind, Namespace: o.namespace, Name: o.name}
		switch {
		case o.err != nil:
			fail(row, o.reason, o.err)
			continue
		case o.declares != nil:
			continue
		case o.pod == nil:
			row.Outcome, row.Reason, row.Message = Unchanged, ReasonUnsupportedKind, o.message
		default:
			for _, op := range ask(o, &row) {
				operations = append(operations, o.place(op))
			}
		}
		rows = append(rows, row)
	}
	text := d.text
	if len(operations) > 0 {
		var err error
		if text, err = d.patch(operations); err != nil {
			fail(Row{File: f.source.Name, Document: d.number}, ReasonPatch, err)
		}
	}
	return text, rows
}

// place turns an operation on the object's pod into one on the document.
func (o *object) place(op inject.Operation) inject.Operation {
	op.Path = o.path + op.Path
	if op.Op == "move" {
		op.From = o.path + op.From
	}
	return op
}
