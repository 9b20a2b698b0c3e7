package outrigger_test

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// unbounded matches code that creates an HTTP server without limits for its clients.
var unbounded = regexp.MustCompile(`http\.Server\{|new\(http\.Server\)|http\.(ListenAndServe|Serve)(TLS)?\(`)

// oneServer is the file where HTTP servers are made.
const oneServer = "internal/limit/http.go"

// examples are the folders whose servers nobody but a test or a demo reaches.
var examples = []string{"samples/", "test/"}

// TestServersAreBounded checks that every HTTP server is created by a function that limits its
// clients' time, memory and connections.
func TestServersAreBounded(t *testing.T) {
	found := false
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		name = filepath.ToSlash(name)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin" || entry.Name() == "node_modules"):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || beginsWithAny(name, examples):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		at := unbounded.FindIndex(text)
		if name == oneServer {
			found = at != nil
		} else if at != nil {
			t.Errorf("%s:%d makes an HTTP server; use limit.NewServer, which bounds what its clients may take", name, 1+bytes.Count(text[:at[0]], []byte("\n")))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		t.Errorf("%s makes no HTTP server, so this test looks for the wrong thing", oneServer)
	}
}

func beginsWithAny(name string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
