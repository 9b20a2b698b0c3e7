package monitoring

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// folder is where the chart has the files.
const folder = "../../charts/outrigger/monitoring"

// TestFiles compares the chart's files with the code, and writes them with UPDATE=1.
func TestFiles(t *testing.T) {
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE") != "" {
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var written []string
	for _, e := range entries {
		written = append(written, e.Name())
		text, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(files[e.Name()]), string(text)); diff != "" {
			t.Errorf("%s is out of date; write it with UPDATE=1 go test ./internal/monitoring (-code +file):\n%s", e.Name(), diff)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(files)), written); diff != "" {
		t.Errorf("files (-code +folder):\n%s", diff)
	}
}

// TestDashboards checks what Grafana accepts silently and shows badly.
func TestDashboards(t *testing.T) {
	titles := map[string]bool{}
	for name, d := range Dashboards() {
		if d.UID != "outrigger-"+name || len(d.UID) > 40 {
			t.Errorf("%s has the uid %q", name, d.UID)
		}
		if titles[d.Title] || d.Title == "" || d.Description == "" {
			t.Errorf("%s has the title %q and the description %q", name, d.Title, d.Description)
		}
		titles[d.Title] = true
		checkVariables(t, name, d)
		taken := map[[2]int]string{}
		ids, panels := map[int]bool{}, map[string]bool{}
		for _, p := range d.Panels {
			if ids[p.ID] || p.Title == "" || panels[p.Title] {
				t.Errorf("%s: panel %d %q has no title of its own, or no id", name, p.ID, p.Title)
			}
			ids[p.ID], panels[p.Title] = true, true
			if p.GridPos.X < 0 || p.GridPos.X+p.GridPos.W > gridWidth {
				t.Errorf("%s: panel %q is outside of the grid: %+v", name, p.Title, p.GridPos)
			}
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if taken[at] != "" {
						t.Fatalf("%s: panel %q covers %q", name, p.Title, taken[at])
					}
					taken[at] = p.Title
				}
			}
			if p.Type != "row" {
				checkPanel(t, name, p)
			}
		}
	}
}

func checkPanel(t *testing.T, dashboard string, p *Panel) {
	t.Helper()
	if p.Datasource != prometheus || len(p.Targets) == 0 {
		t.Errorf("%s: panel %q has %d queries, and the data source %v", dashboard, p.Title, len(p.Targets), p.Datasource)
	}
	if p.FieldConfig.Defaults.Unit == "" && len(p.FieldConfig.Overrides) != len(p.Targets) {
		t.Errorf("%s: panel %q has no unit", dashboard, p.Title)
	}
	legends := map[string]bool{}
	for _, target := range p.Targets {
		if target.LegendFormat == "" || legends[target.LegendFormat] {
			t.Errorf("%s: panel %q: query %s has the legend %q", dashboard, p.Title, target.RefID, target.LegendFormat)
		}
		legends[target.LegendFormat] = true
		// A legend can only show labels by which the query adds up.
		for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
			if strings.Contains(target.Expr, " by (") && !regexp.MustCompile(` by \([^)]*\b`+m[1]+`\b`).MatchString(target.Expr) {
				t.Errorf("%s: panel %q: the legend has %s, which is not in the result of %s", dashboard, p.Title, m[1], target.Expr)
			}
		}
		if strings.Contains(target.Expr, "rate(") && !strings.Contains(target.Expr, fromDashboard) {
			t.Errorf("%s: panel %q: a rate without %s depends on the scrape interval: %s", dashboard, p.Title, fromDashboard, target.Expr)
		}
	}
}

// checkVariables checks that queries use exactly the variables of the dashboard.
func checkVariables(t *testing.T, name string, d *Dashboard) {
	t.Helper()
	used := map[string]bool{"datasource": true}
	for _, q := range d.Queries() {
		for _, m := range regexp.MustCompile(`\$([a-z]\w*)`).FindAllStringSubmatch(q.Expr, -1) {
			used[m[1]] = true
		}
	}
	defined := map[string]bool{}
	for _, v := range d.Templating.List {
		defined[v.Name] = true
	}
	if diff := cmp.Diff(defined, used); diff != "" {
		t.Errorf("%s: variables (-defined +used):\n%s", name, diff)
	}
}

// TestAlerts checks the parts of alerts that Prometheus does not.
func TestAlerts(t *testing.T) {
	seen := map[string]bool{}
	for _, group := range Rules() {
		if len(group.Rules) == 0 {
			t.Errorf("%s is empty", group.Name)
		}
		for _, a := range group.Rules {
			if seen[a.Name] || !strings.HasPrefix(a.Name, "Outrigger") {
				t.Errorf("%s is no name of its own", a.Name)
			}
			seen[a.Name] = true
			if a.For == "" || a.Expr == "" {
				t.Errorf("%s: for %q, expression %q", a.Name, a.For, a.Expr)
			}
			if !slices.Contains([]string{critical, warning, info}, a.Labels["severity"]) {
				t.Errorf("%s has the severity %q", a.Name, a.Labels["severity"])
			}
			if !strings.HasSuffix(a.Annotations["summary"], ".") {
				t.Errorf("%s: the summary is no sentence: %q", a.Name, a.Annotations["summary"])
			}
			if strings.Contains(a.Expr, "$") {
				t.Errorf("%s uses a variable of Grafana: %s", a.Name, a.Expr)
			}
		}
	}
}

// TestRunbook checks that the runbook explains every alert, and no other.
func TestRunbook(t *testing.T) {
	page, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for part := range strings.SplitSeq(string(page), "\n## ") {
		for _, section := range strings.Split(part, "\n### ")[1:] {
			// The other sections are about symptoms.
			if name, text, _ := strings.Cut(section, "\n"); strings.HasPrefix(name, "Outrigger") {
				sections[name] = text
			}
		}
	}
	for _, group := range Rules() {
		for _, a := range group.Rules {
			text, found := sections[a.Name]
			delete(sections, a.Name)
			if !found {
				t.Errorf("docs/runbook.md has no heading ### %s", a.Name)
				continue
			}
			for _, part := range []string{"**Meaning.**", "**Effect.**", "**What to do.**"} {
				if !strings.Contains(text, part) {
					t.Errorf("docs/runbook.md, %s: there is no %s", a.Name, part)
				}
			}
			if want := runbook + strings.ToLower(a.Name); a.Annotations["runbook_url"] != want {
				t.Errorf("%s: runbook_url is %s, want %s", a.Name, a.Annotations["runbook_url"], want)
			}
		}
	}
	for name := range sections {
		t.Errorf("docs/runbook.md explains %s, which is no alert", name)
	}
}
