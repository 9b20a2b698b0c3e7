// Package podtemplate renders pod templates and merges the result into a pod. A
// driver's Patch is usually one call of Apply.
//
// A template is a Go text template with sprig's functions that renders a partial pod as
// YAML. User input enters it only as Value.
package podtemplate

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"text/template"
	"text/template/parse"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

//go:embed blocks.yaml
var blocks string

// Template is one parsed template. It is safe for concurrent use.
type Template struct {
	name   string
	parsed *template.Template
	// printsOnly is set if renderings can be remembered.
	printsOnly bool

	mu         sync.Mutex
	renderings map[facts]*rendering
	// read caches decoded pods by their rendered text without values: the YAML of pods
	// that differ only in values is decoded once.
	read map[string]*corev1.Pod

	specs specs

	// work holds idle workspaces.
	work sync.Pool
}

// maxRead bounds the size of Template.read. Texts differ only by structure, so a mesh
// has far fewer.
const maxRead = 256

// maxRendered bounds the output of a template, in bytes.
const maxRendered = 1 << 20

// Parse parses a template. It may use the blocks "outrigger.pod", "outrigger.init",
// "outrigger.sidecar" and "outrigger.volumes".
func Parse(name, text string) (*Template, error) {
	t, err := template.New(name).Funcs(functions()).Option("missingkey=error").Parse(blocks)
	if err != nil {
		return nil, fmt.Errorf("template %s: shared blocks: %w", name, err)
	}
	if t, err = t.New(name).Parse(text); err != nil {
		return nil, fmt.Errorf("template %s: %w", name, err)
	}
	var trees []*parse.Tree
	for _, defined := range t.Templates() {
		trees = append(trees, defined.Tree)
	}
	return &Template{
		name: name, parsed: t, printsOnly: printsOnly(trees),
		renderings: make(map[facts]*rendering), read: make(map[string]*corev1.Pod),
	}, nil
}

// render returns the partial pod that the template renders for the data. The caller
// owns the result. The data's Values must be the same in each call.
func (t *Template) render(d *data) (*corev1.Pod, error) {
	pod, err := t.rendered(d)
	if err == nil {
		err = check(pod)
	}
	if err != nil {
		return nil, fmt.Errorf("template %s: %w", t.name, err)
	}
	return pod, nil
}

func (t *Template) rendered(d *data) (*corev1.Pod, error) {
	d.specs = &t.specs
	if r := t.remembered(d); r != nil {
		values, err := d.values(r.sources)
		if err != nil {
			return nil, err
		}
		return r.with(values)
	}
	shared, values, err := t.shared(d)
	if err != nil {
		return nil, err
	}
	pod := shared.DeepCopy()
	return pod, putAllValues(pod, values)
}

// shared returns the partial pod that the template renders for the data, with numbers as
// placeholders, and the values with these numbers. Others have the same pod.
func (t *Template) shared(d *data) (*corev1.Pod, []string, error) {
	work, ok := t.work.Get().(*workspace)
	if !ok {
		work = new(workspace)
	}
	defer t.work.Put(work)
	work.rendered.Reset()
	work.text.Reset()
	// Functions such as set change their arguments.
	own := *d
	own.Values, own.kept = clone(d.Values).(map[string]any), nil
	if err := t.parsed.Execute(&work.rendered, &own); err != nil {
		return nil, nil, err
	}
	values, err := takePlaceholders(&work.text, work.rendered.Bytes(), own.kept)
	if err != nil {
		return nil, nil, err
	}
	shared, err := t.readPod(work.text.Bytes())
	return shared, values, err
}

func (t *Template) readPod(rendered []byte) (*corev1.Pod, error) {
	t.mu.Lock()
	pod, ok := t.read[string(rendered)]
	t.mu.Unlock()
	if ok {
		return pod, nil
	}
	text := string(rendered)
	// The parser would read only the first document.
	if !oneDocument(text) {
		return nil, errors.New("it renders several YAML documents, not one")
	}
	pod = &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		return nil, fmt.Errorf("it does not render a partial pod: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.read) >= maxRead {
		clear(t.read)
	}
	t.read[text] = pod
	return pod, nil
}

func oneDocument(text string) bool {
	begun := false
	for line := range strings.Lines(text) {
		if begun && strings.HasPrefix(line, "---") {
			return false
		}
		line = strings.TrimSpace(line)
		begun = begun || line != "" && line[0] != '#' && line != "---"
	}
	return true
}

// check rejects a partial pod with parts that cannot be merged or would be dropped.
func check(pod *corev1.Pod) error {
	var names []string
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			names = append(names, list[i].Name)
		}
	}
	if err := checkNames("container", names); err != nil {
		return err
	}
	names = nil
	for i := range pod.Spec.Volumes {
		names = append(names, pod.Spec.Volumes[i].Name)
	}
	if err := checkNames("volume", names); err != nil {
		return err
	}
	meta := pod.ObjectMeta
	meta.Labels, meta.Annotations = nil, nil
	if !reflect.ValueOf(meta).IsZero() || !reflect.ValueOf(pod.Status).IsZero() || len(pod.Spec.EphemeralContainers) > 0 {
		return errors.New("it renders more than labels, annotations and a spec without ephemeral containers; nothing else can be merged into a pod")
	}
	return nil
}

func checkNames(what string, names []string) error {
	for i, name := range names {
		if name == "" {
			return fmt.Errorf("a %s in it has no name", what)
		}
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("it renders the %s %q twice", what, name)
		}
	}
	return nil
}

// workspace holds the buffers of one rendering.
type workspace struct {
	rendered limitedBuffer
	text     bytes.Buffer
}

type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxRendered {
		return 0, fmt.Errorf("it renders more than %d bytes", maxRendered)
	}
	return b.Buffer.Write(p)
}
