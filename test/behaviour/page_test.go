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
	"github.com/outrigger-mesh/outrigger/test/behaviour"
)

var pageFile = filepath.Join("..", "..", "docs", "behaviour.md")

const intro = `# What the mesh does

Each row is a test. It runs on a lab of network namespaces with the real controller,
the real agent and real proxies, and sends requests. ` + "`go test ./test/behaviour`" + `
runs the table and checks this page, which ` + "`UPDATE=1`" + ` writes.

Each column is a pair: the client's class, then the server's. "no" means that
a driver does not declare a needed feature, so the row was not tested: objects that
require it get a Problem in their status, and nothing fails open.
"not asked" is a row that is newer than the last run with that proxy. A column whose proxy is not on the
machine, or is a version that [lacks a feature](drivers.md#which-versions-work) of its class, keeps its last results. [smi.md](smi.md) lists the rows that answer the tests of
SMI and Open Service Mesh. The last runs are:

| class | version | last run |
|---|---|---|
`

// page is the content of docs/behaviour.md.
type page struct {
	classes map[string]run
	// answers are by pair, as in the column header, and by row.
	answers map[string]map[string]string
}

// run is the last run with a class.
type run struct{ version, date string }

// readPage reads the tables of a former run's page, and ignores everything else.
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

// learn adds the results of a run, without those of versions that lack features of their class. It
// updates the date and the versions only if the page is written; otherwise the page would differ
// on another day.
func (p page) learn(result behaviour.Result, date string) {
	lacks := func(class string) bool {
		known := sidecar.Releases(class)
		return known != nil && len(known.LackedBy(result.Versions[class])) > 0
	}
	for pair, answers := range result.Answers {
		if lacks(pair.Client) || lacks(pair.Server) {
			continue
		}
		p.answers[pair.String()] = nil
		for row, answer := range answers {
			p.set(pair.String(), row, string(answer))
		}
	}
	if date == "" {
		return
	}
	for class, version := range result.Versions {
		if lacks(class) {
			continue
		}
		p.classes[class] = run{cmp.Or(strings.TrimPrefix(version, class+" "), ask(class), "unknown"), date}
	}
}

// ask returns the version that a proxy's program prints, or "", for proxies that do not
// report it to the controller.
func ask(class string) string {
	flag := map[string]string{"haproxy": "-v", "pipy": "--version"}[class]
	registered, err := sidecar.Capabilities(class)
	if flag == "" || err != nil || registered.Finder == nil {
		return ""
	}
	program, err := registered.Finder.FindProxy()
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// The exit status does not matter.
	printed, _ := exec.CommandContext(ctx, program, flag).CombinedOutput()
	if found := regexp.MustCompile(`(?i)version[ :]+([0-9]+\.[0-9]+\.[0-9]+)`).FindSubmatch(printed); found != nil {
		return string(found[1])
	}
	return ""
}

// text returns the page with the current rows of the table.
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

// checkPage compares the page with the results, or writes it with UPDATE=1.
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
		t.Errorf("docs/behaviour.md differs from the results of this run; run UPDATE=1 go test ./test/behaviour\n%s", gocmp.Diff(string(is), p.text()))
	}
}

// TestPageHolds needs no proxy: reading and writing the page must not change it.
func TestPageHolds(t *testing.T) {
	is, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(is), readPage(string(is)).text()); diff != "" {
		t.Errorf("docs/behaviour.md is outdated; run UPDATE=1 go test ./test/behaviour\n%s", diff)
	}
}

// TestSMIPage compares the rows that docs/smi.md names with the table.
func TestSMIPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "smi.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, c := range behaviour.Chapters() {
		for _, r := range c.Rows {
			rows[r.Name] = true
		}
	}
	named := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 2 || strings.TrimSpace(cells[1]) == "row" || strings.HasPrefix(cells[1], "none: ") {
			continue
		}
		for name := range strings.SplitSeq(cells[1], "; ") {
			named++
			if name = strings.TrimSpace(name); !rows[name] {
				t.Errorf("docs/smi.md names the row %q, which the table does not have", name)
			}
		}
	}
	if named == 0 {
		t.Error("found no row: the test is broken")
	}
}

// TestPage has a missing proxy, whose column is from a former run and lacks a new row.
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
			t.Errorf("the new row is %q", line)
		}
	}
	changed := readPage(written)
	other := found(behaviour.Pairs("a")...)
	other.Answers[behaviour.Pair{Client: "a", Server: "a"}][first] = behaviour.No
	changed.learn(other, "")
	if changed.text() == written {
		t.Error("a changed answer is missing")
	}
}
