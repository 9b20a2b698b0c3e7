package offline

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/outrigger-mesh/outrigger/internal/manifest"
)

// errUnplaceable is for YAML whose entries do not start on their own lines: the whole
// document is encoded anew.
var errUnplaceable = errors.New("the document cannot be changed in place")

// splicer writes a changed tree: it copies the text of unchanged parts, with the
// comments and blank lines around them, and encodes only new parts.
type splicer struct {
	*tree
	style style
	text  []byte
	// lines are the offsets of the beginnings of lines, and of the end of the text.
	lines []int
	out   bytes.Buffer
}

// entry is a mapping's key and value, or a sequence's item, in the text: its comments,
// blank lines and indentation from lead to start, the entry itself from start to end.
type entry struct {
	nodes            []*kyaml.Node
	lead, start, end int
	// own says that only spaces precede the entry in its line, and no dash.
	own bool
}

// splice returns the text of the changed tree; original is the text before the
// changes.
func (t *tree) splice(original []byte) ([]byte, error) {
	text := bytes.ReplaceAll(original, []byte("\r\n"), newline)
	complete := bytes.HasSuffix(text, newline)
	if !complete {
		text = append(bytes.Clone(text), '\n')
	}
	s := &splicer{tree: t, style: styleOf(t.root, text), text: text, lines: []int{0}}
	for at := 0; at < len(text); {
		at = manifest.LineEnd(text, at)
		s.lines = append(s.lines, at)
	}
	if !s.placeable(t.root) {
		return nil, errUnplaceable
	}
	entries, err := s.entries(t.root, 0, len(text))
	if err != nil {
		return nil, err
	}
	s.out.Write(text[:entries[0].lead])
	if err := s.collection(t.root, entries); err != nil {
		return nil, err
	}
	s.out.Write(text[entries[len(entries)-1].end:])
	result := s.out.Bytes()
	if !complete {
		result = bytes.TrimSuffix(result, newline)
	}
	return likeLineEnds(result, original), nil
}

// placeable reports whether a changed node can be written entry by entry: it was in
// the text in block style, still has its anchor, and is not empty.
func (s *splicer) placeable(n *kyaml.Node) bool {
	return (n.Kind == kyaml.MappingNode || n.Kind == kyaml.SequenceNode) && n.Line > 0 &&
		n.Style&kyaml.FlowStyle == 0 && !s.rewritten[n] && len(n.Content) > 0
}

// entries returns the positions in the text of the children that a node had before
// the changes. None begins before floor. The last ends at end or before the comments
// that belong to the following node.
func (s *splicer) entries(n *kyaml.Node, floor, end int) ([]entry, error) {
	children, changed := s.before[n]
	if !changed {
		children = n.Content
	}
	size := 1
	if n.Kind == kyaml.MappingNode {
		size = 2
	}
	var entries []entry
	column := 0
	for nodes := range slices.Chunk(children, size) {
		e := entry{nodes: nodes}
		var ok bool
		if n.Kind == kyaml.MappingNode {
			e.start, ok = s.offset(nodes[0].Line, nodes[0].Column)
		} else {
			e.start, ok = s.dash(n, nodes[0], len(entries) == 0)
		}
		if !ok || e.start < floor || e.start >= end {
			return nil, errUnplaceable
		}
		if len(entries) == 0 {
			column = s.columnOf(e.start)
		}
		e.lead, e.own = e.start, s.ownLine(e.start)
		if e.own {
			e.lead = s.upward(e.start-column, floor, column)
		}
		if len(entries) > 0 {
			// All but the first must begin their own lines, in the same column.
			if !e.own || s.columnOf(e.start) != column {
				return nil, errUnplaceable
			}
			entries[len(entries)-1].end = e.lead
		}
		entries = append(entries, e)
		floor = manifest.LineEnd(s.text, e.start)
	}
	entries[len(entries)-1].end = s.upward(end, min(floor, end), column)
	return entries, nil
}

// offset returns the offset of a line and column, both from 1.
func (s *splicer) offset(line, column int) (int, bool) {
	if line < 1 || line >= len(s.lines) || s.lines[line-1]+column > s.lines[line] {
		return 0, false
	}
	return s.lines[line-1] + column - 1, true
}

// columnOf returns the column of an offset, from 0.
func (s *splicer) columnOf(offset int) int {
	return offset - (bytes.LastIndexByte(s.text[:offset], '\n') + 1)
}

// dash returns the offset of the dash of a sequence's item.
func (s *splicer) dash(n, item *kyaml.Node, first bool) (int, bool) {
	line := item.Line
	if first {
		line = n.Line
	}
	// An item may begin on a line below its dash.
	for ; line > 0; line-- {
		at, ok := s.offset(line, n.Column)
		if ok && s.text[at] == '-' && (first || s.ownLine(at)) {
			return at, true
		}
		if first || line <= n.Line {
			break
		}
	}
	return 0, false
}

// ownLine reports whether only spaces precede an offset in its line.
func (s *splicer) ownLine(offset int) bool {
	return len(bytes.TrimLeft(s.text[offset-s.columnOf(offset):offset], " ")) == 0
}

// upward returns the start of the blank lines and comments before a line. A comment
// that is indented by more than the column belongs to the entry above.
func (s *splicer) upward(line, floor, column int) int {
	for line > floor {
		above := bytes.LastIndexByte(s.text[:line-1], '\n') + 1
		content := bytes.TrimLeft(s.text[above:line], " ")
		indent := line - above - len(content)
		blank := len(bytes.TrimSpace(content)) == 0
		if above < floor || !blank && (content[0] != '#' || indent > column) {
			break
		}
		line = above
	}
	return line
}

// collection writes the current entries of a node. The caller has written the text
// before the first one.
func (s *splicer) collection(n *kyaml.Node, entries []entry) error {
	size := len(entries[0].nodes)
	column := s.columnOf(entries[0].start)
	afterDash := !entries[0].own
	indentation := strings.Repeat(" ", column)
	known := make(map[*kyaml.Node]*entry, len(entries))
	for i := range entries {
		known[entries[i].nodes[0]] = &entries[i]
		s.keep(n, &entries[i])
	}
	for i, nodes := range slices.Collect(slices.Chunk(n.Content, size)) {
		e := known[nodes[0]]
		switch {
		case i == 0 && afterDash:
			if e != nil {
				s.out.Write(bytes.TrimLeft(s.text[e.lead:e.start], " \n"))
			}
		case e == nil || !e.own:
			s.out.WriteString(indentation)
		default:
			s.out.Write(s.text[e.lead:e.start])
		}
		if err := s.entry(n.Kind, nodes, e, indentation); err != nil {
			return err
		}
	}
	return nil
}

// entry writes one entry; e is its position in the text, or nil for a new one.
func (s *splicer) entry(kind kyaml.Kind, nodes []*kyaml.Node, e *entry, indentation string) error {
	value := nodes[len(nodes)-1]
	if e != nil && kind == kyaml.MappingNode && s.replaceScalar(e, value) {
		return nil
	}
	if e == nil || e.nodes[len(e.nodes)-1] != value {
		return s.encoded(kind, nodes, e != nil, indentation)
	}
	if !s.touched[value] {
		s.out.Write(s.text[e.start:e.end])
		return nil
	}
	if !s.placeable(value) {
		return s.encoded(kind, nodes, true, indentation)
	}
	floor := e.start + 1
	if kind == kyaml.MappingNode {
		floor = manifest.LineEnd(s.text, e.start)
	}
	below, err := s.entries(value, floor, e.end)
	if err != nil {
		return s.encoded(kind, nodes, true, indentation)
	}
	s.out.Write(s.text[e.start:below[0].lead])
	if err := s.collection(value, below); err != nil {
		return err
	}
	s.out.Write(s.text[below[len(below)-1].end:e.end])
	return nil
}

// replaceScalar writes an entry whose scalar was replaced by another, with the spaces and the
// comment around it. It returns false if both are not on one line.
func (s *splicer) replaceScalar(e *entry, value *kyaml.Node) bool {
	old := e.nodes[1]
	if old == value || old.Kind != kyaml.ScalarNode || value.Kind != kyaml.ScalarNode || old.Anchor != "" || s.raw[value] != "" {
		return false
	}
	start, ok := s.offset(old.Line, old.Column)
	if !ok || start < e.start || start >= e.end {
		return false
	}
	length := scalarLength(s.text[start:manifest.LineEnd(s.text, start)], old)
	if length == 0 {
		return false
	}
	bare := *value
	bare.HeadComment, bare.LineComment, bare.FootComment = "", "", ""
	text, err := s.style.encode(&bare)
	if text = bytes.TrimSuffix(text, newline); err != nil || bytes.Contains(text, newline) {
		return false
	}
	s.out.Write(s.text[e.start:start])
	s.out.Write(text)
	s.out.Write(s.text[start+length : e.end])
	return true
}

// scalarLength returns the length of a scalar at the beginning of a line's rest, or 0 if it is not
// complete there.
func scalarLength(rest []byte, n *kyaml.Node) int {
	switch {
	case n.Style&kyaml.DoubleQuotedStyle != 0 && rest[0] == '"':
		for i := 1; i < len(rest); i++ {
			switch rest[i] {
			case '\\':
				i++
			case '"':
				return i + 1
			}
		}
	case n.Style&kyaml.SingleQuotedStyle != 0 && rest[0] == '\'':
		for i := 1; i < len(rest); i++ {
			if rest[i] != '\'' {
				continue
			}
			if i+1 == len(rest) || rest[i+1] != '\'' {
				return i + 1
			}
			i++
		}
	case n.Style == 0 && bytes.HasPrefix(rest, []byte(n.Value)):
		return len(n.Value)
	}
	return 0
}

// encoded writes an entry by encoding it. Commented says that the comments above it
// are already written.
func (s *splicer) encoded(kind kyaml.Kind, nodes []*kyaml.Node, commented bool, indentation string) error {
	text := []byte(s.raw[nodes[len(nodes)-1]])
	if len(text) == 0 {
		nodes = slices.Clone(nodes)
		if commented {
			for i, n := range nodes {
				nodes[i] = withoutComments(n)
			}
		}
		var err error
		if text, err = s.style.encode(&kyaml.Node{Kind: kind, Content: nodes}); err != nil {
			return err
		}
	}
	for i, line := range bytes.SplitAfter(text, newline) {
		if i > 0 && len(bytes.TrimSpace(line)) > 0 {
			s.out.WriteString(indentation)
		}
		s.out.Write(line)
	}
	return nil
}

// withoutComments returns a copy of a node without the comments above and below it.
func withoutComments(n *kyaml.Node) *kyaml.Node {
	c := *n
	c.HeadComment, c.FootComment = "", ""
	if c.Kind == kyaml.MappingNode && len(c.Content) > 0 {
		c.Content = slices.Clone(c.Content)
		first := *c.Content[0]
		first.HeadComment = ""
		c.Content[0] = &first
	}
	return &c
}

// style is the indentation of a document, in spaces; wide means that sequences are
// indented too.
type style struct {
	indent int
	wide   bool
}

// styleOf detects the indentation of a document from its first nested mapping and its
// first sequence. The default is kubectl's: two spaces, sequences not indented.
func styleOf(root *kyaml.Node, text []byte) style {
	st := style{indent: 2, wide: kyaml.DeriveSeqIndentStyle(string(text)) == string(kyaml.WideSequenceStyle)}
	for _, child := range root.Content {
		if child.Kind == kyaml.MappingNode && child.Style&kyaml.FlowStyle == 0 && len(child.Content) > 0 {
			if indent := child.Content[0].Column - root.Column; indent > 1 && indent < 10 {
				st.indent = indent
			}
			break
		}
	}
	return st
}

func (st style) encode(n *kyaml.Node) ([]byte, error) {
	writeNulls(n, false)
	var b bytes.Buffer
	encoder := kyaml.NewEncoder(&b)
	encoder.SetIndent(st.indent)
	if st.wide {
		encoder.DefaultSeqIndent()
	}
	if err := encoder.Encode(n); err != nil {
		return nil, err
	}
	if err := encoder.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// writeNulls writes out missing values in flow collections, as in {a, b: c}, for which the encoder
// would write empty strings.
func writeNulls(n *kyaml.Node, inFlow bool) {
	if inFlow && n.Kind == kyaml.ScalarNode && n.Value == "" && n.ShortTag() == kyaml.NodeTagNull {
		n.Value = "null"
	}
	inFlow = inFlow || n.Style&kyaml.FlowStyle != 0
	for _, child := range n.Content {
		writeNulls(child, inFlow)
	}
}

// encode returns the text of the whole tree, without the original's layout.
func (t *tree) encode(original []byte) ([]byte, error) {
	text, err := styleOf(t.root, original).encode(t.document)
	if err != nil {
		return nil, err
	}
	if !bytes.HasSuffix(original, newline) {
		text = bytes.TrimSuffix(text, newline)
	}
	return likeLineEnds(text, original), nil
}
