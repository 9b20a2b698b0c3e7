package envoy

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// TestGolden compares the resources of each View with the files in testdata, which
// UPDATE=1 writes.
func TestGolden(t *testing.T) {
	for name, f := range views() {
		t.Run(name, func(t *testing.T) {
			files, err := Driver{}.Translate(f.view())
			if err != nil {
				t.Fatal(err)
			}
			var archive txtar.Archive
			for _, file := range files {
				// bootstrap.yaml is the same for every View, and in this directory.
				if file.Name != "bootstrap.yaml" {
					archive.Files = append(archive.Files, txtar.File{Name: file.Name, Data: file.Content})
				}
			}
			got := txtar.Format(&archive)
			golden := filepath.Join("testdata", "outbound-"+name+".txtar")
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v; UPDATE=1 writes it", err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s (-want +got), UPDATE=1 writes it:\n%s", golden, cmp.Diff(string(want), string(got)))
			}
		})
	}
}

// TestValid validates every message, including nested ones.
func TestValid(t *testing.T) {
	for name, f := range views() {
		t.Run(name, func(t *testing.T) {
			config := NewTranslator().Config(f.view())
			for _, typeURL := range types {
				for name, r := range config.table(typeURL).All() {
					if r.Name != name || r.TypeURL != typeURL {
						t.Errorf("%s %q is in the table of %s as %q", r.TypeURL, r.Name, typeURL, name)
					}
					message, err := r.Message()
					if err != nil {
						t.Fatalf("%s %q: %v", typeURL, name, err)
					}
					validate(t, typeURL+" "+name, message.ProtoReflect())
				}
			}
		})
	}
}

// TestCheckOutbound has a real Envoy validate every View.
func TestCheckOutbound(t *testing.T) {
	for name, f := range views() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := check(t, f.view()); err != nil {
				t.Error(err)
			}
		})
	}
}
