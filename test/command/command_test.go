package command

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra/doc"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/test/playground"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"outrigger-lab": Main})
}

// TestScripts runs commands with mistakes that users make.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv(playground.SessionsVariable, filepath.Join(env.WorkDir, "labs"))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
				}
				got := 0
				if err := ts.Exec(args[1], args[2:]...); err != nil {
					exit, ok := errors.AsType[*exec.ExitError](err)
					if !ok {
						ts.Fatalf("%v", err)
					}
					got = exit.ExitCode()
				}
				if strconv.Itoa(got) != args[0] {
					ts.Fatalf("it exits with %d", got)
				}
			},
		},
	})
}

// TestReference checks the pages of the program's own commands in docs/reference; UPDATE=1
// writes them.
func TestReference(t *testing.T) {
	const dir = "../../docs/reference"
	root := NewRootCommand()
	root.DisableAutoGenTag = true
	for _, cmd := range root.Commands() {
		for _, name := range borrowed {
			if cmd.Name() == name {
				root.RemoveCommand(cmd)
			}
		}
	}
	generated := t.TempDir()
	if err := doc.GenMarkdownTree(root, generated); err != nil {
		t.Fatal(err)
	}
	read := func(dir string) map[string]string {
		files, err := filepath.Glob(filepath.Join(dir, "outrigger-lab*.md"))
		if err != nil {
			t.Fatal(err)
		}
		texts := make(map[string]string)
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			texts[filepath.Base(file)] = string(text)
		}
		return texts
	}
	want := read(generated)
	if os.Getenv("UPDATE") != "" {
		for name := range read(dir) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		for name, text := range want {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff(want, read(dir)); diff != "" {
		t.Errorf("%s is out of date; run make generate (-want +got):\n%s", dir, diff)
	}
	if len(want) < 5 || !strings.Contains(want["outrigger-lab_exec.md"], "curl http://web/") {
		t.Errorf("there are only %d pages", len(want))
	}
}
