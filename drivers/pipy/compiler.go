package pipy

import (
	"encoding/json"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/delivery"
)

// Bounds of all expressions in a document together: entries of their tables, and the work to
// build these. Without them a policy of 8 bytes an expression would become a document of
// gigabytes.
const (
	maxDocumentEntries = 1 << 17
	maxDocumentWork    = 1 << 23
)

// maxCompiled is how many expressions a translator remembers.
const maxCompiled = 512

// compiler builds the automata of one document. Whether an expression fits into the
// document depends on those before it, and on nothing else.
type compiler struct {
	compiled *delivery.Cache[string, compiledExpression]
	// entries and work are what is left of the bounds.
	entries, work int
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
		return matchDocument{Never: true}
	}
	c := x.compiled.Get(expression)
	c.once.Do(func() { c.compile(expression) })
	x.work -= c.work
	if c.table == nil || c.entries > x.entries {
		return matchDocument{Never: true}
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
