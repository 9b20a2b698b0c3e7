package offline

import (
	"errors"
	"slices"

	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// release prepares a value, and all in it, to be replaced or removed.
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

// handOver lets anchored values change or go without a change to what refers to
// them: the first alias of each becomes the anchored value for the others.
// Aliases within gone are not asked.
func (t *tree) handOver(leaving map[*kyaml.Node]bool, gone *kyaml.Node) {
	if len(leaving) == 0 {
		return
	}
	heirs := make(map[*kyaml.Node]*kyaml.Node)
	t.walk(t.root, nil, func(parents []*kyaml.Node, i int) bool {
		parent := parents[len(parents)-1]
		alias := parent.Content[i]
		switch {
		case alias == gone:
			return false
		case alias.Kind != kyaml.AliasNode || !leaving[alias.Alias]:
			return true
		case heirs[alias.Alias] != nil:
			alias.Alias = heirs[alias.Alias]
			return true
		}
		heir := copyOf(alias.Alias)
		heir.Anchor = alias.Alias.Anchor
		heirs[alias.Alias] = heir
		t.touch(parents)
		t.change(parent)
		parent.Content[i] = heir
		// What leaves may hold aliases to what leaves.
		return true
	})
	for n := range heirs {
		n.Anchor = ""
		t.rewritten[n] = true
	}
}

func (t *tree) touch(nodes []*kyaml.Node) {
	for _, n := range nodes {
		t.touched[n] = true
	}
}

// walk visits all below a node in the document's order, and goes on below what
// the function returns true for. The function gets the parents, from the outermost,
// and the place in the innermost one's Content.
func (t *tree) walk(n *kyaml.Node, parents []*kyaml.Node, visit func(parents []*kyaml.Node, i int) bool) {
	parents = append(parents, n)
	for i := range n.Content {
		if visit(parents, i) {
			t.walk(n.Content[i], parents, visit)
		}
	}
}

// copyOf returns a copy of a node and all in it as new nodes, without anchors:
// those stay where they were, and so aliases go on to refer to them.
func copyOf(n *kyaml.Node) *kyaml.Node {
	c := *n
	c.Line, c.Column, c.Anchor = 0, 0, ""
	c.Content = make([]*kyaml.Node, len(n.Content))
	for i, child := range n.Content {
		c.Content[i] = copyOf(child)
	}
	return &c
}

// expandMerge replaces the merge key of a mapping by what it stands for, in the
// order in which Kubernetes reads it: the later of two keys wins, be it merged or
// not.
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

// maxMergeDepth bounds mappings that are merged into each other.
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
