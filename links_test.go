package outrigger_test

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestLinks checks that every link from a page to a file, or to a heading in it, has a target.
func TestLinks(t *testing.T) {
	pages := make(map[string]string)
	root := os.DirFS(".")
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (name != "." && strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "node_modules" || name == "dist" || name == "bin") {
			return fs.SkipDir
		}
		if path.Ext(name) == ".md" {
			text, err := fs.ReadFile(root, name)
			pages[name] = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	fenced := regexp.MustCompile("(?ms)^```.*?^```$")
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	links := 0
	for name, text := range pages {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			target, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			file := name
			if target != "" {
				file = path.Join(path.Dir(name), target)
			}
			if _, err := fs.Stat(root, file); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
				continue
			}
			if heading != "" && !headings(pages[file])[heading] {
				t.Errorf("%s links to %s: the page has no such heading", name, m[1])
			}
		}
	}
	if links == 0 {
		t.Error("found no links: the test is broken")
	}
}

// headings returns the anchors of a page's headings, as GitHub names them.
func headings(page string) map[string]bool {
	anchors := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		text := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		anchors[strings.ReplaceAll(text, " ", "-")] = true
	}
	return anchors
}
