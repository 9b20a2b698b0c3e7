package offline_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"golang.org/x/tools/txtar"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
)

// FuzzYAML injects files. Injection must not panic, must preserve the number of documents,
// and must be able to read its output and change nothing in it.
func FuzzYAML(f *testing.F) {
	cases, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range cases {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			f.Add(file.Data)
			for document := range bytes.SplitSeq(file.Data, []byte("\n---\n")) {
				f.Add(document)
			}
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		sources := []offline.Source{{Name: "in.yaml", Data: text}}
		result, err := offline.InjectFiles(t.Context(), fakeEngine{}, sources, offline.Options{})
		if err != nil {
			if len(result.Outputs) > 0 {
				t.Errorf("output beside the error %v", err)
			}
			return
		}
		out := result.Outputs[0].Data
		if result.Count(offline.Injected) == 0 {
			if !bytes.Equal(text, out) {
				t.Errorf("nothing was injected, but %q became %q", text, out)
			}
			return
		}
		if before, after := countDocuments(text), countDocuments(out); before != after {
			t.Errorf("%d documents became %d:\n%q\n%q", before, after, text, out)
		}
		again, err := offline.InjectFiles(t.Context(), fakeEngine{}, sourcesOf(result), offline.Options{})
		if err != nil {
			t.Fatalf("the output cannot be read: %v\n%q\n%q", err, text, out)
		}
		if !bytes.Equal(out, again.Outputs[0].Data) {
			t.Errorf("a second injection changes the file:\n%q\n%q", out, again.Outputs[0].Data)
		}
	})
}

// countDocuments counts documents like the YAML library; -1 if it cannot, as for a
// sequence of JSON values.
func countDocuments(text []byte) int {
	decoder := kyaml.NewDecoder(bytes.NewReader(text))
	for n := 0; ; n++ {
		var node kyaml.Node
		switch err := decoder.Decode(&node); {
		case err != nil && err.Error() == "EOF":
			return n
		case err != nil:
			return -1
		}
	}
}
