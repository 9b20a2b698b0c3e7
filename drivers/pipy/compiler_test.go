package pipy

import (
	"fmt"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
)

// TestExpressionsOfADocumentAreBounded translates a policy of short expressions with large
// automata. Those for which there is no room match nothing, and the same ones each time.
func TestExpressionsOfADocumentAreBounded(t *testing.T) {
	var matches []mesh.HTTPMatch
	for i := range 5000 {
		matches = append(matches, mesh.HTTPMatch{Path: mesh.StringMatch{Regex: fmt.Sprintf(".*%c.{%d}", 'a'+i%26, 13+i%2)}})
	}
	view := inboundView(&mesh.Inbound{Ports: []mesh.InboundPort{{Port: 8080, Protocol: mesh.HTTP, Access: rules(rule("shop/large", matches, buyer))}}})
	started := time.Now()
	file, _ := newTranslator().set(view).Get(inboundFile)
	t.Logf("5,000 expressions become %d bytes in %s", len(file.Text), time.Since(started))
	if len(file.Text) > 2<<20 {
		t.Errorf("5,000 expressions become %d bytes", len(file.Text))
	}
	tr := newTranslator()
	other, _ := tr.set(view).Get(inboundFile)
	// An expression that is remembered is bounded like any other.
	again := inboundView(&mesh.Inbound{Ports: []mesh.InboundPort{{Port: 8081, Protocol: mesh.HTTP, Access: rules(rule("shop/large", matches, buyer))}}})
	second, _ := tr.set(again).Get(inboundFile)
	fresh, _ := newTranslator().set(again).Get(inboundFile)
	if file.Text != other.Text || second.Text != fresh.Text {
		t.Error("the document depends on what was translated before")
	}
	x := newCompiler()
	for _, m := range matches {
		x.request(m)
	}
	// The last one may exceed what was left.
	if x.work < -maxSteps-maxTests {
		t.Errorf("5,000 expressions take %d steps, want at most %d", maxDocumentWork-x.work, maxDocumentWork)
	}
	x = newCompiler()
	if m := x.regexMatch("/books/.*"); m.Regex == nil {
		t.Error("a small expression has no automaton")
	}
	for range 100 {
		x.regexMatch(".*a.{13}")
	}
	if m := x.regexMatch(".*a.{13}"); !m.Never {
		t.Error("the expression fits a hundred times")
	}
}
