package pipy

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

// runScript has a real Pipy run a script beside those of the codebase: the script finds
// the input as the variable input, and leaves what it found in the variable output.
func runScript(t *testing.T, script string, input, output any) {
	t.Helper()
	program, err := Driver{}.FindProxy()
	if errors.Is(err, driver.ErrNoProxy) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := map[string]string{"input.json": string(content), "test.js": script + `
os.writeFile(` + "`${os.env.TEST_DIR}/output.json`" + `, JSON.stringify(output))
pipy.exit(0)
`}
	for _, file := range scripts {
		files[file.Name] = file.Text
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--no-reload", "--no-graph", filepath.Join(dir, "test.js"))
	cmd.Env = append(os.Environ(), "TEST_DIR="+dir)
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("Pipy ends with %v:\n%s", err, said)
	}
	found, err := os.ReadFile(filepath.Join(dir, "output.json"))
	if err != nil {
		t.Fatalf("%v; Pipy says:\n%s", err, said)
	}
	if err := json.Unmarshal(found, output); err != nil {
		t.Fatalf("%v in %.300s", err, found)
	}
}
