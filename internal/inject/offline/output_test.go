package offline_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
)

func TestJoin(t *testing.T) {
	tests := []struct {
		name string
		in   []string
		want string
	}{
		{"none", nil, ""},
		{"one is as it is", []string{"\ufeffa: b"}, "\ufeffa: b"},
		{"YAML", []string{"a: b\n", "c: d\n"}, "a: b\n---\nc: d\n"},
		{"separators are not doubled", []string{"---\na: b\n", "--- # c\nc: d\n"}, "---\na: b\n--- # c\nc: d\n"},
		{"a comment is not a separator", []string{"a: b\n", "# c\n---\nc: d\n"}, "a: b\n---\n# c\n---\nc: d\n"},
		{"missing line ends and byte order marks", []string{"a: b", "\ufeffc: d"}, "a: b\n---\nc: d"},
		{"empty files", []string{"", "a: b\n", "", "c: d\n"}, "a: b\n---\nc: d\n"},
		{"JSON alone stays a stream of JSON", []string{`{"a":1}`, "{\"b\":2}\n{\"c\":3}\n"}, "{\"a\":1}\n{\"b\":2}\n{\"c\":3}\n"},
		{"JSON with YAML is YAML", []string{"{\"a\":1}\n{\"b\":2}\n", "c: d\n"}, "---\n{\"a\":1}\n---\n{\"b\":2}\n---\nc: d\n"},
		{"YAML with JSON", []string{"c: d\n", "{\"a\":1}\n{\"b\":2}\n"}, "c: d\n---\n{\"a\":1}\n---\n{\"b\":2}"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var sources []offline.Source
			for _, text := range test.in {
				sources = append(sources, offline.Source{Name: "in", Data: []byte(text)})
			}
			r := must(t)(offline.InjectFiles(t.Context(), fakeEngine{}, sources, offline.Options{}))
			if diff := cmp.Diff(test.want, string(offline.Join(r.Outputs))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
