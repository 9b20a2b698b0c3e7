package offline

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	kubectlyaml "sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// maxFragments bounds the fragments of an object, in bytes. What exceeds it comes back in kubectl's
// style.
const maxFragments = 32 << 10

// fragments are entries of mappings as they are written in a file, such as `port: "http"`, by
// where they are. Injection keeps those that it removes in the status annotation, whose JSON has
// neither quotes nor comments, so that uninject can restore the file.
type fragments struct {
	// gone are the places of values that were removed or replaced, and order is their order.
	gone  map[*kyaml.Node]string
	order []*kyaml.Node
	// texts are those that the splicer found, with the comments above them.
	texts map[*kyaml.Node]string
	// parents are the mappings of removed values.
	parents map[*kyaml.Node]*kyaml.Node
	// known are the fragments of an earlier injection, by place.
	known map[string]inject.Text
	// raw are the texts of new values.
	raw map[*kyaml.Node]string
}

// following returns the keys after a removed entry, up to the first that is still there. There are
// none if another key took the entry's place.
func (t *tree) following(value *kyaml.Node) []string {
	parent := t.parents[value]
	if parent == nil {
		return nil
	}
	before := t.before[parent]
	for i := 0; i < len(parent.Content); i += 2 {
		if !slices.Contains(before, parent.Content[i]) {
			return nil
		}
	}
	var names []string
	for i := slices.Index(before, value) + 1; i > 0 && i < len(before); i += 2 {
		names = append(names, before[i].Value)
		if slices.Contains(parent.Content, before[i]) {
			break
		}
	}
	return names
}

// place returns a path with the names of list items instead of their numbers, which injection
// changes.
func (t *tree) place(path string) string {
	names := strings.Split(path, "/")
	n := t.root
	for i, name := range names[1:] {
		at := child(n, strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~"))
		if at < 0 {
			break
		}
		list := n.Kind == kyaml.SequenceNode
		if n = n.Content[at]; n.Kind == kyaml.AliasNode {
			n = n.Alias
		}
		if !list || n.Kind != kyaml.MappingNode {
			continue
		}
		if at := child(n, "name"); at >= 0 {
			names[i+1] = n.Content[at].Value
		}
	}
	return strings.Join(names, "/")
}

// forget notes a value that leaves the tree.
func (t *tree) forget(place string, value *kyaml.Node) {
	t.gone[value] = place
	t.order = append(t.order, value)
}

// keep notes the text of an entry that the new text lacks, without its indentation.
func (s *splicer) keep(n *kyaml.Node, e *entry) {
	value := e.nodes[len(e.nodes)-1]
	if n.Kind != kyaml.MappingNode || s.gone[value] == "" {
		return
	}
	from := e.start
	if e.own && child(n, e.nodes[0].Value) < 0 {
		from = e.lead
	}
	column := s.columnOf(e.start)
	var out strings.Builder
	for line := range bytes.Lines(s.text[from:e.end]) {
		rest := bytes.TrimLeft(line, " ")
		out.Write(line[min(len(line)-len(rest), column):])
	}
	s.texts[value] = strings.TrimLeft(out.String(), "\n")
}

// lost returns the fragments of an object that would come back in another style, by their place in
// its pod.
func (t *tree) lost(o *object, original []byte) map[string]inject.Text {
	found, size := make(map[string]inject.Text), 0
	st := styleOf(t.root, original)
	for _, value := range t.order {
		place, of := strings.CutPrefix(t.gone[value], o.path+"/")
		if !of || strings.HasPrefix(place, "metadata/") {
			continue
		}
		name := place[strings.LastIndex(place, "/")+1:]
		text, ok := t.texts[value]
		if !ok || value.Kind == kyaml.ScalarNode && t.parents[value] == nil {
			// In a flow collection, or a scalar, whose comments stay.
			bare := *value
			bare.HeadComment, bare.LineComment, bare.FootComment = "", "", ""
			encoded, err := st.encode(&kyaml.Node{Kind: kyaml.MappingNode, Content: []*kyaml.Node{newKey(name), &bare}})
			if err != nil {
				continue
			}
			text = string(encoded)
		}
		lost := inject.Text{Text: text, Before: t.following(value)}
		if _, decoded := parseFragment(name, text); decoded == nil || text == st.usual(name, decoded) {
			lost.Text = ""
		}
		if size += len(place) + len(lost.Text); size > maxFragments {
			break
		}
		if lost.Text != "" || len(lost.Before) > 0 {
			found[place] = lost
		}
	}
	return found
}

// usual returns an entry as uninject writes it without a fragment.
func (st style) usual(name string, value any) string {
	n, err := newNode(value)
	if err != nil {
		return ""
	}
	text, err := st.encode(&kyaml.Node{Kind: kyaml.MappingNode, Content: []*kyaml.Node{newKey(name), n}})
	if err != nil {
		return ""
	}
	return string(text)
}

// parseFragment returns the value of a fragment as YAML and decoded, or nil if it is no entry with
// that name, or has anchors or aliases.
func parseFragment(name, text string) (*kyaml.Node, any) {
	document, err := parseYAML([]byte(text))
	if err != nil {
		return nil, nil
	}
	root := document.Content[0]
	encoded, err := kubectlyaml.YAMLToJSON([]byte(text))
	var decoded map[string]any
	if err != nil || json.Unmarshal(encoded, &decoded) != nil || decoded[name] == nil ||
		root.Kind != kyaml.MappingNode || len(root.Content) != 2 || hasAnchor(root) {
		return nil, nil
	}
	return copyOf(root.Content[1]), decoded[name]
}

func hasAnchor(n *kyaml.Node) bool {
	if n.Anchor != "" || n.Kind == kyaml.AliasNode {
		return true
	}
	for _, child := range n.Content {
		if hasAnchor(child) {
			return true
		}
	}
	return false
}

// fragment returns the value at a path in the style of an earlier text, if that has the same value;
// otherwise nil.
func (t *tree) fragment(op inject.Operation) *kyaml.Node {
	text := t.known[t.place(op.Path)].Text
	if text == "" {
		return nil
	}
	value, decoded := parseFragment(op.Path[strings.LastIndex(op.Path, "/")+1:], text)
	encoded, err := json.Marshal(op.Value)
	if err != nil || decoded == nil {
		return nil
	}
	if same, err := json.Marshal(decoded); err != nil || !sameJSON(encoded, same) {
		return nil
	}
	if value.Kind != kyaml.ScalarNode || op.Op == "add" {
		t.raw[value] = text
	}
	return value
}

// recorded returns the fragments of all objects of the document, by place.
func (d *document) recorded() map[string]inject.Text {
	known := make(map[string]inject.Text)
	for i := range d.objects {
		o := &d.objects[i]
		for place, text := range inject.TextOf(o.pod) {
			known[o.path+"/"+place] = text
		}
	}
	return known
}

// record returns operations that add lost fragments to the status annotations of the objects that
// were injected.
func (d *document) record(t *tree, patched []byte) []inject.Operation {
	var operations []inject.Operation
	for i := range d.objects {
		o := &d.objects[i]
		if o.pod == nil || inject.IsInjected(o.pod) {
			continue
		}
		lost := t.lost(o, d.Text)
		if len(lost) == 0 {
			continue
		}
		pod, ok := valueAt(patched, o.path)
		if !ok {
			continue
		}
		if value := inject.WithText(pod, lost); value != "" {
			operations = append(operations, inject.Operation{
				Op: "replace", Path: o.path + "/metadata/annotations/" + strings.ReplaceAll(inject.StatusAnnotation, "/", "~1"), Value: value,
			})
		}
	}
	return operations
}

// valueAt returns the value at a path in a JSON text.
func valueAt(raw json.RawMessage, path string) (json.RawMessage, bool) {
	for name := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if name == "" {
			break
		}
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) == nil && list != nil {
			i, err := index(name, len(list)-1)
			if err != nil {
				return nil, false
			}
			raw = list[i]
			continue
		}
		var o fields
		if json.Unmarshal(raw, &o) != nil || o[name] == nil {
			return nil, false
		}
		raw = o[name]
	}
	return raw, true
}
