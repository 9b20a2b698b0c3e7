package podtemplate

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// Set holds the templates and values of one configuration. It is immutable and safe for
// concurrent use.
type Set struct {
	templates map[string]*Template
	values    map[string]any
}

var _ driver.Templates = (*Set)(nil)

// NewSet parses the templates, given by name. Templates access the values as .Values.
func NewSet(texts map[string]string, values map[string]any) (*Set, error) {
	s := &Set{templates: make(map[string]*Template, len(texts)), values: values}
	if s.values == nil {
		s.values = map[string]any{}
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		t, err := Parse(name, texts[name])
		if err != nil {
			return nil, err
		}
		s.templates[name] = t
	}
	return s, nil
}

// Names returns the names of the templates, sorted.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.templates)) }

// Has reports whether there is a template of that name.
func (s *Set) Has(name string) bool {
	_, ok := s.templates[name]
	return ok
}

// PrintsOnly reports whether the template of that name, which must exist, only prints what belongs
// to a pod, such as its namespace. It may be wrong only in that it denies it.
func (s *Set) PrintsOnly(name string) bool { return s.templates[name].printsOnly }

// Apply renders the template of that name and merges the result into inj.Pod.
func (s *Set) Apply(inj *driver.InjectorContext, name string, spec *agentspec.Spec) error {
	t, ok := s.templates[name]
	if !ok {
		return fmt.Errorf("there is no template %q; there are: %v", name, s.Names())
	}
	return t.apply(inj, spec, s.values)
}

// clone returns a deep copy of a decoded YAML value.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := make(map[string]any, len(v))
		for key, value := range v {
			c[key] = clone(value)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, value := range v {
			c[i] = clone(value)
		}
		return c
	default:
		return v
	}
}

// Apply injects a driver's sidecar into the pod of the InjectorContext in ctx: it
// renders the driver's template, or the user's template of the same name that replaces
// it, and merges the result into the pod. It returns an error if ctx has ended or has
// no InjectorContext.
func Apply(ctx context.Context, name, text string, spec *agentspec.Spec) error {
	inj, err := driver.InjectorFrom(ctx)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("template %s: %w", name, err)
	}
	if inj.Templates != nil && inj.Templates.Has(name) {
		return inj.Templates.Apply(inj, name, spec)
	}
	t, err := Parse(name, text)
	if err != nil {
		return err
	}
	return t.apply(inj, spec, map[string]any{})
}

func (t *Template) apply(inj *driver.InjectorContext, spec *agentspec.Spec, values map[string]any) error {
	overlay, err := t.render(&data{inj: inj, agent: spec, Values: values})
	if err != nil {
		return err
	}
	if err := Merge(inj.Pod, overlay); err != nil {
		return fmt.Errorf("template %s: %w", t.name, err)
	}
	return nil
}
