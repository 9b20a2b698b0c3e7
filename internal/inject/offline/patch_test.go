package offline_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/internal/inject"
	"github.com/outrigger-mesh/outrigger/internal/inject/offline"
)

// patchEngine returns the same operations for every pod.
type patchEngine []inject.Operation

func (e patchEngine) Inject(context.Context, inject.Request) inject.Result {
	return inject.Result{Decision: inject.Decision{Outcome: inject.Inject}, Patch: e}
}

func add(path string, value any) inject.Operation {
	return inject.Operation{Op: "add", Path: path, Value: value}
}

func replace(path string, value any) inject.Operation {
	return inject.Operation{Op: "replace", Path: path, Value: value}
}

func remove(path string) inject.Operation { return inject.Operation{Op: "remove", Path: path} }

func move(from, path string) inject.Operation {
	return inject.Operation{Op: "move", From: from, Path: path}
}

// inject1 injects one text and returns it with the error, if any.
func inject1(t testing.TB, engine offline.Engine, text string) (string, error) {
	t.Helper()
	r, err := offline.InjectFiles(t.Context(), engine, []offline.Source{{Name: "in.yaml", Data: []byte(text)}}, offline.Options{})
	if err != nil {
		if len(r.Outputs) > 0 {
			t.Errorf("there is output beside the error %v", err)
		}
		return "", err
	}
	return string(r.Outputs[0].Data), nil
}

const podHead = "apiVersion: v1\nkind: Pod\n"

func TestPatch(t *testing.T) {
	tests := []struct {
		name       string
		pod        string
		operations []inject.Operation
		want       string
	}{
		{
			"what takes another's place stands there",
			"spec:\n  a: 1\n  b: 2\n  c: 3\n",
			[]inject.Operation{add("/spec/d", 4), remove("/spec/a"), remove("/spec/b"), add("/spec/e", 5), add("/spec/f", 6)},
			"spec:\n  d: 4\n  e: 5\n  c: 3\n  f: 6\n",
		},
		{
			"a place whose neighbour goes too",
			"spec:\n  a: 1\n  b: 2\n  c: 3\n",
			[]inject.Operation{remove("/spec/a"), remove("/spec/b"), add("/spec/d", 4)},
			"spec:\n  d: 4\n  c: 3\n",
		},
		{
			"what is added and goes again",
			"spec:\n  a: 1\n  b: 2\n",
			[]inject.Operation{add("/spec/c", 3), remove("/spec/c"), remove("/spec/a"), add("/spec/d", 4)},
			"spec:\n  d: 4\n  b: 2\n",
		},
		{
			"strings stay quoted as they are",
			"spec:\n  a: \"x\"\n  b: 'x'\n  c: x\n  d: \"x\"\n",
			[]inject.Operation{replace("/spec/a", "z"), replace("/spec/b", "z"), replace("/spec/c", "z"), replace("/spec/d", 1)},
			"spec:\n  a: \"z\"\n  b: 'z'\n  c: z\n  d: 1\n",
		},
		{
			"add to the end, by index and by dash",
			"spec:\n  containers:\n  - name: a\n  - name: b\n",
			[]inject.Operation{add("/spec/containers/2", "c"), add("/spec/containers/-", "d")},
			"spec:\n  containers:\n  - name: a\n  - name: b\n  - c\n  - d\n",
		},
		{
			"insert first, before comments of the old first",
			"spec:\n  containers:\n    # about a\n    - name: a\n",
			[]inject.Operation{add("/spec/containers/0", map[string]string{"name": "new"})},
			"spec:\n  containers:\n    - name: new\n    # about a\n    - name: a\n",
		},
		{
			"insert in the middle",
			"spec:\n  c:\n  - a\n\n  # about b\n  - b\n",
			[]inject.Operation{add("/spec/c/1", "x")},
			"spec:\n  c:\n  - a\n  - x\n\n  # about b\n  - b\n",
		},
		{
			"remove the first key behind a dash",
			"spec:\n  c:\n  - name: a\n    # about image\n    image: b\n    x: y\n",
			[]inject.Operation{remove("/spec/c/0/name")},
			"spec:\n  c:\n  - # about image\n    image: b\n    x: y\n",
		},
		{
			"remove takes the comment above along",
			"spec:\n  a: 1\n  # about b\n  b: 2\n  # about c\n  c: 3\n",
			[]inject.Operation{remove("/spec/b")},
			"spec:\n  a: 1\n  # about c\n  c: 3\n",
		},
		{
			"comments belong to what they are indented like",
			"spec:\n  a:\n    b: 1\n    # end of a\n\n  # about c\n  c: 2\n",
			[]inject.Operation{remove("/spec/c"), add("/spec/a/x", 1), add("/spec/d", 1)},
			"spec:\n  a:\n    b: 1\n    x: 1\n    # end of a\n  d: 1\n",
		},
		{
			"what becomes empty is written as empty",
			"metadata:\n  annotations:\n    a: b\nspec:\n  c:\n  - a\n",
			[]inject.Operation{remove("/metadata/annotations/a"), remove("/spec/c/0")},
			"metadata:\n  annotations: {}\nspec:\n  c: []\n",
		},
		{
			"replace keeps comments",
			"spec:\n  # above\n  a: 1 # beside\n  b: {x: 'y'} # beside\n",
			[]inject.Operation{replace("/spec/a", "two"), replace("/spec/b/x", 3)},
			"spec:\n  # above\n  a: two # beside\n  b: {x: 3} # beside\n",
		},
		{
			"add replaces a key that is there",
			"spec:\n  a: null\n  b:\n",
			[]inject.Operation{add("/spec/a", []string{"x"}), add("/spec/b", map[string]int{"z": 1})},
			"spec:\n  a:\n  - x\n  b:\n    z: 1\n",
		},
		{
			"move within a list keeps the text",
			"spec:\n  c:\n  # first\n  - name:   a\n  # second\n  - name:   'b' # b\n    x: 1\n",
			[]inject.Operation{move("/spec/c/1", "/spec/c/0"), add("/spec/c/0/z", true)},
			"spec:\n  c:\n  # second\n  - name:   'b' # b\n    x: 1\n    z: true\n  # first\n  - name:   a\n",
		},
		{
			"move to another list",
			"spec:\n  c:\n  - name: 'a' # mine\n  - b\n  d:\n  - e\n",
			[]inject.Operation{move("/spec/c/0", "/spec/d/0")},
			"spec:\n  c:\n  - b\n  d:\n  - name: 'a' # mine\n  - e\n",
		},
		{
			"escapes in paths, and keys that need quotes",
			"metadata:\n  labels:\n    a/b: c\n    x~y: z\n",
			[]inject.Operation{
				replace("/metadata/labels/a~1b", "1"), remove("/metadata/labels/x~0y"),
				add("/metadata/labels/yes", "on"), add("/metadata/labels/1", "1e3"), add("/metadata/labels/~01", "0x1"),
			},
			"metadata:\n  labels:\n    a/b: \"1\"\n    \"yes\": \"on\"\n    \"1\": \"1e3\"\n    ~1: \"0x1\"\n",
		},
		{
			"lists in lists",
			"spec:\n- - a\n  - b\n-\n  - c\n",
			[]inject.Operation{add("/spec/0/1", "x"), add("/spec/1/0", "z")},
			"spec:\n- - a\n  - x\n  - b\n-\n  - z\n  - c\n",
		},
		{
			"text that looks like what it is not",
			"spec:\n  a: |\n    # no comment\n    - no item\n\n    b: no key\n  b: \"x\n\n    # no comment\n\n    y\"\n  c:\n  - >-\n    f\n\n  - d\n",
			[]inject.Operation{add("/spec/e", 1), add("/spec/c/1", "x")},
			"spec:\n  a: |\n    # no comment\n    - no item\n\n    b: no key\n  b: \"x\n\n    # no comment\n\n    y\"\n  c:\n  - >-\n    f\n  - x\n\n  - d\n  e: 1\n",
		},
		{
			"many lines and long lines",
			"spec: {}\n",
			[]inject.Operation{add("/spec", map[string]string{"a": "x\n y\n", "b": strings.Repeat("word ", 40) + "end", "c": " \n"})},
			"spec:\n  a: |\n    x\n     y\n  b: " + strings.Repeat("word ", 40) + "end\n  c: \" \\n\"\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if !strings.Contains(test.pod, "spec:") {
				test.pod, test.want = test.pod+"spec: {}\n", test.want+"spec: {}\n"
			}
			for _, form := range []struct{ name, head, tail, end string }{
				{"plain", podHead, "", "\n"},
				{"with a tail", podHead, "# tail\n\nstatus: 1\n\n# end\n", "\n"},
				{"CRLF", podHead, "", "\r\n"},
			} {
				lines := func(s string) string { return strings.ReplaceAll(form.head+s+form.tail, "\n", form.end) }
				got, err := inject1(t, patchEngine(test.operations), lines(test.pod))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(lines(test.want), got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", form.name, diff)
				}
			}
		})
	}
}

func TestPatchRefused(t *testing.T) {
	const pod = podHead + "spec:\n  a: [x]\n  b: 1\n"
	tests := []struct {
		name string
		op   inject.Operation
	}{
		{"relative path", add("spec", 1)},
		{"missing parent", add("/spec/none/x", 1)},
		{"through a scalar", add("/spec/b/x", 1)},
		{"index beyond the end", add("/spec/a/2", 1)},
		{"negative index", add("/spec/a/-1", 1)},
		{"remove what is missing", remove("/spec/none")},
		{"remove the dash", remove("/spec/a/-")},
		{"replace what is missing", replace("/spec/none", 1)},
		{"replace the dash", replace("/spec/a/-", 1)},
		{"move what is missing", move("/spec/none", "/spec/c")},
		{"move into itself", move("/spec/a", "/spec/a/0")},
		{"value that is no JSON", add("/spec/c", func() {})},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, text := range []string{pod, `{"apiVersion":"v1","kind":"Pod","spec":{"a":["x"],"b":1}}`} {
				got, err := inject1(t, patchEngine{test.op}, text)
				if err == nil {
					t.Errorf("no error, but\n%s", got)
				} else if !strings.Contains(err.Error(), "in.yaml") || !strings.Contains(err.Error(), "document 1") {
					t.Errorf("error %q names no file and document", err)
				}
			}
		})
	}
}
