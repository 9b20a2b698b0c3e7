package pipy

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
)

// Bounds of all expressions in a document together: entries of their tables, and the work to
// build these. Without them a policy of 8 bytes an expression would become a document of
// gigabytes. The destinations of a namespace together have a bound too, since a route may have
// many services, and every client gets all of its namespace.
const (
	maxDocumentEntries  = 1 << 17
	maxDocumentWork     = 1 << 23
	maxNamespaceEntries = 1 << 18
)

// maxCompiled is how many expressions a translator remembers.
const maxCompiled = 512

// compiler builds the automata of one document. Whether an expression fits into the
// document depends on those before it, and on nothing else.
type compiler struct {
	compiled *delivery.Cache[string, compiledExpression]
	// entries and work are what is left of the bounds.
	entries, work int
	// part is what is compiled, and over the parts with an expression that exceeds a bound.
	part mesh.Part
	over []mesh.Part
}

// of says to which part the following expressions belong.
func (x *compiler) of(kind mesh.PartKind, name string) { x.part = mesh.Part{Kind: kind, Name: name} }

// never is the match of an expression for which there is no room.
func (x *compiler) never() matchDocument {
	if !slices.Contains(x.over, x.part) {
		x.over = append(x.over, x.part)
	}
	return matchDocument{Never: true}
}

// compiledExpression is what a translator remembers of an expression.
type compiledExpression struct {
	once sync.Once
	// table is the automaton in JSON, or nil if the expression is invalid or too large.
	table         json.RawMessage
	entries, work int
}

// newCompiler returns the builder of a document with nothing remembered.
func newCompiler() *compiler {
	return &compiler{compiled: delivery.NewCache[string, compiledExpression](maxCompiled), entries: maxDocumentEntries, work: maxDocumentWork}
}

// regexMatch returns the match of an expression. An expression that is invalid, too large, or
// too much for the document matches nothing, so that nothing passes that RE2 would reject.
func (x *compiler) regexMatch(expression string) matchDocument {
	if x.work <= 0 {
		return x.never()
	}
	c := x.compiled.Get(expression)
	c.once.Do(func() { c.compile(expression) })
	x.work -= c.work
	if c.table == nil || c.entries > x.entries {
		return x.never()
	}
	x.entries -= c.entries
	return matchDocument{Regex: c.table}
}

func (c *compiledExpression) compile(expression string) {
	a, work, err := newAutomaton(expression)
	c.work = work
	if err != nil {
		return
	}
	// The table has only numbers.
	c.table, _ = json.Marshal(a)
	c.entries = len(a.Next)
}

// leftOut returns what is reported about parts with expressions that exceed a bound.
func leftOut(parts []mesh.Part) []delivery.Conviction {
	out := make([]delivery.Conviction, len(parts))
	for i, part := range parts {
		out[i] = delivery.Conviction{Part: part, Message: overBound}
	}
	return out
}

var overBound = fmt.Sprintf(
	"its regular expressions need larger tables than Pipy is given: %d entries for one expression, %d for those of a document, %d for those of a namespace's destinations; the expressions beyond that match nothing; use fewer or simpler ones, for example without long repetitions, or another class",
	maxEntries, maxDocumentEntries, maxNamespaceEntries)
