package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	_ "github.com/outrigger-mesh/outrigger/drivers/standard"
	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"outrigger": func() { os.Exit(Main()) }})
}

// TestInjectScripts runs inject and uninject as users do.
func TestInjectScripts(t *testing.T) { runScripts(t, "testdata/inject") }

// runScripts runs the scripts of a folder. Besides testscript's own commands there is
// "exits CODE PROGRAM ARGS...".
func runScripts(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir:           dir,
		UpdateScripts: os.Getenv("UPDATE") != "",
		Setup: func(env *testscript.Env) error {
			// The scripts must not find a cluster of the user.
			env.Setenv("KUBECONFIG", "none")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
				}
				got := 0
				if err := ts.Exec(args[1], args[2:]...); err != nil {
					exit := (*exec.ExitError)(nil)
					if !errors.As(err, &exit) {
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

// fakeEngine gives every pod a container.
type fakeEngine struct{}

func (fakeEngine) Inject(context.Context, inject.Request) inject.Result {
	return inject.Result{
		Decision: inject.Decision{Outcome: inject.Inject},
		Patch:    []inject.Operation{{Op: "add", Path: "/spec/containers/-", Value: map[string]string{"name": "proxy"}}},
		Added:    []string{"proxy"},
		Warnings: []inject.Warning{{Code: "pod_security", Message: "refused by the level restricted"}},
	}
}

func TestInjectCommand(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: app\n"
	var gotNamespaces map[string]*inject.Namespace
	build := func(_ context.Context, flags *engineFlags, namespaces map[string]*inject.Namespace) (offline.Engine, error) {
		if flags.namespace == "broken" {
			return nil, errors.New("no engine")
		}
		gotNamespaces = namespaces
		return fakeEngine{}, nil
	}
	tests := []struct {
		name           string
		args           []string
		stdin          string
		stdout, stderr string
		err            string
	}{
		{
			name: "documents and report", args: []string{"-f", "-", "-n", "shop"}, stdin: pod + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n",
			stdout: pod + "  - name: proxy\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n",
			stderr: "Pod/shop/a: injected (proxy)\n  warning: pod_security: refused by the level restricted\n1 object: 1 injected\n",
		},
		{
			name: "dry run", args: []string{"-f", "-", "--dry-run"}, stdin: pod,
			stdout: "Pod/default/a: injected (proxy)\n  warning: pod_security: refused by the level restricted\n1 object: 1 injected\n",
		},
		{
			name: "report as JSON", args: []string{"-f", "-", "--report-format", "json"}, stdin: pod,
			stdout: pod + "  - name: proxy\n",
			stderr: `{
  "objects": [
    {
      "file": "<stdin>",
      "document": 1,
      "kind": "Pod",
      "namespace": "default",
      "name": "a",
      "outcome": "inject",
      "reason": "",
      "added": [
        "proxy"
      ],
      "warnings": [
        {
          "code": "pod_security",
          "message": "refused by the level restricted"
        }
      ]
    }
  ],
  "summary": {
    "inject": 1
  }
}
`,
		},
		{
			name: "nothing to do", args: []string{"-f", "-"}, stdin: "",
			stderr: "0 objects\n",
		},
		{name: "no engine", args: []string{"-f", "-", "-n", "broken"}, stdin: pod, err: "no engine"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr strings.Builder
			cmd := newInjectCommand(build)
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(test.args)
			cmd.SetIn(strings.NewReader(test.stdin))
			cmd.SetOut(&stdout)
			cmd.SetErr(&stderr)
			got := ""
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				got = err.Error()
			}
			want := [3]string{test.stdout, test.stderr, test.err}
			if diff := cmp.Diff(want, [3]string{stdout.String(), stderr.String(), got}); diff != "" {
				t.Errorf("stdout, stderr, error (-want +got):\n%s", diff)
			}
		})
	}
	if gotNamespaces == nil {
		t.Error("the engine did not receive the namespaces")
	}
}

func TestInjectCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr strings.Builder
	cmd := newInjectCommand(func(context.Context, *engineFlags, map[string]*inject.Namespace) (offline.Engine, error) {
		return fakeEngine{}, nil
	})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs([]string{"-f", "-"})
	cmd.SetIn(strings.NewReader("apiVersion: v1\nkind: Pod\nspec: {containers: []}\n"))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	if err := cmd.ExecuteContext(ctx); !errors.Is(err, context.Canceled) || stdout.Len() > 0 {
		t.Errorf("error %v, stdout %q", err, stdout.String())
	}
}
