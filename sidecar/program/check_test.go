package program_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/sidecar/driver"
	"github.com/outrigger-mesh/outrigger/sidecar/program"
)

// TestCheck runs a program that compares the file that it gets with a text, and needs an
// identity at the path in the file.
func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "quiet")
	if err := os.WriteFile(path, []byte("#!/bin/sh\ntest -s \"$(cat $1/sub/file)\" || { echo no identity; exit 1; }\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		driver.IdentityDir + "/identity.pem": "",
		driver.RunDir + "/missing":           "no identity",
	} {
		files := []driver.File{{Name: "sub/file", Content: []byte(content)}}
		err := program.Check(t.Context(), mesh.Identity{TrustDomain: "a", Namespace: "b", ServiceAccount: "c"}, files, nil, path, "${MIRROR}")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("with %s the error is %v, want %q", content, err, want)
		}
	}
}
