package apps

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const pageFile = "../../docs/applications.md"

const intro = `# Real applications

These servers and their usual clients run through the sidecars of each pair of classes, and without
a mesh. ` + "`make apps`" + ` runs all of them, checks that the clients get the same, and checks this page, which
` + "`make apps UPDATE=1`" + ` writes. The programs are those of Debian 12.

Each server has a client that keeps a connection while the configuration of all sidecars changes and
their certificates are renewed, and one whose server's pod ends. The first must not notice, and the
second must be told.

## What to set

The protocol is the ` + "`appProtocol`" + ` of the Service's port. A port without it, and without a name
that begins with a protocol, is HTTP: see [Traffic](traffic.md#what-a-port-speaks).

| application | ports and protocols | what to know |
|---|---|---|
`

const middle = `
## What was tried

"yes" means that the clients got the same as without a mesh, and "not" what they did not get, for
the reason below. Pairs that were not tried were not among those of the last run.

`

// pageText returns the page with the answers by application and pair.
func pageText(answer func(application, pair) string) string {
	var out strings.Builder
	out.WriteString(intro)
	for _, a := range applications {
		var ports []string
		for _, p := range a.ports {
			ports = append(ports, fmt.Sprintf("%s `%s`", p, p.appProtocol))
		}
		fmt.Fprintf(&out, "| %s | %s | %s |\n", a.program, strings.Join(ports, "<br>"), a.advice)
	}
	out.WriteString(middle)
	out.WriteString("| application |")
	for _, p := range allPairs() {
		fmt.Fprintf(&out, " %s |", p)
	}
	fmt.Fprintf(&out, "\n|---|%s\n", strings.Repeat("---|", len(allPairs())))
	for _, a := range applications {
		fmt.Fprintf(&out, "| %s |", a.program)
		for _, p := range allPairs() {
			fmt.Fprintf(&out, " %s |", answer(a, p))
		}
		out.WriteString("\n")
	}
	var differences strings.Builder
	for _, a := range applications {
		for _, class := range slices.Sorted(maps.Keys(a.lacks)) {
			fmt.Fprintf(&differences, "| %s: %s | %s | %s |\n", a.program, session, class, a.lacks[class])
		}
		for _, c := range a.checks {
			for _, class := range slices.Sorted(maps.Keys(c.lacks)) {
				fmt.Fprintf(&differences, "| %s: %s | %s | %s |\n", a.program, c.name, class, c.lacks[class])
			}
		}
	}
	if differences.Len() > 0 {
		out.WriteString("\n| what differs | with | why |\n|---|---|---|\n" + differences.String())
	}
	out.WriteString("\n| application | what its clients do |\n|---|---|\n")
	for _, a := range applications {
		var names []string
		for _, c := range a.checks {
			names = append(names, c.name)
		}
		fmt.Fprintf(&out, "| %s | %s |\n", a.program, strings.Join(names, "; "))
	}
	return out.String()
}

// String returns the port as the page shows it.
func (p port) String() string {
	if p.last > p.number {
		return fmt.Sprintf("%d-%d", p.number, p.last)
	}
	return fmt.Sprint(p.number)
}

const untried = "not tried"

// formerAnswers returns the answers of a page.
func formerAnswers(page string) func(application, pair) string {
	found := map[string][]string{}
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) == len(allPairs())+1 {
			found[strings.TrimSpace(cells[0])] = cells[1:]
		}
	}
	return func(a application, p pair) string {
		if cells := found[a.program]; cells != nil {
			return strings.TrimSpace(cells[slices.Index(allPairs(), p)])
		}
		return untried
	}
}

// checkPage compares the page with the results, which lack what was not tried, or writes it.
func checkPage(t *testing.T, found results) {
	t.Helper()
	former, err := os.ReadFile(pageFile)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	before := formerAnswers(string(former))
	text := pageText(func(a application, p pair) string {
		differs, tried := found[a.name][p]
		switch {
		case !tried:
			return before(a, p)
		case len(differs) > 0:
			return "not: " + strings.Join(differs, "; ")
		}
		return "yes"
	})
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(pageFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(former), text); diff != "" {
		t.Errorf("docs/applications.md is out of date; write it with 'make apps UPDATE=1':\n%s", diff)
	}
}

// TestPage compares what the page says about each application with the table.
func TestPage(t *testing.T) { checkPage(t, nil) }

// TestFormerAnswers reads the answers of a page again.
func TestFormerAnswers(t *testing.T) {
	written := pageText(func(a application, p pair) string {
		if p.client == "haproxy" && a.name == applications[1].name {
			return untried
		}
		return "yes"
	})
	if diff := cmp.Diff(written, pageText(formerAnswers(written))); diff != "" {
		t.Errorf("read and written again the page differs:\n%s", diff)
	}
}
