package pipy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
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

// TestExpressionsOfANamespaceAreBounded gives many services of a namespace routes with large
// automata. Those for which there is no room match nothing and are reported; another namespace's
// are not affected, and the files do not depend on what was translated before.
func TestExpressionsOfANamespaceAreBounded(t *testing.T) {
	outbound := func(services int) *mesh.Outbound {
		destinations := map[string]*mesh.Destination{}
		add := func(namespace, expression string, i int) {
			service := mesh.ServicePort{Name: mesh.Name{Namespace: namespace, Name: fmt.Sprintf("s%d", i)}, Port: 80}
			destinations[service.String()] = mesh.Seal(&mesh.Destination{Name: service.String(), Service: service, Port: 80, Protocol: mesh.HTTP,
				Routes: []mesh.Route{{Match: mesh.HTTPMatch{Path: mesh.StringMatch{Regex: expression}}}}})
		}
		for i := range services {
			add("greedy", fmt.Sprintf(".*%c.{13}", 'a'+i), i)
		}
		add("modest", "/books/.*", 0)
		return mesh.NewOutbound("*", mesh.TableOf(destinations), mesh.Table[*mesh.Backend]{})
	}
	tr := newTranslator()
	for _, services := range []int{20, 5, 24, 1} {
		view := viewOf("a", outbound(services))
		set := tr.set(view)
		if got, want := mirror.Version(set), mirror.Version(newTranslator().set(view)); got != want {
			t.Errorf("with %d services a translator with a cache returns %s, and one without %s", services, got, want)
		}
		size, never := 0, 0
		for name, file := range set.All() {
			if !strings.HasPrefix(name, destinationsDir) {
				continue
			}
			size += len(file.Text)
			if strings.Contains(file.Text, `"never":true`) {
				never++
				if strings.Contains(name, "modest") {
					t.Errorf("the expression of another namespace matches nothing: %s", file.Text)
				}
			}
		}
		t.Logf("%d services: %d bytes, %d without their expression", services, size, never)
		if size > 3<<20 {
			t.Errorf("the expressions of %d services become %d bytes", services, size)
		}
		left := tr.leftOut(view)
		if len(left) != never || services == 24 && never == 0 || services == 1 && never > 0 {
			t.Errorf("with %d services %d expressions match nothing, and %d are reported", services, never, len(left))
		}
		for _, c := range left {
			if c.Part.Kind != mesh.PartDestination || !strings.HasPrefix(c.Part.Name, "greedy/") {
				t.Errorf("%s is reported", c.Part)
			}
		}
	}
}

// TestExpressionsThatAreReported looks for the parts whose expressions exceed a bound.
func TestExpressionsThatAreReported(t *testing.T) {
	var large []mesh.HTTPMatch
	for i := range 26 {
		large = append(large, mesh.HTTPMatch{Path: mesh.StringMatch{Regex: fmt.Sprintf(".*%c.{13}", 'a'+i)}})
	}
	small := []mesh.HTTPMatch{{Path: mesh.StringMatch{Regex: "/books/.*"}}}
	view := inboundView(&mesh.Inbound{Ports: []mesh.InboundPort{{
		Port: 8080, Protocol: mesh.HTTP, Access: rules(rule("shop/small", small, buyer), rule("shop/large", large, buyer)),
		Ingress: []mesh.Ingress{{Origin: drivertest.Origin("IngressBackend", "shop/door"), Requests: large}},
	}}})
	var got []string
	for _, c := range newTranslator().leftOut(view) {
		got = append(got, c.Part.String())
	}
	if want := []string{"permission shop/large", "ingress shop/door"}; !slices.Equal(got, want) {
		t.Errorf("%v are reported, want %v", got, want)
	}
}
