package manifest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/internal/manifest"
)

// TestSplit checks the content and the first line of each document, and that the parts of all
// documents are the file.
func TestSplit(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"nothing":               {"", nil},
		"a comment":             {"# a\n\n", nil},
		"one document":          {"a: 1\n", []string{`YAML 1 1 "a: 1\n"`}},
		"a byte order mark":     {"\ufeffa: 1", []string{`YAML 1 1 "a: 1"`}},
		"comments first":        {"# a\n\n---\n# b\na: 1\n# c\n", []string{`YAML 1 5 "a: 1\n# c\n"`}},
		"a directive":           {"%YAML 1.1\n---\na: 1\n", []string{`YAML 1 3 "a: 1\n"`}},
		"text after the marker": {"--- a\n--- # none\n---\nb", []string{`YAML 1 1 "a\n"`, `YAML 2 4 "b"`}},
		"an end":                {"a: 1\n...\n# between\n---\nb: 1\n", []string{`YAML 1 1 "a: 1\n"`, `YAML 2 5 "b: 1\n"`}},
		"no marker":             {"---a: 1\n", []string{`YAML 1 1 "---a: 1\n"`}},
		"JSON":                  {"{}\n {\"a\":\n1}\n---\n{}", []string{`JSON 1 1 "{}"`, `JSON 2 2 "{\"a\":\n1}"`, `JSON 3 5 "{}"`}},
		"a YAML flow":           {"{a: 1}\n", []string{`YAML 1 1 "{a: 1}\n"`}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			var joined strings.Builder
			for _, d := range manifest.Split([]byte(tt.text)) {
				fmt.Fprintf(&joined, "%s%s%s", d.Before, d.Text, d.After)
				if d.Format == manifest.None {
					continue
				}
				content, line := d.Content()
				got = append(got, fmt.Sprintf("%s %d %d %q", map[manifest.Format]string{manifest.YAML: "YAML", manifest.JSON: "JSON"}[d.Format], d.Number, line, content))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if joined.String() != tt.text {
				t.Errorf("the parts are %q, want the file %q", joined.String(), tt.text)
			}
		})
	}
}
