package offline

import (
	"errors"
	"slices"

	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// release prepares a value and its descendants to be replaced or removed.
func (t *tree) release(gone *kyaml.Node) {
	leaving := make(map[*kyaml.Node]bool)
	if gone.Anchor != "" {
		leaving[gone] = true
	}
	t.walk(gone, nil, func(parents []*kyaml.Node, i int) bool {
		if n := parents[len(parents)-1].Content[i]; n.Anchor != "" {
			leaving[n] = true
		}
		return true
	})
	t.handOver(leaving, gone)
}

// handOver detaches the aliases of anchored values that are about to change or
// leave: the first alias of each value is replaced by an anchored copy, to which its
// other aliases then refer. Aliases within gone are ignored.
func (t *tree) handOver(leaving map[*kyaml.Node]bool, gone *kyaml.Node) {
	if len(leaving) == 0 {
		return
	}
	copies := make(map[*kyaml.Node]*kyaml.Node)
	t.walk(t.root, nil, func(parents []*kyaml.Node, i int) bool {
		parent := parents[len(parents)-1]
		alias := parent.Content[i]
		switch {
		case alias == gone:
			return false
		case alias.Kind != kyaml.AliasNode || !leaving[alias.Alias]:
			return true
		case copies[alias.Alias] != nil:
			alias.Alias = copies[alias.Alias]
			return true
		}
		anchored := copyOf(alias.Alias)
		anchored.Anchor = alias.Alias.Anchor
		copies[alias.Alias] = anchored
		for _, n := range parents {
			t.touched[n] = true
		}
		t.change(parent)
		parent.Content[i] = anchored
		// The copy may contain aliases to leaving values too.
		return true
	})
	for n := range copies {
		n.Anchor = ""
		t.rewritten[n] = true
	}
}

// walk visits the descendants of a node in document order, and descends into those
// for which visit returns true. Visit gets the parents, outermost first, and the index
// of the node in the Content of the innermost one.
func (t *tree) walk(n *kyaml.Node, parents []*kyaml.Node, visit func(parents []*kyaml.Node, i int) bool) {
	parents = append(parents, n)
	for i := range n.Content {
		if visit(parents, i) {
			t.walk(n.Content[i], parents, visit)
		}
	}
}

// copyOf returns a deep copy of a node without anchors: aliases still refer to the
// originals.
func copyOf(n *kyaml.Node) *kyaml.Node {
	c := *n
	c.Line, c.Column, c.Anchor = 0, 0, ""
	c.Content = make([]*kyaml.Node, len(n.Content))
	for i, child := range n.Content {
		c.Content[i] = copyOf(child)
	}
	return &c
}

// expandMerge replaces the merge key of a mapping by the merged pairs. As in
// Kubernetes, the later of two equal keys wins, whether merged or not.
func (t *tree) expandMerge(n *kyaml.Node) error {
	if n.Kind != kyaml.MappingNode {
		return nil
	}
	merge := slices.IndexFunc(n.Content, isMerge)
	if merge < 0 {
		return nil
	}
	t.change(n)
	pairs, err := expanded(n, 0)
	if err != nil {
		return err
	}
	n.Content = pairs
	return nil
}

func isMerge(n *kyaml.Node) bool {
	return n.Kind == kyaml.ScalarNode && n.Value == "<<" && (n.Tag == "" || n.ShortTag() == kyaml.MergeTag)
}

// maxMergeDepth bounds the nesting of merge keys.
const maxMergeDepth = 100

func expanded(n *kyaml.Node, depth int) ([]*kyaml.Node, error) {
	if depth > maxMergeDepth {
		return nil, errors.New("merge keys are nested too deeply")
	}
	if n.Kind == kyaml.AliasNode {
		n = n.Alias
	}
	var pairs []*kyaml.Node
	places := make(map[string]int)
	set := func(key, value *kyaml.Node) {
		if i, ok := places[key.Value]; ok {
			pairs[i], pairs[i+1] = key, value
			return
		}
		places[key.Value] = len(pairs)
		pairs = append(pairs, key, value)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if !isMerge(key) {
			set(key, value)
			continue
		}
		sources := []*kyaml.Node{value}
		if value.Kind == kyaml.SequenceNode {
			sources = slices.Clone(value.Content)
			slices.Reverse(sources)
		}
		for _, source := range sources {
			merged, err := expanded(source, depth+1)
			if err != nil {
				return nil, err
			}
			for j := 0; j < len(merged); j += 2 {
				set(copyOf(merged[j]), copyOf(merged[j+1]))
			}
		}
	}
	return pairs, nil
}
