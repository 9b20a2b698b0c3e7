package envoy

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/outrigger-mesh/outrigger/internal/catalog"
	"github.com/outrigger-mesh/outrigger/internal/source"
	"github.com/outrigger-mesh/outrigger/internal/source/dir"
)

// FuzzManifests runs the complete path from manifests to Envoy's messages. Nothing may
// panic, and every message must be valid.
func FuzzManifests(f *testing.F) {
	for _, pattern := range []string{"../../samples/bookstore-smi/*.yaml", "../../test/golden/testdata/*.txtar", "../../apis/testdata/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("%s: %v", pattern, err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			// A golden file starts with the manifests.
			content, _, _ = bytes.Cut(content, []byte("-- view.json --"))
			f.Add(content)
		}
	}
	options := dir.Options{
		Mapper: source.MapperOptions{MeshName: "osm", SidecarClass: func(*corev1.Pod) string { return "" }, Resolver: source.NewResolver(source.ConfigOptions{
			Classes: []string{name}, BuiltinImage: func(string, string) string { return "" }, Env: func(string) string { return "" },
		})},
		Sidecar: func(*corev1.Pod, *corev1.Namespace) dir.Sidecar { return dir.Sidecar{Class: name} },
	}
	f.Fuzz(func(t *testing.T, manifests []byte) {
		options := options
		options.Stdin = bytes.NewReader(manifests)
		facts, _, err := dir.Load([]string{"-"}, options)
		if err != nil {
			return
		}
		translator := NewTranslator()
		for _, view := range catalog.Build(facts).Views.All() {
			config := translator.Config(view)
			for _, typeURL := range types {
				for name, r := range config.table(typeURL).All() {
					message, err := r.Message()
					if err != nil {
						t.Fatalf("%s %s of %s: %v", typeURL, name, view.Proxy.Name, err)
					}
					validate(t, typeURL+" "+name, message.ProtoReflect())
				}
			}
		}
	})
}
