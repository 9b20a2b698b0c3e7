package offline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	kubectlyaml "sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/manifest"
)

// document is a document with its objects, which read finds.
type document struct {
	manifest.Document
	json    []byte
	objects []object
	err     error
}

var newline = []byte("\n")

// read parses the document and finds its objects.
func (d *document) read() {
	switch d.Format {
	case manifest.None:
		return
	case manifest.JSON:
		d.json = d.Text
	case manifest.YAML:
		if d.json, d.err = yamlToJSON(ended(d.Text)); d.err != nil || d.json == nil {
			return
		}
	}
	d.objects = objectsOf(d.json, "", schema.GroupVersionKind{}, 0)
}

// ended returns a text whose last line ends. kubectl reads files in lines, so a block scalar at
// the end of one has the final line break, even if the file has not.
func ended(text []byte) []byte {
	if len(text) == 0 || bytes.HasSuffix(text, newline) {
		return text
	}
	return append(bytes.Clone(text), '\n')
}

// yamlToJSON returns the JSON that kubectl would send for the text; nil if the text is
// null.
func yamlToJSON(text []byte) ([]byte, error) {
	parsed, err := parseYAML(text)
	if err != nil {
		return nil, err
	}
	root := parsed.Content[0]
	if root.Kind == kyaml.ScalarNode && root.ShortTag() == kyaml.NodeTagNull {
		return nil, nil
	}
	if root.Kind != kyaml.MappingNode {
		return nil, errors.New("it is not a mapping, as every Kubernetes object is")
	}
	if err := checkKeys(root); err != nil {
		return nil, err
	}
	// Like Kubernetes this library reads YAML 1.1 ("yes" is a boolean). It also
	// bounds the expansion of aliases.
	return kubectlyaml.YAMLToJSON(text)
}

// parseYAML parses a text with exactly one document.
func parseYAML(text []byte) (*kyaml.Node, error) {
	decoder := kyaml.NewDecoder(bytes.NewReader(text))
	var document, next kyaml.Node
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	if err := decoder.Decode(&next); err != io.EOF {
		return nil, errors.New("there is content after the end of the document; separate documents by lines of three dashes")
	}
	return &document, nil
}

// checkKeys rejects mappings with duplicate keys: parsers disagree on which one
// counts.
func checkKeys(n *kyaml.Node) error {
	if n.Kind == kyaml.MappingNode {
		lines := make(map[string]int, len(n.Content)/2)
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind == kyaml.AliasNode {
				key = key.Alias
			}
			if key.Kind != kyaml.ScalarNode {
				return fmt.Errorf("yaml: line %d: a key that is not a scalar", key.Line)
			}
			if line, twice := lines[key.Value]; twice {
				return fmt.Errorf("yaml: line %d: key %q is also in line %d", key.Line, key.Value, line)
			}
			lines[key.Value] = key.Line
		}
	}
	for _, child := range n.Content {
		if err := checkKeys(child); err != nil {
			return err
		}
	}
	return nil
}

// patch applies the operations to the document's text. It verifies that the result
// decodes to the same value as the operations applied to the JSON.
func (d *document) patch(operations []inject.Operation) ([]byte, error) {
	want, err := patchJSON(d.json, operations)
	if err != nil {
		return nil, err
	}
	if d.Format == manifest.JSON {
		return indentLike(want, d.Text), nil
	}
	for _, render := range []func(*tree, []byte) ([]byte, error){(*tree).splice, (*tree).encode} {
		text, t, err := d.render(operations, want, render)
		if err != nil {
			return nil, err
		}
		if text == nil {
			continue
		}
		if more := d.record(t, want); len(more) > 0 {
			more = append(slices.Clip(operations), more...)
			if want, err = patchJSON(d.json, more); err == nil {
				if with, _, err := d.render(more, want, render); err == nil && with != nil {
					return with, nil
				}
			}
		}
		return text, nil
	}
	if bytes.ContainsAny(d.Text, "&*") {
		return nil, errors.New("its YAML cannot be edited safely; write it without anchors and in a plainer style")
	}
	return nil, errors.New("its YAML cannot be edited safely; write it in a plainer style, such as that of kubectl get -o yaml")
}

// render applies the operations to the document's text. The text is nil if it does not decode to the
// wanted value.
func (d *document) render(operations []inject.Operation, want []byte, render func(*tree, []byte) ([]byte, error)) ([]byte, *tree, error) {
	t, err := newTree(ended(d.Text))
	if err != nil {
		return nil, nil, err
	}
	t.known = d.recorded()
	for _, op := range operations {
		if err := t.apply(op); err != nil {
			return nil, nil, fmt.Errorf("%s %s: %w", op.Op, op.Path, err)
		}
	}
	text, err := render(t, d.Text)
	if err != nil {
		// The other way may do.
		return nil, t, nil //nolint:nilerr
	}
	if got, err := yamlToJSON(ended(text)); err != nil || !sameJSON(got, want) {
		return nil, t, nil //nolint:nilerr
	}
	return text, t, nil
}

func patchJSON(document []byte, operations []inject.Operation) ([]byte, error) {
	encoded, err := inject.MarshalPatch(operations)
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(encoded)
	if err != nil {
		return nil, err
	}
	options := jsonpatch.NewApplyOptions()
	options.SupportNegativeIndices = false
	options.EscapeHTML = false
	return patch.ApplyWithOptions(document, options)
}

// sameJSON reports whether two JSON texts decode to the same value.
func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// indentLike formats JSON like the original: on one line, or with the indentation of
// the original's first member.
func indentLike(compact, original []byte) []byte {
	_, rest, multiline := bytes.Cut(original, newline)
	if !multiline {
		return compact
	}
	indent := rest[:len(rest)-len(bytes.TrimLeft(rest, " \t"))]
	var b bytes.Buffer
	if err := json.Indent(&b, compact, "", string(indent)); err != nil {
		return compact
	}
	return likeLineEnds(b.Bytes(), original)
}

// likeLineEnds converts the text to the original's line endings.
func likeLineEnds(text, original []byte) []byte {
	if i := bytes.IndexByte(original, '\n'); i > 0 && original[i-1] == '\r' {
		return bytes.ReplaceAll(text, newline, []byte("\r\n"))
	}
	return text
}
