package dir_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzLoad checks that no text makes Load panic or fail, and that a text gives the same facts
// each time.
func FuzzLoad(f *testing.F) {
	samples, err := filepath.Glob(filepath.Join("..", "..", "..", "samples", "bookstore-smi", "*.yaml"))
	if err != nil || len(samples) == 0 {
		f.Fatal(samples, err)
	}
	for _, sample := range samples {
		text, err := os.ReadFile(sample)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	for _, text := range []string{
		"", "---", "{}", "[]", "null", "a: &a [*a]", "{apiVersion: v1, kind: List, items: [null]}", `{"apiVersion":"v1","kind":"PodList","items":[{}]}{`,
		"apiVersion: v1\nkind: Pod\nmetadata: null\n", "\ufeff---\n...\n--- x\n%YAML\n", shop, deployment("a", -1),
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		read := func() result {
			opts := options()
			opts.Stdin = strings.NewReader(text)
			return load(t, opts, "-")
		}
		first, second := read(), read()
		same(t, "facts", first.digests(), second.digests())
		same(t, "problems", first.problems, second.problems)
	})
}
