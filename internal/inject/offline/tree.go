package offline

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	kubectlyaml "sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/inject"
)

// tree is a YAML document that is being changed. It tracks the changes, so that the
// rest can be copied from the text.
type tree struct {
	document, root *kyaml.Node
	// before holds the original children of mappings and sequences whose children
	// changed.
	before map[*kyaml.Node][]*kyaml.Node
	// touched are the nodes with a change in or below them.
	touched map[*kyaml.Node]bool
	// vacant holds, by mapping, the keys that follow a removed key, nil for the end of
	// the mapping. New keys are inserted there first, so that replacing a key and later
	// undoing it restores the order. appended are the new keys that found no such
	// place.
	vacant, appended map[*kyaml.Node][]*kyaml.Node
	// rewritten are nodes that must be encoded because they lost their anchor; the
	// text of their children may still be usable.
	rewritten map[*kyaml.Node]bool
	fragments
}

func newTree(text []byte) (*tree, error) {
	document, err := parseYAML(text)
	if err != nil {
		return nil, err
	}
	return &tree{
		document:  document,
		root:      document.Content[0],
		before:    make(map[*kyaml.Node][]*kyaml.Node),
		touched:   make(map[*kyaml.Node]bool),
		vacant:    make(map[*kyaml.Node][]*kyaml.Node),
		appended:  make(map[*kyaml.Node][]*kyaml.Node),
		rewritten: make(map[*kyaml.Node]bool),
		fragments: fragments{
			gone:    make(map[*kyaml.Node]string),
			texts:   make(map[*kyaml.Node]string),
			parents: make(map[*kyaml.Node]*kyaml.Node),
			raw:     make(map[*kyaml.Node]string),
		},
	}, nil
}

// apply carries out one operation of a JSON patch (RFC 6902).
func (t *tree) apply(op inject.Operation) error {
	switch op.Op {
	case "add", "replace":
		value := t.fragment(op)
		if value == nil {
			var err error
			if value, err = newNode(op.Value); err != nil {
				return err
			}
		}
		return t.put(op.Path, value, op.Op == "replace")
	case "remove":
		place := t.place(op.Path)
		value, err := t.remove(op.Path)
		if err == nil {
			t.forget(place, value)
		}
		return err
	case "move":
		if strings.HasPrefix(op.Path, op.From+"/") {
			return errors.New("a value cannot be moved into itself")
		}
		value, err := t.remove(op.From)
		if err != nil {
			return err
		}
		return t.put(op.Path, value, false)
	}
	return fmt.Errorf("unknown operation %q", op.Op)
}

// newNode returns a value as YAML, with its keys in kubectl's order and its strings
// quoted as YAML 1.1 requires.
func newNode(value any) (*kyaml.Node, error) {
	encoded, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	text, err := kubectlyaml.JSONToYAML(encoded)
	if err != nil {
		return nil, err
	}
	document, err := parseYAML(text)
	if err != nil {
		return nil, err
	}
	// Copies have no line, which marks them as new.
	return copyOf(document.Content[0]), nil
}

// put adds or replaces the value at a path.
func (t *tree) put(path string, value *kyaml.Node, mustExist bool) error {
	parent, name, err := t.open(path)
	if err != nil {
		return err
	}
	if parent.Kind == kyaml.SequenceNode && !mustExist {
		i, err := index(name, len(parent.Content))
		if err != nil {
			return err
		}
		t.change(parent)
		parent.Content = slices.Insert(parent.Content, i, value)
		return nil
	}
	i := child(parent, name)
	switch {
	case i < 0 && mustExist:
		return fmt.Errorf("there is no %q", name)
	case i < 0:
		t.change(parent)
		key := newKey(name)
		for _, next := range t.known[t.place(path)].Before {
			if at := child(parent, next); at > 0 {
				parent.Content = slices.Insert(parent.Content, at-1, key, value)
				return nil
			}
		}
		t.insert(parent, key, value)
		return nil
	}
	old := parent.Content[i]
	t.release(old)
	if old.Kind == kyaml.ScalarNode && value.Kind == kyaml.ScalarNode {
		value.HeadComment, value.LineComment, value.FootComment = old.HeadComment, old.LineComment, old.FootComment
		if isString(old) && isString(value) && value.Style == 0 {
			value.Style = old.Style & (kyaml.DoubleQuotedStyle | kyaml.SingleQuotedStyle)
		}
	}
	if old.Kind != value.Kind || !isString(old) || !isString(value) {
		t.forget(t.place(path), old)
	}
	t.change(parent)
	parent.Content[i] = value
	return nil
}

// newKey returns the node of a new mapping key.
func newKey(name string) *kyaml.Node {
	// A key is quoted like a string value.
	key, err := newNode(name)
	if err != nil || key.Style&(kyaml.LiteralStyle|kyaml.FoldedStyle) != 0 {
		return &kyaml.Node{Kind: kyaml.ScalarNode, Tag: kyaml.NodeTagString, Value: name, Style: kyaml.DoubleQuotedStyle}
	}
	return key
}

// remove removes the value at a path and returns it.
func (t *tree) remove(path string) (*kyaml.Node, error) {
	parent, name, err := t.open(path)
	if err != nil {
		return nil, err
	}
	i := child(parent, name)
	if i < 0 {
		return nil, fmt.Errorf("there is no %q", name)
	}
	value := parent.Content[i]
	t.release(value)
	t.change(parent)
	if parent.Kind == kyaml.MappingNode {
		t.parents[value] = parent
		t.vacate(parent, i-1)
	} else {
		parent.Content = slices.Delete(parent.Content, i, i+1)
	}
	return value, nil
}

// insert adds a key to a mapping: in the place of a removed one, or at the end.
func (t *tree) insert(parent, key, value *kyaml.Node) {
	at := len(parent.Content)
	if places := t.vacant[parent]; len(places) > 0 {
		if next := slices.Index(parent.Content, places[0]); next >= 0 {
			at = next
		}
		t.vacant[parent] = places[1:]
	} else {
		t.appended[parent] = append(t.appended[parent], key)
	}
	parent.Content = slices.Insert(parent.Content, at, key, value)
}

// vacate removes the key at an index of a mapping's Content with its value. A new key
// appended earlier takes its place.
func (t *tree) vacate(parent *kyaml.Node, at int) {
	gone := parent.Content[at]
	var next *kyaml.Node
	if at+2 < len(parent.Content) {
		next = parent.Content[at+2]
	}
	parent.Content = slices.Delete(parent.Content, at, at+2)
	for i, place := range t.vacant[parent] {
		if place == gone {
			t.vacant[parent][i] = next
		}
	}
	added := t.appended[parent]
	if i := slices.Index(added, gone); i >= 0 {
		t.appended[parent] = slices.Delete(added, i, i+1)
		return
	}
	if len(added) == 0 {
		t.vacant[parent] = append(t.vacant[parent], next)
		return
	}
	t.appended[parent] = added[1:]
	from := slices.Index(parent.Content, added[0])
	key, value := parent.Content[from], parent.Content[from+1]
	parent.Content = slices.Insert(slices.Delete(parent.Content, from, from+2), at, key, value)
}

func isString(n *kyaml.Node) bool { return n.ShortTag() == kyaml.NodeTagString }

// open returns the mapping or sequence that holds the value at a path, and the value's
// name in it. Nodes on the path that are shared by aliases are copied first.
func (t *tree) open(path string) (*kyaml.Node, string, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, "", fmt.Errorf("%q is not a path in the document", path)
	}
	names := strings.Split(path[1:], "/")
	for i, name := range names {
		names[i] = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
	}
	last := len(names) - 1
	parent := t.root
	if err := t.own(parent); err != nil {
		return nil, "", err
	}
	for _, name := range names[:last] {
		i := child(parent, name)
		if i < 0 {
			return nil, "", fmt.Errorf("there is no %q", name)
		}
		if alias := parent.Content[i]; alias.Kind == kyaml.AliasNode {
			t.change(parent)
			parent.Content[i] = copyOf(alias.Alias)
		}
		parent = parent.Content[i]
		if err := t.own(parent); err != nil {
			return nil, "", err
		}
	}
	return parent, names[last], nil
}

// own prepares a mapping or sequence for a change in or below it.
func (t *tree) own(n *kyaml.Node) error {
	if n.Kind != kyaml.MappingNode && n.Kind != kyaml.SequenceNode {
		return errors.New("a part of the path is neither a mapping nor a list")
	}
	t.touched[n] = true
	if n.Anchor != "" {
		t.handOver(map[*kyaml.Node]bool{n: true}, nil)
	}
	return t.expandMerge(n)
}

// change records the children of a mapping or sequence before their first change.
func (t *tree) change(n *kyaml.Node) {
	if _, ok := t.before[n]; !ok {
		t.before[n] = slices.Clone(n.Content)
	}
}

// child returns the index of a value in its parent's Content, or -1.
func child(parent *kyaml.Node, name string) int {
	if parent.Kind == kyaml.SequenceNode {
		i, err := index(name, len(parent.Content)-1)
		if err != nil || name == "-" {
			return -1
		}
		return i
	}
	for i := 0; i < len(parent.Content); i += 2 {
		key := parent.Content[i]
		if key.Kind == kyaml.AliasNode {
			key = key.Alias
		}
		if key.Value == name {
			return i + 1
		}
	}
	return -1
}

// index reads an array index of RFC 6901; "-" is the one after the last.
func index(name string, last int) (int, error) {
	if name == "-" {
		return last, nil
	}
	i, err := strconv.Atoi(name)
	if err != nil || strconv.Itoa(i) != name || i < 0 || i > last {
		return 0, fmt.Errorf("there is no element %q", name)
	}
	return i, nil
}
