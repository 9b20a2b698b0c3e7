package behaviour_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/sidecar"
	"github.com/outrigger-mesh/outrigger/sidecar/drivertest/behaviour"
)

var pageFile = filepath.Join("..", "..", "docs", "behaviour.md")

const intro = `# What the mesh does

Each row is a test. It runs on a lab of network namespaces with the real controller,
the real agent and real proxies, and asks by requests. ` + "`go test ./test/behaviour`" + `
runs the table and holds this page, which ` + "`UPDATE=1`" + ` writes.

A column is the class of the clients' proxies and that of the servers'. "no" says that
a driver does not declare what the row needs, so the row was not asked: what asks for
it gets a Problem in its status, and nothing fails open. "not asked" is a row that is
newer than the last run with that proxy. A column whose proxy is not on a machine keeps
what was found last, with these:

| class | version | last run |
|---|---|---|
`

// page is what docs/behaviour.md says.
type page struct {
	classes map[string]run
	// answers are by pair, as in the head of a column, and by row.
	answers map[string]map[string]string
}

// run is the last one with a class.
type run struct{ version, date string }

// readPage reads what a run before has written. What is not a table is passed over.
func readPage(text string) page {
	p := page{classes: map[string]run{}, answers: map[string]map[string]string{}}
	var pairs []string
	inClasses := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| ") || !strings.HasSuffix(line, " |") {
			inClasses = inClasses && line == "|---|---|---|"
			continue
		}
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
		switch {
		case cells[0] == "row":
			pairs = cells[2:]
		case cells[0] == "class":
			inClasses = true
		case inClasses && len(cells) == 3:
			p.classes[cells[0]] = run{cells[1], cells[2]}
		case pairs != nil && len(cells) == len(pairs)+2:
			for i, pair := range pairs {
				p.set(pair, cells[0], cells[i+2])
			}
		}
	}
	return p
}

func (p page) set(pair, row, answer string) {
	if p.answers[pair] == nil {
		p.answers[pair] = map[string]string{}
	}
	p.answers[pair][row] = answer
}

// learn takes up what a run has found. The date and the versions are of the run only if
// the page is to be written, or the page would not hold on another day.
func (p page) learn(result behaviour.Result, date string) {
	for pair, answers := range result.Answers {
		p.answers[pair.String()] = nil
		for row, answer := range answers {
			p.set(pair.String(), row, string(answer))
		}
	}
	if date == "" {
		return
	}
	for class, version := range result.Versions {
		p.classes[class] = run{cmp.Or(strings.TrimPrefix(version, class+" "), ask(class), "unknown"), date}
	}
}

// ask returns the version that a proxy prints which does not tell the controller, or "".
func ask(class string) string {
	flag := map[string]string{"haproxy": "-v", "pipy": "--version"}[class]
	registered, err := sidecar.Lookup(class)
	if flag == "" || err != nil || registered.Finder == nil {
		return ""
	}
	program, err := registered.Finder.FindProxy()
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// Whether it likes the flag does not matter if it says what it is.
	printed, _ := exec.CommandContext(ctx, program, flag).CombinedOutput()
	if found := regexp.MustCompile(`(?i)version[ :]+([0-9]+\.[0-9]+\.[0-9]+)`).FindSubmatch(printed); found != nil {
		return string(found[1])
	}
	return ""
}

// text returns the page, with the table's rows as they are now.
func (p page) text() string {
	var out bytes.Buffer
	out.WriteString(intro)
	classes := slices.Sorted(maps.Keys(p.classes))
	for _, class := range classes {
		fmt.Fprintf(&out, "| %s | %s | %s |\n", class, p.classes[class].version, p.classes[class].date)
	}
	pairs := behaviour.Pairs(classes...)
	pairs = slices.DeleteFunc(pairs, func(pair behaviour.Pair) bool { return p.answers[pair.String()] == nil })
	for _, c := range behaviour.Chapters() {
		fmt.Fprintf(&out, "\n## %s\n\n| row | says |", c.Name)
		for _, pair := range pairs {
			fmt.Fprintf(&out, " %s |", pair)
		}
		out.WriteString("\n|---|---|" + strings.Repeat("---|", len(pairs)) + "\n")
		for _, r := range c.Rows {
			fmt.Fprintf(&out, "| %s | %s |", r.Name, r.Says)
			for _, pair := range pairs {
				fmt.Fprintf(&out, " %s |", cmp.Or(p.answers[pair.String()][r.Name], "not asked"))
			}
			out.WriteString("\n")
		}
	}
	return out.String()
}

// checkPage compares the page with what was found, or writes it with UPDATE=1.
func checkPage(t *testing.T, result behaviour.Result) {
	t.Helper()
	is, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	p := readPage(string(is))
	if os.Getenv("UPDATE") != "" {
		p.learn(result, time.Now().UTC().Format(time.DateOnly))
		if err := os.WriteFile(pageFile, []byte(p.text()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	p.learn(result, "")
	if p.text() != string(is) {
		t.Errorf("docs/behaviour.md does not say what this run found; run UPDATE=1 go test ./test/behaviour\n%s", gocmp.Diff(string(is), p.text()))
	}
}

// TestPageHolds needs no proxy: the page is as it would be written from itself.
func TestPageHolds(t *testing.T) {
	is, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(is), readPage(string(is)).text()); diff != "" {
		t.Errorf("docs/behaviour.md is not as it would be written; run UPDATE=1 go test ./test/behaviour\n%s", diff)
	}
}

// TestPage has a proxy be missing whose column is there from a run before, and with it
// a row that is new.
func TestPage(t *testing.T) {
	found := func(pairs ...behaviour.Pair) behaviour.Result {
		result := behaviour.Result{Answers: map[behaviour.Pair]map[string]behaviour.Answer{}, Versions: map[string]string{}}
		for _, pair := range pairs {
			result.Answers[pair] = map[string]behaviour.Answer{}
			for _, class := range []string{pair.Client, pair.Server} {
				result.Versions[class] = "1.0"
			}
			for _, c := range behaviour.Chapters() {
				for i, r := range c.Rows {
					if result.Answers[pair][r.Name] = behaviour.Yes; i == 1 && pair.Server == "b" {
						result.Answers[pair][r.Name] = behaviour.No
					}
				}
			}
		}
		return result
	}
	all := readPage("")
	all.learn(found(behaviour.Pairs("a", "b")...), "2026-01-01")
	written := all.text()
	if diff := gocmp.Diff(written, readPage(written).text()); diff != "" {
		t.Errorf("read and written again the page differs:\n%s", diff)
	}
	without := readPage(written)
	without.learn(found(behaviour.Pairs("a")...), "")
	if diff := gocmp.Diff(written, without.text()); diff != "" {
		t.Errorf("without b the page differs:\n%s", diff)
	}
	without.learn(found(behaviour.Pairs("a")...), "2026-02-02")
	if text := without.text(); !strings.Contains(text, "| a | 1.0 | 2026-02-02 |") || !strings.Contains(text, "| b | 1.0 | 2026-01-01 |") {
		t.Errorf("the dates are wrong:\n%s", text)
	}
	first := behaviour.Chapters()[0].Rows[0].Name
	newer := readPage(strings.Replace(written, "| "+first+" |", "| Something else |", 1))
	newer.learn(found(behaviour.Pairs("a")...), "")
	for line := range strings.Lines(newer.text()) {
		if strings.HasPrefix(line, "| "+first+" |") && !strings.HasSuffix(line, "| yes | not asked | not asked | not asked |\n") {
			t.Errorf("the row that is new says %q", line)
		}
	}
	changed := readPage(written)
	other := found(behaviour.Pairs("a")...)
	other.Answers[behaviour.Pair{Client: "a", Server: "a"}][first] = behaviour.No
	changed.learn(other, "")
	if changed.text() == written {
		t.Error("an answer that has changed does not show")
	}
}
