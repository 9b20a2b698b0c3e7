package pipy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/driver"
)

const written = "the output is written"

// runScript runs a script beside those of the codebase in a real Pipy. The script has the
// input in the variable input, and leaves its result in the variable output.
func runScript(t *testing.T, script string, input, output any) {
	t.Helper()
	runThreads(t, 1, script+"\nfinish(output)\n", input, output)
}

// runThreads runs a script in that many threads of a real Pipy. The script calls finish
// once with the output.
func runThreads(t *testing.T, threads int, script string, input, output any) {
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
function finish(output) {
  os.writeFile(` + "`${os.env.TEST_DIR}/output.json`" + `, JSON.stringify(output))
  console.log('` + written + `')
  pipy.exit(0)
}
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
	cmd := exec.CommandContext(ctx, program, threadsFlag+strconv.Itoa(threads), "--no-reload", "--no-graph", filepath.Join(dir, "test.js"))
	cmd.Env = append(os.Environ(), "TEST_DIR="+dir)
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for lines := bufio.NewScanner(said); lines.Scan(); fmt.Fprintln(&all, lines.Text()) {
		if strings.HasSuffix(lines.Text(), written) || strings.Contains(lines.Text(), "[ERR]") {
			// Pipy does not always exit after its exit call.
			time.AfterFunc(time.Second, cancel)
		}
	}
	_ = cmd.Wait()
	found, err := os.ReadFile(filepath.Join(dir, "output.json"))
	if err != nil {
		t.Fatalf("%v; the log of Pipy:\n%s", err, all.String())
	}
	if err := json.Unmarshal(found, output); err != nil {
		t.Fatalf("%v in %.300s", err, found)
	}
}
